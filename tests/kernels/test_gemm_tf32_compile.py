"""Real compiles of kernels/gemm_tf32: the tiles that are likely fast do not spill, and the code is small."""

import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="needs the Python bindings of NVRTC")

from mltune.kernel.reader import load_kernel
from mltune.measure.build import NvrtcBuilder
from mltune.measure.machine_code import disassemble, main_loop
from mltune.problem.gemm import GemmProblem
from mltune.records.trial import TrialState

pytestmark = pytest.mark.system

KERNEL = load_kernel("gemm_tf32")
# fmt: off
REAL = {
    "BLK_M": 128, "BLK_N": 128, "BLK_K": 16, "WARP_M": 64, "WARP_N": 32, "MMA_K": 8, "PROMOTE_K": 16, "COPY": 4,
    "VEC_A": 1, "VEC_B": 1, "PAD_A": 8, "PAD_B": 8, "STAGES": 4, "FRAGMENTS": 1, "ORDER": 0, "SPLIT_K": 1,
    "MIN_BLOCKS": 1, "RASTER_GROUP": 8,
}
COMPLEX = REAL | {
    "BLK_N": 64, "BLK_K": 8, "WARP_M": 32, "PROMOTE_K": 8, "COPY": 2, "PAD_A": 4, "PAD_B": 4, "ORDER": 1, "SPLIT_K": 4,
}
# fmt: on


@pytest.mark.parametrize(
    ("precision", "ops", "configuration", "products"),
    [("s", "NT", REAL, 96), ("c", "CN", COMPLEX, 96)],
    ids=["s", "c"],
)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_120", "sm_90"])
@pytest.mark.sampled(0, system=1, nightly=4)
def test_it_compiles_without_spills(architecture, precision, ops, configuration, products):
    problem = GemmProblem(precision, *ops, 512, 512, 2048)
    with NvrtcBuilder(KERNEL, problem, architecture, workers=1) as builder:
        build = builder.submit(configuration).result(300)
    assert (build.state, build.detail) == (TrialState.OK, "")
    assert build.spill_bytes == 0
    assert build.shared_bytes == 0, "all shared memory is dynamic"
    loop = main_loop(disassemble(build.cubin))
    assert loop is not None
    assert loop.counts["HMMA"] == products
    assert build.code_bytes < 60_000, "a configuration must compile in about a second"
