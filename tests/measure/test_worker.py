"""The worker's answers to every request, on a GPU that is the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import host_gpu
import numpy as np
import pytest
from host_gpu import HostKernel, memory

from mltune.device.known import H200
from mltune.device.query import GpuState
from mltune.kernel.launch import Launch
from mltune.measure import verification, worker
from mltune.measure.gpu import CudaError
from mltune.measure.messages import Answer, Baseline, Begin, Check, Measure, Outputs, Race, Run, TimeReference
from mltune.measure.pipeline import SamplingRule
from mltune.measure.timing import RaceResult
from mltune.problem.arrays import Argument, ArraysProblem
from mltune.problem.gemm import GemmProblem
from mltune.problem.gemm_verification import GemmCase
from mltune.records.trial import Measurement, TrialState

LAUNCH = Launch((1, 1, 1), (1, 1, 1), 0, ())
RULE = SamplingRule(min_samples=3, max_samples=3)
TIMED = (TrialState.OK, TrialState.UNSTABLE)
X = Argument("x", "float32", (100,))
OUT = Argument("out", "float32", (100,), role="out", tolerance=1e-4)
SUM = Argument("sum", "float64", (1,), role="inout", initial=5, tolerance=1e-10)
SMALL = ArraysProblem("double", (("n", 100),), (X, OUT, SUM))
DOUBLE = replace(SMALL, sizes=(("n", 101),), checks=(SMALL,))


def double(misdeed: bytes, calls: list[float]) -> Callable[..., None]:
    def run(x: int, out: int, total: int) -> None:
        read, written, sums = memory(x, np.float32, 100), memory(out, np.float32, 100), memory(total, np.float64, 1)
        calls.append(float(sums[0]))
        written[:] = 2 * read
        sums += 1
        if misdeed == b"wrong":
            written[7] = 0
        if misdeed == b"writes into x":
            read[3] += 1
        if misdeed == b"fails":
            raise CudaError("launch", 700, "CUDA_ERROR_ILLEGAL_ADDRESS")
        if misdeed == b"is rejected":
            raise CudaError("launch", 701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES")

    return run


class Nvml:
    def __init__(self, bus_id: str) -> None:
        self.bus_id = bus_id

    def read(self) -> GpuState:
        return GpuState(sm_clock_hz=1e9)

    read_clock = read


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the values that kernels found in `sum` when they ran."""
    host_gpu.install(monkeypatch)
    found: list[float] = []
    for module in (worker, verification):
        monkeypatch.setattr(
            module, "LoadedKernel", lambda cubin, entry: HostKernel(double(b"" if entry == "right" else cubin, found))
        )
    monkeypatch.setattr(worker, "query_device", lambda index: replace(H200, l2_bytes=1 << 20))
    monkeypatch.setattr(worker, "pci_bus_id", lambda index: "")
    monkeypatch.setattr(worker, "Nvml", Nvml)
    monkeypatch.setattr("mltune.measure.stopwatch.SeriesStopwatch.spin", lambda self, duration_s: None)
    return found


@pytest.fixture
def serve() -> Callable[[Any], Answer]:
    """Return a worker that has begun the problem of arrays."""
    made = worker.make_worker(0)
    begun = made(Begin(DOUBLE, Baseline(b"right", "double", (LAUNCH, LAUNCH))))
    assert isinstance(begun.result, Measurement)
    assert (begun.result.state, begun.lost) == (TrialState.OK, "")
    return made


def measured(serve: Callable[[Any], Answer], misdeed: bytes) -> Answer:
    return serve(Measure(misdeed, "double", (LAUNCH, LAUNCH), LAUNCH, RULE, None))


def test_arrays_are_verified_and_timed(serve: Callable[[Any], Answer], calls: list[float]) -> None:
    del calls[:]
    answer = measured(serve, b"right")

    assert isinstance(answer.result, Measurement)
    assert answer.result.state in TIMED
    assert (len(answer.result.samples_s), answer.result.error, answer.retire) == (3, 0.0, False)
    assert answer.result.verify_s > 0
    assert calls == [5.0] * 6, "what is read and written is restored: two cases, a warm-up and three samples"


def test_a_wrong_kernel_is_not_timed(serve: Callable[[Any], Answer]) -> None:
    answer = measured(serve, b"wrong")

    assert isinstance(answer.result, Measurement)
    assert (answer.result.state, answer.result.samples_s) == (TrialState.WRONG_RESULT, ())
    assert "1 of 100 values wrong in out" in answer.result.detail
    assert not answer.retire
    assert measured(serve, b"right").result.state in TIMED


def test_a_kernel_that_changes_an_input_ends_the_worker(serve: Callable[[Any], Answer]) -> None:
    answer = measured(serve, b"writes into x")

    assert isinstance(answer.result, Measurement)
    assert answer.result.state is TrialState.WRONG_RESULT
    assert answer.result.detail.endswith("wrote into x")
    assert answer.retire


@pytest.mark.parametrize(
    ("misdeed", "state", "retire"),
    [(b"fails", TrialState.CRASHED, True), (b"is rejected", TrialState.LAUNCH_ERROR, False)],
)
def test_errors_of_cuda_are_states(
    serve: Callable[[Any], Answer], misdeed: bytes, state: TrialState, retire: bool
) -> None:
    answer = measured(serve, misdeed)
    assert answer.result is not None
    assert (answer.result.state, answer.retire) == (state, retire)


def test_a_winner_is_checked_on_other_values(serve: Callable[[Any], Answer]) -> None:
    for misdeed, state in ((b"right", TrialState.OK), (b"wrong", TrialState.WRONG_RESULT)):
        answer = serve(Check(misdeed, "double", DOUBLE, (LAUNCH, LAUNCH)))
        assert isinstance(answer.result, Measurement)
        assert (answer.result.state, answer.retire) == (state, False)


def test_the_default_configuration_is_the_reference(serve: Callable[[Any], Answer]) -> None:
    timed = serve(TimeReference(RULE)).result
    assert isinstance(timed, Measurement)
    assert len(timed.samples_s) == 3
    raced = serve(Race(((b"right", "double", LAUNCH), (b"right", "double", LAUNCH)), 1.0)).result
    assert isinstance(raced, RaceResult)
    assert raced.rounds == len(raced.reference_s) > 2
    harmed = serve(Race(((b"writes into x", "double", LAUNCH),), 1.0))
    assert isinstance(harmed.result, RaceResult)
    assert (harmed.result.detail, harmed.retire) == ("one of the kernels wrote into x", True)


def test_a_kernel_runs_once_without_a_baseline() -> None:
    serve = worker.make_worker(0)
    assert serve(Begin(DOUBLE)).result == Measurement(TrialState.OK)
    found = serve(Run(b"right", "double", LAUNCH)).result

    assert isinstance(found, Outputs)
    assert (found.arrays["out"] == 2 * found.arrays["x"]).all()
    assert found.arrays["sum"] == 6


def test_a_wrong_default_is_told() -> None:
    serve = worker.make_worker(0)
    begun = serve(Begin(DOUBLE, Baseline(b"wrong", "double", (LAUNCH, LAUNCH), ("right", (LAUNCH, LAUNCH))))).result
    assert begun is not None
    assert begun.state is TrialState.WRONG_RESULT


def gemm(problem: GemmProblem, factor: float) -> Callable[..., None]:
    def run(*arguments: Any) -> None:
        m, n, k, alpha, a, lda, b, ldb, beta, c, ldc = arguments
        case = replace(problem, m=m, n=n, k=k, alpha=alpha, beta=beta, lda=lda, ldb=ldb, ldc=ldc)
        counts = [leading * columns for leading, (_, columns) in zip((lda, ldb, ldc), case.shapes(), strict=True)]
        operands = {
            name: memory(address, np.float32, count)
            for name, address, count in zip("ABC", (a, b, c), counts, strict=True)
        }
        case.result(operands["C"])[...] = factor * case.answer(operands)

    return run


PRODUCT = GemmProblem("s", "N", "T", 40, 30, 20, 1.5, 0.5)


@pytest.fixture
def product(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Answer]:
    """Return a worker that has begun a GEMM; a cubin is the factor of its result."""
    small = (GemmCase(PRODUCT, False, 0), GemmCase(PRODUCT, True, 1))
    monkeypatch.setattr(GemmProblem, "verification_cases", lambda self: small)
    for module in (worker, verification):
        monkeypatch.setattr(module, "LoadedKernel", lambda cubin, entry: HostKernel(gemm(PRODUCT, float(cubin))))
    serve = worker.make_worker(0)
    assert serve(Begin(PRODUCT)).result == Measurement(TrialState.OK)
    return serve


def test_a_product_is_verified_timed_and_checked_at_other_sizes(product: Callable[[Any], Answer]) -> None:
    right = product(Measure(b"1", "gemm", (LAUNCH, LAUNCH), LAUNCH, RULE, None)).result
    wrong = product(Measure(b"1.01", "gemm", (LAUNCH, LAUNCH), LAUNCH, RULE, None)).result

    assert isinstance(right, Measurement)
    assert isinstance(wrong, Measurement)
    assert right.state in TIMED, right
    assert right.error is not None
    assert 0 < right.error < 1
    assert wrong.state is TrialState.WRONG_RESULT
    for problem in (PRODUCT, replace(PRODUCT, m=7, n=5, k=0, lda=0, ldb=0, ldc=0, alpha=1 / 3)):
        launches = (LAUNCH,) * len(problem.own_cases())
        for cubin, state in ((b"1", TrialState.OK), (b"1.01", TrialState.WRONG_RESULT)):
            checked = product(Check(cubin, "gemm", problem, launches)).result
            assert checked is not None
            assert checked.state is state, checked


def test_a_large_product_is_checked_on_the_device(
    product: Callable[[Any], Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GemmProblem, "own_cases", lambda self: ())
    monkeypatch.setattr(
        GemmProblem,
        "device_error",
        lambda self, before, after, run: float(abs(after["C"].host - before["C"].host).max() > 100),
    )
    for problem in (PRODUCT, replace(PRODUCT, m=50, lda=0, ldc=0)):
        checked = product(Check(b"1", "gemm", problem, (LAUNCH,))).result
        assert checked is not None
        assert checked.state is TrialState.OK, checked


def test_without_cublas_there_is_no_reference(product: Callable[[Any], Answer]) -> None:
    found = product(TimeReference(RULE)).result
    assert isinstance(found, Measurement)
    assert found.state is TrialState.LAUNCH_ERROR
    assert "cuBLAS cannot be loaded" in found.detail
    raced = product(Race(((b"1", "gemm", LAUNCH),), 0.2)).result
    assert isinstance(raced, RaceResult)
    assert raced.reference_s == ()
    assert raced.rounds > 0
