"""A library from its description to its folder, on an imaginary GPU whose times follow from sizes."""

import contextlib
import json
import math
import shutil
from typing import ClassVar

import pytest
from imaginary_gpu import ImaginaryBuilder, built, imaginary_runner

import mltune
import mltune.campaign.competition
import mltune.resolve.resolve  # the function that tests exchange is that of the module
from mltune.api import libraries
from mltune.device.known import H200
from mltune.errors import DamagedRunError, LibraryError, RunError, UsageError
from mltune.kernel.reader import load_kernel
from mltune.library.dispatcher import LEARNERS
from mltune.library.folder import read_library
from mltune.measure import build as build_module
from mltune.measure import runner as runner_module
from mltune.records.directory import PROBLEMS
from mltune.resolve import device as devices
from mltune.resolve.device import Target
from mltune.resolve.request import TuneRequest
from mltune.tuning import session as session_module
from mltune.tuning.tuner import tune

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

BUNDLE = """
[kernel]
name = "tiles"
source = "tiles.cu"
entry = "gemm"
problem = "gemm"
precisions = ["s"]

[parameters]
TILE = [16, 32, 64, 128, 256]
VEC = [1, 4]

[restrictions]
"VEC == 1 or lda % VEC == 0" = "rows begin aligned"

[launch]
block = ["TILE", "1", "1"]
grid = ["ceil_div(m, TILE)", "ceil_div(n, TILE)", "1"]
"""
SIZES = [64, 250, 1024, 2001, 4096]


class Builder(ImaginaryBuilder):
    """A builder for an imaginary GPU, on which large tiles are fast for large matrices, and vectors everywhere."""

    workers = 1
    built_at: ClassVar[list] = []

    def __init__(self, kernel, problem, architecture, **options):
        self.problem = problem
        self.speed = (2.0 if problem.m > 1000 else 0.9) if kernel.name == "large" else 1.0

    def submit(self, configuration):
        if "TILE" not in configuration:
            return built(time_s=1e-3 * (1 + 1e-3 * configuration["THREADS"]), noise=0.001)
        Builder.built_at.append(self.problem.m)
        away = abs(math.log2(configuration["TILE"]) - math.log2(self.problem.m) * 2 / 3)
        fails = configuration["TILE"] == 256 or (configuration["TILE"], self.problem.m, self.speed) == (128, 250, 1.0)
        deed = {"deed": "no build"} if fails else {}
        return built(
            time_s=1e-3 / self.speed * (1 + 0.2 * away) * (1.3 if configuration["VEC"] == 1 else 1.0),
            noise=0.001,
            **deed,
        )


@pytest.fixture
def bundle(tmp_path):
    folder = tmp_path / "tiles"
    folder.mkdir()
    (folder / "kernel.toml").write_text(BUNDLE)
    (folder / "tiles.cu").write_text('extern "C" __global__ void gemm() {}')
    return folder


@pytest.fixture
def build(bundle, tmp_path, idle_workers, monkeypatch):
    """Return a function that builds a library; campaigns are carried out in this process, one size after the other."""

    def carry_out(plan, run, **_):
        for task in plan.tasks:
            own = {
                "prior": "none",
                "wisdom": "none",
                "stop": False,
                "skip": False,
                "search": "random",
                "variants": False,
            }
            request = TuneRequest(
                task.problem, task.kernel, Target(cuda=0), trials=8, run=run / PROBLEMS / task.slug, **own
            )
            tune(request)
        return type("Result", (), {"interrupted": False, "directory": run})

    def runner(kernel, problem, *_, **__):
        return imaginary_runner(kernel=kernel, problem=problem, pool=idle_workers.pool)

    monkeypatch.setattr(libraries, "carry_out", carry_out)
    monkeypatch.setattr(runner_module, "_PAUSES_S", ())
    monkeypatch.setattr(runner_module, "GpuRunner", runner)
    monkeypatch.setattr(session_module, "gpu_facts", lambda *_: (H200, "13.0"))
    monkeypatch.setattr(build_module, "NvrtcBuilder", Builder)
    monkeypatch.setattr(build_module, "nvrtc_version", lambda: "13.0")
    monkeypatch.setattr(build_module, "compile_options", lambda architecture: ())
    monkeypatch.setattr(devices, "find_gpus", lambda: ((H200,), ""))
    monkeypatch.setattr(Builder, "built_at", [])

    def start(sizes=SIZES, out="lib", **library):
        asked = {"operation": "sgemm", "trans": "NN", "kernel": [str(bundle)], "trials": 60, "tuned": 3}
        spec = {"library": {**asked, **library}, "sizes": {"shapes": list(sizes)}}
        return mltune.build_library(spec, tmp_path / out, run=tmp_path / "run", progress=None)

    return start


def test_a_library_is_built_from_its_description(build, tmp_path):
    document = build()
    read, shared = read_library(tmp_path / "lib")
    assert read.model_dump() == json.loads((tmp_path / "lib" / "library.json").read_text()) == document
    assert shared
    assert document["name"] == "sgemm_nn"
    assert document["device"] == {"name": H200.name, "compute_capability": [9, 0], "sm_count": 132}
    used = [one["configuration"] for one in document["configurations"]]
    assert not {(128, 1), (256, 1), (256, 4)} & {(one["TILE"], one["VEC"]) for one in used}, "they fail at some size"
    assert any(not one["sizes_must_satisfy"] for one in document["configurations"]), "one is valid at every size"
    report = document["report"]
    assert [one["size"][0] for one in report["sizes"]] == SIZES
    assert report["portfolio"]["least"] > 0.8
    assert report["portfolio"]["mean"] >= report["dispatched"]["mean"]
    assert set(report["held_out"]) == {*LEARNERS}
    assert report["not_timed"] == []
    for size in report["sizes"]:
        chosen = document["configurations"][size["configuration"]]
        assert not chosen["sizes_must_satisfy"] or size["size"][0] % 4 == 0, "it is valid there"


def test_times_that_are_known_are_not_measured_again(build, tmp_path):
    first = build()
    Builder.built_at.clear()
    again = build(out="again")
    assert again["report"] == first["report"]
    assert set(Builder.built_at) == {64}, "only what is chosen is compiled, at one size for all"
    times = json.loads((tmp_path / "run" / libraries.CROSS).read_text())
    assert len(times) == 5


def test_damaged_times_are_refused(build, tmp_path):
    build()
    (tmp_path / "run" / libraries.CROSS).write_text('{"sgemm NN 64": {"x": -1}}')
    with pytest.raises(DamagedRunError, match="holds times by size and candidate"):
        build()


def test_an_interrupted_build_says_how_it_goes_on(build, tmp_path, monkeypatch):
    monkeypatch.setattr(libraries, "interruptible", lambda _: contextlib.nullcontext(lambda: True))
    with pytest.raises(RunError, match=r"the same command with --run .* goes on"):
        build()
    assert not (tmp_path / "lib").exists()


def test_a_size_that_the_operation_does_not_have_is_refused(build):
    with pytest.raises(UsageError):
        build(sizes=[{"rows": 5}, {"rows": 6}])


def test_single_products_and_batches_are_two_libraries(tmp_path):
    shapes = [{"m": 64, "n": 64, "k": 64, "batch": batch} for batch in (1, 8)]
    spec = {"library": {"operation": "sgemm", "kernel": ["gemm_simt"]}, "sizes": {"shapes": shapes}}
    with pytest.raises(UsageError, match="single products and batches have their own"):
        mltune.build_library(spec, tmp_path / "lib")


def test_a_kernel_whose_sizes_are_compiled_in_is_refused(build, tmp_path):
    spec = {"library": {"operation": "stencil"}, "sizes": {"shapes": [{"nx": 512}, {"nx": 1024}]}}
    kernel = load_kernel("stencil")
    if kernel.arrays.problem().size_names:
        pytest.skip("the sizes of this kernel are arguments")
    with pytest.raises(UsageError, match="compiled once for all sizes"):
        mltune.build_library(spec, tmp_path / "lib")


def test_a_folder_of_something_else_is_refused_before_anything_is_tuned(build, tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "notes.txt").write_text("mine")
    with pytest.raises(LibraryError, match="holds something else"):
        build()
    assert not (tmp_path / "run").exists()


def test_a_kernel_of_kind_arrays_is_a_library_of_its_sizes(build, tmp_path):
    spec = {"library": {"operation": "reduction", "trials": 20}, "sizes": {"grid": {"n": [2**20, 2**25, 12345]}}}
    document = mltune.build_library(spec, tmp_path / "lib", run=tmp_path / "run", progress=None)
    assert document["name"] == "reduction"
    assert document["sizes"] == document["extents"] == ["n"]
    assert [(one["name"], one["role"]) for one in document["parameters"]] == [
        ("n", "size"), ("sum", "inout"), ("input", "in"),
    ]  # fmt: skip
    assert document["alignment"] == 16
    header = (tmp_path / "lib" / "reduction.h").read_text()
    assert "int reduction(reduction_library *library, int64_t n, float *sum, const float *input, void" in header


def test_kernels_compete_for_places_in_a_library(build, bundle, tmp_path):
    other = tmp_path / "large"
    shutil.copytree(bundle, other)
    (other / "kernel.toml").write_text(BUNDLE.replace('name = "tiles"', 'name = "large"'))
    document = build(kernel=[str(bundle), str(other)])
    used = {
        one["size"][0]: document["configurations"][one["configuration"]]["kernel"]
        for one in document["report"]["sizes"]
    }
    assert {used[1024], used[2001], used[4096]} == {"large"}
