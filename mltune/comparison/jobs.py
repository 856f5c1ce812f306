"""Run the jobs of a comparison in worker processes, so that a crash affects only one job."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import ModuleType

from mltune.comparison.journal import Job, Outcome
from mltune.comparison.recording import Recording, Source
from mltune.comparison.simulation import simulate

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def run_jobs(jobs: Sequence[Job], sources: Mapping[str, Source], evaluations: int, processes: int) -> Iterator[Outcome]:
    """Run jobs in single-threaded processes, and yield the outcome of each when it ends.

    A job that raises an exception, or whose process dies, ends with an error; a dead process is replaced.
    ``sources`` are those of the datasets by name.
    """
    waiting = list(reversed(jobs))
    workers = [_Worker(sources, evaluations) for _ in range(min(processes, len(jobs)))]
    try:
        for worker in workers:
            worker.begin(waiting.pop())
        while busy := [worker for worker in workers if worker.job is not None]:
            ready = wait([worker.connection for worker in busy] + [worker.process.sentinel for worker in busy])
            for worker in busy:
                if worker.connection in ready or worker.process.sentinel in ready:
                    yield worker.end()
                    if waiting:
                        worker.begin(waiting.pop())
    finally:
        for worker in workers:
            worker.stop()


class _Worker:
    """A worker process that runs one job at a time."""

    def __init__(self, sources: Mapping[str, Source], evaluations: int) -> None:
        self._arguments = (sources, evaluations)
        self.job: Job | None = None
        self.connection, self.process = self._start()

    def _start(self) -> tuple[Connection, BaseProcess]:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, *self._arguments), daemon=True)
        with _isolated():
            process.start()
        theirs.close()
        return ours, process

    def begin(self, job: Job) -> None:
        self.job = job
        if not self.process.is_alive():
            self.stop()
            self.connection, self.process = self._start()
        with suppress(OSError):  # a process that has just died is noticed in `end`
            self.connection.send(job)

    def end(self) -> Outcome:
        """Return the outcome of the job."""
        job, self.job = self.job, None
        assert job is not None  # noqa: S101
        try:
            outcome: Outcome = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            return Outcome(job, None, f"the process died with exit code {self.process.exitcode}")
        return outcome

    def stop(self) -> None:
        self.connection.close()
        self.process.terminate()
        self.process.join()


def _serve(connection: Connection, sources: Mapping[str, Source], evaluations: int) -> None:
    """Run jobs until the connection is closed; the parent process handles interrupts."""
    from mltune.comparison.strategies import strategy

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    recordings: dict[str, Recording] = {}
    while True:
        try:
            job: Job = connection.recv()
        except EOFError:
            return
        try:
            if job.dataset not in recordings:
                recordings[job.dataset] = sources[job.dataset].load()
            outcome = Outcome(job, simulate(strategy(job.strategy), recordings[job.dataset], evaluations, job.seed))
        except Exception:  # a strategy of a third party may raise anything
            outcome = Outcome(job, None, traceback.format_exc(limit=-4)[-2000:])
        connection.send(outcome)


@contextmanager
def _isolated() -> Iterator[None]:
    """Let a process that is started here compute on one thread, and not import the main module of the caller again.

    The main module may be a script whose statements must run only once.
    """
    before = dict(os.environ)
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        for name in _THREADS:
            del os.environ[name]
        os.environ.update(before)
