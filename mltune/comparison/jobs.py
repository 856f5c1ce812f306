"""Run the jobs of a comparison in worker processes, so that a crash affects only one job."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from queue import Empty, SimpleQueue

from mltune.comparison.journal import Job, Outcome
from mltune.comparison.recording import Recording
from mltune.comparison.simulation import simulate
from mltune.errors import MltuneError, WorkerError
from mltune.process.child import Child, ChildDiedError, ChildTimeoutError

POLL_S = 0.2
"""Seconds between two looks at whether to stop."""

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_LONGEST_S = 7 * 86_400.0


def run_jobs(
    jobs: Sequence[Job],
    recordings: Mapping[str, Recording],
    evaluations: int,
    processes: int,
    stop: Callable[[], bool] = bool,
) -> Iterator[Outcome]:
    """Run jobs in single-threaded processes, and yield the outcome of each when it ends.

    A job that raises an exception, or whose process dies, ends with an error; a dead process is replaced.

    Parameters
    ----------
    recordings : mapping of str to Recording
        Those of the datasets by name.
    stop : callable
        Called several times a second; true ends the iteration, and the jobs under way are lost.
    """
    factory, arguments = f"{__name__}:make_simulator", (dict(recordings), evaluations)
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
        left = len(futures)
        while left and not stop():
            try:
                outcome = ended.get(timeout=POLL_S).result()
            except Empty:
                continue
            left -= 1
            yield outcome
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        while running := [future for future in futures if not future.done()]:
            for child in children:
                child.interrupt()  # its thread reaps it
            wait(running, timeout=0.05)
        for child in children:
            child.kill()


def make_simulator(recordings: Mapping[str, Recording], evaluations: int) -> Callable[[Job], Outcome]:
    """Return the function of a worker process that runs jobs."""
    from mltune.comparison.strategies import strategy

    def run(job: Job) -> Outcome:
        try:
            return Outcome(job, simulate(strategy(job.strategy), recordings[job.dataset], evaluations, job.seed))
        except MltuneError as error:
            return Outcome(job, None, str(error))
        except Exception:  # a strategy of a third party may raise anything
            return Outcome(job, None, traceback.format_exc(limit=-4)[-2000:])

    return run
