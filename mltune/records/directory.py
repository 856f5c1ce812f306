"""Where things lie in the directory of a run, and in that of a plan, which holds one run a problem."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from pathlib import Path

from mltune.errors import RunDirectoryError

FILE = "run.sqlite"
"""In the directory of a run: its store."""

PLAN_FILE = "plan.toml"
"""In the directory of a plan: the plan as it was read."""

PROBLEMS = "problems"
"""In the directory of a plan: the runs of its problems, one folder each."""

WINNER = "winner"
"""In the directory of a run: the winner, to be taken away."""

WINNERS = "winners"
"""In the directory of a plan: the winners of all its problems, one folder each."""

LOCK = "run.lock"

_ATTEMPTS = 5
_ATTEMPT_EVERY_S = 0.02


def is_plan(directory: Path) -> bool:
    """Return whether a directory is that of a plan."""
    return (directory / PLAN_FILE).is_file()


def runs_in(directory: Path) -> list[Path]:
    """Return the directories of the runs that a directory holds: those of a plan's problems, by name, or itself.

    Raises
    ------
    RunDirectoryError
        It is neither the directory of a run nor that of a plan.
    """
    directory = Path(directory)
    if is_plan(directory):
        return sorted(path.parent for path in directory.glob(f"{PROBLEMS}/*/{FILE}"))
    if (directory / FILE).is_file():
        return [directory]
    raise RunDirectoryError(
        f"the directory of a run holds {FILE}, that of a plan {PLAN_FILE}, but there is neither in {directory}."
    )


def new_directory(label: str) -> Path:
    """Return the name of a directory under ``runs/`` that does not exist yet: of a label and the time."""
    name = f"{'-'.join(re.findall(r'[a-z0-9._]+', label.lower()))}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = [name, *(f"{name}-{again}" for again in range(2, 1000))]
    return next(path for path in map(Path("runs").joinpath, names) if not path.exists())


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


def write_whole(path: Path, data: bytes) -> None:
    """Write a file, through to the disk, in place of the one that is there, which stays until the new one is complete.

    Raises
    ------
    OSError
        It cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
