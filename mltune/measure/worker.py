"""The worker process of a GPU: it holds context and operands and answers one request after the other.

A kernel that hangs or loses the context ends the worker; its parent (runner.py) replaces it.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from threading import Thread

import numpy as np
from threadpoolctl import threadpool_limits

from mltune.device.query import Nvml, pci_bus_id, query_device, summarize
from mltune.errors import DeviceError
from mltune.kernel.launch import Launch
from mltune.measure import gpu, messages
from mltune.measure.gpu import CudaError, Fault, LoadedKernel, copied, fault_of, gpu_memory, problem_arguments
from mltune.measure.libraries import bind_reference
from mltune.measure.messages import Answer, Baseline, Request, Result
from mltune.measure.pipeline import SamplingRule
from mltune.measure.stopwatch import MonitoredKernel, Readings, SeriesStopwatch
from mltune.measure.timing import ClockMonitor, RaceResult, Series, UsualClock, run_rounds, sample
from mltune.measure.turns import turn
from mltune.measure.verification import OperandChecksums, Verification, run_once
from mltune.problem.problem import LargeProblem, Operands, RunnableProblem
from mltune.records.trial import Measurement, TrialState

_SEED = 267
_HOST_OPERANDS_BYTES = 2**24  # larger operands are made on the GPU
_MOST_VERIFICATIONS = 8
_UNWRITTEN = 0xFF  # the byte that outputs are filled with: of any type of real number it makes NaN


def make_worker(device_index: int) -> Callable[[Request], Answer]:
    """Return the function that serves the requests to this process, for one problem after the other."""
    opening = Thread(target=gpu.open_context, args=(device_index,), name="mltune-context")
    opening.start()
    with contextlib.suppress(Exception):  # the first request says what is missing
        import cupy  # noqa: F401 - it takes a second, in which the first builds are made
    opening.join()
    threadpool_limits(limits=1)  # its matrices on the host are small, and the compilers have the other cores
    worker: Worker | None = None

    def serve(request: Request) -> Answer:
        nonlocal worker
        if isinstance(request, messages.Begin):
            verification = getattr(worker, "verification", None)
            if verification is not None and not verification.is_of(request.problem):
                verification = None  # its arrays may be large
            worker = None
            try:
                _free_memory()  # that of the last problem
                worker = Worker(device_index, request.problem, verification)
            except DeviceError as error:
                return Answer(None, lost=str(error), permanent=True)
            except (CudaError, MemoryError, RuntimeError) as error:
                return Answer(None, lost=f"{type(error).__name__}: {error}")
        assert worker is not None  # noqa: S101 - the first request begins a problem
        return worker.serve(request)

    return messages.in_turn(serve)


class Worker:
    """The state of a problem on a GPU: operands, verification and stopwatch, made once.

    The `verification` of the problem before may be used again, as for products of other sizes.

    Without such a GPU, or with too little memory, it raises a DeviceError; where the GPU cannot be used now, a
    MemoryError or RuntimeError.
    """

    def __init__(self, device_index: int, problem: RunnableProblem, verification: Verification | None = None) -> None:
        device = query_device(device_index)
        import cupy

        cupy.cuda.Device(device_index).use()
        self.problem = problem
        self.stopwatch = SeriesStopwatch(device.l2_bytes)
        self.usual_clock = UsualClock()
        self._device_index, self._gpu_name = device_index, device.name
        self._own_verifications: dict[RunnableProblem, tuple[Verification, OperandChecksums]] = {}
        self._nvml = Nvml(pci_bus_id(device_index))
        self.stopwatch.take(lambda: self.stopwatch.spin(1e-6), 1)
        self._constants: Sequence[tuple[str, int, int]] = ()
        self._baseline: Baseline | None = None
        self._default: tuple[LoadedKernel, Launch] | None = None
        self._reused = verification
        if not problem.needs_baseline:
            self._make_operands()

    def _make_operands(self) -> None:
        """Make the verification, and the operands that kernels are timed on unless it holds them."""
        problem = self.problem
        cases = problem.verification_cases()
        on_host = None if any(case.is_timed for case in cases) else _on_host(problem)
        with turn(self._device_index), _must_fit(self._gpu_name, problem):
            self.verification = self._reused or Verification(cases, self._baseline)
            timed = self.verification.timed
            if timed is not None:
                self._constants = timed.constants
                initial = {array.name: array.initial for array in timed.written if array.initial is not None}
                self._use({name: array.bytes for name, array in timed.arrays.items()}, initial)
                return
            operands = _operands(problem, on_host)
            written = {buffer.name: operands[buffer.name] for buffer in problem.buffers if buffer.role == "inout"}
            self._use(operands, {name: copied(array) for name, array in written.items()})

    def _use(self, operands: Operands, initial: Operands) -> None:
        """Time kernels on given operands, some of which have initial values that are restored before each run."""
        self._operands, self._initial = operands, initial
        if initial:
            self.stopwatch.prepare = self._restore
        self._addresses = _addresses(operands)
        self._arguments = problem_arguments(self.problem, self._addresses)
        inputs = [(buffer.name, operands[buffer.name]) for buffer in self.problem.buffers if buffer.role == "in"]
        copies = [(f"the initial {name}", copy) for name, copy in initial.items()]
        checked = {array.data.ptr: (name, array) for name, array in [*inputs, *copies, *self.verification.buffers()]}
        self._checksums = OperandChecksums(checked.values())

    def serve(self, request: Request) -> Answer:
        """Answer one request."""
        try:
            result = self._fulfil(request)
        except DeviceError as error:  # there is no reference implementation
            return Answer(Measurement(TrialState.LAUNCH_ERROR, str(error)))
        except (CudaError, MemoryError, RuntimeError) as error:
            return _answer_to(error)
        harmed = result.state is TrialState.WRONG_RESULT and bool(self._changed_buffers(*self._own_verifications))
        return Answer(result, retire=harmed)

    def _fulfil(self, request: Request) -> Result:
        """Return the result of a request; CUDA's errors are the kernel's."""
        match request:
            case messages.Begin():
                return self._begin(request.baseline)
            case messages.Measure():
                return self._measure(request)
            case messages.Check():
                return self._check(request)
            case messages.Prepare():
                self._own_verification(request.problem)
                return Measurement(TrialState.OK)
            case messages.Run():
                return self._run(request)
            case messages.TimeReference():
                launch = self._reference()
                launch()  # the first call loads the library's kernels, which must not even count as a warm-up
                return self._time(launch, request.rule, None)
            case messages.Race():
                return self._race(request)

    def _begin(self, baseline: Baseline | None) -> Measurement:
        """Make the arrays of a problem that needs a baseline, and verify the default configuration."""
        if baseline is None:
            return Measurement(TrialState.OK)
        self._baseline = baseline
        self._make_operands()
        started = time.perf_counter()
        kernel = LoadedKernel(baseline.cubin, baseline.entry)
        self._default = kernel, baseline.launches[-1]
        with turn(self._device_index):
            verified = self.verification.check(kernel, baseline.launches)
        return replace(verified, verify_s=time.perf_counter() - started)

    def _measure(self, request: messages.Measure) -> Measurement:
        """Verify a build, then time it."""
        started = time.perf_counter()
        with LoadedKernel(request.cubin, request.entry) as kernel:
            measured = verified = self.verification.check(kernel, request.verified)
            verify_s = time.perf_counter() - started
            if verified.state is TrialState.OK:
                measured = self._time(self._bind(kernel, request.timed), request.rule, request.best_s)
            measured = _unless_changed(measured, self._changed_buffers())
        return replace(measured, error=verified.error, verify_s=verify_s)

    def _check(self, request: messages.Check) -> Measurement:
        """Verify a build on the own cases of a problem, or on the GPU when it is too large for the host."""
        started, problem = time.perf_counter(), request.problem
        changed: tuple[str, ...] = ()
        with LoadedKernel(request.cubin, request.entry) as kernel:
            own = self._own_verification(problem)
            if own is None:
                assert isinstance(problem, LargeProblem)  # noqa: S101 - others have cases of their own
                verified = self._check_on_device(kernel, problem, request.launches[0])
            else:
                verification, checksums = own
                verified, changed = verification.check(kernel, request.launches), checksums.changed()
            changed = tuple(dict.fromkeys((*changed, *self._changed_buffers())))
        verify_s = time.perf_counter() - started
        return replace(_unless_changed(verified, changed), error=verified.error, verify_s=verify_s)

    def _own_verification(self, problem: RunnableProblem) -> tuple[Verification, OperandChecksums] | None:
        """Return the verification on a problem's own cases; None when it has none.

        It is kept for the next build, unless there is a baseline: then its arrays may be as large as the timed ones.
        """
        if problem in self._own_verifications:
            return self._own_verifications[problem]
        cases = problem.own_cases()
        if not cases:
            return None
        verification = Verification(cases, self._baseline)
        prepared = verification, OperandChecksums(verification.buffers())
        if self._baseline is None:
            if len(self._own_verifications) >= _MOST_VERIFICATIONS:
                self._own_verifications.clear()
            self._own_verifications[problem] = prepared
        return prepared

    def _check_on_device(self, kernel: LoadedKernel, problem: LargeProblem, launch: Launch) -> Measurement:
        """Verify a kernel on a problem that is too large for the host."""
        after = self._fresh_operands() if problem == self.problem else _operands(problem, _on_host(problem))
        inputs = {buffer.name for buffer in problem.buffers if buffer.role == "in"}
        before = {name: array if name in inputs else copied(array) for name, array in after.items()}
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
        for buffer in self.problem.buffers:
            if buffer.role == "inout":
                fresh[buffer.name] = copied(self._initial[buffer.name])
            elif buffer.role == "out":
                fresh[buffer.name] = cupy.empty_like(fresh[buffer.name])
                fresh[buffer.name].data.memset_async(_UNWRITTEN, fresh[buffer.name].nbytes)
        return fresh

    def _run(self, request: messages.Run) -> messages.Outputs:
        """Run a build once, on arrays of its own."""
        (timed,) = (case for case in self.problem.verification_cases() if case.is_timed)
        with LoadedKernel(request.cubin, request.entry) as kernel:
            return messages.Outputs(TrialState.OK, arrays=run_once(timed, kernel, request.launch))

    def _race(self, request: messages.Race) -> RaceResult:
        """Time builds and the reference in rounds."""
        with ExitStack() as stack:
            kernels = [stack.enter_context(LoadedKernel(cubin, entry)) for cubin, entry, _ in request.entries]
            launches = [
                self._bind(kernel, launch) for kernel, (*_, launch) in zip(kernels, request.entries, strict=True)
            ]
            entered = len(launches)
            with contextlib.suppress(DeviceError):
                if not request.orders:
                    reference = self._reference()
                    reference()  # loads the library's kernels, before anything is timed
                    launches.append(reference)

            def take(order: Sequence[int]) -> Series:
                return self._time_each([launches[runner] for runner in order])

            raced = run_rounds(len(launches), take, time.sleep, self.usual_clock, request.budget_s, request.orders)
            changed = self._changed_buffers()
        if changed:
            return RaceResult(TrialState.WRONG_RESULT, f"one of the kernels {_wrote(changed)}")
        return replace(
            raced,
            samples_s=tuple(times_s[:entered] for times_s in raced.samples_s),
            reference_s=tuple(times_s[entered] for times_s in raced.samples_s if len(times_s) > entered),
        )

    def _bind(self, kernel: LoadedKernel, launch: Launch) -> Callable[[], None]:
        """Return a function that launches a kernel on the worker's operands."""
        return kernel.bind(launch, self._arguments, self._constants)

    def _reference(self) -> Callable[[], None]:
        """Return a function that runs the reference: the vendor's, or the default configuration."""
        return bind_reference(self.problem, self._addresses) if self._default is None else self._bind(*self._default)

    def _changed_buffers(self, *problems: RunnableProblem) -> tuple[str, ...]:
        """Return the names of the read-only buffers that a kernel has changed, also in some problems' own cases."""
        checksums = [self._checksums, *(self._own_verifications[problem][1] for problem in problems)]
        return tuple(dict.fromkeys(name for checksum in checksums for name in checksum.changed()))

    def _time(self, launch: Callable[[], None], rule: SamplingRule, best_s: float | None) -> Measurement:
        """Time a launch on the worker's operands by a sampling rule; read the clock meanwhile, at no cost."""
        started = time.perf_counter()
        monitor = ClockMonitor(MonitoredKernel(self.stopwatch, self._nvml, launch), self.usual_clock, rule, best_s)
        timed = sample(monitor.take, rule, best_s)
        if monitor.persisting is not None and monitor.persisting.slowdown:
            detail = f"rest did not end a {monitor.persisting.detail}: the GPU is below its full speed; see its cooling"
            timed = replace(timed, state=TrialState.UNSTABLE, detail=detail)
        state = summarize(monitor.states)
        return replace(
            timed,
            time_s=time.perf_counter() - started,
            sm_clock_hz=state.sm_clock_hz,
            temperature_c=state.temperature_c,
            power_w=state.power_w,
            throttle_reasons=None if state.throttle_reasons is None else monitor.reasons,
            discarded=monitor.discarded,
        )

    def _time_each(self, launches: Sequence[Callable[[], None]]) -> Series:
        """Time several launches once each, in this order."""
        readings = Readings(self._nvml)
        return Series(tuple(self.stopwatch.take_each(launches, readings.take)), tuple(readings.states))

    def _restore(self) -> None:
        """Queue the copies that set operands which are read and written to their initial values."""
        for name, initial in self._initial.items():
            self._operands[name].data.copy_from_device_async(initial.data, initial.nbytes)


def _answer_to(error: Exception) -> Answer:
    """Return the answer to a request that failed with an error of CUDA."""
    fault = fault_of(error)
    if fault is Fault.GPU_UNAVAILABLE:
        return Answer(None, lost=str(error))
    rejected = fault is Fault.REJECTED
    return Answer(Measurement(TrialState.LAUNCH_ERROR if rejected else TrialState.CRASHED, str(error)), not rejected)


def _free_memory() -> None:
    """Return the memory that CuPy keeps for reuse to the GPU."""
    import cupy

    gc.collect()
    cupy.get_default_memory_pool().free_all_blocks()
    cupy.get_default_pinned_memory_pool().free_all_blocks()


def _on_host(problem: RunnableProblem) -> Operands | None:
    """Make the operands of a problem on the host; None for large ones."""
    return None if problem.bytes > _HOST_OPERANDS_BYTES else problem.operands(np, _SEED)


def _operands(problem: RunnableProblem, on_host: Operands | None) -> Operands:
    """Return the operands of a problem on the GPU, which makes those that are not on the host."""
    import cupy

    return problem.operands(cupy, _SEED) if on_host is None else {name: cupy.asarray(on_host[name]) for name in on_host}


@contextlib.contextmanager
def _must_fit(gpu: str, problem: RunnableProblem) -> Iterator[None]:
    """Raise a DeviceError where the operands of a problem do not fit into the memory of a GPU that nobody else uses."""
    try:
        yield
    except MemoryError as error:
        memory = gpu_memory()
        if memory is not None and memory.used_by_others:
            raise
        raise DeviceError(
            f"the operands of {problem.label} do not fit into the memory of {gpu}: {error}; choose a smaller size."
        ) from error


def _addresses(operands: Operands) -> dict[str, int]:
    return {name: int(array.data.ptr) for name, array in operands.items()}


def _unless_changed(measured: Measurement, changed: tuple[str, ...]) -> Measurement:
    """Return a measurement, or a wrong result if the kernel changed buffers that it must not change."""
    if not changed:
        return measured
    before = f"{measured.detail}; " if measured.detail else ""
    return Measurement(TrialState.WRONG_RESULT, f"{before}{_wrote(changed)}", time_s=measured.time_s)


def _wrote(changed: tuple[str, ...]) -> str:
    return f"wrote into {' and '.join(changed)}"
