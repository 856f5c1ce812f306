"""Calls of a function in a child process with limits on memory and processor time: for readers of strangers' files.

Libraries that decode compressed and nested formats allocate what a file asks for, before anything can be checked, and
may crash in native code. In a child process neither harms the program.
"""

from __future__ import annotations

import gc
import importlib
import os
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mltune.errors import MltuneError
from mltune.process.child import Child, ChildDiedError, ChildTimeoutError

MEMORY_BYTES = 1_000_000_000
"""Memory that a call may take, in addition to that of the imported modules."""

CPU_S = 8.0
"""Processor time that a call may take, seconds."""

_WALL_S = 120.0  # on a machine that is busy with other things


class BoundsExceededError(Exception):
    """A function needed more memory or time than allowed, or its process died."""


def call_bounded(
    target: str,
    *arguments: Any,
    imports: Sequence[str] = (),
    memory_bytes: int = MEMORY_BYTES,
    cpu_s: float = CPU_S,
) -> Any:
    """Call a function in a child process of its own.

    Parameters
    ----------
    target : str
        The function, ``"module:name"``.
    *arguments
        Its arguments. They are pickled, as is the result.
    imports : sequence of str
        Modules to import before the limits are set.
    memory_bytes : int
        Memory that it may take, in addition to that of the imported modules.
    cpu_s : float
        Processor time that it may take, seconds.

    Raises
    ------
    BoundsExceededError
        It needed more, or its process died.
    MltuneError
        The function raised it.

    Examples
    --------
    >>> call_bounded("math:sqrt", 4.0)
    2.0
    >>> call_bounded("builtins:bytes", 2_000_000_000)
    Traceback (most recent call last):
    mltune.process.bounded.BoundsExceededError: more than 1000 MB of memory would be needed
    """
    child = Child(f"{__name__}:bounded", (target, imports, memory_bytes, cpu_s))
    try:
        result = child.call(arguments, _WALL_S)
    except ChildTimeoutError:
        raise BoundsExceededError(f"more than {_WALL_S:g} s would be needed") from None
    except ChildDiedError as error:
        if "SIGXCPU" in str(error):
            raise BoundsExceededError(f"more than {cpu_s:g} s of processor time would be needed") from None
        raise BoundsExceededError(str(error)) from None
    finally:
        child.kill()
    if isinstance(result, MemoryError):
        raise BoundsExceededError(f"more than {memory_bytes / 1e6:.0f} MB of memory would be needed")
    if isinstance(result, MltuneError):
        raise result
    return result


def bounded(target: str, imports: Sequence[str], memory_bytes: int, cpu_s: float) -> Callable[[tuple[Any, ...]], Any]:
    """Set the limits of this process, and return the function, with errors as results; the factory of the child."""
    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # the others reserve a gigabyte before they need it
    module, _, name = target.partition(":")
    for needed in imports:
        importlib.import_module(needed)
    function = getattr(importlib.import_module(module), name)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for kind, limit in (
        (resource.RLIMIT_AS, taken + memory_bytes),
        (resource.RLIMIT_CPU, int(time.process_time() + cpu_s) + 1),
        (resource.RLIMIT_CORE, 0),
    ):
        most = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))

    gc.disable()  # memory is bounded, and the process ends with the call

    def call(arguments: tuple[Any, ...]) -> Any:
        try:
            return function(*arguments)
        except MemoryError:
            return MemoryError()
        except MltuneError as error:
            return error

    return call
