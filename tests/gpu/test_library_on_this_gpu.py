"""A library on a GPU: built there, right at sizes that it has not seen, from C++, CuPy and PyTorch."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from winners import cuda_include

import mltune
from mltune.device.facts import Device
from mltune.errors import LibraryError
from mltune.library.spec import load_spec
from tests.environment import importing

pytestmark = pytest.mark.gpu

SIZES = [(64, 64, 64), (1, 1, 1), (100, 3, 5000), (513, 1025, 77), (64, 64, 8192), (2000, 1000, 1500), (7, 4096, 300)]
ASKED = {"operation": "sgemm", "trans": "NN", "kernel": ["gemm_simt"], "trials": 120, "tuned": 4, "timed": 10}
RANGES = {name: [64, 2048] for name in "mnk"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, device: Device) -> Path:
    """Build a library in a minute."""
    place = tmp_path_factory.mktemp("library")
    spec = {"library": ASKED, "sizes": {"ranges": RANGES}}
    document = mltune.build_library(spec, place / "sgemm_nn", run=place / "run", wisdom="none", progress=None)
    assert document["report"]["portfolio"]["least"] > 0.6
    return place / "sgemm_nn"


@pytest.fixture(scope="module")
def library(folder: Path) -> Any:
    return mltune.load_library(folder)


def matrices(xp: Any, m: int, n: int, k: int, seed: int = 0) -> tuple[Any, Any, Any]:
    rng = xp.random.default_rng(seed)
    a, b = (rng.random(shape, dtype="float32") - 0.5 for shape in ((m, k), (k, n)))
    return a, b, xp.full((m, n), xp.nan, dtype="float32")


def error(a: Any, b: Any, c: Any) -> float:
    """Return the largest error as a share of its bound."""
    a, b = a.astype("float64"), b.astype("float64")
    bound = (a.shape[1] + 3) * 2.0**-24 * (abs(a) @ abs(b))
    return float((abs(c - a @ b) / bound).max())


def test_products_are_right_at_sizes_that_it_has_not_seen_one_after_the_other(library: Any) -> None:
    """The workspace of all is the same, and holds what the one before has left."""
    import cupy

    for repeat in range(3):
        for m, n, k in SIZES:
            a, b, c = matrices(cupy, m, n, k, repeat)
            library.sgemm(a, b, out=c)
            assert error(a, b, c) <= 1, (m, n, k)
            by_columns = cupy.full_like(c, cupy.nan, order="F")
            library.sgemm(cupy.asfortranarray(a), cupy.asfortranarray(b), out=by_columns, alpha=2.0)
            assert error(a, b, by_columns / 2) <= 1, (m, n, k)


def test_every_configuration_is_right(library: Any) -> None:
    """Wherever one runs: sizes are drawn until no further configuration was seen for long."""
    import cupy

    seen, rng = set(), np.random.default_rng(1)
    for _ in range(60):
        m, n, k = (int(size) for size in 2 ** rng.uniform(5, 11.5, 3))
        a, b, c = matrices(cupy, m, n, k)
        library.sgemm(a, b, out=c)
        assert error(a, b, c) <= 1, (m, n, k)
        chosen = library.choice(m=n, n=m, k=k, lda=n, ldb=k, ldc=n)
        seen.add(str(chosen))
    assert len(seen) >= min(2, len(library.document["configurations"]))


def test_streams_and_threads_do_not_disturb_each_other(library: Any) -> None:
    import cupy

    failures: list[object] = []

    def work(seed: int) -> None:
        try:
            with cupy.cuda.Device(0), cupy.cuda.Stream(non_blocking=True) as stream:
                for m, n, k in SIZES * 5:
                    a, b, c = matrices(cupy, m, n, k, seed)
                    library.sgemm(a, b, out=c)
                    stream.synchronize()
                    if not error(a, b, c) <= 1:
                        failures.append((seed, m, n, k))
        except Exception as error_of_thread:
            failures.append(error_of_thread)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert failures == []


def test_calls_are_captured_in_a_graph(library: Any) -> None:
    import cupy

    a, b, c = matrices(cupy, 100, 64, 5000)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        library.sgemm(a, b, out=c)
        stream.begin_capture()
        library.sgemm(a, b, out=c)
        graph = stream.end_capture()
        for seed in range(3):
            a[:], b[:], _ = matrices(cupy, 100, 64, 5000, seed)
            c.fill(cupy.nan)
            graph.launch(stream)
            stream.synchronize()
            assert error(a, b, c) <= 1


def test_tensors_of_pytorch_are_multiplied_on_their_stream(library: Any) -> None:
    torch = pytest.importorskip("torch")
    a, b = (torch.rand(shape, device="cuda") - 0.5 for shape in ((300, 4000), (4000, 200)))
    with torch.cuda.stream(torch.cuda.Stream()):
        out = torch.full((300, 200), float("nan"), device="cuda")
        library.sgemm(a, b, out=out)
        wanted = a.double() @ b.double()
        torch.cuda.synchronize()
    assert float((out - wanted).abs().max()) < 1e-3


PROGRAMS = Path(__file__).parents[2] / "docs" / "programs"


@pytest.fixture(scope="module")
def program(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the command of the program in C++, which needs the folder alone."""
    place = tmp_path_factory.mktemp("cpp")
    folders = [f"-I{folder}", f"-I{cuda_include()}", f"-L{folder}", f"-Wl,-rpath,{folder}"]
    source = str(PROGRAMS / "library.cpp")
    command = ["g++", "-std=c++17", source, *folders, "-lsgemm_nn", "-l:libcuda.so.1", "-pthread", "-o", "it"]
    subprocess.run(command, cwd=place, check=True)
    return [str(place / "it")]


def ran(command: list[str], seconds: float = 300.0) -> tuple[int, str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, env=importing())
    return done.returncode, done.stdout + done.stderr


def test_the_program_in_cpp_is_right(program: list[str]) -> None:
    assert ran(program) == (0, "right\n")


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck", "synccheck"])
def test_compute_sanitizer_finds_nothing_in_the_program(program: list[str], tool: str) -> None:
    if shutil.which("compute-sanitizer") is None:
        pytest.skip("needs compute-sanitizer")
    status, text = ran(["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", *program], 900.0)
    assert status == 0, text


@pytest.mark.parametrize("package", ["cupy", "torch"])
def test_the_programs_in_python_are_right(folder: Path, package: str) -> None:
    pytest.importorskip(package)
    status, text = ran([sys.executable, str(PROGRAMS / f"library_{package}.py"), str(folder)])
    assert status == 0, text
    assert text.splitlines()[-1].endswith("right")


def test_a_thread_that_has_not_used_the_gpu_may_call(library: Any) -> None:
    import cupy

    a, b, c = matrices(cupy, 300, 200, 100)
    cupy.cuda.Device().synchronize()
    failures: list[object] = []

    def work() -> None:
        try:
            library.sgemm(a, b, out=c)
        except Exception as error_of_thread:
            failures.append(error_of_thread)

    threads_of(work)
    assert failures == []
    assert error(a, b, c) <= 1


def test_parameters_of_modules_are_multiplied_without_gradients_alone(library: Any) -> None:
    torch = pytest.importorskip("torch")
    weight = torch.nn.Parameter(torch.rand(64, 64, device="cuda"))
    out = torch.empty(64, 64, device="cuda")
    with pytest.raises(LibraryError, match="requires a gradient"):
        library.sgemm(weight, weight, out=out)
    with torch.no_grad():
        library.sgemm(weight, weight, out=out)
        torch.testing.assert_close(out, weight @ weight, rtol=1e-3, atol=1e-3)
    with pytest.raises(LibraryError, match="requires a gradient"):
        library.sgemm(weight, weight, out=out)


@pytest.mark.filterwarnings("default::DeprecationWarning")  # of torch.compile itself
@pytest.mark.filterwarnings("default:TensorFloat32:UserWarning")
def test_the_operator_has_the_gradients_of_a_product(library: Any) -> None:
    torch = pytest.importorskip("torch")
    operator = library.to_torch_operator()
    a, b = (torch.rand(shape, device="cuda", requires_grad=True) for shape in ((65, 130), (130, 64)))
    for product in (operator, torch.compile(operator, fullgraph=True)):
        found = torch.autograd.grad(product(a, b, 2.0).square().sum(), (a, b))
        right = torch.autograd.grad((2.0 * (a @ b)).square().sum(), (a, b))
        torch.testing.assert_close(found, right, rtol=1e-3, atol=1e-3)


def test_arrays_of_dlpack_alone_are_multiplied(library: Any) -> None:
    import cupy

    class Exchanged:
        def __init__(self, array: Any) -> None:
            self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__

    a, b, c = matrices(cupy, 100, 50, 700)
    library.sgemm(*map(Exchanged, (a, b)), out=Exchanged(c))
    assert error(a, b, c) <= 1


def test_a_tuned_kernel_is_launched_as_cupy_launches_it(tmp_path: Path) -> None:
    """Also on another stream, and by a thread that has not used the GPU."""
    import cupy

    from mltune.problem.kinds import problem_from_name

    problem = problem_from_name("sgemm", trans="NN", size=500)
    tuned = mltune.tune(problem, trials=12, run=tmp_path / "run", wisdom="none", progress=None).compile()
    operands = problem.operands(cupy, 0)
    arguments = tuple(problem.kernel_arguments(operands).values())
    memory = () if tuned.workspace is None else (tuned.workspace,)
    further = (*map(np.int64, tuned.arguments), *memory)
    tuned.function(tuned.grid, tuned.block, (*arguments, *further), shared_mem=tuned.shared_bytes)
    wanted = problem.result(operands["C"]).copy()

    def work() -> None:
        with cupy.cuda.Stream(non_blocking=True) as stream:
            tuned(*arguments)
            stream.synchronize()

    for call in (lambda: tuned(*arguments), work, lambda: threads_of(work)):
        operands["C"].fill(cupy.nan)
        cupy.cuda.Device().synchronize()
        call()
        cupy.testing.assert_allclose(problem.result(operands["C"]), wanted, rtol=1e-4, atol=1e-3)


def threads_of(work: Any) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    ("asked", "ranges"),
    [
        (
            {"operation": "dgemm", "trans": "NT", "kernel": ["gemm_simt", "gemm_mma64"], "time": "60s"},
            {name: [64, 4096] for name in "mnk"},
        ),
        ({"operation": "reduction", "time": "40s"}, {"n": [2**10, 2**26]}),
    ],
    ids=["two kernels", "arrays"],
)
def test_a_building_keeps_its_time(tmp_path: Path, asked: dict[str, Any], ranges: dict[str, list[int]]) -> None:
    begun, time_s = time.perf_counter(), float(asked["time"].removesuffix("s"))
    spec = {"library": asked, "sizes": {"ranges": ranges}}
    document = mltune.build_library(spec, tmp_path / "library", run=tmp_path / "run", wisdom="none", progress=None)
    assert time.perf_counter() - begun <= 1.1 * time_s + 10
    report = document["report"]
    assert 2 <= report["tuned"] <= 60
    assert len(report["sizes"]) >= report["tuned"] + 20
    assert len(report["sizes"]) + len(report["not_timed"]) == len(load_spec(spec).sizes)


def test_a_library_of_arrays_is_right_at_sizes_that_it_has_not_seen(tmp_path: Path) -> None:
    import cupy

    spec = {"library": {"operation": "softmax", "trials": 60, "tuned": 3, "timed": 10}}
    spec["sizes"] = {"ranges": {"rows": [16, 2048], "columns": [64, 2048]}}
    mltune.build_library(spec, tmp_path / "library", run=tmp_path / "run", wisdom="none", progress=None)
    library = mltune.load_library(tmp_path / "library")
    for rows, columns in ((17, 1000), (1, 1), (300, 77), (2048, 2048)):
        given = cupy.random.default_rng(0).standard_normal((rows, columns), dtype="float32").astype("float16")
        arrays = {"input": given, "output": cupy.full_like(given, cupy.nan), "rows": rows, "columns": columns}
        library(*(arrays[name] for name in library.parameters))
        powers = cupy.exp(given.astype("float64") - given.astype("float64").max(axis=1, keepdims=True))
        assert float(abs(arrays["output"] - powers / powers.sum(axis=1, keepdims=True)).max()) < 2e-3
