"""The examples without a GPU: they run an emulated kernel, compiled from the folder's own kernel.cu."""

from __future__ import annotations

import ctypes
import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from emulation.host import COMPILER, HERE, HostKernel, compile_options
from winners import HALVES, PROBLEMS, a_winner, cuda_include, epilogue_winner, split_k_winner

from mltune.kernel.launch import Launch, TensorMap
from mltune.problem.gemm import GemmProblem
from mltune.results.winner_folder import write_winner

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def precision_of(folder: Path) -> dict[str, int]:
    """Return the macro that the emulator's instructions follow, too."""
    problem = GemmProblem.from_json(json.loads((folder / "winner.json").read_text())["problem"])
    return {"PRECISION": problem.types.number}


def encode(to, kind, rank, address, extents, strides, box, steps, *settings):
    """Stand in for the driver: what a tensor map is made from is its first words."""
    assert (rank, *steps, *settings) == (2, 1, 1, 0, 3, 2, 0)
    words = np.array([address.value, kind, *extents, *strides, *box], dtype=np.uint64)
    ctypes.memmove(to.value, words.ctypes.data, words.nbytes)


def read_map(content: np.ndarray, argument: tuple[int, np.ndarray]) -> TensorMap:
    """Return what an example has encoded."""
    address, kind, inner, lines, stride, width, box = (int(word) for word in content.view("u8")[:7])
    element_bytes = {0: 1, 1: 2, 2: 4}[kind]
    assert (address, width) == (argument[1].ctypes.data, 128 // element_bytes)
    return TensorMap(argument[0], element_bytes, inner, lines, stride // element_bytes, box)


class EmulatedModule:
    """A stand-in for CuPy's module of a cubin: the kernel of kernel.cu, compiled for the host, on NumPy arrays."""

    def __init__(self, path: str, runtime: Path) -> None:
        folder = Path(path).parent
        assert Path(path).read_bytes().startswith(b"\x7fELF")
        self.document = json.loads((folder / "winner.json").read_text())
        self.kernel = HostKernel(folder / "kernel.cu", precision_of(folder), runtime)
        self.launches = 0

    def get_function(self, name: str) -> EmulatedModule:
        assert name == self.document["kernel"]["entry"]
        return self

    def __call__(self, grid, block, arguments, *, shared_mem) -> None:
        assert shared_mem == self.max_dynamic_shared_size_bytes
        types = [argument["type"] for argument in self.document["launch"]["arguments"]]
        of = GemmProblem.from_json(self.document["problem"])
        stored = {"uint16": "bfloat16"} if "b" in of.precision else {}
        maps = [argument for argument in arguments if argument.dtype.kind == "V"]
        arguments = arguments[: len(arguments) - len(maps)]
        assert types[len(arguments) :] == ["CUtensorMap"] * len(maps)
        types = types[: len(arguments)]
        named = [stored.get(value.dtype.name, value.dtype.name) for value in arguments]
        if of.types.is_fp8:
            named[4], named[6] = of.types.operands
        pointers = [
            f"pointer to {name}" if isinstance(value, np.ndarray) else ""
            for name, value in zip(named, arguments, strict=True)
        ]
        assert [pointer or value.dtype.name for pointer, value in zip(pointers, arguments, strict=True)] == types
        m, n, k, alpha, A, lda, B, ldb, beta, C, ldc, *further = arguments
        if of.batch > 1:
            of_batch, further = further[:4], further[4:]
            assert tuple(map(int, of_batch)) == (*of.strides, of.batch)
        operands = {"A": A, "B": B, "C": C}
        for name in of.vectors:
            operands[name], *further = further
        launched = tuple(int(value) for value in further if not isinstance(value, np.ndarray))
        workspace = further[-1] if len(launched) < len(further) else None
        problem = GemmProblem(
            *(of.precision, of.trans_a, of.trans_b, *map(int, (m, n, k)), alpha, beta),
            *map(int, (lda, ldb, ldc)),
            batch=of.batch,
            epilogue=of.epilogue,
        )
        arrays = [(4, A), (6, B), (9, C)][: len(maps)]
        tensor_maps = tuple(read_map(*pair) for pair in zip(maps, arrays, strict=True))
        size = None if workspace is None else workspace.nbytes
        launch = Launch(grid, block, shared_mem, launched, size, tensor_maps)
        self.kernel.launch(problem, operands, launch, workspace)
        self.launches += 1


def emulated_cupy(runtime: Path) -> dict[str, ModuleType]:
    """Return stand-ins for CuPy's modules that run the example with NumPy and the emulator."""
    cupy, cupyx, profiler = (ModuleType(name) for name in ("cupy", "cupyx", "cupyx.profiler"))
    cupy.random, cupy.matmul, cupy.zeros, cupy.exp = np.random, np.matmul, np.zeros, np.exp
    cupy.asarray = lambda array: SimpleNamespace(data=SimpleNamespace(ptr=array.ctypes.data))
    cupy.RawModule = lambda path: EmulatedModule(path, runtime)

    def benchmark(function, arguments, keywords, *, n_repeat):
        function(*arguments, **keywords)
        return SimpleNamespace(gpu_times=np.full((1, n_repeat), 1e-3))

    profiler.benchmark = benchmark
    return {"cupy": cupy, "cupyx": cupyx, "cupyx.profiler": profiler}


WINNERS = {precision: a_winner(problem) for precision, problem in PROBLEMS.items()}
WINNERS |= {precision: split_k_winner(problem) for precision, problem in HALVES.items()}
WINNERS |= {"workspace": split_k_winner(PROBLEMS["d"]), "epilogue": epilogue_winner()}
WINNERS |= {precision: epilogue_winner(precision, "scales+bias_n", 128) for precision in ("eb", "es", "e54s")}


@pytest.mark.parametrize("winner", WINNERS.values(), ids=WINNERS)
@pytest.mark.sampled(1, nightly=99)
def test_the_python_example_runs(tmp_path, runtime, monkeypatch, capsys, winner):
    write_winner(tmp_path / "winner", winner)
    for name, module in emulated_cupy(runtime).items():
        monkeypatch.setitem(sys.modules, name, module)
    load, driver = ctypes.CDLL, SimpleNamespace(cuTensorMapEncodeTiled=encode)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver if name == "libcuda.so.1" else load(name))

    names = runpy.run_path(str(tmp_path / "winner" / "example.py"))

    assert names["kernel"].launches == 2
    assert 0 < names["error"] < names["allowed"] < (0.1 if winner.placed.problem.types.rounding[0] else 1e-2)
    assert capsys.readouterr().out.startswith(f"{winner.placed.problem.flops / 1e-3 / 1e12:.2f} TFLOPS")


def test_the_python_example_tells_a_wrong_kernel(tmp_path, runtime, monkeypatch):
    folder = tmp_path / "winner"
    write_winner(folder, a_winner(PROBLEMS["z"]))
    source = (folder / "kernel.cu").read_text()
    (folder / "kernel.cu").write_text(source.replace("#define CONJ_A 1", "#define CONJ_A 0"))
    for name, module in emulated_cupy(runtime).items():
        monkeypatch.setitem(sys.modules, name, module)

    with pytest.raises(AssertionError, match="differs from CuPy"):
        runpy.run_path(str(folder / "example.py"))


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> Path:
    """Return the object file of a CUDA driver that launches a kernel on the emulator."""
    path = tmp_path_factory.mktemp("driver") / "driver.o"
    options = ["-O1", "-Wall", "-Wextra", "-Werror", f"-I{cuda_include()}"]
    subprocess.run([*COMPILER, *options, "-c", HERE / "driver.cpp", "-o", path], check=True)
    return path


def emulated_driver(folder: Path, driver: Path, runtime: Path) -> None:
    """Build a libcuda.so in a folder that launches the kernel of its kernel.cu on the emulator."""
    compiled = compile_options(folder / "kernel.cu", {**precision_of(folder), "KERNEL_ENTRY": "gemm"})
    kernel = folder / "kernel.o"
    for command in (
        [*COMPILER, *compiled, "-o", kernel],
        [*COMPILER, "-shared", kernel, driver, runtime, "-o", folder / "libcuda.so"],
    ):
        subprocess.run(command, check=True)


def build_example(folder: Path, *options: str) -> None:
    """Compile the C++ example with the command in its comment, this machine's cuda.h and strict warnings."""
    line = (folder / "example.cpp").read_text().splitlines()[1].removeprefix("// ").partition(" && ")[0]
    command = line.replace("-I/usr/local/cuda/include", f"-I{cuda_include()}").split()
    warnings = ["-Wall", "-Wextra", "-Werror"]
    subprocess.run([*command, *warnings, "-L.", f"-Wl,-rpath,{folder}", *options], cwd=folder, check=True)


RUN = ("s", "z", "h", "b", "hs", "dd", "batch", "workspace", "epilogue", "eb", "es")
"""Winners whose C++ examples run: a case of each precision or of the call."""


@pytest.mark.parametrize("name", RUN)
@pytest.mark.sampled(1, nightly=3)
def test_the_cpp_example_runs_and_says_what_fails(tmp_path, driver, runtime, name):
    folder = tmp_path / "winner"
    write_winner(folder, WINNERS[name])
    emulated_driver(folder, driver, runtime)
    build_example(folder)

    def run():
        return subprocess.run(
            [folder / "example"], cwd=folder, capture_output=True, text=True, check=False, timeout=300
        )

    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("TFLOPS; 0 of 1000 elements wrong\n")

    (folder / "kernel.cubin").unlink()
    failed = run()
    assert failed.returncode == 1
    assert "CUDA_ERROR" in failed.stderr


@pytest.mark.parametrize("name", [name for name in WINNERS if name not in RUN])
@pytest.mark.sampled(1, nightly=99)
def test_the_cpp_example_compiles(tmp_path, name):
    write_winner(tmp_path / "winner", WINNERS[name])
    build_example(tmp_path / "winner", "-fsyntax-only")
