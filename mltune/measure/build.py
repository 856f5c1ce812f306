"""The builder: NVRTC on all cores, in processes that can be killed, with a cache of cubins."""

from __future__ import annotations

import contextlib
import operator
import os
import queue
import re
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from mltune.errors import BundleError, DeviceError, SpaceError, WorkerError
from mltune.kernel.names import check_macro_name
from mltune.measure.compiler import Source, accepts_option, nvrtc_version, supported_architectures
from mltune.measure.cubin_cache import CubinCache, cache_key, default_cache
from mltune.measure.toolkit_headers import toolkit_headers
from mltune.process.child import Child, ChildDiedError, ChildTimeoutError
from mltune.process.child_pool import ChildPool, ThreadedChild
from mltune.records.trial import Build, TrialState

if TYPE_CHECKING:
    from mltune.kernel.bundle import Kernel
    from mltune.problem.runnable import RunnableProblem

__all__ = ["NvrtcBuilder", "available_cores", "compile_options", "default_cache", "nvrtc_version"]

_ARCHITECTURE = re.compile(r"sm_(\d+)a?")
_LOST = (TrialState.TIMEOUT, TrialState.CRASHED)
_COMPILER = "mltune.measure.compiler:make_compiler"


def available_cores() -> int:
    """Return the number of cores that this process may use: its affinity, limited by the CPU quota of its container."""
    cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def compile_options(architecture: str) -> tuple[str, ...]:
    """Return the options of NVRTC for an architecture.

    They are made from typed values only, because some options of NVRTC read and write files. NVRTC's own cache is off,
    so that a compile time is that of a compile. (The oldest supported NVRTC lacks the last two options.)

    Parameters
    ----------
    architecture : str
        A real architecture, such as ``"sm_90"`` or ``"sm_90a"``: the driver is never left to compile PTX.

    Raises
    ------
    DeviceError
        NVRTC does not compile for this architecture.
    """
    match = _ARCHITECTURE.fullmatch(architecture)
    if match is None:
        raise DeviceError(f"an architecture must be like sm_90 or sm_90a, got {architecture!r}.")
    if int(match[1]) not in supported_architectures():
        known = ", ".join(f"sm_{number}" for number in supported_architectures())
        raise DeviceError(
            f"NVRTC {nvrtc_version()} compiles for {known}, but not for {architecture}; install an NVRTC that does."
        )
    required = [f"--gpu-architecture={architecture}", "--std=c++17", "-default-device", "--ptxas-options=-v"]
    return (*required, *(option for option in ("--no-cache", "--no-source-include") if accepts_option(option)))


def definitions(macros: Mapping[str, int | float | str]) -> str:
    r"""Return the lines that define macros at the head of a source.

    They are no options of NVRTC, because those also apply to the declarations that NVRTC itself puts before a source: a
    macro ``width`` would break them.

    Parameters
    ----------
    macros : mapping of str to int, float or str
        A text stands as it is.

    Raises
    ------
    BundleError
        A name is not valid for a macro.
    SpaceError
        A value is neither a number nor a text of one line.

    Examples
    --------
    >>> definitions({"block_size_x": 128, "SHIFT": -1, "SCALE": 0.5, "TYPE": "float4"})
    '#define block_size_x 128\n#define SHIFT -1\n#define SCALE 0.5\n#define TYPE float4\n'
    """
    return "".join(f"#define {name} {_macro_value(name, value)}\n" for name, value in macros.items())


class NvrtcBuilder:
    """Compile configurations of a kernel to cubins, with one compile process per core. A context manager.

    Configurations that differ only in launch parameters share one build, even while it is being compiled. A compile
    that exceeds its time is killed and becomes ``TIMEOUT``; a compiler that dies, ``CRASHED``; neither affects other
    builds. A compiler that is killed from outside is replaced: only a configuration that two were killed with is
    ``CRASHED``.

    Parameters
    ----------
    kernel : Kernel
        The bundle; it must have a source.
    problem : RunnableProblem
        Its macros select the case, such as precision and transposition.
    architecture : str
        That of the device, such as ``"sm_90"``; a kernel for ``"sm_90a"`` is compiled for that.
    cache : pathlib.Path or None
        Folder of cubins, such as :func:`default_cache`; None caches nothing.
    workers : int or None
        Number of compile processes; None is one per core.
    timeout_s : float
        Seconds allowed per compile.
    memory_bytes : int
        Memory allowed per compile process.
    pool : ChildPool, optional
        Where compile processes are taken from and given back to; without one they end with the builder.

    Raises
    ------
    BundleError
        The bundle has no source, or a parameter's name is not valid for a macro.
    UsageError
        The kernel is for another architecture.
    DeviceError
        NVRTC is missing, or does not compile for the architecture.
    """

    def __init__(
        self,
        kernel: Kernel,
        problem: RunnableProblem,
        architecture: str,
        *,
        cache: Path | None = None,
        workers: int | None = None,
        timeout_s: float = 60.0,
        memory_bytes: int = 4 << 30,
        pool: ChildPool | None = None,
    ) -> None:
        self._source = _source(kernel, compile_options(kernel.architecture_on(architecture)))
        self._kernel = kernel
        self._problem_macros = dict(problem.macros())
        definitions(self._problem_macros | dict.fromkeys(kernel.parameters, 0))
        self._version = nvrtc_version()
        self._timeout_s = timeout_s
        self._cache = CubinCache(cache) if cache is not None else None
        self._lock = threading.Lock()
        self._jobs: dict[str, _Job] = {}
        self._lost: dict[str, Build] = {}
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._open = False
        self._count = max(1, workers if workers is not None else available_cores())
        self._memory_bytes = memory_bytes
        self._pool, self._keeps = pool or ChildPool(), pool is not None
        self._compilers: list[ThreadedChild] = []
        self._served: list[Future[None]] = []
        self._compiling: set[Child] = set()

    @property
    def workers(self) -> int:
        """Number of compile processes."""
        return self._count

    def __enter__(self) -> Self:
        """Start the compile processes, without waiting for them."""
        self._open = True
        arguments = self._source, self._memory_bytes
        self._compilers = [self._pool.take(_COMPILER, arguments) for _ in range(self._count)]
        self._served = [one.thread.submit(self._work, one.child) for one in self._compilers]
        return self

    def __exit__(self, *error: object) -> None:
        """Stop at once: waiting builds are cancelled, running compilers are killed and their builds cancelled."""
        with self._lock:
            self._open = False
            waiting = [future for job in self._jobs.values() for future in job.futures]
        for future in waiting:
            future.cancel()
        for _ in self._served:
            self._queue.put(None)
        for served, compiler in zip(self._served, self._compilers, strict=True):
            while not served.done():
                if not self._keeps or compiler.child in self._compiling:
                    compiler.child.interrupt()  # its thread reaps it
                wait([served], timeout=0.05)
            self._pool.give_back(compiler)
        if not self._keeps:
            self._pool.close()

    def submit(self, configuration: Mapping[str, int]) -> Future[Build]:
        """Queue one configuration.

        Parameters
        ----------
        configuration : mapping of str to int
            Must contain every compiled parameter; other entries are ignored.

        Returns
        -------
        concurrent.futures.Future of Build
            Already done when the cubin is in the cache. Raises :class:`~mltune.errors.WorkerError` when no compile
            process can be started; cancelled when the builder is closed.

        Raises
        ------
        SpaceError
            A parameter is missing, or its value is not an integer.
        WorkerError
            The builder is not open.
        """
        macros = definitions(self._macros(configuration))
        if self._kernel.is_generated:
            macros += f"#line 1\n{self._kernel.source_of(configuration)}\n"
        key = cache_key(self._source, macros, self._version)
        future: Future[Build] = Future()
        with self._lock:
            if not self._open:
                raise WorkerError("a builder must be open, but this one is not; use it in a `with` statement.")
            job = self._jobs.get(key)
            if job is not None:
                job.futures.append(future)
                return future
            known = self._lost.get(key) or (self._cache.get(key) if self._cache is not None else None)
            if known is not None:
                future.set_result(replace(known, cached=True))
                return future
            job = self._jobs[key] = _Job(key, macros, [future])
        self._queue.put(job)
        return future

    def _macros(self, configuration: Mapping[str, int]) -> dict[str, int | float | str]:
        if missing := [name for name in self._kernel.parameters if name not in configuration]:
            raise SpaceError(f"a configuration must contain every parameter, but lacks {', '.join(missing)}.")
        return self._kernel.macros(configuration) | self._problem_macros

    def _work(self, child: Child) -> None:
        """Serve the queue with one compile process, in a thread."""
        with contextlib.suppress(WorkerError):  # the first job tries again, and reports the error
            child.start()
        while (job := self._queue.get()) is not None:
            if not self._is_wanted(job, child):
                continue
            try:
                build = self._compile(child, job)
            except WorkerError as error:
                self._finish(job, error)
                continue
            finally:
                self._compiling.discard(child)
            if self._cache is not None:
                self._cache.put(job.key, build)
            self._finish(job, build)

    def _is_wanted(self, job: _Job, child: Child) -> bool:
        """Return whether anything still waits for a job, which the child compiles then; drop it otherwise."""
        with self._lock:
            if self._open and not all(future.cancelled() for future in job.futures):
                self._compiling.add(child)
                return True
            del self._jobs[job.key]
        for future in job.futures:
            if future.cancel():
                future.set_running_or_notify_cancel()
        return False

    def _compile(self, child: Child, job: _Job, *, again: bool = False) -> Build:
        try:
            child.start()
        except WorkerError:
            if again or not self._open:
                raise
            return self._compile(child, job, again=True)
        started = time.monotonic()
        try:
            build = child.call(job.macros, self._timeout_s)
        except ChildTimeoutError:
            detail = f"a compile must end within {self._timeout_s:g} s"
            return Build(TrialState.TIMEOUT, detail, compile_s=time.monotonic() - started)
        except ChildDiedError as error:
            if error.was_killed and self._open and not again:
                return self._compile(child, job, again=True)
            return Build(TrialState.CRASHED, f"the compiler died: {error}", compile_s=time.monotonic() - started)
        assert isinstance(build, Build)  # noqa: S101
        if build.state is TrialState.CRASHED:
            child.kill()  # NVRTC failed internally or ran out of memory: the process is not used again
        return build

    def _finish(self, job: _Job, outcome: Build | WorkerError) -> None:
        with self._lock:
            del self._jobs[job.key]
            if isinstance(outcome, Build) and outcome.state in _LOST and self._open:
                self._lost[job.key] = outcome
        for position, future in enumerate(job.futures):
            if not future.set_running_or_notify_cancel():
                continue
            if isinstance(outcome, WorkerError):
                future.set_exception(outcome)
            else:
                future.set_result(replace(outcome, cached=True) if position else outcome)


@dataclass(slots=True)
class _Job:
    """One build and the futures that wait for it, which may be cancelled until it is done."""

    key: str
    macros: str  # with the source, where each configuration has its own
    futures: list[Future[Build]]


def _source(kernel: Kernel, options: tuple[str, ...]) -> Source:
    """Return what is compiled of a kernel."""
    if kernel.source is None or kernel.entry is None:
        raise BundleError(
            f"building needs a source, but the bundle {kernel.name!r} has none: "
            "it describes timings that were recorded elsewhere; use it in replay."
        )
    headers = {**toolkit_headers(kernel.source, kernel.headers), **kernel.headers}
    text = "" if kernel.is_generated else kernel.source
    return Source(text, kernel.entry, (*options, *kernel.options), headers)


def _macro_value(name: str, value: int | float | str) -> int | float | str:
    check_macro_name(name)
    if isinstance(value, str) and (not value.isprintable() or value.endswith("\\")):
        raise SpaceError(f"a macro is one line of printable text without a \\ at its end, got {name}={value!r:.200}.")
    if isinstance(value, float | str):
        return value
    try:
        return operator.index(value)
    except TypeError:
        raise SpaceError(f"a parameter must be an integer, got {name}={value!r}.") from None
