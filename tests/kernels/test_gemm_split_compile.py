"""Real compiles of kernels/gemm_split: wide tiles do not spill, the main loop has the products, the code is small."""

import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="needs the Python bindings of NVRTC")

from mltune.errors import UsageError
from mltune.kernel.reader import load_kernel
from mltune.measure.build import NvrtcBuilder
from mltune.measure.machine_code import disassemble, main_loop
from mltune.problem.gemm import GemmProblem
from mltune.records.trial import TrialState

pytestmark = pytest.mark.system

KERNEL = load_kernel("gemm_split")
CONFIGURATION = {
    "BLK_M": 128,
    "BLK_N": 64,
    "BLK_K": 32,
    "PROMOTE_K": 64,
    "STAGES": 4,
    "CLUSTER": 1,
    "LOADS": 4,
    "PRODUCER_REGISTERS": 24,
    "RASTER_GROUP": 8,
}


@pytest.mark.parametrize(
    ("precision", "op_a", "op_b", "width", "products"), [("s", "N", "T", 192, 6), ("c", "C", "N", 96, 24)]
)
@pytest.mark.sampled(0, system=1, nightly=99)
def test_it_compiles_for_hopper(precision: str, op_a: str, op_b: str, width: int, products: int) -> None:
    with NvrtcBuilder(KERNEL, GemmProblem(precision, op_a, op_b, 512, 512, 512), "sm_90", workers=1) as builder:
        build = builder.submit(CONFIGURATION | {"BLK_N": width}).result(300)
    assert (build.state, build.detail) == (TrialState.OK, "")
    assert build.spill_bytes == 0
    loop = main_loop(disassemble(build.cubin))
    assert loop is not None
    assert loop.arithmetic - loop.counts.get("FFMA", 0) == products
    assert build.code_bytes is not None
    assert build.code_bytes < 80_000, "a configuration must compile in about a second"


def test_another_architecture_is_refused() -> None:
    with pytest.raises(UsageError, match="gemm_split is for sm_90a alone, but the device is sm_100"):
        NvrtcBuilder(KERNEL, GemmProblem("s", "N", "N", 64, 64, 64), "sm_100", workers=1)
