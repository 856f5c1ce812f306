"""The runner on a GPU: the parent of a worker process, with a deadline for every request."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, Self, TypeVar

from mltune.device.peaks import peak_flops
from mltune.errors import (
    BundleError,
    DeviceError,
    DeviceLostError,
    ExpressionError,
    ProblemError,
    UsageError,
    WorkerError,
)
from mltune.kernel.bundle import Kernel
from mltune.kernel.launch import Launch
from mltune.kernel.placed import PlacedKernel
from mltune.measure import messages
from mltune.measure.messages import Answer, Baseline, Request, Result
from mltune.measure.pipeline import SamplingRule
from mltune.measure.timing import BUDGET_S, RaceResult, within_limits
from mltune.measure.turns import turn
from mltune.problem.problem import Problem, RunnableProblem
from mltune.process.child import ChildDiedError, ChildPool, ChildTimeoutError, fulfilled
from mltune.records.trial import Build, Measurement, TrialState

Returned = TypeVar("Returned")
Waiting = tuple[messages.Measure, Future[Measurement]]
Kind = TypeVar("Kind", Measurement, RaceResult, messages.Outputs)

REFERENCE_RULE = SamplingRule(max_samples=5, noise_target=0.002, limited_noise=0.002)
"""Few samples, for repeated timings of the reference implementation that show drift of the GPU."""

LEAST_TIMEOUT_S = 2.0
"""Least deadline of a build."""

SLOWEST = 50
"""Deadline of a build, in run times of the fastest kernel so far, besides its verification."""

GRACE_S = 0.1
"""Seconds that a build has to end when nobody waits for it any more."""

MOST_AT_ONCE = 16
"""Most builds that are sent to the worker at once."""

_WORKER = "mltune.measure.worker:make_worker"
_WORKERS_PER_REQUEST = 2
_CHECK_TIMEOUT_S = 120.0
_RACE_TIMEOUT_S = 30.0
_BEGIN_TIMEOUT_S = 300.0  # arrays of many gigabytes are made
_PAUSES_S = (1.0, 2.0, 4.0)  # the memory of a killed process is free after some seconds, and so may be that of others


class GpuRunner:
    """Verify and time the builds of one kernel for one problem on one GPU. Satisfies the Runner protocol.

    The worker process starts on entry, and is replaced when a kernel hangs or damages it. The failure counts as the
    kernel's only when the next worker runs: if none can be started, the GPU is lost, and the future holds a
    :class:`DeviceLostError`. A build may take `timeout_s` until a run time is known (:data:`SLOWEST`). `baseline` is
    called once, while the worker starts. Tests without a GPU exchange `worker`.
    """

    def __init__(
        self,
        placed: PlacedKernel,
        device_index: int = 0,
        *,
        timeout_s: float = 10.0,
        worker: str = _WORKER,
        baseline: Callable[[], Baseline] | None = None,
        pool: ChildPool | None = None,
    ) -> None:
        kernel, problem = placed.kernel, placed.runnable
        if problem.is_empty:
            raise ProblemError(f"{problem.label} cannot be timed: its result has no elements.")
        if kernel.source.entry is None:
            raise UsageError(f"{kernel.name} has no source to run; replay a dataset of it.")
        self.restarts = 0
        self._placed = placed
        self._kernel = kernel
        self._problem = problem
        self._timeout_s = timeout_s
        self._make_baseline = baseline
        self._baseline: Baseline | None = None
        self._entry = kernel.source.entry
        self._pool, self._keeps = pool or ChildPool(), pool is not None
        self._device_index = device_index
        self._target, self._arguments = worker, (device_index,)
        self._serves: int | None = None  # the process that has begun the problem
        self._under_way: set[Future[Any]] = set()
        self._waiting: deque[Waiting] = deque()
        self._unprepared: deque[RunnableProblem] = deque()
        self._at_once = 1
        self._launches: dict[tuple[tuple[str, int], ...], dict[Problem, Launch]] = {}
        self._closing = threading.Event()
        self._served = False
        self._best: Measurement | None = None  # or the default configuration, verified and not yet timed
        self._measuring = self._given_up = False
        self._peak_flops = peak_flops(placed.device, problem.arithmetic)

    def __enter__(self) -> Self:
        self._worker = self._pool.take(self._target, self._arguments)
        self._child = self._worker.child
        self._submit(self._start)
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.set()
        running = [future for future in list(self._under_way) if not future.cancel()]
        if not self._keeps or not all(future.done() for future in running):
            self._child.interrupt()
        wait(running)
        self._pool.give_back(self._worker)
        if not self._keeps:
            self._pool.close()

    def abandon(self) -> None:
        """Cancel builds that wait, and end a kernel that hangs with its worker; its future holds a WorkerError."""
        running = [future for future in list(self._under_way) if not future.cancel()]
        if wait(running, GRACE_S).not_done and self._measuring:
            self._given_up = True
            self._child.interrupt()
            wait(running)
            self._given_up = False

    def submit(
        self, configuration: Mapping[str, int], build: Build, *, best_s: float | None = None
    ) -> Future[Measurement]:
        """Queue one build (see the Runner protocol)."""
        if build.state is not TrialState.OK or not build.cubin:
            raise UsageError(f"a build in state {build.state} cannot run: only one in state ok, with its cubin, can.")
        try:
            launches = self._launches.get((*configuration.items(),)) or self._launches_of(configuration)
        except ExpressionError as error:
            return fulfilled(Measurement(TrialState.LAUNCH_ERROR, str(error)))
        *verified, timed = [launches[case.problem] for case in (*self._placed.verified, self._placed)]
        request = messages.Measure(
            build.cubin, build.entry or self._entry, tuple(verified), timed, SamplingRule(), best_s
        )
        future: Future[Measurement] = self._note(Future())
        self._waiting.append((request, future))
        self._worker.thread.submit(self._measure_waiting)
        return future

    def expect(self, configurations: Sequence[Mapping[str, int]]) -> None:
        """Compute the launches of configurations that will be submitted together: they take longer one by one."""
        if not self._kernel.launch_rule.has_formulas or not configurations:
            return
        with suppress(ExpressionError):  # of one of them, whose submission has it
            by_problem = {case.problem: case.launches(configurations) for case in self._cases()}
            rows = zip(*by_problem.values(), strict=True)
            of_each = [dict(zip(by_problem, launches, strict=True)) for launches in rows]
            self._launches |= zip(((*values.items(),) for values in configurations), of_each, strict=True)

    def _launches_of(self, configuration: Mapping[str, int]) -> dict[Problem, Launch]:
        return {case.problem: case.launch(configuration) for case in self._cases()}

    def _cases(self) -> list[PlacedKernel]:
        """Return the kernel at the problems on which it is verified and timed, at each once."""
        return [*{case.problem: case for case in (*self._placed.verified, self._placed)}.values()]

    def time_reference(self, rule: SamplingRule = REFERENCE_RULE) -> Measurement:
        """Time the reference implementation as the kernels are timed; ``LAUNCH_ERROR`` where it cannot be used."""
        return self._ask(Measurement, messages.TimeReference(rule))

    def race(
        self,
        entries: Sequence[tuple[Mapping[str, int], Build]],
        budget_s: float = BUDGET_S,
        orders: Sequence[tuple[int, ...]] = (),
    ) -> RaceResult:
        """Time several builds in state ``OK`` side by side in rounds, with the reference unless orders are given."""
        launches = [
            (build.cubin, build.entry or self._entry, self._placed.launch(configuration))
            for configuration, build in entries
        ]
        return self._ask(RaceResult, messages.Race(tuple(launches), budget_s, tuple(orders)), _RACE_TIMEOUT_S)

    def run_once(self, configuration: Mapping[str, int], build: Build) -> messages.Outputs:
        """Run a build once on the buffers of the problem; return these."""
        request = messages.Run(build.cubin, build.entry or self._entry, self._placed.launch(configuration))
        return self._ask(messages.Outputs, request, _CHECK_TIMEOUT_S)

    def verify_winner(
        self,
        configuration: Mapping[str, int],
        build: Build,
        problems_besides: Iterable[RunnableProblem] | None = None,
    ) -> dict[RunnableProblem, Measurement]:
        """Verify a build on the runner's problem and others, by default those that it lists for winners."""
        if problems_besides is None:
            problems_besides = self._problem.winner_problems()
        timeout_s = max(self._timeout_s, _CHECK_TIMEOUT_S)
        measurements: dict[RunnableProblem, Measurement] = {}
        for problem in (self._problem, *problems_besides):
            problems = [case.problem for case in problem.own_cases()] or [problem]
            launches = tuple(self._placed.at(size).launch(configuration) for size in problems)
            check = messages.Check(build.cubin, build.entry or self._entry, problem, launches)
            measurements[problem] = self._ask(Measurement, check, timeout_s)
        return measurements

    def expect_winner(self) -> None:
        """Prepare the verification of a winner while no build waits, one problem after the other.

        With a baseline nothing is kept: its arrays may be as large as the timed ones.
        """
        if self._make_baseline is None:
            self._unprepared.extend((self._problem, *self._problem.winner_problems()))
            self._submit(self._prepare)

    def _prepare(self) -> None:
        if self._unprepared and not self._waiting and not self._closing.is_set():
            self._request(messages.Prepare(self._unprepared.popleft()), _CHECK_TIMEOUT_S)
            self._submit(self._prepare)

    def _submit(self, function: Callable[..., Returned], *arguments: Any) -> Future[Returned]:
        """Call a function in the thread of the worker, after those that were submitted before."""
        return self._note(self._worker.thread.submit(function, *arguments))

    def _note(self, future: Future[Returned]) -> Future[Returned]:
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        return future

    def _ask(self, kind: type[Kind], request: Request, timeout_s: float | None = None) -> Kind:
        return _of_kind(kind, self._submit(self._request, request, timeout_s).result())

    def _measure_waiting(self) -> None:
        """Measure the first builds that wait: as many of short ones as the worker measures in a slice of time."""
        batch: deque[Waiting] = deque()
        while self._waiting and len(batch) < self._at_once:
            request, future = self._waiting.popleft()
            if batch or future.set_running_or_notify_cancel():
                batch.append((request, future))
        if not batch:
            return

        def keep(result: Result) -> None:
            _, future = batch.popleft()
            measured = self._accept(_of_kind(Measurement, result))
            if not future.cancelled():
                future.set_result(measured)

        def go_on(answer: Answer) -> None:
            assert answer.result is not None  # noqa: S101 - a lost GPU ends the request
            keep(answer.result)
            batch[0][1].set_running_or_notify_cancel()

        try:
            keep(self._request(lambda: self._message(batch), self._deadline_s(), go_on))
        except Exception as error:
            _, future = batch.popleft()
            if not future.cancelled():
                future.set_exception(error)
        self._waiting.extendleft(waiting for waiting in reversed(batch) if not waiting[1].cancelled())
        self._prepare()

    def _message(self, batch: Iterable[Waiting]) -> messages.Measure | messages.MeasureAll:
        """Return the request to measure builds, with the best time known now: others have been timed meanwhile."""
        best = () if self._best is None else (self._best.median_s,)
        requests = []
        for request, _ in batch:
            bests_s = [best_s for best_s in (request.best_s, *best) if best_s is not None]
            requests.append(replace(request, best_s=min(bests_s, default=None)))
        return messages.MeasureAll(tuple(requests)) if len(requests) > 1 else requests[0]

    def _accept(self, measured: Measurement) -> Measurement:
        """Return a measurement, checked, and learn from it."""
        measured = within_limits(measured, self._problem.flops, self._peak_flops)
        median_s = measured.median_s if measured.state is TrialState.OK else None
        best_s = None if self._best is None else self._best.median_s
        if median_s is not None and (best_s is None or median_s < best_s):
            self._best = measured
        trial_s = measured.verify_s + measured.time_s
        self._at_once = max(1, min(MOST_AT_ONCE, int(messages.SLICE_S / max(trial_s, 1e-3))))
        return measured

    def _deadline_s(self) -> float:
        """Return the seconds allowed for a build from its loading to its last sample."""
        if self._best is None:
            return self._timeout_s
        median_s, verify_s = self._best.median_s, self._best.verify_s
        slow_s = min(self._timeout_s, SLOWEST * verify_s) if median_s is None else SLOWEST * median_s
        return max(LEAST_TIMEOUT_S, slow_s + 2 * verify_s)

    def _request(
        self,
        request: Request | Callable[[], Request | messages.MeasureAll],
        timeout_s: float | None = None,
        on_message: Callable[[Answer], None] | None = None,
    ) -> Result:
        """Send a request to the worker, in the runner's thread, and to a second worker if the first one dies.

        A worker may have been killed from outside: the failure counts only if the second one dies too.
        """
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        for _ in range(_WORKERS_PER_REQUEST):
            self._start()
            result, worker = self._attempt(request() if callable(request) else request, limit_s, on_message)
            if worker == "usable":
                return result
            self.restarts += 1
            self._child.kill()
            if self._closing.is_set() or self._given_up:
                raise WorkerError("the measurement of a build was given up before its end; measure it again.")
            if worker == "damaged":
                break
        self._start()  # if the next worker runs, the GPU is usable and the failure is the kernel's
        return result

    def _attempt(
        self,
        request: Request | messages.MeasureAll,
        limit_s: float,
        on_message: Callable[[Answer], None] | None,
    ) -> tuple[Result, Literal["usable", "damaged", "dead"]]:
        """Send a request once; return its result and the state of the worker."""
        self._measuring = isinstance(request, messages.Measure | messages.MeasureAll)
        try:
            with turn(self._device_index):
                answer: Answer = self._child.call(request, limit_s, on_message)
        except ChildTimeoutError:
            detail = f"no answer within {limit_s:g} s: the kernel hangs or is slower than that"
            return Measurement(TrialState.TIMEOUT, detail), "damaged"
        except ChildDiedError as error:
            return Measurement(TrialState.CRASHED, str(error)), "dead"
        finally:
            self._measuring = False
        if answer.result is None:
            self._child.kill()
            raise DeviceLostError(_lost(answer.lost))
        return answer.result, "damaged" if answer.retire else "usable"

    def _start(self) -> None:
        """Let a worker begin the problem unless one has, repeatedly if necessary; then the GPU can be used."""
        if self._child.pid is not None and self._child.pid == self._serves:
            return
        used_before = [0.0] if self._child.has_answered else []  # it may have been killed since
        if self._baseline is None and self._make_baseline is not None:
            with ThreadPoolExecutor(max_workers=1) as compiling:
                baseline = compiling.submit(self._make_baseline)
                with suppress(WorkerError):  # the request below tries again, and reports the error
                    self._child.start()
            self._baseline = baseline.result()
        for pause_s in (*used_before, *_PAUSES_S, 0.0):
            try:
                answer: Answer = self._child.call(messages.Begin(self._problem, self._baseline), _BEGIN_TIMEOUT_S)
            except (WorkerError, ChildTimeoutError, ChildDiedError) as error:
                if used_before:
                    used_before = []
                    continue
                if self._baseline is not None and isinstance(error, ChildTimeoutError | ChildDiedError):
                    raise _wrong_baseline(self._kernel, Measurement(TrialState.CRASHED, str(error))) from error
                if not self._served:
                    raise WorkerError(str(error)) from error
                reason = str(error)
            else:
                if isinstance(answer.result, Measurement):
                    if answer.result.state is not TrialState.OK:
                        self._child.kill()
                        raise _wrong_baseline(self._kernel, answer.result)
                    self._served, self._serves = True, self._child.pid
                    if self._best is None and answer.result.verify_s:
                        self._best = answer.result
                    return
                self._child.kill()
                if answer.permanent and not self._served:
                    raise DeviceError(answer.lost)
                reason = answer.lost
            if self._closing.wait(pause_s):
                break
        raise DeviceLostError(_lost(reason))


def start_worker(pool: ChildPool, device_index: int) -> None:
    """Start the worker process of a GPU, which takes seconds, before the runner that takes it from the pool is made."""
    worker = pool.take(_WORKER, (device_index,))
    worker.thread.submit(worker.child.start)
    pool.give_back(worker)


def _of_kind(kind: type[Kind], result: Result) -> Kind:
    """Return a result of the wanted kind; a measurement in its place tells how the request failed."""
    return result if isinstance(result, kind) else kind(result.state, result.detail)


def _wrong_baseline(kernel: Kernel, verified: Measurement) -> BundleError:
    return BundleError(
        f"the default configuration of {kernel.name} ends with {verified.state}: {verified.detail}; it must give the "
        f"right answer, see {kernel.described_in}."
    )


def _lost(reason: str) -> str:
    return f"the GPU cannot be used now: {reason}; see `nvidia-smi`, then resume."
