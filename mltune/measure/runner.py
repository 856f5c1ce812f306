"""The runner on a GPU: the parent of one worker process, which holds its deadline and turns its end into a state."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Literal, Self

from mltune.device.facts import Device
from mltune.device.peaks import peak_flops
from mltune.errors import DeviceError, DeviceLostError, ExpressionError, ProblemError, UsageError, WorkerError
from mltune.kernel.bundle import Kernel, device_variables
from mltune.measure.protocols import SamplingRule
from mltune.measure.race import BUDGET_S, RaceResult
from mltune.measure.requests import Check, Greet, Measure, Race, TimeCublas, TimeSpin
from mltune.measure.timing_limits import within_limits
from mltune.measure.verification import verification_cases
from mltune.measure.worker import Answer, Request, Setup
from mltune.problem.gemm import GemmProblem
from mltune.process.child import Child, ChildDiedError, ChildTimeoutError
from mltune.records.trial import Build, Measurement, TrialState

WINNER_SIZES = ((1, 1, 1), (127, 129, 65), (256, 256, 256), (1023, 33, 257), (64, 1500, 1), (500, 300, 0))
"""Sizes (m, n, k) that a winner is verified at, besides its own."""

_DEFAULT_RULE = SamplingRule()
_REFERENCE_RULE = SamplingRule(max_samples=5, noise_target=0.002, max_s=0.3)
_WORKER = "mltune.measure.worker:make_worker"
_WORKERS_ASKED = 2
_LONGEST_CHECK_S = 120.0
_LONGEST_RACE_S = 30.0
_LONGEST_GREETING_S = 30.0
_PAUSES_S = (1.0, 2.0, 4.0)  # a GPU takes its time to clear away a killed process, and so may others


@dataclass(frozen=True, slots=True)
class WinnerCheck:
    """One verification of a winner.

    Attributes
    ----------
    problem : GemmProblem
        What it computed.
    state : TrialState
        ``OK`` when it was right.
    error : float or None
        Largest error as a share of its bound; None when it did not come so far.
    detail : str
        Empty, or what went wrong.
    """

    problem: GemmProblem
    state: TrialState
    error: float | None
    detail: str


class GpuRunner:
    """Verifies and times the builds of one kernel for one problem on one GPU. Satisfies the Runner protocol.

    The worker process is started on entry, while the first builds are compiled, and replaced when a kernel hung or
    harmed it. A kernel that does so costs the start of a worker, some seconds. Only when the next worker runs is it the
    kernel that is to blame: if none can be started, the GPU is lost, and the future holds a :class:`DeviceLostError`.

    Parameters
    ----------
    kernel : Kernel
    problem : GemmProblem
        What is timed; a small problem of the same case is what kernels are verified on.
    device_index : int
        The GPU, among those that the driver shows.
    device : Device, optional
        Its facts; asked of the driver when missing.
    rule : SamplingRule, optional
        When to stop sampling a run time.
    timeout_s : float
        Seconds that one build may take, from its loading to its last sample.
    worker : str
        What makes a worker, as :class:`~mltune.process.child.Child` takes it: exchanged to try the runner without a
        GPU.

    Attributes
    ----------
    restarts : int
        How many workers have been replaced.

    Raises
    ------
    ProblemError
        The result of the problem has no elements.
    UsageError
        The kernel has no source.
    DeviceError
        There is no such GPU, or what it is used through is not installed.
    """

    def __init__(
        self,
        kernel: Kernel,
        problem: GemmProblem,
        device_index: int = 0,
        *,
        device: Device | None = None,
        rule: SamplingRule = _DEFAULT_RULE,
        timeout_s: float = 10.0,
        worker: str = _WORKER,
    ) -> None:
        if not problem.m * problem.n:
            raise ProblemError(f"a problem whose result has elements is timed, got {problem.label}.")
        if kernel.entry is None:
            raise UsageError(f"a kernel with a source can be run, but {kernel.name} has none; replay a dataset of it.")
        if device is None:
            from mltune.device.query import query_device

            device = query_device(device_index)
        self.restarts = 0
        self._kernel = kernel
        self._problem = problem
        self._device = device_variables(device)
        self._rule = rule
        self._timeout_s = timeout_s
        problems = [*(case.problem for case in verification_cases(problem)), problem]
        variables = [self._variables(one) for one in problems]
        self._shapes = [one for at, one in enumerate(variables) if one not in variables[:at]]
        self._shape_of = [self._shapes.index(one) for one in variables]  # of each verification, and of the timing
        self._child = Child(worker, (Setup(device_index, problem, kernel.entry),))
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mltune-gpu")
        self._closing = threading.Event()
        self._served = False
        self._best_s: float | None = None
        self._peak_flops = peak_flops(device, problem.arithmetic)

    def __enter__(self) -> Self:
        self._thread.submit(self._start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._child.interrupt()
        self._thread.shutdown(wait=True)
        self._child.kill()

    def submit(
        self, configuration: Mapping[str, int], build: Build, *, best_s: float | None = None
    ) -> Future[Measurement]:
        """Queue one build (see the Runner protocol).

        The future holds a :class:`DeviceLostError` when the GPU cannot be used, whatever the build.
        """
        if build.state is not TrialState.OK or not build.cubin:
            raise UsageError(f"a build in state ok, with its cubin, can be run, got one in state {build.state}.")
        try:
            launches = [self._kernel.launch(configuration, variables) for variables in self._shapes]
        except ExpressionError as error:
            refused: Future[Measurement] = Future()
            refused.set_result(Measurement(TrialState.LAUNCH_ERROR, str(error)))
            return refused
        *verified, timed = (launches[shape] for shape in self._shape_of)
        return self._thread.submit(self._time, Measure(build.cubin, tuple(verified), timed, self._rule, best_s))

    def time_cublas(self) -> Measurement:
        """Time cuBLAS on the runner's problem, in the same process and in the same way as the kernels.

        Returns
        -------
        Measurement
            ``LAUNCH_ERROR``, without a time, when cuBLAS is not installed or the problem is too large for it.
        """
        return self._answer(TimeCublas(self._rule))

    def time_reference(self) -> Measurement:
        """Time the reference kernel: cuBLAS, with few samples. What it takes now and took before shows a drift.

        Returns
        -------
        Measurement
            As :meth:`time_cublas`.
        """
        return self._answer(TimeCublas(_REFERENCE_RULE))

    def race(self, entries: Sequence[tuple[Mapping[str, int], Build]], *, budget_s: float = BUDGET_S) -> RaceResult:
        """Time several builds, and cuBLAS with them, side by side in rounds.

        Parameters
        ----------
        entries : sequence of (configuration, build)
            The builds in state ``OK``, each with its configuration.
        budget_s : float
            Most seconds of runs on the GPU.

        Raises
        ------
        DeviceLostError
            The GPU cannot be used now.
        """
        variables = self._variables(self._problem)
        launches = [(build.cubin, self._kernel.launch(configuration, variables)) for configuration, build in entries]
        result = self._thread.submit(self._ask, Race(tuple(launches), budget_s), _LONGEST_RACE_S).result()
        return RaceResult(result.state, result.detail) if isinstance(result, Measurement) else result

    def self_test(self, duration_s: float = 2e-3) -> float:
        """Time a kernel of known duration; return measured over known.

        Raises
        ------
        DeviceError
            The kernel did not run.
        """
        measured = self._answer(TimeSpin(duration_s))
        if measured.median_s is None:
            raise DeviceError(
                f"a GPU must run a kernel that waits, but it did not: {measured.detail}; see `nvidia-smi`."
            )
        return measured.median_s / duration_s

    def verify_winner(
        self, configuration: Mapping[str, int], build: Build, sizes: Iterable[tuple[int, int, int]] = WINNER_SIZES
    ) -> tuple[WinnerCheck, ...]:
        """Verify a build at the problem's own size and at others.

        Parameters
        ----------
        configuration : mapping of str to int
        build : Build
            In state ``OK``.
        sizes : iterable of (m, n, k)
            The other sizes.
        """
        others = [replace(self._problem, m=m, n=n, k=k, lda=0, ldb=0, ldc=0) for m, n, k in sizes]
        return tuple(self._check(configuration, build, problem) for problem in (self._problem, *others))

    def _check(self, configuration: Mapping[str, int], build: Build, problem: GemmProblem) -> WinnerCheck:
        request = Check(build.cubin, problem, self._kernel.launch(configuration, self._variables(problem)))
        timeout_s = max(self._timeout_s, _LONGEST_CHECK_S)
        measured = self._answer(request, timeout_s)
        return WinnerCheck(problem, measured.state, measured.error, measured.detail)

    def _variables(self, problem: GemmProblem) -> dict[str, int]:
        return {**self._device, **problem.variables()}

    def _answer(self, request: Request, timeout_s: float | None = None) -> Measurement:
        """Have a request answered, and wait for that."""
        return self._thread.submit(self._measure, request, timeout_s).result()

    def _time(self, request: Measure) -> Measurement:
        """Ask for the time of a build, with the best known now: many may have been timed since it was queued."""
        known = [best_s for best_s in (request.best_s, self._best_s) if best_s is not None]
        measured = self._measure(replace(request, best_s=min(known, default=None)))
        believed = within_limits(measured, self._problem.flops, self._peak_flops)
        if believed.state is TrialState.OK and believed.median_s is not None:
            self._best_s = min(believed.median_s, self._best_s or believed.median_s)
        return measured

    def _measure(self, request: Request, timeout_s: float | None = None) -> Measurement:
        """Ask for a measurement."""
        result = self._ask(request, timeout_s)
        if not isinstance(result, Measurement):
            raise WorkerError(f"a worker answers {type(request).__name__} with a measurement, got {result!r:.200}.")
        return result

    def _ask(self, request: Request, timeout_s: float | None = None) -> Measurement | RaceResult:
        """Ask the worker in the runner's thread, and say what became of it.

        A worker that died may have been killed from outside: the same is asked of another, and only a request that none
        survives is to blame.

        Raises
        ------
        DeviceLostError
            The GPU cannot be used now.
        WorkerError
            The runner was left meanwhile.
        """
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        for _ in range(_WORKERS_ASKED):
            self._start()
            result, worker = self._attempt(request, limit_s)
            if worker == "well":
                return result
            self.restarts += 1
            self._child.kill()
            if self._closing.is_set():
                raise WorkerError("a build is measured to its end, but the runner was left before; measure it again.")
            if worker == "harmed":
                break
        self._start()  # that the next one runs is what shows the GPU to be innocent
        return result

    def _attempt(
        self, request: Request, limit_s: float
    ) -> tuple[Measurement | RaceResult, Literal["well", "harmed", "dead"]]:
        """Ask the worker once; return what became of the request, and of the worker."""
        try:
            answer: Answer = self._child.call(request, limit_s)
        except ChildTimeoutError:
            words = f"no answer within {limit_s:g} s: it hangs, or is slower than that"
            return Measurement(TrialState.TIMEOUT, words), "harmed"
        except ChildDiedError as error:
            return Measurement(TrialState.CRASHED, str(error)), "dead"
        if answer.result is None:
            self._child.kill()
            raise DeviceLostError(_lost(answer.lost))
        return answer.result, "harmed" if answer.retire else "well"

    def _start(self) -> None:
        """Start the worker if none runs, more than once if need be, and have it say that the GPU can be used.

        Raises
        ------
        DeviceError
            There is no such GPU, or what it needs is not installed.
        DeviceLostError
            The GPU has been used before, or can be seen, but not now.
        WorkerError
            The first worker could not be started at all.
        """
        if self._child.pid is not None:
            return
        for pause_s in (*_PAUSES_S, 0.0):
            try:
                answer: Answer = self._child.call(Greet(), _LONGEST_GREETING_S)
            except (WorkerError, ChildTimeoutError, ChildDiedError) as error:
                if not self._served:
                    raise WorkerError(str(error)) from error
                reason = str(error)
            else:
                if answer.result is not None:
                    self._served = True
                    return
                self._child.kill()
                if answer.hopeless and not self._served:
                    raise DeviceError(answer.lost)
                reason = answer.lost
            if self._closing.wait(pause_s):
                break
        raise DeviceLostError(_lost(reason))


def _lost(reason: str) -> str:
    return f"a GPU must answer to be measured on, but it cannot be used now: {reason}; see `nvidia-smi`, then resume."
