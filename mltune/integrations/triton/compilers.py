"""Compile processes that warm Triton's cache: a kernel goes to them by value, so that they import Triton alone."""

from __future__ import annotations

import ast
import contextlib
import copy
import functools
import importlib
import io
import itertools
import math
import os
import pickle
import pkgutil
import queue
import re
import resource
import subprocess
import tempfile
import threading
import time
import types
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from mltune.process.bounded import limit
from mltune.process.child import Child, ChildDiedError, ChildTimeoutError, ThreadedChild

TIMEOUT_S = 60.0
"""Seconds allowed for a compile."""

MEMORY_BYTES = 8 << 30
"""Memory allowed for a compile process, and for the assembler that it starts."""

IDLE_S = 60.0
"""Seconds without work after which a process ends."""

POLITE = 10
"""Niceness of compile processes: the process that launches kernels and times them comes first."""

_ALONE = {"MLIR_DISABLE_MULTITHREADING": "1"}  # threads of one would compete with the others, and keep it from forking
_OF_THE_PROCESS = {"fn", "__globals__", "device_caches", "_hash_lock", "used_global_vals", "pre_run_hooks", "kernel"}
_OF_THE_PROCESS |= {"launch_metadata", "compile", "ASTSource", "CompiledKernel", "create_binder"}
"""Attributes of a kernel that stay in its process: caches, locks, hooks and modules."""

_USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")


@dataclass(frozen=True, slots=True)
class Compiled:
    """The outcome of compiling a configuration.

    The state is ``"ok"``, ``"refused"`` by the compiler, ``"killed"`` (it crashed its compiler, took all memory or was
    too slow, so that no other process must compile it) or ``"unknown"`` (the kernel could not be carried to a
    compiler). Threads and shared bytes are of a block, 0 where it is not compiled; registers and stack bytes of a
    thread, NaN where no tool reads the machine code. `compile_s` is short where it was in Triton's cache.
    """

    state: str
    reason: str = ""
    threads: int = 0
    shared_bytes: int = 0
    registers: float = math.nan
    stack_bytes: float = math.nan
    code_bytes: int = 0
    compile_s: float = 0.0

    @classmethod
    def of(cls, kernel: Any, compile_s: float = 0.0) -> Compiled:
        """Return the facts of one of Triton's compiled kernels."""
        from triton import knobs

        metadata, text = kernel.metadata, ""
        for path in (path for name, path in kernel.metadata_group.items() if name.endswith(".cubin")):
            with contextlib.suppress(OSError, subprocess.SubprocessError, RuntimeError):
                command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", path]
                text = subprocess.check_output(command, encoding="utf-8", stderr=subprocess.DEVNULL)  # noqa: S603
        match = _USAGE.search(text)
        registers, stack_bytes = map(float, match.groups()) if match else (math.nan, math.nan)
        threads = metadata.num_warps * metadata.target.warp_size
        return cls("ok", "", threads, metadata.shared, registers, stack_bytes, len(kernel.kernel), compile_s)


class _Captured(BaseException):
    """Leaves a launch with what it would have compiled."""


def source_of(fn: Any, *arguments: Any, **meta: Any) -> bytes | Compiled:
    """Return what a launch compiles, as a job for :class:`Compilers`, or the facts if it is compiled already.

    Nothing of the kernel ``fn``, perhaps within heuristics, is replaced, because other threads may launch it: a copy
    captures. The arguments are those of its ``run``; what that raises is raised here.
    """
    from triton import knobs

    try:
        return Compiled.of(_capturing(fn).run(*arguments, **meta, warmup=True))
    except _Captured as captured:
        source, target, options = captured.args
    from triton._C.libtriton import get_cache_invalidating_env_vars

    file = io.BytesIO()
    _pickler()(file, protocol=5).dump((source, target, options))
    return pickle.dumps((file.getvalue(), get_cache_invalidating_env_vars(), knobs.cache.dir, False))


def launcher_of(job: bytes) -> bytes:
    """Return the job that builds only what launches the kernel of a job: C code, with which the first launch waits."""
    return pickle.dumps((*pickle.loads(job)[:-1], True))  # noqa: S301 - from this process


def _capturing(fn: Any) -> Any:
    """Return a copy of a kernel, and of the heuristics around it, that raises what it would compile."""
    from triton.runtime.driver import driver

    twin = copy.copy(fn)
    if hasattr(fn, "values"):  # heuristics
        twin.fn = _capturing(fn.fn)
        return twin

    def capture(source: Any, target: Any, options: Any, **_: Any) -> Any:
        raise _Captured(source, target, options)

    fn.device_caches[driver.active.get_current_device()]  # sets what makes sources
    twin.compile, twin.ASTSource = capture, lambda _, *parts: fn.ASTSource(fn, *parts)
    return twin


def _pickler() -> type:
    """Return a class of picklers that carry kernels by value, with the globals that their source names."""
    import cloudpickle
    from triton.runtime.jit import JITCallable, JITFunction

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if not isinstance(obj, JITCallable):
                return super().reducer_override(obj)
            if obj.fn.__module__.partition(".")[0] == "triton":
                return pkgutil.resolve_name, (f"{obj.fn.__module__}:{obj.fn.__qualname__}",)
            _ = obj.cache_key  # follows from all globals, which are not carried, and is kept
            state = {name: value for name, value in vars(obj).items() if name not in _OF_THE_PROCESS}
            function = _parts(obj) if isinstance(obj, JITFunction) else obj.fn  # others are called for constants
            return object.__new__, (type(obj),), (state, function), None, None, _restore

    return Pickler


def _parts(kernel: Any) -> tuple[Any, ...]:
    """Return the parts of a kernel's function, of its globals only those that the source names."""
    function, scope = kernel.fn, kernel.get_capture_scope()
    named = {name: scope[name] for name in _global_names(kernel.src) if name in scope}
    return function.__code__, named, function.__name__, function.__defaults__


@functools.lru_cache(maxsize=256)
def _global_names(source: str) -> list[str]:
    nodes = list(ast.walk(ast.parse(source)))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    local = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    local |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    return sorted({node.id for node in names} - local)


def _restore(kernel: Any, carried: tuple[dict[str, Any], Any]) -> None:
    state, function = carried
    if isinstance(function, tuple):
        code, scope, name, defaults = function
        cells = tuple(types.CellType(scope.get(free)) for free in code.co_freevars)
        function = types.FunctionType(code, scope, name, defaults, cells)
    empty: dict[str, Any] = {"device_caches": {}, "used_global_vals": {}, "pre_run_hooks": [], "launch_metadata": None}
    own = {"fn": function, "__globals__": function.__globals__, "_hash_lock": threading.RLock(), "kernel": None}
    vars(kernel).update(empty | state | own)


def _key_of_triton() -> str:
    """Return the hash of Triton, which is half a gigabyte, in the keys of its cache; empty where it is elsewhere."""
    with contextlib.suppress(Exception):  # the processes compute it, and say what is wrong
        from triton.runtime.cache import triton_key

        return str(triton_key())
    return ""


def prepare() -> None:
    """Import Triton, and compile an empty kernel: the preparation of the process from which compilers are forked."""
    warnings.simplefilter("ignore")  # compilers would repeat those of the process that launches
    import triton.compiler.code_generator
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.runtime import cache

    def empty() -> None:
        pass

    key, cache.triton_key = cache.triton_key, lambda: ""  # hashing takes longer
    with contextlib.suppress(Exception), tempfile.TemporaryDirectory() as folder, knobs.cache.scope():
        knobs.cache.dir = folder
        source = triton.compiler.ASTSource(triton.jit(empty), {})
        Compiled.of(triton.compile(source, target=GPUTarget("cuda", 80, 32)))
    cache.triton_key = key


def make_compiler(memory_bytes: int) -> Callable[[tuple[str, bytes]], Compiled]:
    """Limit this process, and return :func:`compile_job`; the factory of the child."""
    os.nice(POLITE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit(resource.RLIMIT_DATA, memory_bytes)
    return compile_job


def compile_job(request: tuple[str, bytes]) -> Compiled:
    """Compile a job into Triton's cache; it comes with the hash of Triton, so that not every process computes it."""
    import triton
    from triton import knobs
    from triton.runtime import cache

    began, state, (key, job) = time.monotonic(), "unknown", request
    if key:
        cache.triton_key = lambda: key
    try:
        pickled, environment, knobs.cache.dir, is_launcher = pickle.loads(job)  # noqa: S301 - from the parent
        source, target, options = pickle.loads(pickled)  # noqa: S301
        if is_launcher:
            _build_launcher(source, target)
            return Compiled("unknown")
        state = "refused"
        kernel = triton.compile(source, target=target, options=options, _env_vars=environment)
    except Exception as error:
        cause: BaseException | None = error
        while cause and not isinstance(cause, MemoryError):
            cause = cause.__context__  # Triton raises another error from it
        return Compiled("killed" if cause else state, f"{type(error).__name__}: {error}")
    return Compiled.of(kernel, time.monotonic() - began)


def _build_launcher(source: Any, target: Any) -> None:
    """Build what launches kernels with a signature, where Triton compiles C code for that (until 3.6)."""
    module = importlib.import_module(f"triton.backends.{'nvidia' if target.backend == 'cuda' else 'amd'}.driver")
    if hasattr(module, "make_launcher"):
        with contextlib.suppress(AttributeError):  # it goes on with what only a compiled kernel has
            getattr(module, "CudaLauncher" if target.backend == "cuda" else "HIPLauncher")(source, None)


class Compilers:
    """Compile processes, which start at once in the background, and end when they are not used for a minute.

    They are forked from one that has imported Triton. A compile that is too slow, or whose process dies, is that
    configuration's failure alone: the process is replaced. The `predictor` is one more process, for the models.
    """

    def __init__(self, count: int) -> None:
        from mltune.integrations.triton.predictor import Predictor  # NumPy is not for the processes that compile

        self.count = count
        template, preparation = "mltune.process.child:make_template", f"{__name__}:prepare"
        self._template = ThreadedChild(template, (preparation,), environment=_ALONE, idle_s=IDLE_S)
        self._children: dict[int, Child] = {}  # by the threads that use them
        self._running: dict[Future[Compiled], Child] = {}
        self._stopping = threading.Lock()
        self._killers: set[bytes] = set()
        self._threads = ThreadPoolExecutor(count, "mltune-triton")
        self._jobs = queue.PriorityQueue[tuple[int, int, Future[Compiled], bytes, float]]()
        self._numbers = itertools.count()
        self._key = ThreadPoolExecutor(1, "mltune-hash").submit(_key_of_triton)
        self.predictor = Predictor(IDLE_S).begin()
        for _ in range(count):
            self.submit(b"")  # starts a process, before there is a job

    def submit(self, job: bytes, timeout_s: float = TIMEOUT_S, turn: int = 0) -> Future[Compiled]:
        """Compile a job of :func:`source_of` after those of earlier turns; it may be cancelled until it is begun."""
        future: Future[Compiled] = Future()
        self._jobs.put((turn, next(self._numbers), future, job, timeout_s))
        self._threads.submit(self._work)
        return future

    def stop(self, future: Future[Compiled]) -> None:
        """End a compile that nobody needs, also one that has begun: its process is replaced."""
        future.cancel()
        with self._stopping:
            if child := self._running.pop(future, None):
                child.interrupt()

    def _work(self) -> None:
        """Do what is due."""
        *_, future, job, timeout_s = self._jobs.get()
        if future.set_running_or_notify_cancel():
            future.set_result(self._compile(future, job, timeout_s))

    def _compile(self, future: Future[Compiled], job: bytes, timeout_s: float) -> Compiled:
        if _ending.is_set():
            return Compiled("unknown", "the program ends")
        if job in self._killers:
            return Compiled("killed", "it was killed before")
        key = self._key.result() if job else ""  # before a process is asked: hashing takes a while
        fresh = Child(f"{__name__}:make_compiler", (MEMORY_BYTES,), template=self._template, idle_s=IDLE_S)
        child = self._running[future] = self._children.setdefault(threading.get_ident(), fresh)
        try:
            result: Compiled = child.call((key, job), timeout_s, attempts=2)
            return result
        except (ChildTimeoutError, ChildDiedError) as error:
            if future in self._running:  # it was not stopped
                self._killers.add(job)
            return Compiled("killed", str(error))
        except Exception as error:  # of a process that could not start, too: somebody waits for the answer
            return Compiled("unknown", str(error))
        finally:
            with self._stopping:
                is_stopped = self._running.pop(future, None) is None
            if is_stopped:
                child.kill()


_ending = threading.Event()
threading._register_atexit(_ending.set)  # type: ignore[attr-defined]  # before the end waits for what is queued
_shared = dict[tuple[int, int], Compilers]()
_sharing = threading.Lock()
os.register_at_fork(before=_sharing.acquire, after_in_parent=_sharing.release, after_in_child=_sharing.release)


def compilers_of(count: int) -> Compilers:
    """Return so many compile processes, which all kernels of this process share; a forked one has its own."""
    with _sharing:
        return _shared.get(key := (os.getpid(), count)) or _shared.setdefault(key, Compilers(count))
