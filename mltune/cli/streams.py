"""Standard streams of the process: those that are closed are opened, and none fails for a character that it lacks."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys


def prepare() -> None:
    """Open closed standard streams, before a file gets their numbers; let all replace unencodable characters."""
    closed = [number for number in range(3) if _is_closed(number)]
    for number in closed:
        os.open(os.devnull, os.O_RDONLY if number == 0 else os.O_WRONLY)  # the lowest number that is free
        os.set_inheritable(number, True)
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115 - to the end of the process
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError):  # a file that was exchanged for a pipe
                stream.reconfigure(errors="replace")


def _is_closed(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError as error:
        return error.errno == errno.EBADF
    return False


def flush() -> None:
    """Write what standard output holds back, unless nobody reads it any more."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
