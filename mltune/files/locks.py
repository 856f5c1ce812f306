"""Locks of files: a process that waits for one says who holds it, and waits no longer than its deadline.

A holder that is stopped (SIGSTOP, Ctrl-Z) may stay so for ever, so others wait for it for some seconds only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mltune.files.owned import LOCK
from mltune.files.reading import open_regular
from mltune.files.text import printable

SPEAK_S = 5.0
"""Seconds after which a process that waits says who holds a lock; for a stopped holder it waits no longer."""

UNKNOWN = "an unknown process"
"""In place of a holder that has not written who it is."""

_LOOK_S = 0.1
_LONGEST_NOTE = 300  # bytes
_PASSWORD = re.compile(r"://[^/\s]*@")


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a lock, as it has written into the file.

    Attributes
    ----------
    pid : int
    host : str
    since : float
        Seconds since 1970.
    """

    pid: int
    host: str
    since: float

    @property
    def is_stopped(self) -> bool:
        """Whether it is stopped; False on another host, where that cannot be seen."""
        return self._of_process("stat").rpartition(")")[2].split()[:1] in (["T"], ["t"])

    def __str__(self) -> str:
        """Return who it is, since when it holds the lock, and whether it is stopped."""
        command = _PASSWORD.sub("://***@", self._of_process("cmdline").replace("\0", " ").strip())
        shown = f" ({printable(command, 100)})" if command else ""
        where = "" if self.is_here else f" on {printable(self.host, 64)}"
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        stopped = f", which is stopped: `kill -CONT {self.pid}` lets it go on" if self.is_stopped else ""
        return f"process {self.pid}{shown}{where}, since {since}{stopped}"

    @property
    def is_here(self) -> bool:
        """Whether it is a process of this host."""
        return self.host == socket.gethostname()

    def _of_process(self, name: str) -> str:
        with contextlib.suppress(OSError):
            if self.is_here:
                return Path(f"/proc/{self.pid}/{name}").read_text(errors="replace")
        return ""


class HeldError(OSError):
    """Another process has held a lock for too long.

    Attributes
    ----------
    holder : Holder or None
        None where it is not known.
    waited_s : float
    """

    def __init__(self, holder: Holder | None, waited_s: float) -> None:
        super().__init__(str(holder or UNKNOWN))
        self.holder, self.waited_s = holder, waited_s


def holder_of(descriptor: int) -> Holder | None:
    """Return who holds the lock of an open file; None where the file does not say that."""
    with contextlib.suppress(ValueError, OSError, OverflowError):
        pid, host, since = os.pread(descriptor, _LONGEST_NOTE, 0).decode(errors="replace").split()
        time.localtime(float(since))
        holder = Holder(int(pid), host, float(since))
        return holder if not holder.is_here or Path(f"/proc/{holder.pid}").exists() else None  # one that was killed
    return None


def note_holder(descriptor: int) -> None:
    """Write into a file that this process holds its lock: for messages only, so a full disk does not matter.

    A file with another content than such a note is somebody else's, and stays as it is.
    """
    note = f"{os.getpid()} {socket.gethostname()} {time.time():.3f}\n"
    with contextlib.suppress(OSError):
        if _is_note(descriptor):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, note.encode(), 0)


def acquire(descriptor: int, timeout_s: float, say: Callable[[str], None]) -> None:
    """Take the lock of an open file, which ends when the file is closed.

    Parameters
    ----------
    timeout_s : float
        Longest wait; for a holder that is stopped at most :data:`SPEAK_S`.
    say : callable
        Called once, after :data:`SPEAK_S`, with who holds the lock and how long this process waits for it.

    Raises
    ------
    HeldError
        Another process holds it for longer.
    OSError
        The file system has no locks.
    """
    begun, has_spoken, waiting = time.monotonic(), False, None
    while not _is_taken(descriptor, waiting):
        waited_s, holder = time.monotonic() - begun, holder_of(descriptor)
        is_stopped = holder is not None and holder.is_stopped
        if waited_s >= (min(timeout_s, SPEAK_S) if is_stopped else timeout_s):
            raise HeldError(holder, waited_s)
        if waited_s >= SPEAK_S and not has_spoken:
            has_spoken = True
            say(f"it is held by {holder or UNKNOWN}; this process waits for at most {timeout_s - waited_s:.0f} s more")
        if waiting is None or not waiting.is_alive():
            waiting = threading.Thread(target=_wait, args=(os.dup(descriptor),), daemon=True)
            waiting.start()
        waiting.join(min(_LOOK_S, max(0.0, timeout_s - waited_s)))
    note_holder(descriptor)


@contextlib.contextmanager
def locked_file(
    path: Path, timeout_s: float, say: Callable[[str], None], *, is_removed: bool = False
) -> Iterator[None]:
    """Hold the lock of a file, which is created if it is missing; with ``is_removed`` it is removed in the end.

    Errors are those of :func:`acquire` and :func:`~mltune.files.reading.open_regular`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        descriptor = open_regular(path, os.O_RDWR | os.O_CREAT, inside=path.parent)
        try:
            acquire(descriptor, max(0.0, deadline - time.monotonic()), say)
            if _is_at(path, descriptor):
                break
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # of a file that its last holder has removed
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if _is_note(descriptor):
                os.truncate(descriptor, 0)
                if is_removed and _is_at(path, descriptor):
                    path.unlink()
        os.close(descriptor)


def _is_taken(descriptor: int, waiting: threading.Thread | None) -> bool:
    """Take the lock if it is free, or has been taken by the thread that waits for it; return whether it is held."""
    if waiting is not None and waiting.is_alive():
        return False
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _wait(duplicate: int) -> None:
    """Take the lock of an open file, in the order in which the system gives it; the caller may have closed it since."""
    with contextlib.suppress(OSError):
        fcntl.flock(duplicate, fcntl.LOCK_EX)
    os.close(duplicate)  # which ends the lock, unless the caller has the file open


def _is_note(descriptor: int) -> bool:
    return bool(re.search(LOCK.mark, os.pread(descriptor, _LONGEST_NOTE + 1, 0)))


def _is_at(path: Path, descriptor: int) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    return False
