"""Real compiles of kernels/gemm_dd agree with the estimates of the bundle."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="needs the Python bindings of NVRTC")

from gemm import sample

from mltune.device.known import H200
from mltune.kernel.bundle import variables_of
from mltune.kernel.reader import load_kernel
from mltune.kernel.space import ConstrainedSpace
from mltune.measure.build import NvrtcBuilder
from mltune.problem.gemm import GemmProblem
from mltune.records.trial import TrialState

pytestmark = pytest.mark.system

KERNEL = load_kernel("gemm_dd")
FAST = {
    "BLK_M": 64, "BLK_N": 64, "BLK_K": 16, "DIM_X": 16, "DIM_Y": 16, "DIM_XA": 16, "DIM_XB": 16, "PAD_A": 0, "PAD_B": 0,
    "STAGES": 2, "RENORMALISE": 16, "MIN_BLOCKS": 2, "RASTER_GROUP": 8,
}  # fmt: skip
"""A configuration with 2.36 TFLOPS on an H200, ddgemm NT 2048."""


@pytest.mark.parametrize(
    "case", [("dd", "N", "T"), pytest.param(("dd", "T", "N"), marks=pytest.mark.slow)], ids="".join
)
def test_a_fast_configuration_and_a_sample_compile(case: tuple[str, str, str]) -> None:
    problem = GemmProblem(*case, 2048, 2048, 2048)
    variables = variables_of(problem, H200)
    space = ConstrainedSpace(KERNEL, variables)
    assert space.index_of({name: np.array([value]) for name, value in FAST.items()})[0] >= 0
    configurations = [FAST, *sample(KERNEL, case, 2, seed=1)]
    with NvrtcBuilder(KERNEL, problem, "sm_90", workers=2) as builder:
        for configuration, future in [(one, builder.submit(one)) for one in configurations]:
            build = future.result(300)
            columns = {name: np.array([value]) for name, value in configuration.items()}
            said = {
                name: column[0]
                for name, column in KERNEL.space.evaluate(columns, variables, KERNEL.resources.estimates).items()
            }
            assert (build.state, build.detail) == (TrialState.OK, ""), configuration
            assert build.shared_bytes == 0, configuration  # all shared memory is dynamic
            assert build.registers <= said["register_cap"], configuration
            assert configuration is not FAST or (build.registers <= 128 and build.spill_bytes == 0)
            assert build.spill_bytes == 0 or said["registers"] > said["register_cap"] - 24, configuration
