"""Calls with a limit on time, or in a child process with limits on memory and processor time.

Libraries that decode compressed and nested formats allocate what a file requests, before any check is possible, and may
crash in native code. In a child process neither harms the program.
"""

from __future__ import annotations

import gc
import importlib
import os
import pkgutil
import resource
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

from mltune.errors import MltuneError
from mltune.process.child import Child, ChildDiedError, ChildTimeoutError, Result

_POLL_EVERY_S = 0.1


def done_before(deadline: Callable[[], float], work: Callable[[], None]) -> bool:
    """Do work in a thread, and return whether it was done in time; an exception of the work is raised here.

    Late work goes on in its thread, which ends with the process: it must replace files as a whole
    (:mod:`mltune.files.atomic`). ``deadline`` returns a time on the clock of :func:`time.monotonic`, which may change
    meanwhile.
    """
    working = in_thread("mltune-late", work)  # the command looks for this name
    while not working.done() and time.monotonic() < deadline():
        wait([working], _POLL_EVERY_S)
    return working.done() and working.result() is None


def in_thread(name: str, function: Callable[[], Result]) -> Future[Result]:
    """Call a function in a daemon thread, which does not keep the program from ending."""
    future: Future[Result] = Future()

    def call() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, name=name, daemon=True).start()
    return future


MEMORY_BYTES = 1_000_000_000
"""Memory of a call, bytes, in addition to that of the imported modules."""

CPU_S = 8.0
"""Processor time of a call, seconds."""

_WALL_S = 120.0  # on a machine that is busy with other things


class BoundsExceededError(Exception):
    """A function needed more memory or time than allowed, or its process died."""


def call_bounded(target: str, *arguments: Any, imports: Sequence[str] = ()) -> Any:
    """Call a function, ``"module:name"``, in a child process with limits; return its result, or raise its mltune error.

    The limits are on memory in addition to that of the modules that ``imports`` names, and on processor time in
    seconds. A function that needs more, or whose process dies, raises a :class:`BoundsExceededError`.
    """
    try:
        with Child(f"{__name__}:bounded", (target, imports, MEMORY_BYTES, CPU_S)) as child:
            result = child.call(arguments, _WALL_S)
    except ChildTimeoutError:
        raise BoundsExceededError(f"more than {_WALL_S:g} s would be needed") from None
    except ChildDiedError as error:
        if "SIGXCPU" in str(error):
            raise BoundsExceededError(f"more than {CPU_S:g} s of processor time would be needed") from None
        raise BoundsExceededError(str(error)) from None
    if isinstance(result, MemoryError):
        raise BoundsExceededError(f"more than {MEMORY_BYTES / 1e6:.0f} MB of memory would be needed")
    if isinstance(result, MltuneError):
        raise result
    return result


def limit(kind: int, value: int) -> None:
    """Limit a resource of this process to a value, or to its hard limit where that is less."""
    most = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (value if most == resource.RLIM_INFINITY else min(value, most), most))


def bounded(target: str, imports: Sequence[str], memory_bytes: int, cpu_s: float) -> Callable[[tuple[Any, ...]], Any]:
    """Limit this process, and return the function with errors as results: the factory of the child."""
    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # the others reserve a gigabyte before they need it
    for needed in imports:
        importlib.import_module(needed)
    function = pkgutil.resolve_name(target)
    taken = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    limit(resource.RLIMIT_AS, taken + memory_bytes)
    limit(resource.RLIMIT_CPU, int(time.process_time() + cpu_s) + 1)
    limit(resource.RLIMIT_CORE, 0)

    gc.disable()  # memory is bounded, and the process ends with the call

    def call(arguments: tuple[Any, ...]) -> Any:
        try:
            return function(*arguments)
        except MemoryError:
            return MemoryError()
        except MltuneError as error:
            return error

    return call
