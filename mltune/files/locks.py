"""Locks of files: a process that waits for one says who holds it, and waits no longer than its deadline.

A stopped holder (SIGSTOP, Ctrl-Z) may stay so for ever, so others wait for it for some seconds only.
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
"""Name of a holder that has not written who it is."""

_LOOK_S = 0.1
_LONGEST_NOTE = 300  # bytes
_PASSWORD = re.compile(r"://[^/\s]*@")


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a lock, as it has written into the file: ``since`` is in seconds since 1970."""

    pid: int
    host: str
    since: float

    @property
    def is_stopped(self) -> bool:
        """Whether the holder is stopped; False on another host, where that is unknown."""
        return self._of_process("stat").rpartition(")")[2].split()[:1] in (["T"], ["t"])

    def __str__(self) -> str:
        """Return the process, the start of its lock, and whether it is stopped."""
        command = _PASSWORD.sub("://***@", self._of_process("cmdline").replace("\0", " ").strip())
        shown = f" ({printable(command, 100)})" if command else ""
        where = "" if self.is_here else f" on {printable(self.host, 64)}"
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        stopped = f", which is stopped: `kill -CONT {self.pid}` lets it go on" if self.is_stopped else ""
        return f"process {self.pid}{shown}{where}, since {since}{stopped}"

    @property
    def is_here(self) -> bool:
        """Whether the holder is a process of this host."""
        return self.host == socket.gethostname()

    def _of_process(self, name: str) -> str:
        with contextlib.suppress(OSError):
            if self.is_here:
                return Path(f"/proc/{self.pid}/{name}").read_text(errors="replace")
        return ""


class HeldError(OSError):
    """Another process, None where it is unknown, has held a lock for too long."""

    def __init__(self, holder: Holder | None, waited_s: float) -> None:
        super().__init__(str(holder or UNKNOWN))
        self.holder, self.waited_s = holder, waited_s


def holder_of(descriptor: int) -> Holder | None:
    """Return the holder that is written into an open, locked file, if any."""
    with contextlib.suppress(ValueError, OSError, OverflowError):
        pid, host, since = os.pread(descriptor, _LONGEST_NOTE, 0).decode(errors="replace").split()
        time.localtime(float(since))
        holder = Holder(int(pid), host, float(since))
        return holder if not holder.is_here or Path(f"/proc/{holder.pid}").exists() else None  # one that was killed
    return None


def note_holder(descriptor: int) -> None:
    """Write this process, for messages only, into a locked file that is empty or has such a note."""
    note = f"{os.getpid()} {socket.gethostname()} {time.time():.3f}\n"
    with contextlib.suppress(OSError):
        if _is_note(descriptor):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, note.encode(), 0)


def acquire(descriptor: int, timeout_s: float, say: Callable[[str], None]) -> None:
    """Take the lock of an open file until the file is closed; raise a :class:`HeldError` after ``timeout_s``.

    For a stopped holder it waits at most :data:`SPEAK_S`. ``say`` is called once, after :data:`SPEAK_S`, with the
    holder and the longest wait. An OSError says that the file system has no locks.
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
    """Hold the lock of a file, which is created if it is missing, and removed in the end with ``is_removed``."""
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
    """Take the lock if it is free, or if the waiting thread has taken it; return whether it is held."""
    if waiting is not None and waiting.is_alive():
        return False
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _wait(duplicate: int) -> None:
    """Take the lock of an open file, in the system's order; the caller may have closed it since."""
    with contextlib.suppress(OSError):
        fcntl.flock(duplicate, fcntl.LOCK_EX)
    os.close(duplicate)  # which ends the lock, unless the caller has the file open


def _is_note(descriptor: int) -> bool:
    return bool(re.search(LOCK.mark, os.pread(descriptor, _LONGEST_NOTE + 1, 0)))


def _is_at(path: Path, descriptor: int) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    return False
