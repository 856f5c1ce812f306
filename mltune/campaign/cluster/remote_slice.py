"""A time slice on a worker of a cluster: a device worker of its own, and what it records on its way back."""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import wait
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from mltune.campaign.cluster.mailbox import Mailbox
from mltune.campaign.device_worker import HEARTBEAT_TIMEOUT_S, Outcome, SliceRequest, SliceResult
from mltune.errors import RunError, UsageError
from mltune.files.atomic import write_file_atomically
from mltune.known.wisdom import Wisdom
from mltune.measure.compile_pool import available_cores
from mltune.process.child import ChildDiedError, ChildTimeoutError
from mltune.process.child_pool import ThreadedChild
from mltune.records.declaration import FACT as DECLARATION
from mltune.records.directory import EVENT_LOG, FILE, LOCK, POINTER, WINNER, is_begun
from mltune.records.events import read_events
from mltune.records.replication import Changes
from mltune.records.store import Store
from mltune.results.progress import Progress

SEND_EVERY_S = 0.5
"""Seconds between two looks at what is new."""

STOP_S = 6.0
"""Seconds that a slice has to end once nobody wants it, before its process is killed."""

RECEIVE_S = 120.0
"""Seconds that the last messages of a slice wait to be asked for."""

_LARGEST_FILE = 1 << 26
_STORE_FILES = (POINTER, *(f"{FILE}{suffix}" for suffix in ("", "-wal", "-shm", "-journal")))

_children: dict[str, ThreadedChild] = {}


@dataclass(frozen=True, slots=True)
class SlicePackage:
    """A time slice as sent to a worker of a cluster.

    Attributes
    ----------
    request : SliceRequest
        Its directories are those of the host that sends it.
    target : str
        What the device worker serves (:class:`mltune.process.child.Child`).
    known : Changes or None
        The records of the run so far.
    files : mapping of str to bytes
        The other files in the directory of the run, such as its model.
    wisdom : Wisdom or None
        The best known configurations; None for none.
    sharing : int
        GPU workers on the host, which share its cores.
    """

    request: SliceRequest
    target: str
    known: Changes | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    wisdom: Wisdom | None = None
    sharing: int = 1


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files in the directory of a run besides its store. They come before the declaration of their winner."""

    files: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class SliceReport:
    """The last message of a time slice: its result, and what it has added to the wisdom."""

    result: SliceResult
    wisdom: Wisdom | None


def run_remote_slice(package: SlicePackage, key: str) -> None:
    """Run a time slice in a task of a Dask worker; everything that it says goes into its mailbox.

    That is progress, events, :class:`RunFiles`, :class:`~mltune.records.replication.Changes` in the order of recording,
    and at the end a :class:`SliceReport`.
    """
    child = _children.setdefault(package.target, ThreadedChild(package.target, ()))
    with Mailbox(key, lambda number: child.child.interrupt(signal.Signals(number))) as mailbox, _scratch() as scratch:
        run, log = scratch / "run", scratch / "log"
        run.mkdir()
        log.mkdir()
        put_files(run, package.files)
        if package.known is not None:
            with Store.open(run, package.known.header) as store:
                package.known.write(store)
        wisdom = scratch / "wisdom.json"
        if package.wisdom is not None:
            package.wisdom.save(wisdom)
        request = replace(
            package.request.request,
            run=run,
            wisdom="none" if package.wisdom is None else str(wisdom),
            compilers=max(1, available_cores() // package.sharing),
        )
        told = _Told(run, log, (0, 0) if package.known is None else package.known.upto)
        result = _serve(child, replace(package.request, request=request, log=log), mailbox, told)
        told.tell(mailbox)
        found = Wisdom.load(wisdom) if wisdom.is_file() else None
        mailbox.put(RunFiles(dict(files_in(run, with_winner=True))))
        mailbox.put(SliceReport(result, found))
        deadline = time.monotonic() + RECEIVE_S
        while not mailbox.is_empty and mailbox.is_wanted and time.monotonic() < deadline:
            time.sleep(0.05)


def files_in(directory: Path, *, with_winner: bool = False) -> Iterator[tuple[str, bytes]]:
    """Yield the files in the directory of a run, besides its store, by their paths in it."""
    left_out = {*_STORE_FILES, LOCK, EVENT_LOG}
    folders = (directory.rglob("*") if with_winner else directory.glob("*")) if directory.is_dir() else ()
    for path in sorted(folders):
        inside = path.relative_to(directory)
        if path.is_symlink() or not path.is_file() or inside.parts[0] in left_out:
            continue
        if (len(inside.parts) == 1 or inside.parts[0] == WINNER) and path.stat().st_size <= _LARGEST_FILE:
            yield inside.as_posix(), path.read_bytes()


def put_files(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write files into the directory of a run; where some are of a winner, others of an earlier one are removed.

    Raises
    ------
    UsageError
        A path leads out of it.
    """
    for name, content in files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or path.parts[0] in (*_STORE_FILES, LOCK):
            raise UsageError(f"a file of a run lies in its directory, got {name!r:.200}.")
        target = directory / path
        if target.is_file() and target.read_bytes() == content:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        write_file_atomically(target, content)
    known = {directory / name for name in files}
    if any(target.is_relative_to(directory / WINNER) for target in known):
        for found in (directory / WINNER).rglob("*"):
            if found.is_file() and found not in known:
                found.unlink()


class _Told:
    """What the host of a campaign was told of a run, which grows."""

    def __init__(self, run: Path, log: Path, upto: tuple[int, int]) -> None:
        self._run = run
        self._events = log / EVENT_LOG
        self._upto = upto
        self._offset = 0
        self._last: tuple[Mapping[str, Any], Mapping[str, float]] | None = None
        self._declared: Any = None

    def tell(self, mailbox: Mailbox) -> None:
        """Tell what is new."""
        events, self._offset = read_events(self._events, self._offset)
        for event in events:
            mailbox.put(event)
        if not is_begun(self._run):
            return
        with contextlib.suppress(RunError, UsageError), Store.read_only(self._run) as store:
            new = Changes.of(store, *self._upto)
            if new.facts.get(DECLARATION) != self._declared:
                self._declared = new.facts[DECLARATION]
                mailbox.put(RunFiles(dict(files_in(self._run, with_winner=True))))
            if new.upto != self._upto or (new.facts, new.seconds) != self._last:
                mailbox.put(new)
                self._upto, self._last = new.upto, (new.facts, new.seconds)


def _serve(child: ThreadedChild, request: SliceRequest, mailbox: Mailbox, told: _Told) -> SliceResult:
    """Run a time slice in the process of the device, and tell what it records meanwhile."""
    progress: list[Progress] = []

    def receive(message: Any) -> None:
        if isinstance(message, Progress):
            progress[:] = [message]

    future = child.thread.submit(child.child.call, request, HEARTBEAT_TIMEOUT_S, receive)
    unwanted_s = None
    while not future.done():
        wait([future], timeout=SEND_EVERY_S)
        told.tell(mailbox)
        if progress:
            mailbox.put(progress.pop())
        if not mailbox.is_wanted:
            if unwanted_s is None:
                unwanted_s = time.monotonic()
                child.child.interrupt(signal.SIGTERM)
            elif time.monotonic() > unwanted_s + STOP_S:
                child.child.interrupt()
    try:
        result = future.result()
        assert isinstance(result, SliceResult)  # noqa: S101
        if result.outcome is Outcome.INTERRUPTED:  # it stays so: the next time slice needs a new process
            child.thread.submit(child.child.kill).result()
        return result
    except (ChildDiedError, ChildTimeoutError, RunError) as error:
        return SliceResult(Outcome.DIED, str(error))


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """Yield a folder of this worker, which is removed."""
    from mltune.measure.cluster_connection import worker_folder

    folder = Path(tempfile.mkdtemp(prefix="mltune-", dir=worker_folder()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
