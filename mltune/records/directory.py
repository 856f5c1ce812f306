"""The directories of runs and plans: names of their files, discovery of runs, and the lock for a single writer."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from pathlib import Path

from mltune.errors import RunDirectoryError
from mltune.files.reading import reason

FILE = "run.sqlite"
"""The store, in the directory of a run."""

WINNER = "winner"
"""The folder with the winner's source and machine code, in the directory of a run."""

PLAN_FILE = "plan.toml"
"""The text of the plan, in the directory of a plan."""

PROBLEMS = "problems"
"""The folder of runs, one per problem, in the directory of a plan."""

WINNERS = "winners"
"""The folder of winners, one per problem, in the directory of a plan."""

LOCK = "run.lock"
"""The lock file, in either directory."""

_ATTEMPTS = 5
_ATTEMPT_EVERY_S = 0.02


def is_plan(directory: Path) -> bool:
    """Return whether a directory is that of a plan."""
    return (directory / PLAN_FILE).is_file()


def runs_in(directory: Path) -> list[Path]:
    """Return the directories of all runs: of a plan those of its problems, by name; of a run the directory itself.

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
    facts = f"there is neither in {directory}" if directory.is_dir() else f"there is no directory {directory}"
    raise RunDirectoryError(f"the directory of a run holds {FILE}, that of a plan {PLAN_FILE}, but {facts}.")


def new_directory(label: str) -> Path:
    """Return the path of a directory under ``runs/`` that does not exist yet, named after a label and the time."""
    name = f"{'-'.join(re.findall(r'[a-z0-9._]+', label.lower()))}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = [name, *(f"{name}-{again}" for again in range(2, 1000))]
    return next(path for path in map(Path("runs").joinpath, names) if not path.exists())


def lock_directory(directory: Path) -> int:
    """Create a directory if it is missing, and lock it.

    Returns
    -------
    int
        The file descriptor that holds the lock. Closing it, or the death of the process, releases the directory.

    Raises
    ------
    RunDirectoryError
        The directory is in use, or cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise RunDirectoryError(
            f"a run directory must be writable, but {directory} is not: {reason(error)}."
        ) from error
    try:
        _acquire(descriptor)
    except OSError as error:
        holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
        os.close(descriptor)
        raise RunDirectoryError(
            f"a run directory is used by one process at a time, but {directory} is in use by process "
            f"{holder or '(unknown)'}; wait for it to end, or choose another directory."
        ) from error
    # The process number is for the error message only: a full disk must not prevent the lock.
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def in_use(directory: Path) -> bool:
    """Return whether a process holds the lock of a directory, also where that cannot be determined.

    The test takes a shared lock for an instant; :func:`lock_directory` waits for longer than that.
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


def _acquire(descriptor: int) -> None:
    """Take the lock, with a few attempts: :func:`in_use` in another process may hold it for an instant."""
    for _ in range(_ATTEMPTS - 1):
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(_ATTEMPT_EVERY_S)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
