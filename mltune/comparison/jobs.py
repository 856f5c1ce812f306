"""Run the jobs of a comparison in worker processes, so that a crash affects only one job."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from queue import SimpleQueue

from mltune.comparison.journal import Job, Outcome
from mltune.comparison.recording import Recording, Source
from mltune.comparison.simulation import simulate
from mltune.errors import WorkerError
from mltune.process.child import Child, ChildDiedError, ChildTimeoutError

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_LONGEST_S = 7 * 86_400.0


def run_jobs(jobs: Sequence[Job], sources: Mapping[str, Source], evaluations: int, processes: int) -> Iterator[Outcome]:
    """Run jobs in single-threaded processes, and yield the outcome of each when it ends.

    A job that raises an exception, or whose process dies, ends with an error; a dead process is replaced.
    ``sources`` are those of the datasets by name.
    """
    factory, arguments = f"{__name__}:make_simulator", (dict(sources), evaluations)
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
    futures = [pool.submit(run, job) for job in jobs]
    try:
        for future in as_completed(futures):
            yield future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        while running := [future for future in futures if not future.done()]:
            for child in children:
                child.interrupt()  # its thread reaps it
            wait(running, timeout=0.05)
        for child in children:
            child.kill()


def make_simulator(sources: Mapping[str, Source], evaluations: int) -> Callable[[Job], Outcome]:
    """Return the function of a worker process that runs jobs."""
    from mltune.comparison.strategies import strategy

    recordings: dict[str, Recording] = {}

    def run(job: Job) -> Outcome:
        try:
            if job.dataset not in recordings:
                recordings[job.dataset] = sources[job.dataset].load()
            return Outcome(job, simulate(strategy(job.strategy), recordings[job.dataset], evaluations, job.seed))
        except Exception:  # a strategy of a third party may raise anything
            return Outcome(job, None, traceback.format_exc(limit=-4)[-2000:])

    return run
