"""A time slice on a worker of a cluster: it runs in a device worker there, and its records are sent back.

Messages wait on the worker until the host of the campaign asks for them, so the scheduler keeps nothing, and a message
that is lost on its way is sent again. A question waits until there is a message, so that the host gets it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mltune.campaign.device_worker import HEARTBEAT_TIMEOUT_S, Outcome, SliceRequest, SliceResult, call
from mltune.errors import RunError, UsageError
from mltune.files.atomic import replace_folder_atomically, write_file_atomically
from mltune.files.owned import WINNER as WINNER_FOLDER
from mltune.files.reading import read_file
from mltune.known.wisdom import Wisdom
from mltune.process.child import ThreadedChild, available_cores
from mltune.records.directory import EVENT_LOG, WINNER, is_begun, written_in
from mltune.records.events import read_events
from mltune.records.replication import Changes
from mltune.records.store import Store
from mltune.results.progress import Progress
from mltune.tuning.wisdom import RUN_FILES

HOLD_S = 0.5
"""Seconds that a question waits for a message."""

SEND_EVERY_S = 0.5
"""Seconds between two checks for new records."""

STOP_S = 6.0
"""Seconds that a cancelled slice has to end before its process is killed."""

RECEIVE_S = 120.0
"""Seconds that the last messages of a slice wait for a question."""

_LOOK_S = 0.02
_LARGEST_FILE = 1 << 26

_children: dict[str, ThreadedChild] = {}
_open: dict[str, Mailbox] = {}


@dataclass(frozen=True, slots=True)
class SlicePackage:
    """A time slice as sent to a worker of a cluster, with directories of the host that sends it.

    ``target`` is that of the device worker; ``known`` are the records of the run so far, ``files`` the other files in
    its directory. GPU workers ``sharing`` a host share its cores.
    """

    request: SliceRequest
    target: str
    changes: Changes | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    wisdom: Wisdom | None = None
    sharing: int = 1


@dataclass(frozen=True, slots=True)
class Update:
    """A message of a time slice: the news since the last message; only the last one has a result.

    ``events`` are lines of the event log. ``files``, all those of the run besides its store, come with a declaration of
    a winner in ``changes``, and at the end, as ``wisdom`` does.
    """

    events: Sequence[Mapping[str, Any]]
    files: Mapping[str, bytes]
    changes: Changes | None
    progress: Progress | None = None
    result: SliceResult | None = None
    wisdom: Wisdom | None = None


class Mailbox:
    """The messages of one task by its key; ``signal`` gets the host's signals from another thread."""

    def __init__(self, key: str, signal: Callable[[int], None]) -> None:
        self.signal = signal
        self._key = key
        self._lock = threading.Lock()
        self._messages: deque[Update] = deque()
        self._taken = 0

    def __enter__(self) -> Mailbox:
        _open[self._key] = self
        return self

    def __exit__(self, *error: object) -> None:
        _open.pop(self._key, None)

    def put(self, message: Update) -> None:
        """Append a message."""
        with self._lock:
            self._messages.append(message)

    def take(self, received: int) -> list[Update]:
        """Return the messages after the first ``received``, and delete those."""
        with self._lock:
            while self._taken < received and self._messages:
                self._messages.popleft()
                self._taken += 1
            return list(self._messages)

    @property
    def is_empty(self) -> bool:
        """Whether the host has received all messages."""
        return not self._messages

    @property
    def is_wanted(self) -> bool:
        """Whether the host is connected and has not cancelled the task."""
        from distributed import get_worker

        task = get_worker().state.tasks.get(self._key)
        return task is not None and task.state == "executing"


async def take(key: str, received: int) -> list[Update] | None:
    """Return the messages of a task after the first ``received``; None if the task does not run here."""
    deadline = time.monotonic() + HOLD_S
    while (box := _open.get(key)) is not None:
        messages = box.take(received)
        if messages or time.monotonic() > deadline:
            return messages
        await asyncio.sleep(_LOOK_S)
    return None


def send_signal(key: str, number: int) -> None:
    """Send a signal to a task that runs here."""
    if key in _open:
        _open[key].signal(number)


def run_remote_slice(package: SlicePackage, key: str) -> None:
    """Run a time slice in a task of a Dask worker, and put its messages into the mailbox of the task."""
    child = _children.setdefault(package.target, ThreadedChild(package.target, ()))
    with Mailbox(key, lambda number: child.child.interrupt(signal.Signals(number))) as mailbox, _scratch() as folder:
        scratch = Path(folder)
        run, log, wisdom = scratch / "run", scratch / "log", scratch / "wisdom.json"
        run.mkdir()
        log.mkdir()
        put_files(run, package.files)
        if package.changes is not None:
            with Store.open(run, package.changes.header) as store:
                package.changes.write(store)
        if package.wisdom is not None:
            package.wisdom.save(wisdom)
        request = replace(
            package.request.request,
            run=run,
            wisdom="none" if package.wisdom is None else str(wisdom),
            compilers=max(1, available_cores() // package.sharing),
        )
        sender = _Sender(mailbox, run, log, package.changes)
        result = _serve(child, replace(package.request, request=request, log=log), mailbox, sender)
        sender.send(result=result, wisdom=None if package.wisdom is None else Wisdom.load(wisdom))
        deadline = time.monotonic() + RECEIVE_S
        while not mailbox.is_empty and mailbox.is_wanted and time.monotonic() < deadline:
            time.sleep(0.05)


def files_in(directory: Path, *, with_winner: bool = False) -> Iterator[tuple[str, bytes]]:
    """Yield paths and contents of the files of a run that are sent; links are left out."""
    winner = directory / WINNER
    of_winner = sorted(winner.rglob("*")) if with_winner and not winner.is_symlink() else []
    for path in (*(directory / name for name in RUN_FILES), *of_winner):
        with contextlib.suppress(OSError):
            yield path.relative_to(directory).as_posix(), read_file(path, _LARGEST_FILE, inside=directory)


def put_files(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write files from another host into a run's directory, through no link; a winner replaces the whole old one.

    A name that is none of a run's files raises UsageError before anything is written, a full disk DiskFullError.
    """
    for name in files:
        folder, *parts = name.split("/")
        if name not in RUN_FILES and (folder != WINNER or not parts or not {"", ".", ".."}.isdisjoint(parts)):
            raise UsageError(f"{name!r:.200} is no file of a run: {', '.join(RUN_FILES)}, or one in {WINNER}/.")
    present = dict(files_in(directory, with_winner=True))
    sent, here = _of_winner(files), _of_winner(present)
    with written_in(directory):
        for name in files.keys() & set(RUN_FILES):
            if present.get(name) != files[name]:
                write_file_atomically(directory / name, files[name], inside=directory)
        if sent and sent != here:
            replace_folder_atomically(directory / WINNER, sent, WINNER_FOLDER, inside=directory)


def _of_winner(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files of the winner, with their paths in its folder."""
    return {name.removeprefix(f"{WINNER}/"): files[name] for name in files if name not in RUN_FILES}


class _Sender:
    """Send the new events and records of a run since the last message."""

    def __init__(self, mailbox: Mailbox, run: Path, log: Path, changes: Changes | None) -> None:
        self._mailbox = mailbox
        self._run = run
        self._events = log / EVENT_LOG
        self._offset = 0
        self._upto = (0, 0) if changes is None else changes.upto
        self._facts: tuple[Mapping[str, Any], Mapping[str, float]] | None = None
        self._declared: Any = None

    def send(
        self, progress: Progress | None = None, result: SliceResult | None = None, wisdom: Wisdom | None = None
    ) -> None:
        events, self._offset = read_events(self._events, self._offset)
        changes, has_winner = self._changes()
        files = dict(files_in(self._run, with_winner=True)) if has_winner or result is not None else {}
        if events or changes or progress or result:
            self._mailbox.put(Update(events, files, changes, progress, result, wisdom))

    def _changes(self) -> tuple[Changes | None, bool]:
        """Return the new records of the store, and whether they declare a winner."""
        if not is_begun(self._run):
            return None, False
        with contextlib.suppress(RunError, UsageError), Store.read_only(self._run) as store:
            new, declared = Changes.of(store, *self._upto), self._declared
            self._declared = new.facts.get("declaration")
            if new.upto != self._upto or (new.facts, new.seconds) != self._facts:
                self._upto, self._facts = new.upto, (new.facts, new.seconds)
                return new, self._declared != declared
        return None, False


def _serve(child: ThreadedChild, request: SliceRequest, mailbox: Mailbox, sender: _Sender) -> SliceResult:
    """Run a time slice in the process of the device, and send its records meanwhile."""
    progress: deque[Progress] = deque(maxlen=1)

    def receive(message: Any) -> None:
        if isinstance(message, Progress):
            progress.append(message)

    future = child.thread.submit(call, child.child, request, HEARTBEAT_TIMEOUT_S, receive)
    unwanted_s = None
    try:
        while not future.done():
            wait([future], timeout=SEND_EVERY_S)
            sender.send(progress.pop() if progress else None)
            if not mailbox.is_wanted:
                if unwanted_s is None:
                    unwanted_s = time.monotonic()
                    child.child.interrupt(signal.SIGTERM)
                elif time.monotonic() > unwanted_s + STOP_S:
                    child.child.interrupt()
    except BaseException:  # what cannot be sent is measured for nobody
        child.child.interrupt()
        raise
    result = future.result()
    if result.outcome is Outcome.INTERRUPTED:  # it stays so: the next time slice needs a new process
        child.thread.submit(child.child.kill).result()
    return result


def _scratch() -> tempfile.TemporaryDirectory[str]:
    """Return a folder of this worker, which is removed."""
    from mltune.measure.compile_farm import worker_folder

    return tempfile.TemporaryDirectory(prefix="mltune-", dir=worker_folder(), ignore_cleanup_errors=True)
