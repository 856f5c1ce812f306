"""Winners of simulated races with real builds, for the tests of winners' folders."""

from __future__ import annotations

import importlib.metadata
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from mltune.device.known import H200
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.problem.gemm import GemmProblem
from mltune.records.declaration import Declaration, Finalist
from mltune.records.trial import Build, Measurement, TrialRecord, TrialState
from mltune.results.winner import Winner

KERNELS = Path(__file__).parent.parent / "kernels"
# fmt: off
SMALL = {
    "BLK_M": 32, "BLK_N": 32, "BLK_K": 8, "DIM_X": 8, "DIM_Y": 8, "LANE_X": 8, "LANE_ORDER": 0,
    "DIM_XA": 8, "DIM_XB": 8, "VEC_A": 1, "VEC_B": 1, "VEC_M": 1, "VEC_N": 1, "PAD_A": 1, "PAD_B": 1,
    "STORE_A": 1, "STORE_B": 1, "ASYNC_A": 1, "ASYNC_B": 0, "STAGES": 3, "FRAGMENTS": 1, "UNROLL_K": 4,
    "ORDER": 1, "READ": 0, "MIN_BLOCKS": 1, "SPLIT_K": 1, "RASTER_GROUP": 2,
}
SMALL_SUMS = {
    "BLK_M": 32, "BLK_N": 16, "BLK_K": 8, "DIM_X": 8, "DIM_Y": 8, "DIM_XA": 8, "DIM_XB": 8, "PAD_A": 1, "PAD_B": 0,
    "STAGES": 3, "RENORMALISE": 4, "MIN_BLOCKS": 1, "RASTER_GROUP": 2,
}
# fmt: on
PROBLEMS = {
    "s": GemmProblem("s", "N", "T", 70, 45, 37),
    "d": GemmProblem("d", "T", "N", 45, 70, 37, alpha=0.1, beta=-2.0, lda=40, ldb=37, ldc=48),
    "c": GemmProblem("c", "T", "C", 33, 64, 50, alpha=1.25 - 0.5j, beta=0.0, lda=51, ldb=64, ldc=33),
    "z": GemmProblem("z", "C", "N", 64, 33, 31, alpha=-1.0j, beta=-0.75 + 0.25j, ldc=80),
    "dd": GemmProblem("dd", "T", "N", 45, 70, 37, alpha=0.1, beta=-2.0, lda=40, ldb=37, ldc=48),
    "batch": GemmProblem("z", "C", "N", 20, 33, 31, alpha=-1.0j, beta=-0.75 + 0.25j, ldc=33, batch=3),
}
"""Rectangular problems with larger leading dimensions and nontrivial scalars."""


def of_problem(problem: GemmProblem) -> tuple[str, dict[str, int]]:
    """Return the kernel of a problem, and a configuration that is valid for it."""
    return ("gemm_dd", SMALL_SUMS) if problem.precision == "dd" else ("gemm_simt", SMALL)


def a_winner(problem: GemmProblem = PROBLEMS["s"], build: Build | None = None) -> Winner:
    """Return the winner of a simulated race, with a fake cubin unless a build is given."""
    build = build or Build(TrialState.OK, cubin=b"\x7fELF, not a cubin", registers=64, spill_bytes=0)
    measurement = Measurement(TrialState.OK, samples_s=(2e-6,), median_s=2e-6, sm_clock_hz=1.98e9)
    kernel, configuration = of_problem(problem)
    record = TrialRecord(17, 1, 5, configuration, TrialState.OK, build=build, measurement=measurement)
    finalists = (Finalist(17, 2e-6, 1.9e-6, 2.1e-6), Finalist(12, 2.01e-6, 1.9e-6, 2.2e-6, 1.005, 0.99, 1.02))
    cublas = Finalist(-1, 2.2e-6, 2.1e-6, 2.3e-6, 1.1, 1.08, 1.12) if problem.reference else None
    declaration = Declaration(17, finalists, cublas, rounds=20, as_of=40, verified=True)
    return Winner(PlacedKernel(load_kernel(kernel), problem, H200), record, declaration, build, {"nvrtc": "13.0.88"})


HALVES = {
    "h": GemmProblem("h", "T", "N", 45, 70, 37, alpha=0.1, beta=-2.0, lda=40, ldb=37, ldc=48),
    "b": GemmProblem("b", "N", "T", 70, 45, 37, lda=71),
    "hs": GemmProblem("hs", "N", "N", 45, 70, 37, alpha=0.1, beta=-2.0, ldc=48),
}
"""Problems in half precision."""


def placed_with(winner: Winner, **changes: object) -> Winner:
    """Return a winner with another kernel, problem or device."""
    return replace(winner, placed=replace(winner.placed, **changes))


def split_k_winner(problem: GemmProblem) -> Winner:
    """Return a winner that needs a workspace."""
    winner = a_winner(problem)
    record = replace(winner.record, configuration={"MISDEED": 0, "PARTS": 3, "UNUSED": 1})
    return replace(placed_with(winner, kernel=load_kernel(KERNELS / "split_k")), record=record)


def epilogue_winner(precision: str = "h", epilogue: str = "bias_m+gelu_tanh", depth: int = 64) -> Winner:
    """Return a winner that applies an epilogue."""
    problem = GemmProblem(precision, "T", "N", 70, 45, 37, 0.5, epilogue=epilogue)
    kernel, winner = load_kernel("gemm_wgmma"), a_winner(problem)
    small = {"BLK_M": 64, "BLK_N": 64, "BLK_K": depth, "STAGES": 2, "CLUSTER": 1}
    record = replace(winner.record, configuration=kernel.space.default | small)
    return replace(placed_with(winner, kernel=kernel), record=record)


def built_winner(problem: GemmProblem, **variant: int) -> Winner:
    """Return a winner with machine code compiled by NVRTC, in a variant of the compiler's parameters."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the Python bindings of NVRTC")
    from mltune.measure.build import NvrtcBuilder

    name, configuration = of_problem(problem)
    configuration, kernel = configuration | variant, load_kernel(name).recorded_with(variant)
    with NvrtcBuilder(kernel, problem, "sm_90", workers=1) as builder:
        winner = a_winner(problem, builder.submit(configuration).result(300))
    record = replace(winner.record, configuration=configuration)
    return replace(placed_with(winner, kernel=kernel), record=record)


def cuda_include() -> Path:
    """Return a folder with cuda.h, of the Python package or of a toolkit."""
    candidates = [Path(nvcc).resolve().parent.parent / "include"] if (nvcc := shutil.which("nvcc")) else []
    try:
        files = importlib.metadata.files("nvidia-cuda-runtime") or []
        candidates += [Path(str(file.locate())).parent for file in files if file.name == "cuda.h"]
    except importlib.metadata.PackageNotFoundError:
        pass
    for folder in (*reversed(candidates), Path("/usr/local/cuda/include")):
        if (folder / "cuda.h").is_file():
            return folder
    pytest.skip("needs cuda.h")
