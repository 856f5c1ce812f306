"""The lock of a directory: one process at a time writes there, and a dead process holds no lock."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from mltune.errors import RunDirectoryError

LOCK = "run.lock"

_ATTEMPTS = 5
_ATTEMPT_EVERY_S = 0.02


def lock_directory(directory: Path) -> int:
    """Make a directory and lock it.

    Returns
    -------
    int
        The file descriptor that holds the lock: closing it, or dying, releases the directory.

    Raises
    ------
    RunDirectoryError
        The directory is in use, or cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise RunDirectoryError(f"a run directory must be writable, but {directory} is not: {error}.") from error
    try:
        _take(descriptor)
    except OSError as error:
        holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
        os.close(descriptor)
        raise RunDirectoryError(
            f"a run directory is used by one process at a time, but {directory} is in use by process "
            f"{holder or '(unknown)'}; wait for it to end, or choose another directory."
        ) from error
    # A full disk must not keep anyone from a run: the number only helps whoever is refused.
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def in_use(directory: Path) -> bool:
    """Return whether a process holds the lock of a directory, or may do so: where that cannot be found out.

    The lock is shared for an instant to find out: :func:`lock_directory` is not refused for so short a time.
    """
    try:
        descriptor = os.open(directory / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _take(descriptor: int) -> None:
    """Take the lock; whoever only looks whether it is held lets go at once.

    Raises
    ------
    OSError
        Somebody holds it.
    """
    for _ in range(_ATTEMPTS - 1):
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(_ATTEMPT_EVERY_S)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
