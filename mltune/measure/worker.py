"""The worker process of a GPU: all that is made once, and the answers to one request after the other.

What a kernel does to its process (a hang, a lost context) the worker does not survive; its parent (runner.py) does.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from mltune.device.nvml import GpuState, Nvml, summed_up
from mltune.device.query import pci_bus_id, query_device
from mltune.errors import DeviceError
from mltune.kernel.bundle import Launch
from mltune.measure.clock_monitor import ClockMonitor, Series, UsualClock
from mltune.measure.fault_classification import OUT_OF_MEMORY, Fault, Memory, classify
from mltune.measure.gpu import CudaError, LoadedKernel, problem_arguments
from mltune.measure.operand_checksums import OperandChecksums
from mltune.measure.protocols import SamplingRule
from mltune.measure.race import RaceResult
from mltune.measure.references import bind_cublas
from mltune.measure.stopwatch import Stopwatch
from mltune.measure.timing import Sampling, sample
from mltune.measure.verification import Verification, size_cases, verification_cases
from mltune.problem.gemm import GemmProblem
from mltune.problem.gemm_operands import GemmOperands
from mltune.records.trial import Measurement, TrialState

_SEED = 267
_HOST_OPERANDS_BYTES = 2**31  # larger operands are drawn on the GPU: slower to start, but not as slow as to copy
_LOOK_EVERY_S = 5e-3  # at most so often is the GPU asked for its state while it runs a series
_LOOK_AFTER_S = 20e-3  # of a run that took longer, the end is looked at as well: that costs it no percent
_MOST_VERIFICATIONS = 8


@dataclass(frozen=True, slots=True)
class Setup:
    """What a worker is made for: one GPU, one problem, the kernels of one entry."""

    device_index: int
    problem: GemmProblem
    entry: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a request.

    Attributes
    ----------
    result : Measurement, RaceResult or None
        What was asked for, or the state that tells why not; None when the GPU is lost.
    retire : bool
        Whether the worker must be replaced, because a kernel has harmed it.
    lost : str
        Empty, or why the GPU cannot be used now.
    hopeless : bool
        Whether a GPU that is lost cannot be expected to come back: it does not exist, or the operands are too large.
    """

    result: Measurement | RaceResult | None
    retire: bool = False
    lost: str = ""
    hopeless: bool = False


class Request(Protocol):
    """What a worker is asked to do. It may raise what CUDA raises: the worker answers with the state that it means."""

    def run(self, worker: Worker) -> Measurement | RaceResult:
        """Do it."""
        ...


def make_worker(setup: Setup) -> Callable[[Request], Answer]:
    """Make a worker in this process and return the function that serves its requests.

    Where the GPU cannot be used, that is the answer to whatever is asked.
    """
    try:
        return Worker(setup).serve
    except DeviceError as error:
        refusal = Answer(None, lost=str(error), hopeless=True)
    except (CudaError, MemoryError, RuntimeError) as error:
        refusal = Answer(None, lost=f"{type(error).__name__}: {error}")
    return lambda request: refusal


class Worker:
    """All that is made once per process: context, operands, references, bounds, events.

    Parameters
    ----------
    setup : Setup

    Raises
    ------
    DeviceError
        There is no such GPU, or its memory is too small for the operands.
    MemoryError, RuntimeError
        The GPU cannot be used now.
    """

    def __init__(self, setup: Setup) -> None:
        device = query_device(setup.device_index)
        import cupy

        cupy.cuda.Device(setup.device_index).use()
        self.entry = setup.entry
        self.problem = setup.problem
        self.stopwatch = Stopwatch(device.l2_bytes)
        self.usual_clock = UsualClock()
        self.verification = Verification(verification_cases(setup.problem))
        self._verifications: dict[GemmProblem, tuple[Verification, OperandChecksums]] = {}
        try:
            self._operands = _operands(setup.problem)
            self._before = self._operands.C.copy() if setup.problem.beta else None
        except MemoryError as error:
            memory = _memory()
            if memory is not None and memory.taken:
                raise
            raise DeviceError(
                f"the operands must fit into the memory of {device.name}, but those of {setup.problem.label} do not: "
                f"{error}; choose a smaller size."
            ) from error
        self.addresses = _addresses(self._operands)
        self.arguments = problem_arguments(setup.problem, self.addresses)
        named = [("A", self._operands.A), ("B", self._operands.B)]
        if self._before is not None:
            named.append(("what C is set to", self._before))
        self._seal = OperandChecksums([*named, *self.verification.buffers()])
        self._nvml = Nvml(pci_bus_id(setup.device_index))
        self.stopwatch.take(lambda: self.stopwatch.spin(1e-6), 1)

    def serve(self, request: Request) -> Answer:
        """Answer one request."""
        try:
            result = request.run(self)
        except DeviceError as error:  # no cuBLAS
            return Answer(Measurement(TrialState.LAUNCH_ERROR, str(error)))
        except (CudaError, MemoryError, RuntimeError) as error:
            return _answer_to(error)
        return Answer(
            result, retire=result.state is TrialState.WRONG_RESULT and bool(self.broken(*self._verifications))
        )

    def broken(self, *problems: GemmProblem) -> tuple[str, ...]:
        """Return the names of the buffers that a kernel has changed though it must only read them.

        Parameters
        ----------
        *problems : GemmProblem
            Small problems whose verification is looked at as well.
        """
        seals = [self._seal, *(self._verifications[problem][1] for problem in problems)]
        return tuple(dict.fromkeys(name for seal in seals for name in seal.broken()))

    def verification_of(self, problem: GemmProblem) -> Verification:
        """Return the verification on a small problem, made when it is first asked for."""
        if problem not in self._verifications:
            if len(self._verifications) >= _MOST_VERIFICATIONS:
                self._verifications.clear()
            made = Verification(size_cases(problem))
            self._verifications[problem] = made, OperandChecksums(made.buffers())
        return self._verifications[problem][0]

    def time(self, launch: Callable[[], None], rule: SamplingRule, best_s: float | None) -> Measurement:
        """Time a launch on the worker's operands by a sampling rule, under guard.

        The state of the GPU is read while it runs the samples: under load, and at no cost.
        """
        started = time.perf_counter()
        self._restore()
        guard = ClockMonitor(_Gpu(self.stopwatch, self._nvml, launch), self.usual_clock, rule, best_s)
        sampling = sample(guard.take, rule, best_s)
        state = summed_up(guard.states)
        detail = _unstable(sampling, rule, guard)
        return Measurement(
            TrialState.UNSTABLE if detail else TrialState.OK,
            detail,
            samples_s=sampling.samples_s,
            median_s=sampling.median_s,
            noise=sampling.noise,
            stopped_early=sampling.stopped_early,
            time_s=time.perf_counter() - started,
            sm_clock_hz=state.sm_clock_hz,
            temperature_c=state.temperature_c,
            power_w=state.power_w,
            throttle_reasons=None if state.throttle_reasons is None else guard.reasons,
            discarded=guard.discarded,
        )

    def time_each(self, launches: Sequence[Callable[[], None]]) -> Series:
        """Time several launches once each, in this order."""
        self._restore()
        watch = _Watch(self._nvml)
        return Series(tuple(self.stopwatch.take_each(launches, watch.look)), tuple(watch.states))

    def large_error(self, kernel: LoadedKernel, problem: GemmProblem, launch: Launch) -> float:
        """Return the largest error of a kernel on a problem that is too large for the host, as a share of its bound.

        In single precision against a reference in double, in double precision against cuBLAS, whose own error counts
        for as much as the kernel's: the bound is doubled.
        """
        operands = self._fresh_operands() if problem == self.problem else _operands(problem)
        before = GemmOperands(operands.A, operands.B, operands.C.copy())
        kernel.bind(launch, problem_arguments(problem, _addresses(operands)))()
        bound = problem.error_bound(before)
        if problem.arithmetic == "fp32":
            reference = problem.answer(before)
        else:
            answer = GemmOperands(operands.A, operands.B, before.C.copy())
            bind_cublas(problem, _addresses(answer))()
            reference = problem.result(answer.C)
            bound = 2 * bound
        return problem.worst_error(problem.result(operands.C), reference, bound)

    def _fresh_operands(self) -> GemmOperands:
        """Return the worker's own operands, with a matrix C that no kernel has touched."""
        if self._before is not None:
            return GemmOperands(self._operands.A, self._operands.B, self._before.copy())
        import cupy

        nan = complex(np.nan, np.nan) if self.problem.is_complex else np.nan
        return GemmOperands(self._operands.A, self._operands.B, cupy.full_like(self._operands.C, nan))

    def _restore(self) -> None:
        """Queue the copy that sets C to what it was."""
        if self._before is not None:
            self._operands.C.data.copy_from_device_async(self._before.data, self._before.nbytes)


class _Watch:
    """Reads the state of the GPU, now and then: all of it at first, then what changes quickly."""

    def __init__(self, nvml: Nvml) -> None:
        self.states: list[GpuState] = []
        self._nvml = nvml
        self._looked = -np.inf

    def look(self) -> None:
        """Read it, unless that was done just before."""
        now = time.perf_counter()
        if now - self._looked >= _LOOK_EVERY_S:
            self.states.append(self._nvml.read_clock() if self.states else self._nvml.read())
            self._looked = now

    def look_again(self) -> None:
        """Read it at the end of something long."""
        if time.perf_counter() - self._looked >= _LOOK_AFTER_S:
            self.look()


class _Gpu:
    """The GPU as a track (see :class:`mltune.measure.clock_monitor.Track`)."""

    def __init__(self, stopwatch: Stopwatch, nvml: Nvml, launch: Callable[[], None]) -> None:
        self._stopwatch = stopwatch
        self._nvml = nvml
        self._launch = launch

    def run(self, count: int, *, watched: bool) -> Series:
        """Run the kernel so many times."""
        if not watched:
            return Series(tuple(self._stopwatch.take(self._launch, count)))
        watch = _Watch(self._nvml)
        samples_s = self._stopwatch.take(self._launch, count, watch.look)
        watch.look_again()
        return Series(tuple(samples_s), tuple(watch.states))

    def look(self) -> GpuState:
        """Read the state of the GPU now."""
        return self._nvml.read()

    def rest(self, duration_s: float) -> None:
        """Leave the GPU alone."""
        time.sleep(duration_s)


def _answer_to(error: Exception) -> Answer:
    """Return the answer where CUDA failed."""
    code = _code(error)
    at_fault = Fault.CRASHED if code is None else classify(code, _memory() if code == OUT_OF_MEMORY else None)
    if at_fault is Fault.GPU:
        return Answer(None, lost=str(error))
    refused = at_fault is Fault.REFUSED
    return Answer(Measurement(TrialState.LAUNCH_ERROR if refused else TrialState.CRASHED, str(error)), not refused)


def _code(error: Exception) -> int | None:
    """Return the driver's number of an error; None where it has none."""
    if isinstance(error, CudaError):
        return error.code
    if isinstance(error, MemoryError):
        return OUT_OF_MEMORY
    from cupy.cuda import driver, runtime

    if isinstance(error, driver.CUDADriverError | runtime.CUDARuntimeError):
        return int(error.status)
    return None


def _memory() -> Memory | None:
    """Return who holds the memory of the GPU; None where that can no longer be asked."""
    import cupy

    with contextlib.suppress(RuntimeError):
        free_bytes, total_bytes = cupy.cuda.runtime.memGetInfo()
        return Memory(total_bytes, free_bytes, cupy.get_default_memory_pool().total_bytes())
    return None


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


def _unstable(sampling: Sampling, rule: SamplingRule, guard: ClockMonitor) -> str:
    """Say why a time is not to be relied on; empty when it is."""
    if guard.persisting is not None and guard.persisting.slowdown:
        return f"the GPU must not be held back, but rest did not end a {guard.persisting.detail}; see its cooling"
    if sampling.unstable:
        return f"the noise of the median must fall to {rule.noise_target:.2%}, but it is {sampling.noise or 0:.2%}"
    return ""
