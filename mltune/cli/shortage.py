"""Errors of a machine with too little memory, in words."""

from __future__ import annotations

import errno
import os
import resource

from mltune.files.text import printable

_OF_LIBRARIES = ("failed to map segment", "llocate memory", "cannot map zero-fill pages", "can't start new thread")
"""Parts of the errors of the dynamic linker, and of Python, without room for a library or a thread."""


LITTLE_BYTES = 1 << 32
"""Address space that the reservations of libraries would use up."""


def spare_memory() -> None:
    """Keep libraries from reserving scarce address space; called before their import."""
    if 0 <= _limit() < LITTLE_BYTES:
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # the others of Arrow reserve a gigabyte
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # where a thread has no room, OpenBLAS ends or hangs


def _limit() -> int:
    return resource.getrlimit(resource.RLIMIT_AS)[0]


def shortage(error: BaseException) -> str:
    """Return the message for an error from too little memory; empty for any other error."""
    is_short = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    of_library = [line for line in str(error).splitlines() if any(part in line for part in _OF_LIBRARIES)]
    if not is_short and not of_library:
        return ""
    fact = "end other programs"
    if (limit := _limit()) != resource.RLIM_INFINITY:
        fact = f"the limit of its address space is {limit / 1e6:,.0f} MB; raise it with `ulimit -v`"
    cause = printable(": ".join(filter(None, [type(error).__name__, *(of_library or [str(error)])[-1:]])), 200)
    return f"there is not enough memory for the command: {fact}, then repeat the command ({cause})."
