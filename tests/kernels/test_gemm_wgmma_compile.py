"""Real compiles of kernels/gemm_wgmma: packing takes the place of shifting, and has its loads in flight."""

import re

import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="needs the Python bindings of NVRTC")

from mltune.kernel.reader import load_kernel
from mltune.measure.build import NvrtcBuilder
from mltune.measure.machine_code import disassemble, main_loop
from mltune.problem.gemm import GemmProblem
from mltune.records.trial import TrialState

pytestmark = pytest.mark.system

KERNEL = load_kernel("gemm_wgmma")
TILES = [
    {"BLK_M": 128, "BLK_N": 256, "WG_M": 64, "TEAMS": 1, "STAGES": 4, "CLUSTER": 2},
    {"BLK_M": 64, "BLK_N": 128, "WG_M": 64, "TEAMS": 2, "STAGES": 5, "CLUSTER": 1},
    {"BLK_M": 64, "BLK_N": 64, "WG_M": 64, "TEAMS": 1, "STAGES": 4, "CLUSTER": 1, "SPLIT_K": 4},
]


@pytest.mark.sampled(0, system=1, nightly=3)
@pytest.mark.parametrize("ops", ["TN", "NN", "NT", "TT"])
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: f"{tile['BLK_M']}x{tile['BLK_N']}")
def test_packing_takes_the_place_of_shifting(tile: dict[str, int], ops: str) -> None:
    with NvrtcBuilder(KERNEL, GemmProblem("h", *ops, 511, 513, 515), "sm_90", workers=1) as builder:
        builds = [builder.submit({**KERNEL.space.default, **tile, "PACK": pack}).result(300) for pack in (0, 1)]
    assert [(build.state, build.detail) for build in builds] == [(TrialState.OK, "")] * 2
    assert builds[1].spill_bytes == 0, "as little as shifting, which spills some bytes with some compilers"
    assert builds[0].registers == builds[1].registers
    assert all(build.code_bytes and build.code_bytes < 80_000 for build in builds), "it must compile in about a second"
    texts = [disassemble(build.cubin) for build in builds]
    loops = [main_loop(text) for text in texts]
    assert [loop and loop.arithmetic for loop in loops] == [loops[0] and loops[0].arithmetic] * 2
    assert ["LDGSTS" in text for text in texts] == [True, False]
    accesses = re.findall(r"\b(?:LDG|STG)\.E\.128\b", texts[1])
    threads = 128 * (tile["BLK_M"] // tile["WG_M"] * tile["TEAMS"] + 1)
    held = 3072 // threads
    first = ["LDG.E.128"] * 2 * held + ["STG.E.128"] * held
    assert accesses[: 3 * held] == first, "all loads of a thread come before its stores"


@pytest.mark.parametrize(
    ("precision", "epilogue", "count"),
    [
        ("h", "", 2),
        ("eb", "block_scales", 1),
        *(
            pytest.param(*case, 4, marks=pytest.mark.nightly)
            for case in (("h", ""), ("h", "bias_m+gelu"), ("eb", "scales"), ("eb", "block_scales"))
        ),
        pytest.param("ebf", "scales", 4, marks=pytest.mark.slow),
    ],
)
@pytest.mark.sampled(0, system=1, nightly=99)
def test_sums_stay_in_registers(precision: str, epilogue: str, count: int) -> None:
    """Sums with an index that is not constant would lie in memory, which makes a product half as fast again."""
    ways = [{}, {"SWAP": 1}, {"BLK_M": 256, "BLK_N": 128, "WG_M": 128}, {"BLK_N": 144, "SPLIT_K": 2, "STAGES": 5}]
    if precision != "h":
        ways = [{**way, "BLK_K": 128} for way in ways]
    if precision == "eb":
        ways[:2] = [{**way, "BLK_N": 128} for way in ways[:2]]
    if epilogue == "block_scales":
        ways = [{**way, "SWAP": 1, "PACK": 1, "BLK_N": 128} for way in ways]
    ways = ways[-count:]
    problem = GemmProblem(precision, "T", "N", 4096, 4096, 4096, epilogue=epilogue)
    with NvrtcBuilder(KERNEL, problem, "sm_90", workers=2) as builder:
        futures = [builder.submit({**KERNEL.space.default, **way}) for way in ways]
        builds = [future.result(300) for future in futures]
    assert [build.state for build in builds] == [TrialState.OK] * count
    spilled = [(build.stack_bytes, build.spill_bytes) for build in builds]
    if precision == "eb" and count == 4:  # 256 x 128: a few words beside the sums have no register
        assert spilled.pop(2) <= {"scales": (8, 32), "block_scales": (24, 76)}[epilogue]
    assert spilled == [(0, 0)] * len(spilled)
    assert all(len(re.findall(r"\bSTG\.E\.128\b", disassemble(build.cubin))) >= 1 for build in builds)


@pytest.mark.parametrize(("precision", "types"), [("e45bf", ("E4M3", "E5M2")), ("e54bf", ("E5M2", "E4M3"))])
@pytest.mark.sampled(0, system=1, nightly=99)
def test_the_instruction_has_the_types_of_its_operands(precision: str, types: tuple[str, str]) -> None:
    """Which :attr:`SWAP` exchanges. The emulator does not read the text of the instruction."""
    tile = KERNEL.space.default | {"BLK_M": 64, "BLK_N": 64, "BLK_K": 128, "WG_M": 64}
    with NvrtcBuilder(KERNEL, GemmProblem(precision, "T", "N", 512, 512, 512), "sm_90", workers=1) as builder:
        builds = [builder.submit({**tile, "SWAP": swap}).result(120) for swap in (0, 1)]
    assert [(build.state, build.detail) for build in builds] == [(TrialState.OK, "")] * 2
    found = [set(re.findall(r"\bQGMMA\S*?\.(E\dM\d)\.(E\dM\d)", disassemble(build.cubin))) for build in builds]
    assert found == [{types}, {types[::-1]}]
