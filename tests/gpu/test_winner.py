"""A winner's folder on a GPU: both examples run, at the speed that was measured."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from winners import HALVES, KERNELS, PROBLEMS, SMALL, cuda_include, of_problem

from mltune.device.facts import Device
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.measure.build import NvrtcBuilder, nvrtc_version
from mltune.measure.runner import GpuRunner
from mltune.problem.gemm import GemmProblem, parse_problem
from mltune.records.declaration import Declaration, Finalist
from mltune.records.trial import TrialRecord, TrialState
from mltune.results.winner import Winner
from mltune.results.winner_folder import write_winner

pytestmark = pytest.mark.gpu

# fmt: off
LARGE = SMALL | {
    "BLK_M": 128, "BLK_N": 128, "DIM_X": 16, "DIM_Y": 16, "DIM_XA": 32, "DIM_XB": 32, "VEC_A": 4, "VEC_B": 4,
    "VEC_M": 4, "VEC_N": 4, "PAD_A": 0, "PAD_B": 0, "ASYNC_B": 1, "STAGES": 6, "BLK_K": 16, "UNROLL_K": 16,
}
# fmt: on
SPLIT = {"MISDEED": 0, "PARTS": 3, "UNUSED": 1}
CASES = {
    "large": (parse_problem("sgemm", trans="NT", m=4096, n=2048, k=1024), LARGE),
    "variant": (
        parse_problem("sgemm", trans="NT", m=4096, n=2048, k=1024),
        LARGE | {"entry_name": 1, "register_usage_level": 8},
    ),
    **{precision: (problem, of_problem(problem)[1]) for precision, problem in PROBLEMS.items()},
    **{precision: (problem, SPLIT) for precision, problem in {**HALVES, "workspace": PROBLEMS["d"]}.items()},
}
"""The first two need more shared memory than a launch gets by default, the last three a workspace."""


@pytest.fixture(scope="module", params=CASES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, device: Device) -> Path:
    """Write the folder of a configuration that is measured on this GPU."""
    problem, configuration = CASES[request.param]
    target = tmp_path_factory.mktemp(request.param) / "winner"
    write_winner(target, measured_winner(problem, configuration, device))
    return target


def measured_winner(problem: GemmProblem, configuration: dict[str, int], device: Device) -> Winner:
    kernel = load_kernel(KERNELS / "split_k" if configuration is SPLIT else of_problem(problem)[0])
    with (
        NvrtcBuilder(kernel, problem, device.architecture, workers=1) as builder,
        GpuRunner(PlacedKernel(kernel, problem, device), 0) as runner,
    ):
        build = builder.submit(configuration).result()
        measured = runner.submit(configuration, build).result()
    assert measured.state in (TrialState.OK, TrialState.UNSTABLE), measured
    record = TrialRecord(0, 0, 0, configuration, TrialState.OK, build=build, measurement=measured)
    finalist = Finalist(0, measured.median_s, min(measured.samples_s), max(measured.samples_s))
    declaration = Declaration(0, (finalist,), as_of=1)
    return Winner(PlacedKernel(kernel, problem, device), record, declaration, build, {"nvrtc": nvrtc_version()})


def check(folder: Path, command: list[str | Path]) -> None:
    """Run an example in its folder; a large problem must run at about the measured speed, with a warm cache."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    tflops = float(re.match(r"([\d.]+) TFLOPS; ", done.stdout)[1])
    measured = json.loads((folder / "winner.json").read_text())["timing"]
    if measured["median_s"] > 1e-4:
        assert 0.8 < tflops / measured["tflops"] < 1.4, (done.stdout, measured)


def test_the_python_example_runs(folder: Path) -> None:
    check(folder, [sys.executable, "example.py"])


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_cpp_example_runs(folder: Path) -> None:
    compiled = ["g++", "-O2", "-std=c++17", "-c", "example.cpp", f"-I{cuda_include()}", "-o", "example.o"]
    subprocess.run(compiled, cwd=folder, check=True)
    for library in ("-lcuda", "-l:libcuda.so.1"):
        linked = subprocess.run(
            ["g++", "example.o", library, "-o", "example"], cwd=folder, capture_output=True, text=True
        )
        if linked.returncode == 0:
            break
    else:
        pytest.skip(f"needs the driver's library where the linker finds it: {linked.stderr}")
    check(folder, [folder / "example"])
