"""Jobs over processes: each run by itself, so that one that dies takes no other with it."""

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

from mltune.compare.journal import Ended, Job
from mltune.compare.recording import Recording
from mltune.compare.simulation import play
from mltune.compare.sources import Source

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def run_jobs(jobs: Sequence[Job], sources: Mapping[str, Source], evaluations: int, processes: int) -> Iterator[Ended]:
    """Run jobs over processes of one thread each, and yield how each ended, as it does.

    A job that raises, or whose process dies, ends with an error; its process is replaced.

    Parameters
    ----------
    jobs : sequence of Job
    sources : mapping of str to Source
        Where each dataset that the jobs name comes from.
    evaluations : int
    processes : int
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
    """A process that runs one job at a time."""

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
        with suppress(OSError):  # that it has died since is noticed where its answer is waited for
            self.connection.send(job)

    def end(self) -> Ended:
        """Return how the job has ended."""
        job, self.job = self.job, None
        assert job is not None  # noqa: S101
        try:
            ended: Ended = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            return Ended(job, None, f"the process died with exit code {self.process.exitcode}")
        return ended

    def stop(self) -> None:
        self.connection.close()
        self.process.terminate()
        self.process.join()


def _serve(connection: Connection, sources: Mapping[str, Source], evaluations: int) -> None:
    """Run jobs until there are no more; an interrupt is the parent's business."""
    from mltune.compare.strategies import strategy

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
            ended = Ended(job, play(strategy(job.strategy), recordings[job.dataset], evaluations, job.seed))
        except Exception:  # a strategy of somebody else may raise anything: it is recorded
            ended = Ended(job, None, traceback.format_exc(limit=-4)[-2000:])
        connection.send(ended)


@contextmanager
def _isolated() -> Iterator[None]:
    """Let a process that is started here compute on one thread, and not import the main module of the caller again.

    The main module may be a script whose statements must run only once.
    """
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
