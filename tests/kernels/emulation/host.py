"""Compile a GEMM kernel's CUDA source for the host and launch it on NumPy buffers; runtime.cpp has the checks."""

from __future__ import annotations

import ctypes
import itertools
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from mltune.kernel.bundle import Launch
from mltune.problem.gemm import GemmProblem

HERE = Path(__file__).parent
CHECKS = ["-fsanitize=thread", "-fsanitize=alignment,bounds,shift,integer-divide-by-zero,signed-integer-overflow"]
COMPILER = ["g++", "-std=c++17", "-fPIC", "-fno-gnu-unique"]
COMPILER_EXISTS = shutil.which("g++") is not None

_names = itertools.count()


class EmulationError(Exception):
    """The kernel broke a rule of CUDA or C++; the message says which, and where."""


class _Call(ctypes.Structure):
    """The arguments of a GEMM kernel, as gemm.cpp has them."""

    _fields_ = (
        *((name, ctypes.c_longlong) for name in ("m", "n", "k")),
        ("alpha", ctypes.c_void_p),
        ("A", ctypes.c_void_p),
        ("lda", ctypes.c_longlong),
        ("B", ctypes.c_void_p),
        ("ldb", ctypes.c_longlong),
        ("beta", ctypes.c_void_p),
        ("C", ctypes.c_void_p),
        ("ldc", ctypes.c_longlong),
        ("raster_group", ctypes.c_int),
        ("workspace", ctypes.c_void_p),
    )


def build_runtime(folder: Path) -> Path:
    """Compile the runtime into a folder, once for all kernels, and return its object file."""
    target = folder / "runtime.o"
    _compile([*COMPILER, "-O2", "-c", str(HERE / "runtime.cpp"), "-o", str(target)])
    return target


class HostKernel:
    """One configuration of a GEMM kernel, compiled for the host.

    Parameters
    ----------
    source : Path
        The CUDA source.
    macros : mapping of str to int
        The parameters that are compiled in, and the problem's macros.
    runtime : Path
        What :func:`build_runtime` returned; the library is written beside it.

    Raises
    ------
    EmulationError
        It does not compile.
    """

    def __init__(self, source: Path, macros: Mapping[str, int], runtime: Path) -> None:
        library = runtime.parent / f"kernel-{next(_names)}.so"
        definitions = [f"-D{name}={value}" for name, value in macros.items()]
        definitions.append(f'-DKERNEL_SOURCE="{source}"')
        adapter = str(HERE / "gemm.cpp")
        unit = library.with_suffix(".o")
        _compile([*COMPILER, "-O1", "-w", *CHECKS, *definitions, "-c", adapter, "-o", str(unit)])
        _compile([*COMPILER, "-shared", str(unit), str(runtime), "-o", str(library)])
        self._library = ctypes.CDLL(str(library))
        self._library.emulation_message.restype = ctypes.c_char_p
        unit.unlink()
        library.unlink()

    def launch(
        self,
        problem: GemmProblem,
        operands: dict[str, np.ndarray],
        launch: Launch,
        *,
        most_accesses: int = 10**9,
    ) -> None:
        """Launch the kernel on NumPy operands and a workspace of zeros; C is changed in place.

        Raises
        ------
        EmulationError
            The kernel broke a rule.
        """
        scalars = [np.array(scalar, dtype=problem.dtype) for scalar in (problem.alpha, problem.beta)]
        self._library.emulation_forget_ranges()
        for name, writable in (("A", 0), ("B", 0), ("C", 1)):
            begin, size = _extent(problem, operands, name)
            self._library.emulation_add_range(name.encode(), ctypes.c_void_p(begin), ctypes.c_size_t(size), writable)
        workspace = place(np.zeros(launch.workspace_bytes or 0, dtype=np.uint8), 0)
        self._library.emulation_add_range(
            b"the workspace", ctypes.c_void_p(workspace.ctypes.data), ctypes.c_size_t(workspace.nbytes), 1
        )
        raster_group = launch.arguments[0] if launch.arguments else 0
        call = _Call(
            *(problem.m, problem.n, problem.k, scalars[0].ctypes.data),
            *(operands["A"].ctypes.data, problem.lda, operands["B"].ctypes.data, problem.ldb),
            *(scalars[1].ctypes.data, operands["C"].ctypes.data, problem.ldc, raster_group, workspace.ctypes.data),
        )
        failed = self._library.emulation_launch(
            ctypes.byref(call),
            launch.grid[0],
            launch.block[0],
            ctypes.c_size_t(launch.shared_bytes),
            ctypes.c_longlong(most_accesses),
        )
        if failed:
            raise EmulationError(self._library.emulation_message().decode())


def place(buffer: np.ndarray, offset: int) -> np.ndarray:
    """Copy a flat buffer to an address some elements behind a multiple of 256 bytes."""
    room = np.empty(buffer.nbytes + 512 + offset * buffer.itemsize, dtype=np.uint8)
    start = -room.ctypes.data % 256 + offset * buffer.itemsize
    placed = room[start : start + buffer.nbytes].view(buffer.dtype)
    placed[:] = buffer
    return placed


def _extent(problem: GemmProblem, operands: dict[str, np.ndarray], name: str) -> tuple[int, int]:
    """Return address and size of the memory that a kernel may touch: the last column ends with its last row."""
    rows, columns = dict(zip("ABC", problem.shapes(), strict=True))[name]
    leading = {"A": problem.lda, "B": problem.ldb, "C": problem.ldc}[name]
    elements = leading * (columns - 1) + rows if rows and columns else 0
    return operands[name].ctypes.data, elements * problem.element_bytes


def _compile(command: list[str]) -> None:
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise EmulationError(f"{' '.join(command)} failed:\n{finished.stderr}")
