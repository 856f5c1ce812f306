"""Device workers: child processes that run the time slices of a campaign, one process per device."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from mltune.campaign.schedule import TimeSlice
from mltune.errors import DatabaseLostError, DeviceError, DeviceLostError, DiskFullError, MltuneError, UsageError
from mltune.process.child import ChildDiedError, ChildPool, ChildTimeoutError, send_to_parent
from mltune.process.signals import Interrupt
from mltune.records.events import EventLog
from mltune.records.store import Store
from mltune.resolve.request import TuneRequest
from mltune.results.progress import Progress
from mltune.results.reader import RunReader, readable
from mltune.results.run import TuneResult
from mltune.tuning.wisdom import Siblings

DEVICE_WORKER = "mltune.campaign.device_worker:make_device_worker"
"""The target of the :class:`mltune.process.child.Child` of a device worker."""

STOP_TIMEOUT_S = 4.0
"""Seconds that a worker has to end its time slice after SIGTERM."""

HEARTBEAT_EVERY_S = 1.0
"""Seconds between two heartbeats of a worker that reports nothing else."""

HEARTBEAT_TIMEOUT_S = 300.0
"""Seconds without a message after which a worker is killed: longer than any deadline inside it."""

BACK = {"gpu_lost": "gpu_back", "disk_full": "disk_back", "database_lost": "database_back"}
"""The outcomes after which a worker pauses, and the event when the missing resource is back."""

PAUSES_S = (2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Pauses after an outcome of :data:`BACK`, by the number of failures in a row; the last one repeats."""


class Outcome(StrEnum):
    """Outcome of a time slice."""

    DONE = "done"
    INTERRUPTED = "interrupted"
    GPU_LOST = "gpu_lost"
    DISK_FULL = "disk_full"
    DATABASE_LOST = "database_lost"
    FAILED = "failed"
    """The request cannot be met; another attempt would fail in the same way."""
    DIED = "died"
    """The worker died, hung, or raised an unexpected exception."""


@dataclass(frozen=True, slots=True)
class SliceRequest:
    """A time slice as sent to a worker; with ``repair`` it only opens the store for writing and reads it."""

    request: TuneRequest
    log: Path
    repair: bool = False
    siblings: Siblings | None = None


@dataclass(frozen=True, slots=True)
class SliceResult:
    """Outcome of a time slice, and the reason of a failure."""

    outcome: Outcome
    detail: str = ""


class Process(Protocol):
    """A process that runs time slices: a :class:`mltune.process.child.Child`, or a worker on another host."""

    def start(self) -> None:
        """Start the process if it is not running."""

    def call(self, request: Any, timeout_s: float, on_message: Callable[[Any], None]) -> Any:
        """Run a time slice."""

    def interrupt(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send the process a signal, from another thread than the caller of :meth:`call`."""

    def kill(self) -> object:
        """End the process."""


@dataclass(slots=True)
class DeviceWorker:
    """A device of a campaign and its child process, on the side of the campaign.

    ``missing`` is one of :data:`BACK` from a time slice with that outcome on (``missing_since``) until one works again;
    ``failures`` counts those in a row, and ``ready_at`` ends the pause.
    """

    device: str
    child: Process
    heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S
    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(max_workers=1))
    time_slice: TimeSlice | None = None
    future: Future[SliceResult] | None = None
    progress: Progress | None = None
    missing: Outcome | None = None
    missing_since: float = 0.0
    failures: int = 0
    ready_at: float = 0.0

    @property
    def is_paused(self) -> bool:
        """Whether the device waits for its GPU, for room on the disk, or for the database."""
        return self.future is None and time.monotonic() < self.ready_at

    def prepare(self) -> None:
        """Start the child in the background: its imports take seconds. A failure shows in the first time slice."""
        self.thread.submit(self.child.start)

    def start(self, time_slice: TimeSlice, request: SliceRequest) -> None:
        """Start a time slice."""
        self.time_slice, self.progress = time_slice, None
        self.future = self.thread.submit(call, self.child, request, self.heartbeat_timeout_s, self._receive)

    def take_result(self) -> SliceResult | None:
        """Return the result of the time slice under way and become free; None while it is not done."""
        if self.future is None or not self.future.done():
            return None
        result, self.future, self.time_slice = self.future.result(), None, None
        return result

    def pause(self, missing: Outcome) -> bool:
        """Pause, longer after each failure; return whether the resource was there until now."""
        first = self.missing is not missing
        if self.missing is None:
            self.missing_since = time.monotonic()
        self.ready_at = time.monotonic() + PAUSES_S[min(self.failures, len(PAUSES_S) - 1)]
        self.failures += 1
        self.missing = missing
        return first

    def recover(self) -> float:
        """Record that the device works again; return the seconds for which it did not."""
        self.failures, self.missing = 0, None
        return time.monotonic() - self.missing_since

    def close(self, timeout_s: float) -> None:
        """End the child; an interrupted time slice first has ``timeout_s`` seconds to end."""
        if self.future is not None:
            wait([self.future], timeout=timeout_s)
        self.child.interrupt()
        self.thread.shutdown(wait=True, cancel_futures=True)
        self.child.kill()

    def _receive(self, message: Any) -> None:
        if isinstance(message, Progress):
            self.progress = message


def call(
    child: Process, request: SliceRequest, heartbeat_timeout_s: float, on_message: Callable[[Any], None]
) -> SliceResult:
    """Run a time slice in a process; an error of the process or of the slice is a result."""
    try:
        result = child.call(request, heartbeat_timeout_s, on_message)
        assert isinstance(result, SliceResult)  # noqa: S101
        return result
    except ChildTimeoutError:
        return SliceResult(Outcome.DIED, f"it sent no heartbeat for {heartbeat_timeout_s:g} s, and was killed")
    except (ChildDiedError, MltuneError) as error:
        return SliceResult(outcome_of(error), str(error))


Tune = Callable[..., TuneResult]
"""The function that runs a time slice: :func:`mltune.tuning.tuner.tune`, or a function with its signature."""


def make_device_worker(device: str = "", *, tune: Tune | None = None) -> Callable[[SliceRequest], SliceResult]:
    """Return the function of a worker process that runs time slices of a device; SIGTERM ends the current one."""
    if tune is None:
        pool = ChildPool()
        if device.startswith("cuda:"):
            from mltune.measure.runner import start_worker

            start_worker(pool, int(device.removeprefix("cuda:")))
        from mltune.tuning import tuner

        tuner.preload()
        tune = partial(tuner.tune, pool=pool)
    interrupt = Interrupt(STOP_TIMEOUT_S, twice=False).__enter__()
    return partial(run_slice, tune=tune, interrupt=interrupt, on_message=send_to_parent)


def run_slice(
    request: SliceRequest,
    *,
    tune: Tune,
    interrupt: Callable[[], bool],
    on_message: Callable[[Progress | None], None],
) -> SliceResult:
    """Run a time slice in this process; pass its progress and heartbeats on."""
    sent_at = 0.0

    def send(message: Progress | None) -> None:
        nonlocal sent_at
        sent_at = time.monotonic()
        on_message(message)

    def stop() -> bool:
        if time.monotonic() - sent_at >= HEARTBEAT_EVERY_S:
            send(None)
        return interrupt()

    log = partial(EventLog(request.log).write, slug=request.request.slug, device=str(request.request.target))
    try:
        if request.repair:
            repair(request.request.run)
        else:
            tune(request.request, progress=send, stop=stop, events=log, siblings=request.siblings)
    except MltuneError as error:
        if (outcome := outcome_of(error)) is Outcome.DIED:
            raise
        return SliceResult(outcome, str(error))
    return SliceResult(Outcome.INTERRUPTED if interrupt() else Outcome.DONE)


def outcome_of(error: Exception) -> Outcome:
    """Return the outcome of a time slice that ended with an error."""
    kinds = {
        DeviceLostError: Outcome.GPU_LOST,
        DeviceError: Outcome.GPU_LOST,  # the device existed when the plan was placed
        DiskFullError: Outcome.DISK_FULL,
        DatabaseLostError: Outcome.DATABASE_LOST,
        UsageError: Outcome.FAILED,
    }
    return next((outcome for kind, outcome in kinds.items() if isinstance(error, kind)), Outcome.DIED)


def repair(directory: Path | None) -> None:
    """Open a store for writing, which repairs it after a kill, and read it."""
    assert directory is not None  # noqa: S101 - a task has a run directory
    with readable(directory), Store.open(directory) as store:
        RunReader(directory).read_from(store)
