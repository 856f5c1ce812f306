"""Observation of a run: its progress, and the events of its trials."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from mltune.records.declaration import Declaration
from mltune.records.events import EventWriter, no_events
from mltune.records.trial import TrialRecord, TrialState
from mltune.results.progress import Progress, Report
from mltune.results.rating import declared_rating, rating
from mltune.results.run import counts

if TYPE_CHECKING:
    from mltune.device.facts import Device
    from mltune.problem.problem import Problem

REPORT_EVERY_S = 0.5
"""Seconds between two reports of progress."""

RATE_OVER_S = 60.0
"""Seconds over which the rate of trials is averaged."""

_ENDED_WELL = frozenset({TrialState.OK, TrialState.UNSTABLE, TrialState.SKIPPED})


class Observer:
    """Counts the trials of a run one by one, so that asking for its progress never walks through all of them.

    Parameters
    ----------
    problem : Problem
    device : Device
    spec : str
        The device specification, for display.
    trials_limit : int or None
    time_limit_s : float or None
    slug : str
        Name of the problem in its plan.
    report : callable, optional
        Called now and then with the progress.
    events : callable, optional
        Writes events.

    Attributes
    ----------
    reference_s : float or None
        Median time of the reference kernel, once it is known.
    events : callable
    """

    def __init__(
        self,
        problem: Problem,
        device: Device,
        spec: str,
        *,
        trials_limit: int | None = None,
        time_limit_s: float | None = None,
        slug: str = "",
        report: Report | None = None,
        events: EventWriter | None = None,
    ) -> None:
        self.reference_s: float | None = None
        self.events = events or no_events
        self._problem = problem
        self._device = device
        self._spec = spec
        self._trials_limit = trials_limit
        self._time_limit_s = time_limit_s
        self._slug = slug
        self._report = report
        self._states: Counter[TrialState] = Counter()
        self._audited = 0
        self._best: TrialRecord | None = None
        self._reported = 0.0
        self._recent: deque[tuple[float, int]] = deque()

    @property
    def trials(self) -> int:
        """Number of trials that have ended."""
        return self._states.total()

    def recall(self, records: Iterable[TrialRecord]) -> None:
        """Count trials of an earlier part of the run, without events."""
        for record in records:
            self._note(record)

    def see(self, records: Iterable[TrialRecord]) -> None:
        """Count trials that have just ended, and write their events."""
        for record in records:
            if self._note(record):
                figures = self._rating(record)
                del figures["median_s"]
                self.events("best", number=record.number, elapsed_s=record.elapsed_s, **figures)
            if record.state not in _ENDED_WELL:
                self.events("failure", number=record.number, state=str(record.state), detail=record.detail)
            measured = record.measurement
            if measured is not None and measured.discarded:
                self.events(
                    "throttled",
                    number=record.number,
                    discarded=measured.discarded,
                    throttle_reasons=measured.throttle_reasons,
                )

    def declared(self, declared: Declaration, elapsed_s: float) -> None:
        """Write the event of a declaration."""
        figures = declared_rating(self._problem, self._device, declared, self.reference_s)
        self.events(
            "declared",
            number=declared.number,
            elapsed_s=elapsed_s,
            rejected={str(number): reason for number, reason in declared.rejected.items()},
            **{name: figures[name] for name in ("tflops", "share_of_reference", "ties")},
        )

    def tell(self, elapsed_s: float, message: str | None = None, *, at_once: bool = False) -> None:
        """Report the progress, unless that was just done."""
        now = time.perf_counter()
        if self._report is not None and (at_once or message or now - self._reported >= REPORT_EVERY_S):
            self._reported = now
            self._report(self.progress(elapsed_s, message))

    def progress(self, elapsed_s: float, message: str | None = None) -> Progress:
        """Return the progress of the run."""
        rate = self._rate(elapsed_s)
        figures = {} if self._best is None else self._rating(self._best)
        return Progress(
            problem=self._problem.label,
            device=self._spec,
            trials=self.trials,
            elapsed_s=elapsed_s,
            counts=counts(self._states),
            slug=self._slug,
            audited=self._audited,
            best_s=figures.get("median_s"),
            best_tflops=figures.get("tflops"),
            best_share_of_reference=figures.get("share_of_reference"),
            best_share_of_peak=figures.get("share_of_peak"),
            reference=self._problem.reference,
            trials_per_min=None if rate is None else 60.0 * rate,
            left_s=self._left_s(elapsed_s, rate),
            trials_limit=self._trials_limit,
            time_limit_s=self._time_limit_s,
            message=message,
        )

    def _note(self, record: TrialRecord) -> bool:
        """Count a record; return whether it is the best so far."""
        self._states[record.state] += 1
        self._audited += record.audited
        if record.state is not TrialState.OK or record.median_s is None:
            return False
        if self._best is not None and record.median_s >= (self._best.median_s or 0.0):
            return False
        self._best = record
        return True

    def _rating(self, record: TrialRecord) -> dict[str, float | None]:
        assert record.median_s is not None  # noqa: S101 - a best has a time
        return rating(self._problem, self._device, record.median_s, self.reference_s)

    def _rate(self, elapsed_s: float) -> float | None:
        """Return the trials per second over the last :data:`RATE_OVER_S`; None at the beginning."""
        self._recent.append((elapsed_s, self.trials))
        while elapsed_s - self._recent[0][0] > RATE_OVER_S:
            self._recent.popleft()
        since_s, before = self._recent[0]
        return (self.trials - before) / (elapsed_s - since_s) if elapsed_s - since_s > 1.0 else None

    def _left_s(self, elapsed_s: float, rate: float | None) -> float | None:
        """Return the seconds until the first limit is reached."""
        left = [] if self._time_limit_s is None else [max(0.0, self._time_limit_s - elapsed_s)]
        if self._trials_limit is not None and rate:
            left.append(max(0, self._trials_limit - self.trials) / rate)
        return min(left, default=None)
