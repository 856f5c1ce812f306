"""Compile a kernel's CUDA source for the host and launch it; runtime.cpp has the checks. GEMMs run on NumPy buffers."""

from __future__ import annotations

import ctypes
import itertools
import shutil
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from mltune.kernel.launch import Launch, TensorMap
from mltune.problem.gemm import GemmProblem

HERE = Path(__file__).parent
CHECKS = ["-fsanitize=thread", "-fsanitize=alignment,bounds,shift,integer-divide-by-zero,signed-integer-overflow"]
COMPILER = ["g++", "-std=c++17", "-fPIC", "-fno-gnu-unique"]
COMPILER_EXISTS = shutil.which("g++") is not None

_names = itertools.count()


class EmulationError(Exception):
    """The kernel broke a rule of CUDA or C++; the message says which, and where."""


def build_runtime(folder: Path) -> Path:
    """Compile the runtime into a folder, once for all kernels, and return its object file."""
    target = folder / "runtime.o"
    _compile([*COMPILER, "-O2", "-c", str(HERE / "runtime.cpp"), "-o", str(target)])
    return target


class HostLibrary:
    """A kernel compiled for the host, with the runtime that checks it.

    Parameters
    ----------
    source : Path
        The CUDA source.
    macros : mapping of str to int or str
        Macros of the compilation; ``KERNEL_ENTRY`` is the name of the kernel (see kernel.cpp).
    runtime : Path
        What :func:`build_runtime` returned; the library is written beside it.

    Raises
    ------
    EmulationError
        It does not compile.
    """

    def __init__(self, source: Path, macros: Mapping[str, int | str], runtime: Path) -> None:
        path = runtime.parent / f"kernel-{next(_names)}.so"
        unit = path.with_suffix(".o")
        _compile([*COMPILER, *compile_options(source, macros), "-o", str(unit)])
        _compile([*COMPILER, "-shared", str(unit), str(runtime), "-o", str(path)])
        self.library = ctypes.CDLL(str(path))
        self.library.emulation_message.restype = ctypes.c_char_p
        self.symbols = _data_symbols(unit)
        self._texts: dict[str, bytes] = {}  # names of ranges, which the runtime keeps pointers to
        unit.unlink()
        path.unlink()

    def address(self, name: str) -> int:
        """Return the address of a variable of the kernel."""
        return ctypes.addressof(ctypes.c_char.in_dll(self.library, name))

    def add_range(self, name: str, address: int, size: int, *, writable: bool) -> None:
        """Let the kernel access a range of global memory."""
        text = self._texts.setdefault(name, name.encode())
        self.library.emulation_add_range(text, ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_int(writable))

    def run(
        self, arguments: Sequence[np.ndarray], launch: Launch, *, reference: bool = False, most_accesses: int = 10**9
    ) -> None:
        """Launch the kernel or its reference; each argument is a value, or an address, in an array without dimensions.

        Raises
        ------
        EmulationError
            The kernel broke a rule.
        """
        failed = self.library.emulation_launch(
            ctypes.c_bool(reference),
            (ctypes.c_void_p * len(arguments))(*(argument.ctypes.data for argument in arguments)),
            *((ctypes.c_uint * 3)(*shape) for shape in (launch.grid, launch.block)),
            ctypes.c_size_t(launch.shared_bytes),
            ctypes.c_longlong(most_accesses),
        )
        if failed:
            raise EmulationError(self.library.emulation_message().decode())


class HostKernel(HostLibrary):
    """One configuration of a GEMM kernel: a :class:`HostLibrary` whose macros are the parameters and the problem's."""

    def __init__(self, source: Path, macros: Mapping[str, int], runtime: Path) -> None:
        super().__init__(source, {**macros, "KERNEL_ENTRY": "gemm"}, runtime)

    def launch(
        self,
        problem: GemmProblem,
        operands: dict[str, np.ndarray],
        launch: Launch,
        workspace: np.ndarray | None = None,
        *,
        most_accesses: int = 10**9,
    ) -> None:
        """Launch the kernel on NumPy operands; C is changed in place.

        The workspace is zero unless one is given, as an earlier launch has left it.

        Raises
        ------
        EmulationError
            The kernel broke a rule.
        """
        self.library.emulation_forget_ranges()
        for name in operands:
            self.add_range(name, *_extent(problem, operands, name), writable=name == "C")
        addresses = {name: np.uint64(operand.ctypes.data) for name, operand in operands.items()}
        arguments = [*problem.kernel_arguments(addresses).values(), *map(np.int32, launch.arguments)]
        if launch.workspace_bytes is not None:
            workspace = empty_workspace(launch) if workspace is None else workspace
            self.add_range("the workspace", workspace.ctypes.data, launch.workspace_bytes, writable=True)
            arguments.append(np.uint64(workspace.ctypes.data))
        maps = [emulated_map(matrix, int(arguments[matrix.place])) for matrix in launch.tensor_maps]
        self.run([*map(np.array, arguments), *maps], launch, most_accesses=most_accesses)


def compile_options(source: Path, macros: Mapping[str, int | str]) -> list[str]:
    """Return the options that compile a kernel for the emulator, all but the name of the object file."""
    definitions = [f"-D{name}={value}" for name, value in macros.items()]
    return ["-O1", "-w", *CHECKS, *definitions, f'-DKERNEL_SOURCE="{source}"', "-c", str(HERE / "kernel.cpp")]


def emulated_map(matrix: TensorMap, address: int) -> np.ndarray:
    """Return a tensor map as the emulator has it, zeros where the driver makes none."""
    _, element_bytes, inner, lines, stride, box = matrix
    words = (address, element_bytes, inner, lines, stride, box, 1, 0)
    is_possible = address % 16 == stride * element_bytes % 16 == 0 and inner > 0 and lines > 0
    content = struct.pack("<Qi4xqqqi4xqq", *words).ljust(128, b"\0") if is_possible else bytes(128)
    return place(np.frombuffer(content, np.uint8), 0)


def empty_workspace(launch: Launch) -> np.ndarray:
    """Return a workspace as it is before the first launch; empty for a kernel without one."""
    return place(np.zeros(launch.workspace_bytes or 0, dtype=np.uint8), 0)


def place(buffer: np.ndarray, offset: int) -> np.ndarray:
    """Copy a flat buffer to an address some elements behind a multiple of 256 bytes."""
    room = np.empty(buffer.nbytes + 512 + offset * buffer.itemsize, dtype=np.uint8)
    start = -room.ctypes.data % 256 + offset * buffer.itemsize
    placed = room[start : start + buffer.nbytes].view(buffer.dtype)
    placed[:] = buffer
    return placed


def _extent(problem: GemmProblem, operands: dict[str, np.ndarray], name: str) -> tuple[int, int]:
    """Return address and size of the memory that a kernel may touch: the last column ends with its last row."""
    if name in problem.vectors:
        return operands[name].ctypes.data, problem.vectors[name][1] * operands[name].itemsize
    rows, columns = dict(zip("ABC", problem.shapes(), strict=True))[name]
    columns *= problem.batch
    leading = {"A": problem.lda, "B": problem.ldb, "C": problem.ldc}[name]
    elements = leading * (columns - 1) + rows if rows and columns else 0
    return operands[name].ctypes.data, elements * operands[name].itemsize


def _data_symbols(unit: Path) -> dict[str, int]:
    """Return the variables of a compiled unit with their sizes: its device and constant memory."""
    listed = subprocess.run(["nm", "-S", "--defined-only", str(unit)], capture_output=True, text=True, check=True)
    rows = [line.split() for line in listed.stdout.splitlines()]
    return {row[3]: int(row[1], 16) for row in rows if len(row) == 4 and row[2] in "BDC"}


def _compile(command: list[str]) -> None:
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise EmulationError(f"{' '.join(command)} failed:\n{finished.stderr}")
