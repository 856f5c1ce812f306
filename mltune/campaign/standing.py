"""The standing of a task, and the time slice that follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mltune.resolve.plan import Unit
from mltune.results.run import TuneResult


@dataclass(frozen=True, slots=True)
class Standing:
    """The progress of a task, from which time slices are chosen.

    Attributes
    ----------
    slug : str
    spent : float
        Seconds or trials of its run so far, in the unit of the plan.
    limit : float or None
        Limit of an unfinished time slice, in the unit of the plan; None when the last one has ended.
    curve : sequence of (float, float)
        The steps of the best time so far: (spent, seconds of the kernel). Noisy times count: a kernel at the limit of
        the GPU's power may have no others, and finals decide what it is worth.
    stopped : str
        Why its search has ended by itself: nothing faster is expected, or nothing is left to try. Empty if it has not.
    failed : str
        Reason why it gets no further time; empty for none.
    unread : str
        Reason why its run cannot be read; empty for none. The other fields then hold what was known before. A worker
        opens the store for writing, which repairs what a kill has left, before the task is set aside.
    trials : int
        Number of trials on record, for both units.
    total_s : float
        Seconds of its run so far, for both units.
    declared : bool
        Whether a winner was declared when all trials were known, or there is none to declare.
    notice : str
        What may be missing from its run; empty if nothing is.
    """

    slug: str
    spent: float = 0.0
    limit: float | None = None
    curve: Sequence[tuple[float, float]] = ()
    stopped: str = ""
    failed: str = ""
    unread: str = ""
    trials: int = 0
    total_s: float = 0.0
    declared: bool = True
    notice: str = ""

    @property
    def ended(self) -> bool:
        """Whether it gets no further time."""
        return bool(self.stopped or self.failed)

    @property
    def unfinished(self) -> bool:
        """Whether it has an unfinished time slice."""
        return not self.ended and self.limit is not None and self.spent < self.limit

    @property
    def best_s(self) -> float | None:
        """Best time of its kernel so far, seconds."""
        return self.curve[-1][1] if self.curve else None


@dataclass(frozen=True, slots=True)
class TimeSlice:
    """A time slice: a task, and the new limit of its run; or the repair of a run that cannot be read.

    Attributes
    ----------
    slug : str
    limit : float
        Seconds or trials of the whole run of the task, earlier time slices included.
    unit : {"s", "trials"}
    reason : str
        Why the task was chosen: an unfinished time slice, its minimum, its expected gain, or a run that cannot be
        read.
    """

    slug: str
    limit: float
    unit: Unit
    reason: Literal["resumed", "minimum", "gain", "repair"]

    @property
    def trials(self) -> int | None:
        """Limit in trials; None where seconds are counted."""
        return int(self.limit) if self.unit == "trials" else None

    @property
    def time_s(self) -> float | None:
        """Limit in seconds; None where trials are counted."""
        return self.limit if self.unit == "s" else None


def standing_of(run: TuneResult, unit: Unit) -> Standing:
    """Return the standing of the task of a run, whose slug is that of the task."""
    return Standing(
        run.slug,
        spent=float(len(run.records)) if unit == "trials" else run.elapsed_s,
        limit=None if run.limit is None else run.limit["trials" if unit == "trials" else "time_s"],
        curve=run.improvements(by_time=unit == "s", noisy=True),
        stopped=run.stopped if run.limit is None else "",  # one that was killed after that has trials to finish
        trials=len(run.records),
        total_s=run.elapsed_s,
        declared=run.settled,
        notice=run.notice,
    )
