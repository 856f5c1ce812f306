"""The compile processes of a builder, one per core, which are killed when a compile is too slow, and cubins kept.

A farm of compilers on other hosts may take a part of the builds (:mod:`mltune.measure.compile_farm`).
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

from mltune.errors import WorkerError
from mltune.measure.assembler import nvjitlink_version
from mltune.measure.compiler import CudaSource, nvrtc_version
from mltune.measure.cubin_cache import CubinCache, cache_key
from mltune.process.child import Child, ChildDiedError, ChildPool, ChildTimeoutError, ThreadedChild, available_cores
from mltune.records.trial import Build, TrialState

TIMEOUT_S = 60.0
"""Seconds allowed for a compile."""

MEMORY_BYTES = 4 << 30
"""Memory allowed for a compile process."""

SLOW_S = 10.0
"""Seconds after which a build that a farm has not returned is made here too: the first result counts."""

FARM_FAILURES = 2
"""Times that a farm may fail to return a build, which is then made here only."""

COMPILERS = 2
"""Compile processes that get a build, one after the other, while each is killed from outside."""

RECENT = 64
"""Builds that are kept in memory beside the cache: launches of one build need no file."""

_WAIT_S = 0.1  # for room on the farm, and for work
_LOST = (TrialState.TIMEOUT, TrialState.CRASHED)
_COMPILER = "mltune.measure.compiler:make_compiler"


@dataclass(slots=True, eq=False)
class Job:
    """A build by its key in the cache of cubins, and the futures that wait for it, which may be cancelled."""

    key: str
    macros: str  # with the source, where each configuration has its own
    options: tuple[str, ...] = ()
    futures: list[Future[Build]] = field(default_factory=list)
    begun: float = 0.0  # on the farm
    failures: int = 0  # of the farm


class Farm(Protocol):
    """Compilers on other hosts."""

    @property
    def cores(self) -> int:
        """Builds that they make at the same time."""

    @property
    def capacity(self) -> int:
        """Builds that may be under way; 0 where they cannot be reached."""

    def compile(self, source: CudaSource, jobs: Sequence[Job]) -> Sequence[Any]:
        """Begin builds and return a future of each, whose callbacks any thread calls; none if the farm is lost."""

    def result(self, build: Any) -> Build | None:
        """Return the build of a future that has ended; None where it must be made elsewhere."""

    def close(self) -> None:
        """Cancel the builds under way."""


class CompilePool:
    """Compile processes for one source, by default one per core. A context manager.

    Builds with equal macros are one build. A compile that exceeds its time becomes ``TIMEOUT``, a compiler that dies
    ``CRASHED``; one that is killed from outside is replaced, and its build fails only if two were killed with it.
    Processes of a given `pool` go back to it at once and end their builds for the cache.
    """

    def __init__(
        self,
        source: CudaSource,
        *,
        cache: Path | None = None,
        workers: int | None = None,
        timeout_s: float = TIMEOUT_S,
        memory_bytes: int = MEMORY_BYTES,
        pool: ChildPool | None = None,
        farm: Farm | None = None,
    ) -> None:
        self.source = source
        self._version = nvrtc_version() + (f", nvJitLink {nvjitlink_version()}" if source.controls else "")
        self._timeout_s = timeout_s
        self._cache = CubinCache(cache) if cache is not None else None
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}
        self._lost: dict[str, Build] = {}
        self._recent: dict[str, Build] = {}
        self._expected: dict[tuple[str, tuple[str, ...]], Future[Build]] = {}
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._open = False
        self._count = max(1, workers if workers is not None else available_cores())
        self._memory_bytes = memory_bytes
        self._pool, self._keeps = pool or ChildPool(), pool is not None
        self._compilers: list[ThreadedChild] = []
        self._farm = farm
        self._dispatcher = threading.Thread(target=self._dispatch, name="mltune-farm", daemon=True)

    @property
    def workers(self) -> int:
        """Number of builds made at the same time."""
        return self._count + (0 if self._farm is None else self._farm.cores)

    def __enter__(self) -> Self:
        """Start the compile processes, without waiting for them."""
        self._open = True
        arguments = self.source, self._memory_bytes
        self._compilers = [self._pool.take(_COMPILER, arguments) for _ in range(self._count)]
        for compiler in self._compilers:
            compiler.thread.submit(self._work, compiler.child)
        if self._farm is not None:
            self._dispatcher.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop at once: builds are cancelled, and running compilers are killed, but for those of a given pool."""
        with self._lock:
            self._open = False
            waiting = [future for job in self._jobs.values() for future in job.futures]
        for future in waiting:
            future.cancel()
        if self._farm is not None:
            self._dispatcher.join()
            self._farm.close()
        for _ in self._compilers:
            self._queue.put(None)
        for compiler in self._compilers:
            self._pool.give_back(compiler)
        if not self._keeps:
            self._pool.close()

    def build(self, macros: str, options: tuple[str, ...] = ()) -> Future[Build]:
        """Queue a build, with options besides those of the source; one whose cubin is in the cache is done.

        The future raises :class:`~mltune.errors.WorkerError` when no compile process can be started, and is cancelled
        when the pool is closed.
        """
        if (expected := self._expected.pop((macros, options), None)) is not None:
            return expected
        key = cache_key(self.source, macros, self._version, options)
        future: Future[Build] = Future()
        with self._lock:
            if not self._open:
                raise WorkerError("the builder is not open; use it in a `with` statement.")
            job = self._jobs.get(key)
            if job is not None:
                job.futures.append(future)
                return future
            finished = self._lost.get(key) or self._recent.get(key)
            if finished is None and self._cache is not None:
                finished = self._cache.get(key)
                self._remember(key, finished)
            if finished is not None:
                future.set_result(replace(finished, cached=True))
                return future
            job = self._jobs[key] = Job(key, macros, options, [future])
        self._queue.put(job)
        return future

    def expect(self, macros: str, options: tuple[str, ...] = ()) -> None:
        """Begin a build that :meth:`build` asks for later."""
        self._expected[macros, options] = self.build(macros, options)

    def _remember(self, key: str, build: Build | None) -> None:
        if build is not None:
            self._recent[key] = build
            if len(self._recent) > RECENT:
                del self._recent[next(iter(self._recent))]

    def _work(self, child: Child) -> None:
        """Serve the queue with one compile process, in a thread."""
        with contextlib.suppress(WorkerError):  # the first job tries again, and reports the error
            child.start()
        while (job := self._queue.get()) is not None:
            if not self._is_wanted(job):
                continue
            finished = self._cache.get(job.key) if self._cache is not None else None  # of a builder before this one
            try:
                build = finished or self._compile(child, job)
            except WorkerError as error:
                self._finish(job, error)
                continue
            self._keep(job, build)

    def _dispatch(self) -> None:
        """Give builds to the farm while it has room, and make late ones here too, in a thread."""
        farm = self._farm
        assert farm is not None  # noqa: S101
        out: dict[str, Job] = {}

        def end(job: Job, future: Any) -> None:
            out.pop(job.key, None)  # given twice, where it was late
            build = farm.result(future) if self._open else None
            if build is None:
                job.failures += 1
                self._queue.put(job)
            else:
                self._keep(job, build)

        while self._open:
            for job in list(out.values()):
                if time.monotonic() - job.begun > SLOW_S:
                    job.begun = float("inf")
                    self._queue.put(job)
            room = farm.capacity - len(out)
            batch = self._taken(room)
            if not batch:
                time.sleep(_WAIT_S if room < 1 else 0.0)
                continue
            begun = farm.compile(self.source, batch)
            for job in batch[len(begun) :]:
                self._queue.put(job)
            for job, future in zip(batch, begun, strict=False):
                out[job.key] = job
                future.add_done_callback(partial(end, job))

    def _taken(self, room: int) -> list[Job]:
        """Take as many wanted builds from the queue as there is room for, waiting a little for the first."""
        batch: list[Job] = []
        with contextlib.suppress(queue.Empty):
            while len(batch) < room:
                job = self._queue.get(timeout=_WAIT_S) if not batch else self._queue.get_nowait()
                if job is not None and job.failures >= FARM_FAILURES:
                    self._queue.put(job)
                    time.sleep(0.0 if batch else _WAIT_S)
                    break
                if job is not None and self._is_wanted(job):
                    job.begun = time.monotonic()
                    batch.append(job)
        return batch

    def _is_wanted(self, job: Job) -> bool:
        """Return whether anything still waits for a build; drop it otherwise."""
        with self._lock:
            if self._jobs.get(job.key) is not job:  # the farm has made it meanwhile, or another compiler
                return False
            if self._open and not all(future.cancelled() for future in job.futures):
                return True
            del self._jobs[job.key]
        for future in job.futures:
            if future.cancel():
                future.set_running_or_notify_cancel()
        return False

    def _compile(self, child: Child, job: Job) -> Build:
        child.start()
        started = time.monotonic()
        try:
            build = child.call((job.macros, job.options), self._timeout_s, attempts=COMPILERS)
        except ChildTimeoutError:
            detail = f"the compile did not end within {self._timeout_s:g} s"
            return Build(TrialState.TIMEOUT, detail, compile_s=time.monotonic() - started)
        except ChildDiedError as error:
            return Build(TrialState.CRASHED, f"the compiler died: {error}", compile_s=time.monotonic() - started)
        assert isinstance(build, Build)  # noqa: S101
        if build.state is TrialState.CRASHED:
            child.kill()  # NVRTC failed internally or ran out of memory: the process is not used again
        return build

    def _keep(self, job: Job, build: Build) -> None:
        """Keep a build in the cache, and finish its job."""
        if self._cache is not None:
            self._cache.put(job.key, build)
        self._finish(job, build)

    def _finish(self, job: Job, outcome: Build | WorkerError) -> None:
        with self._lock:
            if self._jobs.get(job.key) is not job:
                return
            del self._jobs[job.key]
            if isinstance(outcome, Build) and outcome.state in _LOST and self._open:
                self._lost[job.key] = outcome
            elif isinstance(outcome, Build) and self._cache is not None:
                self._remember(job.key, outcome)
        for position, future in enumerate(job.futures):
            if not future.set_running_or_notify_cancel():
                continue
            if isinstance(outcome, WorkerError):
                future.set_exception(outcome)
            else:
                future.set_result(replace(outcome, cached=True) if position else outcome)
