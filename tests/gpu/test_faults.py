"""Every failure of a kernel becomes the state of its trial, and the next kernel is measured as usual."""

import time

import pytest

from mltune.errors import WorkerError
from mltune.kernel.placed import PlacedKernel
from mltune.measure.build import NvrtcBuilder
from mltune.measure.runner import GpuRunner
from mltune.problem.gemm import parse_problem
from mltune.records.trial import TrialState

pytestmark = pytest.mark.gpu

FAULTS = {
    "never ends": (1, TrialState.TIMEOUT, "no answer within"),
    "writes far outside": (2, TrialState.CRASHED, "illegaladdress"),
    "traps": (3, TrialState.CRASHED, ""),
    "too much shared memory": (4, TrialState.LAUNCH_ERROR, "shared memory"),
    "forgets the last step of k": (5, TrialState.WRONG_RESULT, "values wrong"),
    "one NaN": (6, TrialState.WRONG_RESULT, "1 of 113977 values wrong"),
    "writes just behind C": (7, TrialState.WRONG_RESULT, "outside C"),
    "reads C although beta is 0": (8, TrialState.WRONG_RESULT, "unaligned"),
    "one unit in the last place": (9, TrialState.WRONG_RESULT, "integer operands"),
    "too many threads": (10, TrialState.LAUNCH_ERROR, ""),
    "misaligned access": (11, TrialState.CRASHED, "misaligned"),
    "leaves C alone": (12, TrialState.WRONG_RESULT, "values wrong"),
    "writes into the padding of C": (13, TrialState.WRONG_RESULT, "outside C"),
    "fails an assertion": (14, TrialState.CRASHED, "assert"),
    "writes into A": (16, TrialState.WRONG_RESULT, "wrote into A"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_becomes_a_state_and_the_next_kernel_is_measured(hostile, fault):
    misdeed, state, words = FAULTS[fault]

    measured = hostile.measure(MISDEED=misdeed, REPEAT=1)

    assert measured.state is state, f"a kernel that {fault}: {measured}"
    said = measured.detail.replace("_", "")  # CUDA_ERROR_ILLEGAL_ADDRESS of the driver, cudaErrorIllegalAddress of CuPy
    assert words.lower() in said.lower(), f"a kernel that {fault}: {measured.detail}"
    after = hostile.measure(MISDEED=0, REPEAT=1)
    assert after.state in (TrialState.OK, TrialState.UNSTABLE), f"after a kernel that {fault}: {after}"
    assert after.median_s > 0


def test_rounding_within_the_bound_is_not_a_wrong_result(hostile):
    right, off = hostile.measure(MISDEED=0, REPEAT=1), hostile.measure(MISDEED=9, REPEAT=1)

    assert right.error < 1, f"a right kernel stays within the bound: {right}"
    assert "random operands" not in off.detail, f"one unit in the last place is within the bound: {off.detail}"


def test_cubin_of_another_architecture_is_a_launch_error(hostile, hostile_kernel, device):
    other = "sm_80" if device.compute_capability != (8, 0) else "sm_90"
    configuration = {"MISDEED": 0, "REPEAT": 1}
    with NvrtcBuilder(hostile_kernel, hostile.problem, other, cache=None, workers=1) as builder:
        build = builder.submit(configuration).result()

    measured = hostile.runner.submit(configuration, build).result()

    assert measured.state is TrialState.LAUNCH_ERROR, measured


def test_leaving_a_runner_does_not_wait_for_a_kernel_that_hangs(hostile, hostile_kernel, device):
    problem = parse_problem("sgemm", trans="NN", m=64, n=64, k=64)
    configuration = {"MISDEED": 1, "REPEAT": 1}
    with NvrtcBuilder(hostile_kernel, problem, device.architecture, cache=None, workers=1) as builder:
        build = builder.submit(configuration).result()
    with GpuRunner(PlacedKernel(hostile_kernel, problem, device), 0, timeout_s=300.0) as runner:
        runner.time_reference()
        hanging = runner.submit(configuration, build)
        time.sleep(1.0)
        left = time.perf_counter()

    assert time.perf_counter() - left < 60, "a runner must kill its worker when it is left"
    assert hanging.cancelled() or isinstance(hanging.exception(), WorkerError), "what was given up is not measured"
