"""The jobs of a comparison: runs in worker processes, isolated from each other's crashes, and a forecast."""

from __future__ import annotations

import copy
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import Empty, SimpleQueue
from statistics import fmean

from mltune.comparison.journal import Job, Outcome
from mltune.comparison.simulation import Recording, Strategy, simulate
from mltune.comparison.strategies import pickled, unpickled
from mltune.errors import MltuneError, WorkerError
from mltune.process.child import Child, ChildDiedError, ChildTimeoutError
from mltune.process.child import stop as stop_children

POLL_S = 0.2
"""Seconds between two calls of ``stop``."""

OWN_S: Mapping[str, float] = {
    "mltune": 0.01,
    "mltune-noskip": 0.0025,
    "mltune-nobuild": 0.0025,
    "mltune-raw": 0.0025,
    "mltune-tpe": 0.015,
    "tpe": 0.012,
    "astra": 0.0001,
    "random": 0.0001,
    "hybrid_vndx": 0.003,
    "adaptive_tabu_greywolf": 0.002,
    "gp": 0.2,
}
"""Rough seconds of a strategy's own work per evaluation, measured on one core in runs of 400 evaluations."""

UNKNOWN_S = 0.005
"""Assumed seconds for any other strategy."""

START_S = 3.0
"""Seconds until a process has started and imported its modules."""

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_LONGEST_S = 7 * 86_400.0


def run_jobs(
    jobs: Sequence[Job],
    recordings: Mapping[str, Recording],
    strategies: Mapping[str, Strategy],
    evaluations: int,
    processes: int,
    stop: Callable[[], bool] = bool,
) -> Iterator[Outcome]:
    """Run jobs in single-threaded processes, and yield the outcome of each when it ends.

    A job that raises an exception, or whose process dies, ends with an error; a dead process is replaced. A strategy
    whose class is of a script or a notebook runs in this process, at the end. ``stop`` is called several times a
    second; true ends the iteration, and the jobs under way are lost.
    """
    sent = {name: content for name, strategy in strategies.items() if (content := pickled(strategy)) is not None}
    remote = [job for job in jobs if job.strategy in sent]
    if remote:
        yield from _in_processes(remote, (dict(recordings), sent, evaluations), processes, stop)
    for job in jobs:
        if job.strategy not in sent and not stop():
            fresh = partial(copy.deepcopy, strategies[job.strategy])
            yield _outcome(job, fresh, recordings[job.dataset], evaluations)


def _in_processes(
    jobs: Sequence[Job], arguments: tuple[object, ...], processes: int, stop: Callable[[], bool]
) -> Iterator[Outcome]:
    factory = f"{__name__}:make_simulator"
    children = [Child(factory, arguments, environment=_ONE_THREAD) for _ in range(max(1, min(processes, len(jobs))))]
    free: SimpleQueue[Child] = SimpleQueue()
    for child in children:
        free.put(child)

    def run(job: Job) -> Outcome:
        child = free.get()
        try:
            outcome: Outcome = child.call(job, _LONGEST_S)
            return outcome
        except (ChildDiedError, ChildTimeoutError, WorkerError) as error:
            return Outcome(job, None, str(error))
        finally:
            free.put(child)

    pool = ThreadPoolExecutor(len(children))
    ended: SimpleQueue[Future[Outcome]] = SimpleQueue()
    futures = [pool.submit(run, job) for job in jobs]
    try:
        for future in futures:
            future.add_done_callback(ended.put)
        open_jobs = len(futures)
        while open_jobs and not stop():
            try:
                outcome = ended.get(timeout=POLL_S).result()
            except Empty:
                continue
            open_jobs -= 1
            yield outcome
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        stop_children(children, futures)
        for child in children:
            child.kill()


def make_simulator(
    recordings: Mapping[str, Recording], strategies: Mapping[str, tuple[str, bytes]], evaluations: int
) -> Callable[[Job], Outcome]:
    """Return the function of a worker process that runs jobs, each with a fresh copy of its strategy."""
    folders = {folder for folder, _ in strategies.values()} - set(sys.path)
    sys.path.extend(sorted(folders))

    def run(job: Job) -> Outcome:
        fresh = partial(unpickled, strategies[job.strategy][1])
        return _outcome(job, fresh, recordings[job.dataset], evaluations)

    return run


def _outcome(job: Job, fresh: Callable[[], Strategy], recording: Recording, evaluations: int) -> Outcome:
    try:
        return Outcome(job, simulate(fresh(), recording, evaluations, job.seed))
    except MltuneError as error:
        return Outcome(job, None, str(error))
    except Exception:  # a strategy of a third party may raise anything
        return Outcome(job, None, traceback.format_exc(limit=-4)[-2000:])


class Forecast:
    """The remaining time of all ``jobs``, from the ``outcomes`` so far and the usual seconds of each strategy."""

    def __init__(self, evaluations: int, processes: int, jobs: Iterable[Job], outcomes: Iterable[Outcome] = ()) -> None:
        self._evaluations = evaluations
        self._processes = processes
        self._left = Counter((job.strategy, job.dataset) for job in jobs)
        self._seconds: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)
        for outcome in outcomes:
            self._learn(outcome)
        self._worked_s = 0.0
        self._since = time.monotonic()

    def ended(self, outcome: Outcome) -> None:
        """Update the forecast with a run that has ended."""
        self._left[outcome.job.strategy, outcome.job.dataset] -= 1
        self._worked_s += self._learn(outcome)

    @property
    def left_s(self) -> float:
        """The expected seconds until all runs have ended, on a machine as busy as so far."""
        expected_s = START_S + self._worked_s / self._processes
        slowdown = max(1.0, (time.monotonic() - self._since) / expected_s)
        return slowdown * sum(count * self._run_s(*pair) for pair, count in self._left.items()) / self._processes

    def _learn(self, outcome: Outcome) -> float:
        """Add a run to those of its strategy and dataset; return its seconds."""
        if outcome.trace is None:
            return 0.0
        run_s = float(outcome.trace.own_s.sum())
        self._seconds[outcome.job[:2]].append(run_s)
        self._seconds[outcome.job[:1]].append(run_s)
        return run_s

    def _run_s(self, strategy: str, dataset: str) -> float:
        durations_s = self._seconds[strategy, dataset] or self._seconds[strategy,]
        return (
            fmean(durations_s) if durations_s else self._evaluations * OWN_S.get(strategy.partition(":")[0], UNKNOWN_S)
        )
