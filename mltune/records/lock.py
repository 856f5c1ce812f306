"""The lock of a directory: one process at a time writes there, and a dead process holds no lock."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from mltune.errors import RunDirectoryError

LOCK = "run.lock"


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
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
