"""GEMM in double-double arithmetic on a GPU: tuned without a reference; a kernel of doubles alone is found wrong."""

from dataclasses import replace

import numpy as np
import pytest

import mltune
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.measure.build import NvrtcBuilder
from mltune.measure.runner import GpuRunner
from mltune.problem.gemm import GemmProblem, parse_problem
from mltune.records.trial import TrialState

pytestmark = pytest.mark.gpu

# fmt: off
FAST = {
    "BLK_M": 64, "BLK_N": 64, "BLK_K": 16, "DIM_X": 16, "DIM_Y": 16, "DIM_XA": 16, "DIM_XB": 16, "PAD_A": 0, "PAD_B": 0,
    "STAGES": 2, "RENORMALISE": 16, "MIN_BLOCKS": 2, "RASTER_GROUP": 8,
}
# fmt: on
NEARLY = {
    "the low parts of A are lost": ("fused(a.lo, b.hi,", "fused(0, b.hi,"),
    "the errors of products are lost": ("fused(a.hi, b.hi, -product)", "0.0"),
    "the errors of sums are lost": ("plus(sum_error(sum.hi, product, hi), rest)", "rest"),
}


def test_ddgemm_is_tuned(tmp_path):
    result = mltune.tune("ddgemm", size=512, time=8, run=tmp_path / "run", wisdom="none")

    assert result.declaration.verified
    assert result.declaration.reference is None
    assert {record.state for record in result.records} <= {
        TrialState.OK, TrialState.SKIPPED, TrialState.UNSTABLE,
    }  # fmt: skip
    assert (tmp_path / "run" / "winner" / "kernel.cubin").is_file()


def measured(kernel, device, problem, *, check=False):
    with (
        NvrtcBuilder(kernel, problem, device.architecture, cache=None, workers=1) as builder,
        GpuRunner(PlacedKernel(kernel, problem, device), 0) as runner,
    ):
        build = builder.submit(FAST).result()
        assert build.state is TrialState.OK, build.detail
        return runner.verify_winner(FAST, build, ())[problem] if check else runner.submit(FAST, build).result()


@pytest.mark.parametrize("trans", ["NN", "TN"])
def test_a_result_that_is_too_large_for_the_host_is_verified_in_a_sample(device, trans):
    problem = parse_problem("ddgemm", trans=trans, m=3000, n=2001, k=1501)
    checked = measured(load_kernel("gemm_dd"), device, problem, check=True)
    assert checked.state is TrialState.OK, checked.detail
    assert 0 < checked.error < 0.1


@pytest.mark.parametrize("loss", NEARLY)
@pytest.mark.parametrize("check", [False, True])
def test_a_kernel_that_loses_a_part_is_wrong(device, tmp_path, loss, check):
    kernel = load_kernel("gemm_dd")
    right, wrong = NEARLY[loss]
    assert right in kernel.source.text
    kernel = replace(kernel, source=replace(kernel.source, text=kernel.source.text.replace(right, wrong)))

    found = measured(kernel, device, GemmProblem("dd", "N", "T", 2048, 1024, 1024), check=check)

    assert found.state is TrialState.WRONG_RESULT
    assert found.error > 1000


def test_operands_on_the_gpu_are_double_double_numbers():
    cupy = pytest.importorskip("cupy")
    problem = GemmProblem("dd", "N", "N", 300, 200, 100, 1.25, -0.75)
    on_gpu = problem.operands(cupy, 1)
    on_host = {name: buffer.get() for name, buffer in on_gpu.items()}
    assert (on_host["A"].real + on_host["A"].imag == on_host["A"].real).all()
    difference = problem.answer(on_gpu).get() - problem.answer(on_host)
    assert (abs(difference.real + difference.imag) <= 1e-3 * problem.error_bound(on_host)).all()
    assert np.isfinite(difference).all()
