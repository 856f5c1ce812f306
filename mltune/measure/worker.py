"""The worker process of a GPU: it verifies and times one build after the other, and answers with measurements.

What a kernel does to its process (a hang, a lost context) the worker does not survive; its parent (runner.py) does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mltune.device.nvml import GpuState, Nvml
from mltune.device.query import pci_bus_id, query_device
from mltune.errors import DeviceError
from mltune.kernel.gemm import GemmProblem
from mltune.kernel.operands import GemmOperands
from mltune.measure.cublas import bind_cublas
from mltune.measure.gpu import CudaError, LoadedKernel, problem_arguments
from mltune.measure.protocols import SamplingRule
from mltune.measure.stopwatch import Stopwatch
from mltune.measure.timing import sample
from mltune.measure.verification import Verification, size_cases, verification_cases
from mltune.records.trial import Measurement, TrialState

if TYPE_CHECKING:
    from mltune.kernel.bundle import Launch

_SEED = 267
_SELF_TEST_RUNS = 7
_HOST_OPERANDS_BYTES = 2**31  # larger operands are drawn on the GPU: slower to start, but not as slow as to copy
SMALL_ELEMENTS, SMALL_PRODUCTS = 2**21, 2**26


@dataclass(frozen=True, slots=True)
class Setup:
    """What a worker is made for: one GPU, one problem, the kernels of one entry."""

    device_index: int
    problem: GemmProblem
    entry: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A measurement, and whether the worker must be replaced because the kernel has harmed it."""

    measurement: Measurement
    retire: bool = False


class Request(Protocol):
    """What a worker is asked to do. It may raise what CUDA raises: the worker answers with the state that it means."""

    def run(self, worker: Worker) -> Measurement:
        """Do it."""
        ...


@dataclass(frozen=True, slots=True)
class Measure:
    """Verify a build on small problems, then time it on the worker's problem."""

    cubin: bytes
    verified: tuple[Launch, ...]
    timed: Launch
    rule: SamplingRule
    best_s: float | None

    def run(self, worker: Worker) -> Measurement:
        """Verify, then time."""
        started = time.perf_counter()
        with LoadedKernel(self.cubin, worker.entry) as kernel:
            verdict = worker.verification.check(kernel, self.verified)
            verify_s = time.perf_counter() - started
            if verdict.detail:
                return Measurement(TrialState.WRONG_RESULT, verdict.detail, error=verdict.error, verify_s=verify_s)
            timed = worker.time(kernel.bind(self.timed, worker.arguments), self.rule, self.best_s)
        return replace(timed, error=verdict.error, verify_s=verify_s)


@dataclass(frozen=True, slots=True)
class Check:
    """Verify a build on one problem: by the bound, and exactly on integers where that is small enough for the host."""

    cubin: bytes
    problem: GemmProblem
    launch: Launch

    def run(self, worker: Worker) -> Measurement:
        """Verify."""
        started = time.perf_counter()
        with LoadedKernel(self.cubin, worker.entry) as kernel:
            if is_small(self.problem):
                cases = size_cases(self.problem)
                verdict = Verification(cases).check(kernel, [self.launch] * len(cases))
                error, detail = verdict.error, verdict.detail
            else:
                error = worker.large_error(kernel, self.problem, self.launch)
                detail = "" if error <= 1 else f"{self.problem.label}: wrong by up to {error:.3g} times the bound"
        state = TrialState.WRONG_RESULT if detail else TrialState.OK
        return Measurement(state, detail, error=error, verify_s=time.perf_counter() - started)


@dataclass(frozen=True, slots=True)
class TimeCublas:
    """Time cuBLAS on the worker's problem and operands."""

    rule: SamplingRule

    def run(self, worker: Worker) -> Measurement:
        """Time it."""
        launch = bind_cublas(worker.problem, worker.addresses)
        launch()  # the first call loads the library's kernels, which is not to be timed, not even as a warm-up
        return worker.time(launch, self.rule, None)


@dataclass(frozen=True, slots=True)
class TimeSpin:
    """Time a kernel that runs for a known time: a test of the timing itself."""

    duration_s: float

    def run(self, worker: Worker) -> Measurement:
        """Time it."""
        samples = worker.stopwatch.take(lambda: worker.stopwatch.spin(self.duration_s), _SELF_TEST_RUNS)
        return Measurement(TrialState.OK, samples_s=tuple(samples), median_s=float(np.median(samples)))


def make_worker(setup: Setup) -> Callable[[Request], Answer]:
    """Make a worker in this process and return the function that serves its requests.

    Raises
    ------
    DeviceError
        There is no such GPU, or the operands do not fit into its memory.
    """
    return Worker(setup).serve


class Worker:
    """All that is made once per process: context, operands, references, bounds, events.

    Parameters
    ----------
    setup : Setup
    """

    def __init__(self, setup: Setup) -> None:
        device = query_device(setup.device_index)
        import cupy

        cupy.cuda.Device(setup.device_index).use()
        self.entry = setup.entry
        self.problem = setup.problem
        self.stopwatch = Stopwatch(device.l2_bytes)
        self.verification = Verification(verification_cases(setup.problem))
        try:
            self._operands = _operands(setup.problem)
            self._before = self._operands.C.copy() if setup.problem.beta else None
        except cupy.cuda.memory.OutOfMemoryError as error:
            raise DeviceError(
                f"the operands must fit into the memory of {device.name}, but those of {setup.problem.label} do not: "
                f"{error}; choose a smaller size."
            ) from error
        self.addresses = _addresses(self._operands)
        self.arguments = problem_arguments(setup.problem, self.addresses)
        self._nvml = Nvml(pci_bus_id(setup.device_index))
        self.stopwatch.take(lambda: self.stopwatch.spin(1e-6), 1)

    def serve(self, request: Request) -> Answer:
        """Answer one request."""
        try:
            return Answer(request.run(self))
        except CudaError as error:
            state = TrialState.LAUNCH_ERROR if error.refused else TrialState.CRASHED
            return Answer(Measurement(state, str(error)), retire=not error.refused)
        except (DeviceError, MemoryError) as error:  # no cuBLAS, or no room for the operands of a check
            return Answer(Measurement(TrialState.LAUNCH_ERROR, str(error)))
        except RuntimeError as error:  # CuPy's: found when the host next asked the GPU for something
            return Answer(Measurement(TrialState.CRASHED, str(error)), retire=True)

    def time(self, launch: Callable[[], None], rule: SamplingRule, best_s: float | None) -> Measurement:
        """Time a launch on the worker's operands by a sampling rule.

        The state of the GPU is read once, while it runs the first series after the warm-up: under load, and at no cost.
        """
        started = time.perf_counter()
        if self._before is not None:
            self._operands.C.data.copy_from_device_async(self._before.data, self._before.nbytes)
        state: GpuState | None = None
        series = 0

        def read_state() -> None:
            nonlocal state
            state = self._nvml.read()

        def take(count: int) -> Sequence[float]:
            nonlocal series
            series += 1
            return self.stopwatch.take(launch, count, read_state if series == 2 else None)

        sampling = sample(take, rule, best_s)
        state = state or self._nvml.read()
        return Measurement(
            TrialState.UNSTABLE if sampling.unstable else TrialState.OK,
            detail=_unstable(sampling.noise, rule) if sampling.unstable else "",
            samples_s=sampling.samples_s,
            median_s=sampling.median_s,
            noise=sampling.noise,
            stopped_early=sampling.stopped_early,
            time_s=time.perf_counter() - started,
            sm_clock_hz=state.sm_clock_hz,
            temperature_c=state.temperature_c,
            power_w=state.power_w,
            throttle_reasons=state.throttle_reasons,
        )

    def large_error(self, kernel: LoadedKernel, problem: GemmProblem, launch: Launch) -> float:
        """Return the largest error of a kernel on a problem that is too large for the host, as a share of its bound.

        In single precision against a reference in double, in double precision against cuBLAS, whose own error counts
        for as much as the kernel's: the bound is doubled.
        """
        operands = _operands(problem)
        before = GemmOperands(operands.A, operands.B, operands.C.copy())
        kernel.bind(launch, problem_arguments(problem, _addresses(operands)))()
        bound = problem.error_bound(before)
        if problem.arithmetic == "fp32":
            reference = problem.reference(before)
        else:
            answer = GemmOperands(operands.A, operands.B, before.C.copy())
            bind_cublas(problem, _addresses(answer))()
            reference = problem.result(answer.C)
            bound = 2 * bound
        return problem.worst_error(problem.result(operands.C), reference, bound)


def is_small(problem: GemmProblem) -> bool:
    """Return whether a problem's reference is computed on the host, in higher precision whatever the precision."""
    products = problem.m * problem.n * max(problem.k, 1)
    return products <= SMALL_PRODUCTS and problem.ldc * problem.n <= SMALL_ELEMENTS


def _operands(problem: GemmProblem) -> GemmOperands:
    """Make the operands of a problem on the GPU, drawn on the host unless they are very large."""
    import cupy

    if problem.bytes > _HOST_OPERANDS_BYTES:
        return problem.operands(cupy, _SEED)
    operands = problem.operands(np, _SEED)
    return GemmOperands(*(cupy.asarray(matrix) for matrix in (operands.A, operands.B, operands.C)))


def _addresses(operands: GemmOperands) -> GemmOperands:
    """Return the device addresses of operands."""
    addresses: list[Any] = [int(matrix.data.ptr) for matrix in (operands.A, operands.B, operands.C)]
    return GemmOperands(*addresses)


def _unstable(noise: float | None, rule: SamplingRule) -> str:
    return f"the noise of the median must fall to {rule.noise_target:.2%}, but it is {noise or 0:.2%}"
