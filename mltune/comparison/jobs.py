"""Run the jobs of a comparison in worker processes, so that a crash affects only one job."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import ModuleType

from mltune.comparison.journal import Job, Outcome
from mltune.comparison.recording import Recording
from mltune.comparison.simulation import simulate
from mltune.errors import MltuneError
from mltune.process.signals import SIGNALS

POLL_S = 0.2
"""Seconds between two looks at whether to stop."""

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_ENVIRONMENT = {**dict.fromkeys(_THREADS, "1"), "PYTHONSAFEPATH": "1"}


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
    waiting = list(reversed(jobs))
    workers = [_Worker(recordings, evaluations) for _ in range(min(processes, len(jobs)))]
    try:
        for worker in workers:
            worker.begin(waiting.pop())
        while (busy := [worker for worker in workers if worker.job is not None]) and not stop():
            ready = wait([worker.connection for worker in busy] + [worker.process.sentinel for worker in busy], POLL_S)
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

    def __init__(self, recordings: Mapping[str, Recording], evaluations: int) -> None:
        self._arguments = (recordings, evaluations)
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
        self.process.kill()
        self.process.join()


def _serve(connection: Connection, recordings: Mapping[str, Recording], evaluations: int) -> None:
    """Run jobs until the connection is closed; the parent process handles signals."""
    from mltune.comparison.strategies import strategy

    while True:
        try:
            job: Job = connection.recv()
        except EOFError:
            return
        try:
            outcome = Outcome(job, simulate(strategy(job.strategy), recordings[job.dataset], evaluations, job.seed))
        except MltuneError as error:
            outcome = Outcome(job, None, str(error))
        except Exception:  # a strategy of a third party may raise anything
            outcome = Outcome(job, None, traceback.format_exc(limit=-4)[-2000:])
        connection.send(outcome)


@contextmanager
def _isolated() -> Iterator[None]:
    """Let a process that is started here compute on one thread, and not import the main module of the caller again.

    The main module may be a script whose statements must run only once. Modules in the working directory are not
    imported, and signals are left to the parent process, also while the new one starts.
    """
    before = dict(os.environ)
    os.environ.update(_ENVIRONMENT)
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    resource_tracker.ensure_running()  # which would unblock the signals if it were started later
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        sys.modules["__main__"] = main
        for name in _ENVIRONMENT:
            del os.environ[name]
        os.environ.update(before)
