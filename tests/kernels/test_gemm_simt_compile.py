"""Real compiles of kernels/gemm_simt for three architectures agree with the estimates of the bundle."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="needs the Python bindings of NVRTC")

from mltune.device.known import H200
from mltune.kernel.bundle import variables_of
from mltune.kernel.reader import load_kernel
from mltune.measure.build import NvrtcBuilder
from mltune.problem.gemm import CASES, parse_problem
from mltune.records.trial import TrialState

pytestmark = pytest.mark.system

KERNEL = load_kernel("gemm_simt")
A100 = replace(
    H200, compute_capability=(8, 0), sm_count=108, shared_bytes_per_sm=167_936, shared_bytes_per_block=166_912
)
B200 = replace(H200, compute_capability=(10, 0), sm_count=148)

# fmt: off
CLASSIC = {
    "BLK_M": 128, "BLK_N": 128, "BLK_K": 8, "DIM_X": 16, "DIM_Y": 16, "LANE_X": 8, "LANE_ORDER": 0,
    "DIM_XA": 32, "DIM_XB": 32, "VEC_A": 4, "VEC_B": 4, "VEC_M": 4, "VEC_N": 4, "PAD_A": 0, "PAD_B": 0,
    "STORE_A": 1, "STORE_B": 1, "ASYNC_A": 0, "ASYNC_B": 0, "STAGES": 1, "FRAGMENTS": 1, "UNROLL_K": 8,
    "ORDER": 1, "READ": 0, "MIN_BLOCKS": 1, "SPLIT_K": 1, "RASTER_GROUP": 1,
}
SMALL = CLASSIC | {
    "BLK_M": 32, "BLK_N": 32, "BLK_K": 8, "DIM_X": 8, "DIM_Y": 8, "DIM_XA": 8, "DIM_XB": 8,
    "VEC_A": 1, "VEC_B": 1, "VEC_M": 1, "VEC_N": 1, "PAD_A": 1, "PAD_B": 1, "UNROLL_K": 4,
}
# fmt: on
COPIES = {
    "one buffer": {"STAGES": 1},
    "two buffers": {"STAGES": 2},
    "asynchronous": {"STAGES": 3, "ASYNC_A": 1, "ASYNC_B": 1},
    "mixed": {"STAGES": 3, "ASYNC_A": 1, "ASYNC_B": 0},
}
SHAPES = {
    "classic": CLASSIC,
    "two fragment buffers": CLASSIC | {"FRAGMENTS": 2, "ORDER": 3},
    "asynchronous": CLASSIC | COPIES["asynchronous"] | {"BLK_K": 16, "LANE_ORDER": 1, "READ": 1},
    "two blocks": CLASSIC | COPIES["asynchronous"] | {"MIN_BLOCKS": 2},
    "blocks that stay": CLASSIC | COPIES["asynchronous"] | {"MIN_BLOCKS": 2, "SPLIT_K": 0},
    "wide": CLASSIC | {"BLK_N": 256, "DIM_XA": 32, "DIM_XB": 64},
    "small": SMALL,
}


def broken(problem, device, configuration):
    """Return the restrictions that a configuration violates."""
    variables = variables_of(problem, device)
    columns = {name: np.array([value]) for name, value in configuration.items()}
    rules = {rule.text: rule.expression for rule in KERNEL.space.restrictions}
    return [text for text, column in KERNEL.space.evaluate(columns, variables, rules).items() if not column.all()]


@pytest.mark.parametrize(
    ("device", "shapes"),
    [
        (A100, ["asynchronous", "small"]),
        (H200, SHAPES),
        (B200, ["asynchronous", "small"]),
        pytest.param(A100, SHAPES, marks=pytest.mark.slow),
        pytest.param(B200, SHAPES, marks=pytest.mark.slow),
    ],
    ids=["sm_80", "sm_90", "sm_100", "all on sm_80", "all on sm_100"],
)
@pytest.mark.sampled(0, system=1, nightly=99)
def test_registers_and_shared_memory_are_what_the_bundle_says(device, shapes):
    problem = parse_problem("sgemm", trans="NT", m=4096, n=4096, k=4096)
    variables = variables_of(problem, device)
    with NvrtcBuilder(KERNEL, problem, device.architecture) as builder:
        futures = {shape: builder.submit(SHAPES[shape]) for shape in shapes}
        for shape, future in futures.items():
            configuration = SHAPES[shape]
            assert broken(problem, device, configuration) == [], shape
            build = future.result(300)
            assert (build.state, build.detail) == (TrialState.OK, ""), shape
            columns = {name: np.array([value]) for name, value in configuration.items()}
            said = {
                name: column[0]
                for name, column in KERNEL.space.evaluate(columns, variables, KERNEL.resources.estimates).items()
            }
            derived = {name: column[0] for name, column in KERNEL.space.evaluate(columns, variables).items()}
            assert derived["accumulators"] < build.registers <= said["register_cap"], shape
            assert abs(build.registers - said["registers"]) <= 48, shape
            # Registers are spilled only where __launch_bounds__ caps them.
            assert build.spill_bytes == 0 or (build.registers == said["register_cap"] < 255), shape
            assert build.spill_bytes < 256, shape
            # All shared memory is dynamic, sized at launch by the bundle's shared_bytes.
            assert build.shared_bytes == 0, shape
            assert said["shared_bytes"] <= device.shared_bytes_per_block, shape
            assert 1000 < build.code_bytes < 200_000, shape


@pytest.mark.parametrize(("precision", "trans_a", "trans_b"), CASES, ids=["".join(case) for case in CASES])
@pytest.mark.sampled(0, system=1, nightly=3)
def test_every_case_compiles_with_every_way_to_copy(precision, trans_a, trans_b):
    problem = parse_problem(f"{precision}gemm", trans=trans_a + trans_b, m=4096, n=4096, k=4096)
    with NvrtcBuilder(KERNEL, problem, "sm_90") as builder:
        futures = {name: builder.submit(SMALL | copy) for name, copy in COPIES.items()}
        for name, future in futures.items():
            assert broken(problem, H200, SMALL | COPIES[name]) == [], name
            build = future.result(300)
            assert (build.state, build.detail) == (TrialState.OK, ""), name
            assert build.registers <= 255, name
            assert build.spill_bytes == 0, name
            assert build.shared_bytes == 0, name
