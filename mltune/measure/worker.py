"""The worker process of a GPU: it holds context and operands and answers one request after the other.

A kernel that hangs or loses the context ends the worker; its parent (runner.py) replaces it.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mltune.device.nvml import GpuState, Nvml, summarize
from mltune.device.query import pci_bus_id, query_device
from mltune.errors import DeviceError
from mltune.kernel.bundle import Launch
from mltune.measure.array_verification import ArrayVerification, Baseline
from mltune.measure.clock_monitor import ClockMonitor, Series, UsualClock
from mltune.measure.fault_classification import OUT_OF_MEMORY, Fault, Memory, classify
from mltune.measure.gpu import CudaError, LoadedKernel, problem_arguments
from mltune.measure.operand_checksums import OperandChecksums
from mltune.measure.protocols import SamplingRule
from mltune.measure.race import RaceResult
from mltune.measure.references import bind_reference
from mltune.measure.requests import Begin, Outputs
from mltune.measure.stopwatch import Stopwatch
from mltune.measure.timing import Sampling, sample
from mltune.measure.verification import Verification
from mltune.problem.arrays import ArraysProblem
from mltune.problem.runnable import Operands, RunnableProblem, SolvedProblem
from mltune.records.trial import Measurement, TrialState

_SEED, _OTHER_SEED = 267, 1267
_HOST_OPERANDS_BYTES = 2**26  # larger operands are made on the GPU
_READ_EVERY_S = 5e-3  # shortest time between two readings of the GPU's state during a series
_READ_AFTER_S = 20e-3  # a run longer than this is also read at its end: that costs less than a percent
_MOST_VERIFICATIONS = 8
_UNWRITTEN = 0xFF  # the byte that outputs are filled with: of any type of real number it makes NaN


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request.

    Attributes
    ----------
    result : Measurement, RaceResult, Outputs or None
        The result, or the state in which the kernel failed; None when the GPU is lost.
    retire : bool
        Whether the worker must be replaced, because a kernel has damaged its context or its data.
    lost : str
        Empty, or why the GPU cannot be used now.
    permanent : bool
        Whether a lost GPU will not come back: it does not exist, or the operands are too large for it.
    """

    result: Measurement | RaceResult | Outputs | None
    retire: bool = False
    lost: str = ""
    permanent: bool = False


class Request(Protocol):
    """A request to a worker. It may raise CUDA's errors: the worker turns them into the state of the kernel."""

    def run(self, worker: Worker) -> Measurement | RaceResult | Outputs:
        """Fulfil the request."""


def make_worker(device_index: int) -> Callable[[Request], Answer]:
    """Return the function that serves the requests to this process, for one problem after the other."""
    worker: Worker | None = None

    def serve(request: Request) -> Answer:
        nonlocal worker
        if isinstance(request, Begin):
            worker = None
            try:
                _free_memory()  # that of the last problem
                worker = Worker(device_index, request.problem)
            except DeviceError as error:
                return Answer(None, lost=str(error), permanent=True)
            except (CudaError, MemoryError, RuntimeError) as error:
                return Answer(None, lost=f"{type(error).__name__}: {error}")
        assert worker is not None  # noqa: S101 - the first request begins a problem
        return worker.serve(request)

    return serve


class Worker:
    """The state of a problem on a GPU: operands, verification and stopwatch, made once.

    Raises
    ------
    DeviceError
        There is no such GPU, or its memory is too small for the operands.
    MemoryError, RuntimeError
        The GPU cannot be used now.
    """

    def __init__(self, device_index: int, problem: RunnableProblem) -> None:
        device = query_device(device_index)
        import cupy

        cupy.cuda.Device(device_index).use()
        self.problem = problem
        self.stopwatch = Stopwatch(device.l2_bytes)
        self.usual_clock = UsualClock()
        self._verifications: dict[RunnableProblem, tuple[Verification, OperandChecksums]] = {}
        self._nvml = Nvml(pci_bus_id(device_index))
        self.stopwatch.take(lambda: self.stopwatch.spin(1e-6), 1)
        self.constants: Sequence[tuple[str, int, int]] = ()
        self._baseline: tuple[LoadedKernel, Launch] | None = None
        with _must_fit(device.name, problem):
            if isinstance(problem, ArraysProblem):
                return  # its arrays are made with its baseline
            assert isinstance(problem, SolvedProblem)  # noqa: S101 - the other kind of runnable problems
            self.verification: Verification | ArrayVerification = Verification(problem.verification_cases())
            operands = _operands(problem)
            written = {one.name: operands[one.name] for one in problem.buffers if one.role == "inout"}
            self._use(operands, {name: array.copy() for name, array in written.items()})

    def begin(self, baseline: Baseline) -> Measurement:
        """Make the arrays of the problem, and what kernels are compared with; verify the default configuration."""
        problem = self.problem
        assert isinstance(problem, ArraysProblem)  # noqa: S101 - others have no baseline
        with _must_fit("the GPU", problem):
            self.verification = verification = ArrayVerification(problem, baseline)
            own = verification.own
            self._use({name: array.bytes for name, array in own.arrays.items()}, own.initial)
        self.constants = verification.own.constants
        kernel = LoadedKernel(baseline.cubin, baseline.entry)
        self._baseline = kernel, baseline.launches[-1]
        return verification.check(kernel, baseline.launches)

    def _use(self, operands: Operands, initial: Operands) -> None:
        """Time kernels on given operands, some of which have initial values that are restored before each run."""
        self._operands, self._initial = operands, initial
        if initial:
            self.stopwatch.prepare = self._restore
        self.addresses = _addresses(operands)
        self.arguments = problem_arguments(self.problem, self.addresses)
        inputs = [(one.name, operands[one.name]) for one in self.problem.buffers if one.role == "in"]
        copies = [(f"the initial {name}", copy) for name, copy in initial.items()]
        checked = {array.data.ptr: (name, array) for name, array in [*inputs, *copies, *self.verification.buffers()]}
        self._checksums = OperandChecksums(checked.values())

    def bind(self, kernel: LoadedKernel, launch: Launch) -> Callable[[], None]:
        """Return a function that launches a kernel on the worker's operands."""
        return kernel.bind(launch, self.arguments, self.constants)

    def reference(self) -> Callable[[], None]:
        """Return a function that runs the reference: the vendor's implementation, or the default configuration.

        Raises
        ------
        DeviceError
            There is none.
        """
        if self._baseline is not None:
            return self.bind(*self._baseline)
        return bind_reference(self.problem, self.addresses)

    def serve(self, request: Request) -> Answer:
        """Answer one request."""
        try:
            result = request.run(self)
        except DeviceError as error:  # there is no reference implementation
            return Answer(Measurement(TrialState.LAUNCH_ERROR, str(error)))
        except (CudaError, MemoryError, RuntimeError) as error:
            return _answer_to(error)
        harmed = result.state is TrialState.WRONG_RESULT and bool(self.changed_buffers(*self._verifications))
        return Answer(result, retire=harmed)

    def changed_buffers(self, *problems: RunnableProblem) -> tuple[str, ...]:
        """Return the names of the read-only buffers that a kernel has changed, also in some problems' own cases."""
        checksums = [self._checksums, *(self._verifications[problem][1] for problem in problems)]
        return tuple(dict.fromkeys(name for one in checksums for name in one.changed()))

    def verification_of(self, problem: SolvedProblem) -> Verification | None:
        """Return the verification on a problem's own cases, made at the first call; None when it has none."""
        if problem not in self._verifications:
            cases = problem.own_cases()
            if not cases:
                return None
            if len(self._verifications) >= _MOST_VERIFICATIONS:
                self._verifications.clear()
            made = Verification(cases)
            self._verifications[problem] = made, OperandChecksums(made.buffers())
        return self._verifications[problem][0]

    def time(self, launch: Callable[[], None], rule: SamplingRule, best_s: float | None) -> Measurement:
        """Time a launch on the worker's operands by a sampling rule, and monitor the clock.

        The state of the GPU is read while it runs the samples: under load, and at no cost.
        """
        started = time.perf_counter()
        monitor = ClockMonitor(_Gpu(self.stopwatch, self._nvml, launch), self.usual_clock, rule, best_s)
        sampling = sample(monitor.take, rule, best_s)
        state = summarize(monitor.states)
        detail = _instability(sampling, rule, monitor)
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
            throttle_reasons=None if state.throttle_reasons is None else monitor.reasons,
            discarded=monitor.discarded,
        )

    def time_each(self, launches: Sequence[Callable[[], None]]) -> Series:
        """Time several launches once each, in this order."""
        readings = _Readings(self._nvml)
        return Series(tuple(self.stopwatch.take_each(launches, readings.take)), tuple(readings.states))

    def check_anew(
        self, kernel: LoadedKernel, baseline: Baseline, launches: Sequence[Launch]
    ) -> tuple[Measurement, tuple[str, ...]]:
        """Verify a kernel on arrays with other initial values; return also the names of inputs that it changed."""
        assert isinstance(self.problem, ArraysProblem)  # noqa: S101 - others have no baseline
        verification = ArrayVerification(self.problem, baseline, seed=_OTHER_SEED)
        checksums = OperandChecksums(verification.buffers())
        return verification.check(kernel, launches), checksums.changed()

    def check_on_device(self, kernel: LoadedKernel, problem: SolvedProblem, launch: Launch) -> Measurement:
        """Verify a kernel on a problem that is too large for the host."""
        after = self._fresh_operands() if problem == self.problem else _operands(problem)
        inputs = {one.name for one in problem.buffers if one.role == "in"}
        before = {name: array if name in inputs else array.copy() for name, array in after.items()}
        kernel.bind(launch, problem_arguments(problem, _addresses(after)))()
        error = problem.device_error(before, after, lambda operands: bind_reference(problem, _addresses(operands))())
        if error <= 1:
            return Measurement(TrialState.OK, error=error)
        detail = f"{problem.label}: wrong by up to {error:.3g} times the bound"
        return Measurement(TrialState.WRONG_RESULT, detail, error=error)

    def _fresh_operands(self) -> Operands:
        """Return the worker's own operands, with outputs that no kernel has written."""
        import cupy

        fresh = dict(self._operands)
        for one in self.problem.buffers:
            if one.role == "inout":
                fresh[one.name] = self._initial[one.name].copy()
            elif one.role == "out":
                fresh[one.name] = cupy.empty_like(fresh[one.name])
                fresh[one.name].data.memset_async(_UNWRITTEN, fresh[one.name].nbytes)
        return fresh

    def _restore(self) -> None:
        """Queue the copies that set operands which are read and written to their initial values."""
        for name, initial in self._initial.items():
            self._operands[name].data.copy_from_device_async(initial.data, initial.nbytes)


class _Readings:
    """Readings of the GPU's state during a series: a complete one, then its quickly changing parts."""

    def __init__(self, nvml: Nvml) -> None:
        self.states: list[GpuState] = []
        self._nvml = nvml
        self._last = -np.inf

    def take(self) -> None:
        """Read the state, unless the last reading is recent."""
        now = time.perf_counter()
        if now - self._last >= _READ_EVERY_S:
            self.states.append(self._nvml.read_clock() if self.states else self._nvml.read())
            self._last = now

    def take_last(self) -> None:
        """Read the state at the end of a long series."""
        if time.perf_counter() - self._last >= _READ_AFTER_S:
            self.take()


class _Gpu:
    """A kernel on the GPU (see :class:`mltune.measure.clock_monitor.TimedKernel`)."""

    def __init__(self, stopwatch: Stopwatch, nvml: Nvml, launch: Callable[[], None]) -> None:
        self._stopwatch = stopwatch
        self._nvml = nvml
        self._launch = launch

    def run(self, count: int, *, monitored: bool) -> Series:
        if not monitored:
            return Series(tuple(self._stopwatch.take(self._launch, count)))
        readings = _Readings(self._nvml)
        samples_s = self._stopwatch.take(self._launch, count, readings.take)
        readings.take_last()
        return Series(tuple(samples_s), tuple(readings.states))

    def read_state(self) -> GpuState:
        return self._nvml.read()

    def rest(self, duration_s: float) -> None:
        time.sleep(duration_s)


def _answer_to(error: Exception) -> Answer:
    """Return the answer to a request that failed with an error of CUDA."""
    code = _code(error)
    fault = Fault.CONTEXT_LOST if code is None else classify(code, _memory() if code == OUT_OF_MEMORY else None)
    if fault is Fault.GPU_UNAVAILABLE:
        return Answer(None, lost=str(error))
    rejected = fault is Fault.REJECTED
    return Answer(Measurement(TrialState.LAUNCH_ERROR if rejected else TrialState.CRASHED, str(error)), not rejected)


def _code(error: Exception) -> int | None:
    """Return the ``CUresult`` of an error; None where it has none."""
    if isinstance(error, CudaError):
        return error.code
    if isinstance(error, MemoryError):
        return OUT_OF_MEMORY
    from cupy.cuda import driver, runtime

    if isinstance(error, driver.CUDADriverError | runtime.CUDARuntimeError):
        return int(error.status)
    return None


def _memory() -> Memory | None:
    """Return the use of the GPU's memory; None where it can no longer be read."""
    import cupy

    with contextlib.suppress(RuntimeError):
        free_bytes, total_bytes = cupy.cuda.runtime.memGetInfo()
        return Memory(total_bytes, free_bytes, cupy.get_default_memory_pool().total_bytes())
    return None


def _free_memory() -> None:
    """Give what CuPy has kept for reuse back to the GPU."""
    import cupy

    gc.collect()
    cupy.get_default_memory_pool().free_all_blocks()
    cupy.get_default_pinned_memory_pool().free_all_blocks()


def _operands(problem: RunnableProblem) -> Operands:
    """Make the operands of a problem on the GPU; large ones without a copy of them on the host."""
    import cupy

    if problem.bytes > _HOST_OPERANDS_BYTES:
        return problem.operands(cupy, _SEED)
    return {name: cupy.asarray(array) for name, array in problem.operands(np, _SEED).items()}


@contextlib.contextmanager
def _must_fit(gpu: str, problem: RunnableProblem) -> Iterator[None]:
    """Raise a DeviceError where the operands of a problem do not fit into the memory of a GPU that nobody else uses."""
    try:
        yield
    except MemoryError as error:
        memory = _memory()
        if memory is not None and memory.used_by_others:
            raise
        raise DeviceError(
            f"the operands must fit into the memory of {gpu}, but those of {problem.label} do not: {error}; choose a "
            "smaller size."
        ) from error


def _addresses(operands: Operands) -> dict[str, int]:
    return {name: int(array.data.ptr) for name, array in operands.items()}


def _instability(sampling: Sampling, rule: SamplingRule, monitor: ClockMonitor) -> str:
    """Return why a time is not reliable; empty when it is."""
    if monitor.persisting is not None and monitor.persisting.slowdown:
        return f"the GPU must run at full speed, but rest did not end a {monitor.persisting.detail}; see its cooling"
    if sampling.unstable:
        bound = rule.limited_noise if sum(sampling.samples_s) >= rule.max_s else rule.noise_target
        return f"the noise of the median must fall to {bound:.2%}, but it is {sampling.noise or 0:.2%}"
    return ""
