"""Directories of runs and plans: names of their files, discovery of runs, and the lock for a single writer.

A directory may come from a stranger. A link in place of a file or folder of mltune is refused: through it the program
would read, overwrite or remove something elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from mltune.errors import DamagedRunError, DiskFullError, MltuneError, RunDirectoryError
from mltune.files import owned
from mltune.files.locks import UNKNOWN, holder_of, note_holder
from mltune.files.reading import kind_of, open_regular, raising, reason
from mltune.files.text import printable

RUNS = "runs"
"""The folder of runs in the working directory."""

FILE = "run.sqlite"
"""The store, in the directory of a run."""

POINTER = "run.json"
"""The database that holds the store, in place of :data:`FILE`."""

WINNER = "winner"
"""The folder with the winner's source and machine code, in the directory of a run."""

PLAN_FILE = "plan.toml"
"""The text of the plan, in the directory of a plan."""

IDENTITY_FILE = "plan.json"
"""The problems and the seed to which the directory of a plan belongs: the text beside it may be edited."""

PROBLEMS = "problems"
"""The folder of runs, one per problem, in the directory of a plan."""

WINNERS = "winners"
"""The folder of winners, one per problem, in the directory of a plan."""

DATASETS = "datasets"
"""The folder of exported datasets, in the directory of a plan."""

LOCK = "run.lock"
"""The lock file, in either directory."""

EVENT_LOG = "events.jsonl"
"""The event log, in either directory."""

STUDY = "optuna.journal"
"""The trials for optuna-dashboard, in either directory."""

HTML, MARKDOWN, JSON = "report.html", "report.md", "winners.json"
"""The files of a report, by default in either directory."""

SLUG = re.compile(r"[a-z0-9][a-z0-9.-]{0,127}")
"""Allowed names of the folders of a plan's problems."""

_FOLDERS = (PROBLEMS, WINNERS, WINNER, DATASETS)
_WRITTEN_IN_PLACE = (*(f"{FILE}{suffix}" for suffix in ("", "-wal", "-shm", "-journal")), LOCK, EVENT_LOG)
_REPLACED = (POINTER, PLAN_FILE, IDENTITY_FILE, STUDY, HTML, MARKDOWN, JSON)  # as a whole
_BEGUN_WITH = {
    LOCK: owned.LOCK,
    EVENT_LOG: owned.EVENTS,
    "siblings.json": owned.MODEL,
    "siblings.npy": owned.ARRAY,
}
_ATTEMPTS = 5
_ATTEMPT_EVERY_S = 0.02


def is_plan(directory: Path) -> bool:
    """Return whether a directory is that of a plan; errors are those of :func:`check_directory`."""
    if os.path.isfile(directory):  # such as the file of a plan
        return False
    check_directory(directory)
    return (directory / PLAN_FILE).is_file()


def check_no_plan(directory: Path) -> None:
    """Check that a directory of a single run is not that of a plan, or of one of its problems.

    A campaign resumes the runs of its problems with its own settings, and would find them in use.
    """
    path = Path(os.path.realpath(directory))  # of a link to itself, too
    if is_plan(path):
        raise RunDirectoryError(
            f"{directory} is the directory of a plan, which `mltune run {directory}` resumes; choose another directory "
            "for the run."
        )
    plan = path.parent.parent
    if path.parent.name == PROBLEMS and is_plan(plan):
        raise RunDirectoryError(
            f"{directory} is the directory of a problem of a plan: `mltune run {plan}` gives the problem more of the "
            "budget; copy the directory to continue it alone."
        )


def runs_in(directory: Path) -> list[Path]:
    """Return the directories of all runs: of a plan's problems by name, or of a single run; the former unchecked."""
    directory = Path(directory)
    if is_plan(directory):
        folders = sorted(directory.glob(f"{PROBLEMS}/*"))  # which opens none of them: they may be links
        return [folder for folder in folders if SLUG.fullmatch(folder.name) and is_begun(folder)]
    if holds_run(directory):
        return [directory]
    law = f"A run has {FILE}, that of a plan {PLAN_FILE}; `mltune show` lists the runs below runs/."
    if not directory.is_dir():
        raise RunDirectoryError(f"there is no directory {directory}. {law}")
    raise RunDirectoryError(f"{directory} is not the directory of a run. {law}")


def is_begun(directory: Path) -> bool:
    """Return whether a directory seems to hold a run, without a check of what lies there."""
    return any(os.path.lexists(directory / name) for name in (FILE, POINTER))


def holds_run(directory: Path) -> list[str]:
    """Return which of :data:`FILE` and :data:`POINTER` a directory holds, which is checked."""
    check_directory(directory)
    return [name for name in (FILE, POINTER) if (directory / name).exists()]


def _not_writable(directory: Path, error: OSError) -> MltuneError:
    """Return the error of a run directory that cannot be written: its disk is full, or something else."""
    place = printable(error.filename or directory, 300)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
        return DiskFullError(f"{place} cannot be written: {reason(error)}; a run needs room on the disk.")
    return RunDirectoryError(f"{place} cannot be written: {reason(error)}; a run needs a directory that can.")


@contextlib.contextmanager
def written_in(directory: Path) -> Iterator[None]:
    """Say that the directory of a run cannot be written, where that fails."""
    try:
        yield
    except OSError as error:
        raise _not_writable(directory, error) from error


def check_directory(directory: Path, *, writing: bool = False) -> None:
    """Check that files and folders of mltune in a directory, as far as they exist, are its own.

    A link, or no regular file or folder, raises a DamagedRunError, as does a hard link of a file that will be written.
    The path to the directory that the user named may lead through links.
    """
    if os.path.exists(directory) and not os.path.isdir(directory):
        raise RunDirectoryError(f"{directory} is a file, but a run directory is a folder.")
    on_the_way = () if _named(directory) == directory else (directory.parent, directory)
    with raising(RunDirectoryError, f"the run directory {directory} cannot be read"):
        for path in (*on_the_way, *(directory / name for name in _FOLDERS)):
            _check_kind(path, "a directory")
        for name in (*_WRITTEN_IN_PLACE, *_REPLACED):
            _check_kind(directory / name, "a regular file")
            if writing and name in _WRITTEN_IN_PLACE:
                _check_has_one_name(directory / name)


def _check_own(directory: Path) -> None:
    """Refuse to begin or resume a run where a file or folder of somebody else has a name that is written to."""
    begun = is_begun(directory) or os.path.lexists(directory / IDENTITY_FILE)
    try:
        facts = () if begun else (owned.foreign(directory / name, product) for name, product in _BEGUN_WITH.items())
        fact = next(filter(None, facts), "") or owned.foreign_in(directory / WINNER, owned.WINNER)
    except OSError as error:
        fact = reason(error)
    if fact:
        raise RunDirectoryError(
            f"{fact}, and a run replaces only what mltune wrote; move it, or choose another directory."
        )


def _check_kind(path: Path, expected: str) -> None:
    kind = kind_of(path)
    if kind and kind != expected:
        raise DamagedRunError(
            f"{path} is {kind}; in a run directory it must be {expected}: remove it, or put a copy in its place."
        )


def _check_has_one_name(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if path.lstat().st_nlink > 1:
            raise DamagedRunError(
                f"{path} is also a file elsewhere (a hard link), but a run directory holds its own files; put a copy "
                "in its place."
            )


def _named(directory: Path) -> Path:
    """Return the directory that the user named: for a problem of a plan, that of the plan."""
    problems, plan = directory.parent, directory.parent.parent
    return plan if problems.name == PROBLEMS and os.path.lexists(plan / PLAN_FILE) else directory


def named_directory(name: str) -> Path:
    """Return the directory under ``runs/`` that calls with the same arguments share; a link there is refused."""
    directory = Path(RUNS, name)
    if directory.is_symlink():
        raise RunDirectoryError(
            f"{directory} is {kind_of(directory)}, and no link is followed below {RUNS}/; remove it, or name another."
        )
    return directory


def new_directory(label: str) -> Path:
    """Create a directory under ``runs/``, named after a label and the time; no other process gets the same one."""
    name = f"{'-'.join(re.findall(r'[a-z0-9._]+', label.lower()))}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = [name, *(f"{name}-{again}" for again in range(2, 1000))]
    return next(path for path in map(Path(RUNS).joinpath, names) if _is_created(path))


def _is_created(directory: Path) -> bool:
    """Create a directory; return whether it was not there."""
    with written_in(directory), contextlib.suppress(FileExistsError):
        directory.mkdir(parents=True)
        return True
    return False


def lock_directory(directory: Path) -> int:
    """Create a directory if it is missing, lock it, and return the file descriptor that holds the lock.

    Closing it, or the death of the process, releases the directory. One in use or not writable raises a
    RunDirectoryError.
    """
    check_directory(directory, writing=True)
    _check_own(directory)
    with written_in(directory):
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = open_regular(directory / LOCK, os.O_RDWR | os.O_CREAT, inside=_named(directory))
    try:
        _acquire(descriptor)
    except OSError as error:
        holder = holder_of(descriptor)
        os.close(descriptor)
        raise RunDirectoryError(
            f"{directory} is in use by {holder or UNKNOWN}, and one process at a time uses a run directory; wait for "
            "it to end, or choose another directory."
        ) from error
    note_holder(descriptor)
    return descriptor


def in_use(directory: Path) -> bool:
    """Return whether a process holds the lock of a directory; True where that cannot be determined.

    The test takes a shared lock for an instant; :func:`lock_directory` waits for longer than that.
    """
    try:
        descriptor = open_regular(directory / LOCK, inside=_named(directory))
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
