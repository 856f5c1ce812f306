"""Device workers: child processes that run the time slices of a campaign, one process per device."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from mltune.errors import DeviceError, DeviceLostError, DiskFullError, UsageError, WorkerError
from mltune.plan.plan import Slice
from mltune.process.child import Child, ChildDiedError, ChildTimeoutError, send_to_parent
from mltune.process.signals import Interrupt
from mltune.records.events import EventLog
from mltune.results.progress import Progress
from mltune.results.run import TuneResult
from mltune.tune.request import TuneRequest

DEVICE_WORKER = "mltune.plan.device_worker:make_device_worker"
"""What a :class:`mltune.process.child.Child` is made with."""

PATIENCE_S = 4.0
"""Seconds that a slice has to end in when it is told to."""

SILENCE_S = 300.0
"""Seconds without a sign of life after which a worker is taken to hang: longer than any deadline inside it."""

RESTS_S = (2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Seconds that a device rests after it was lost, or the disk was full: once, twice in a row, and so on."""

BEAT_EVERY_S = 1.0
"""Seconds between two signs of life of a worker that has nothing else to tell."""


class Outcome(StrEnum):
    """How a slice ended."""

    DONE = "done"
    INTERRUPTED = "interrupted"
    GPU_LOST = "gpu_lost"
    DISK_FULL = "disk_full"
    FAILED = "failed"
    """There is no use in trying it again."""
    DIED = "died"
    """The worker died, hung, or failed in a way that nobody foresaw."""


@dataclass(frozen=True, slots=True)
class Order:
    """A slice as a worker is told to do it.

    Attributes
    ----------
    request : TuneRequest
        With the limit of the slice.
    slug : str
        The task.
    diary : pathlib.Path
        Directory of the plan, where events are written.
    """

    request: TuneRequest
    slug: str
    diary: Path


@dataclass(frozen=True, slots=True)
class Answer:
    """How a slice ended, and why."""

    outcome: Outcome
    detail: str = ""


@dataclass(slots=True)
class DeviceWorker:
    """A device of a campaign, and the child process that works there, as the campaign sees them.

    Attributes
    ----------
    device : str
        Its specification.
    child : Child
        Made with :data:`DEVICE_WORKER`.
    silence_s : float
        Seconds without a sign of life after which the child is taken to hang.
    slice : Slice or None
        What is under way.
    future : Future of Answer or None
        How that ends.
    latest : Progress or None
        How far it is.
    lacked : Outcome or None
        What the device lacked when it was last tried, ``GPU_LOST`` or ``DISK_FULL``; None when nothing.
    ready_at : float
        When it may be tried again, on the monotonic clock.
    """

    device: str
    child: Child
    silence_s: float = SILENCE_S
    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(max_workers=1))
    slice: Slice | None = None
    future: Future[Answer] | None = None
    latest: Progress | None = None
    losses: int = 0
    lost_at: float | None = None
    lacked: Outcome | None = None
    ready_at: float = 0.0

    @property
    def is_free(self) -> bool:
        """Whether it can begin a slice."""
        return self.future is None and time.monotonic() >= self.ready_at

    @property
    def is_resting(self) -> bool:
        """Whether it waits for its GPU to come back, or for room on the disk."""
        return self.future is None and time.monotonic() < self.ready_at

    def begin(self, one: Slice, order: Order) -> None:
        """Have a slice done."""
        self.slice, self.latest = one, None
        self.future = self.thread.submit(self._call, order)

    def rest(self, lacked: Outcome) -> bool:
        """Leave the device alone for a while, longer each time; return whether this is the first time in a row."""
        self.ready_at = time.monotonic() + RESTS_S[min(self.losses, len(RESTS_S) - 1)]
        self.losses += 1
        first = self.lost_at is None or self.lacked is not lacked
        self.lost_at, self.lacked = self.lost_at or time.monotonic(), lacked
        return first

    def recovered(self) -> float:
        """Note that the device works again; return for how many seconds it did not."""
        lost_s = 0.0 if self.lost_at is None else time.monotonic() - self.lost_at
        self.losses, self.lost_at, self.lacked = 0, None, None
        return lost_s

    def end(self) -> Answer | None:
        """Return how the slice under way has ended, and make room for another; None while it has not."""
        if self.future is None or not self.future.done():
            return None
        answer, self.future, self.slice = self.future.result(), None, None
        return answer

    def close(self, timeout_s: float) -> None:
        """Kill the child, but for a slice under way that ends in time: it was told to."""
        if self.future is not None:
            wait([self.future], timeout=timeout_s)
        self.child.interrupt()
        self.thread.shutdown(wait=True, cancel_futures=True)
        self.child.kill()

    def _call(self, order: Order) -> Answer:
        try:
            answer = self.child.call(order, self.silence_s, self._told)
            assert isinstance(answer, Answer)  # noqa: S101
            return answer
        except ChildTimeoutError:
            return Answer(Outcome.DIED, f"it gave no sign of life for {self.silence_s:g} s, and was killed")
        except (ChildDiedError, WorkerError) as error:
            return Answer(Outcome.DIED, str(error))

    def _told(self, message: Any) -> None:
        if isinstance(message, Progress):
            self.latest = message


Tune = Callable[..., TuneResult]
"""What does a slice: :func:`mltune.tune.tuner.tune`, or what behaves like it."""


def make_device_worker(tune: Tune | None = None) -> Callable[[Order], Answer]:
    """Make a worker in this process and return the function that does slices. SIGTERM ends the slice under way.

    Parameters
    ----------
    tune : callable, optional
        Does a slice; by default the tuner.
    """
    if tune is None:
        from mltune.learn.search import preload
        from mltune.tune.tuner import tune as usual

        preload()
        tune = usual
    return partial(_do, tune, Interrupt(PATIENCE_S, twice=False).__enter__())


def _do(tune: Tune, interrupt: Interrupt, order: Order) -> Answer:
    """Do one slice; tell the parent how far it is, and at least that the worker lives."""
    beats = _Beats()

    def stop() -> bool:
        beats.beat()
        return interrupt()

    diary = partial(EventLog(order.diary).write, slug=order.slug, device=order.request.device)
    try:
        tune(order.request, progress=beats.tell, stop=stop, slug=order.slug, diary=diary)
    except (DeviceLostError, DeviceError) as error:  # the device was there when the plan was placed
        return Answer(Outcome.GPU_LOST, str(error))
    except DiskFullError as error:
        return Answer(Outcome.DISK_FULL, str(error))
    except UsageError as error:
        return Answer(Outcome.FAILED, str(error))
    return Answer(Outcome.INTERRUPTED if interrupt() else Outcome.DONE)


class _Beats:
    """Tells the parent something now and then."""

    def __init__(self) -> None:
        self._told_at = 0.0

    def tell(self, message: Any) -> None:
        self._told_at = time.monotonic()
        send_to_parent(message)

    def beat(self) -> None:
        if time.monotonic() - self._told_at >= BEAT_EVERY_S:
            self.tell(None)
