"""Winners of kind arrays: their document, text and examples, for bundles and for kernels given in Python."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from winners import a_winner, cuda_include, placed_with

from mltune.kernel.bundle import device_variables
from mltune.kernel.expressions import parse
from mltune.kernel.python_kernel import KernelCall, make_kernel
from mltune.kernel.reader import load_kernel
from mltune.problem.array_values import DTYPES, STORAGE
from mltune.problem.arrays import Argument, ArraysProblem
from mltune.problem.kinds import problem_from_json
from mltune.results.winner import Winner, formula, launch_formulas, size_restrictions
from mltune.results.winner_folder import winner_files, write_winner

DATE = "2025-01-01T00:00:00+00:00"
TRANSPOSE = load_kernel("transpose")
SOURCE = "__constant__ float filter[3];\ntemplate <int N> __global__ void add(float* out, const float* in, int n) {}"
EVERY = ArraysProblem(
    "transpose",
    (("rows", 30), ("columns", 70)),
    (
        *(Argument(f"a_{dtype}", dtype, (3, 2), "inout", "normal") for dtype in DTYPES),
        *(Argument(f"s_{dtype}", dtype, value=1) for dtype in DTYPES),
        Argument("low", "int64", value=-(2**63)),
        Argument("high", "uint64", value=2**64 - 1),
        Argument("huge", "float32", value=1e300),
        Argument("counted", "int32", (4,), "in", "arange"),
        Argument("whole", "uint8", (4,), "in", "integers"),
        Argument("filed", "float32", (4,), "in", "/secret/place/values.npy"),
        Argument("filter", "float32", (2, 2), "constant", 2),
    ),
)
"""Arguments of every type."""


def bundle_winner(problem: ArraysProblem | None = None) -> Winner:
    """Return a winner of the kernel of transpositions."""
    winner = a_winner()
    record = replace(winner.record, configuration=dict(TRANSPOSE.space.default))
    problem = problem or TRANSPOSE.arrays.problem({"rows": 100, "columns": 70})
    return replace(placed_with(winner, kernel=TRANSPOSE, problem=problem), record=record)


def python_winner(folder: Path) -> Winner:
    """Return a winner of a template given in Python, with labels, constant and shared memory."""
    call = KernelCall(
        "add<TILE>",
        SOURCE,
        1000,
        [np.zeros(1000, np.float32), np.ones((10, 100), np.float32), np.int32(1000)],
        {"block_size_x": [64, 128], "TILE": [1, 2], "KIND": ["float", "half"], "SHARE": [0.5, 0.25]},
        shared=lambda p: 8 * p["block_size_x"],
        constants={"filter": np.ones(3, np.float32)},
    )
    kernel = make_kernel(call, folder)
    winner = a_winner()
    record = replace(winner.record, configuration={"block_size_x": 128, "TILE": 2, "KIND": 1, "SHARE": 1})
    build = replace(winner.build, entry="_Z3addILi2EEvPfPKfi")
    winner = placed_with(winner, kernel=kernel, problem=kernel.arrays.problem())
    return replace(winner, record=record, build=build)


def document(winner: Winner) -> dict:
    return json.loads(winner_files(winner, DATE)["winner.json"])


def test_the_document_names_arguments_with_type_shape_and_role():
    winner = bundle_winner()
    found = document(winner)

    assert problem_from_json(found["problem"]).to_json() == winner.placed.problem.to_json()
    assert found["launch"]["arguments"] == [
        {"name": "output", "type": "pointer to float32", "shape": [70, 100], "role": "out", "initial": 0},
        {"name": "input", "type": "pointer to float32", "shape": [100, 70], "role": "in", "initial": "uniform"},
        {"name": "rows", "type": "int32", "value": 100},
        {"name": "columns", "type": "int32", "value": 70},
    ]
    assert (found["launch"]["grid"], found["launch"]["block"]) == ([12, 1, 1], [256, 1, 1])
    assert found["launch"]["constants"] == []
    assert found["launch"]["at_other_sizes"]["grid"][0] == "ceil_div(rows, 32) * ceil_div(columns, 32)"
    assert found["verified"]["sizes"][-1] == {"rows": 100, "columns": 70}


def test_a_kernel_given_in_python_has_a_launch_at_its_own_size_only(tmp_path):
    winner = python_winner(tmp_path)
    found, text = document(winner), winner_files(winner, DATE)["README.txt"].decode()

    assert found["kernel"]["function"] == "_Z3addILi2EEvPfPKfi"
    assert found["launch"]["at_other_sizes"] is None
    assert found["launch"]["sizes_must_satisfy"] == {}
    assert (found["launch"]["grid"], found["launch"]["shared_bytes"]) == ([8, 1, 1], 1024)
    assert [one["name"] for one in found["launch"]["constants"]] == ["filter"]
    assert found["configuration"] == {"block_size_x": 128, "TILE": 2, "KIND": "half", "SHARE": 0.25}
    assert "grid (8, 1, 1), block (128, 1, 1), 1024 bytes" in text
    assert "at other sizes as your Python call computes it" in text
    assert str(tmp_path) not in json.dumps(found)


def test_the_source_defines_labels_as_they_are_and_names_the_instance(tmp_path):
    source = winner_files(python_winner(tmp_path), DATE)["kernel.cu"].decode()
    for line in ("#define KIND half", "#define SHARE 0.25", "#define block_size_x 128", "#define kernel_tuner 1"):
        assert f"\n{line}\n" in source
    assert "add<2>" in source.partition(SOURCE)[0]


def test_the_text_says_where_it_was_verified_and_how_fast_it_is():
    winner = bundle_winner()
    text = winner_files(winner, DATE)["README.txt"].decode()
    for words in (
        "transpose 100x70 on",
        "28.00 GB/s, median",
        "rows=259 columns=515",
        "0.6 % of the memory bandwidth",
        "1.100 (1.080 to",
    ):
        assert words in text
    assert "TFLOPS" not in text
    timing = document(winner)["timing"]
    assert (timing["tflops"], timing["gb_per_s"]) == (None, pytest.approx(2 * 4 * 7000 / 2e-6 / 1e9))
    assert timing["share_of_peak"] == pytest.approx(28.0 / 4800, rel=0.01)
    reference = replace(winner.declaration.reference, ratio_low=None, ratio_high=None)
    for changed, words in ((None, "default was not timed"), (reference, "1.100 of the speed of default")):
        declaration = replace(winner.declaration, reference=changed)
        assert words in winner_files(replace(winner, declaration=declaration), DATE)["README.txt"].decode()


def test_formulas_hold_at_other_sizes():
    winner = bundle_winner()
    texts = launch_formulas(winner)
    for rows, columns in ((1, 1), (999, 33), (4096, 8192)):
        sizes = {"rows": rows, "columns": columns}
        launch = TRANSPOSE.launch(winner.record.configuration, device_variables(winner.placed.device) | sizes)
        assert tuple(parse(text).evaluate(sizes) for text in texts["grid"]) == launch.grid
        assert parse(texts["shared_bytes"]).evaluate(sizes) == launch.shared_bytes
    assert size_restrictions(winner) == {}


@pytest.mark.parametrize(
    ("text", "put"),
    [
        ("n * SHARE", "n * 0.25"),
        ("ceil(n * SHARE) if KIND == 'half' else n", "ceil(n * 0.25)"),
        ("n + (2 if KIND != 'half' else 3)", "n + 3"),
        ("n // (4 * SHARE)", "n // 1.0"),
    ],
)
def test_labels_are_put_into_formulas(text, put):
    assert formula(parse(text), {"SHARE": 0.25, "KIND": "half"}, {}) == put


class Recorder:
    """A stand-in for CuPy's module and function that records its launches and constants."""

    def __init__(self, path: str) -> None:
        assert Path(path).read_bytes().startswith(b"\x7fELF")
        self.launches, self.constants, self.max_dynamic_shared_size_bytes = [], {}, 0

    def get_function(self, name: str) -> Recorder:
        self.name = name
        return self

    def get_global(self, name: str) -> str:
        return name

    def __call__(self, grid, block, arguments, *, shared_mem) -> None:
        assert shared_mem == self.max_dynamic_shared_size_bytes
        self.launches.append((grid, block, arguments))


@pytest.fixture
def run_example(monkeypatch, capsys, tmp_path):
    """Return a function that runs the Python example with NumPy in place of CuPy."""

    def run(winner: Winner) -> tuple[Recorder, str]:
        cupy, cupyx, profiler = (ModuleType(name) for name in ("cupy", "cupyx", "cupyx.profiler"))
        recorders = []

        def module(path: str) -> Recorder:
            recorders.append(Recorder(path))
            return recorders[-1]

        def constant(shape, dtype, name):
            recorders[-1].constants[name] = np.zeros(shape, dtype)
            return recorders[-1].constants[name]

        def benchmark(function, arguments, keywords, *, n_repeat):
            function(*arguments, **keywords)
            return SimpleNamespace(gpu_times=np.full((1, n_repeat), 1e-3))

        cupy.random, cupy.full, cupy.arange = np.random, np.full, np.arange
        cupy.RawModule, cupy.ndarray, profiler.benchmark = module, constant, benchmark
        for name, stand_in in {"cupy": cupy, "cupyx": cupyx, "cupyx.profiler": profiler}.items():
            monkeypatch.setitem(sys.modules, name, stand_in)
        write_winner(tmp_path / "winner", winner)
        runpy.run_path(str(tmp_path / "winner" / "example.py"))
        return recorders[0], capsys.readouterr().out

    return run


def test_the_python_example_launches_as_recorded(run_example, tmp_path):
    winner = bundle_winner()
    recorder, printed = run_example(winner)

    (grid, block, (output, given, rows, columns)), again = recorder.launches
    assert (recorder.name, grid, block) == ("transpose", (12, 1, 1), (256, 1, 1))
    assert (grid, block) == again[:2]
    assert (output.shape, output.dtype, given.shape, given.dtype) == ((70, 100), np.float32, (100, 70), np.float32)
    assert not output.any()
    assert -1 <= given.min() < -0.9
    assert (rows, rows.dtype, columns) == (100, np.int32, 70)
    assert printed == "1 ms, 0.056 GB/s\n"


def test_the_python_example_sets_constant_and_shared_memory(run_example, tmp_path):
    recorder, _ = run_example(python_winner(tmp_path))
    assert recorder.name == "_Z3addILi2EEvPfPKfi"
    assert recorder.max_dynamic_shared_size_bytes == 1024
    assert recorder.constants["filter"].shape == (3,)
    assert recorder.constants["filter"].any()


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # of a scalar that is too large for its type
def test_the_python_example_makes_arrays_and_scalars_of_every_type(run_example):
    recorder, _ = run_example(bundle_winner(EVERY))
    arguments = recorder.launches[0][2]
    names = [one.name for one in EVERY.arguments if one.role != "constant"]
    found = dict(zip(names, arguments, strict=True))
    for dtype in DTYPES:
        assert (found[f"a_{dtype}"].dtype, found[f"a_{dtype}"].shape) == (STORAGE[dtype], (3, 2))
        assert found[f"a_{dtype}"].any()
        assert found[f"s_{dtype}"].dtype == STORAGE[dtype]
        assert found[f"s_{dtype}"] == (0x3F80 if dtype == "bfloat16" else 1)
    assert (found["low"], found["high"]) == (-(2**63), 2**64 - 1)
    assert found["counted"].tolist() == [0, 1, 2, 3]
    assert (recorder.constants["filter"] == 2).all()


needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@needs_compiler
@pytest.mark.parametrize("kind", ["bundle", "python", "every type"])
def test_the_cpp_example_runs_on_a_stub_of_the_driver(tmp_path, kind):
    folder = tmp_path / "winner"
    winner = {
        "bundle": bundle_winner,
        "python": lambda: python_winner(tmp_path),
        "every type": lambda: bundle_winner(EVERY),
    }
    write_winner(folder, winner[kind]())
    include, strict = f"-I{cuda_include()}", ["-Wall", "-Wextra", "-Werror"]
    stub = Path(__file__).with_name("driver_stub.cpp")
    command = (folder / "example.cpp").read_text().splitlines()[1].removeprefix("// ").partition(" && ")[0]
    command = command.replace("-I/usr/local/cuda/include", include)
    subprocess.run(
        ["g++", "-std=c++17", "-fPIC", "-shared", *strict, include, str(stub), "-o", str(folder / "libcuda.so")],
        check=True,
    )
    subprocess.run([*command.split(), *strict, "-L.", f"-Wl,-rpath,{folder}"], cwd=folder, check=True)

    done = subprocess.run([folder / "example"], cwd=folder, capture_output=True, text=True, check=False, timeout=300)

    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("0.05 ms\n")
    lines = done.stdout.splitlines()
    if kind == "python":
        expected = [
            "allocated 4000",
            "allocated 4000",
            "constant filter",
            "launch _Z3addILi2EEvPfPKfi 8 1 1, 128 1 1, 1024: 3",
        ]
    elif kind == "bundle":
        expected = ["allocated 28000", "allocated 28000", "launch transpose 12 1 1, 256 1 1, 4224: 4"]
    else:
        sizes = [6 * STORAGE[dtype].itemsize for dtype in DTYPES] + [16, 4, 16]
        expected = [*(f"allocated {size}" for size in sizes), "constant filter"]
    assert lines[: len(expected)] == expected


@pytest.mark.parametrize("name", ["transpose", "reduction", "softmax", "stencil", "convolution_cuda"])
def test_every_built_in_kernel_fills_the_templates(name):
    kernel = load_kernel(name)
    winner = bundle_winner()
    record = replace(winner.record, configuration=dict(kernel.space.default))
    winner = placed_with(winner, kernel=kernel, problem=kernel.arrays.problem())
    files = winner_files(replace(winner, record=record), DATE)
    assert {"README.txt", "example.py", "example.cpp"} < files.keys()
    compile(files["example.py"], "example.py", "exec")
    assert b"$" not in files["README.txt"] + files["example.py"] + files["example.cpp"]
