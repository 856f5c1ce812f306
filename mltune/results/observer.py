"""What others see of a run: how far it is, and its diary of events."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from mltune.records.declaration import Declaration
from mltune.records.events import EventWriter, no_events
from mltune.records.trial import TrialRecord, TrialState
from mltune.results.progress import Progress, Report
from mltune.results.rating import declared_rating, rating
from mltune.results.summary import counts

if TYPE_CHECKING:
    from mltune.device.facts import Device
    from mltune.problem.problem import Problem

REPORT_EVERY_S = 0.5
"""Seconds between two reports of progress."""

RATE_OVER_S = 60.0
"""Seconds over which the rate of trials is taken."""

_ENDED_WELL = frozenset({TrialState.OK, TrialState.UNSTABLE, TrialState.SKIPPED})


class Subject(Protocol):
    """What is tuned: a :class:`mltune.tune.session.Session`, or as much of it as a store knows."""

    @property
    def problem(self) -> Problem: ...  # noqa: D102
    @property
    def device(self) -> Device: ...  # noqa: D102


class Observer:
    """Follows a run by its records, one by one: no question to it walks through all of them.

    Parameters
    ----------
    session : Subject
    device : str
        The device specification.
    trials_limit : int or None
    time_limit_s : float or None
    slug : str
        Name of the problem in its plan.
    report : callable, optional
        Told now and then how far the run is.
    diary : callable, optional
        Where events are written.

    Attributes
    ----------
    reference_s : float or None
        Median time of cuBLAS, once it is known.
    diary : callable
    """

    def __init__(
        self,
        session: Subject,
        device: str,
        *,
        trials_limit: int | None = None,
        time_limit_s: float | None = None,
        slug: str = "",
        report: Report | None = None,
        diary: EventWriter | None = None,
    ) -> None:
        self.reference_s: float | None = None
        self._session = session
        self._device = device
        self._trials_limit = trials_limit
        self._time_limit_s = time_limit_s
        self._slug = slug
        self._report = report
        self.diary = diary or no_events
        self._states: Counter[TrialState] = Counter()
        self._audited = 0
        self._best: TrialRecord | None = None
        self._reported = 0.0
        self._paces: deque[tuple[float, int]] = deque()

    @property
    def trials(self) -> int:
        """Number of trials that have ended."""
        return self._states.total()

    def recall(self, records: Iterable[TrialRecord]) -> None:
        """Take note of trials of an earlier part of the run: they are no news."""
        for record in records:
            self._note(record)

    def see(self, records: Iterable[TrialRecord]) -> None:
        """Take note of trials that have just ended."""
        for record in records:
            if self._note(record):
                self.diary("best", number=record.number, elapsed_s=record.elapsed_s, **self._rated(record, "median_s"))
            if record.state not in _ENDED_WELL:
                self.diary("failure", number=record.number, state=str(record.state), detail=record.detail)
            measured = record.measurement
            if measured is not None and measured.discarded:
                self.diary(
                    "throttled",
                    number=record.number,
                    discarded=measured.discarded,
                    throttle_reasons=measured.throttle_reasons,
                )

    def declared(self, declared: Declaration, elapsed_s: float) -> None:
        """Take note of a declaration."""
        figures = declared_rating(self._session.problem, self._session.device, declared, self.reference_s)
        self.diary(
            "declared",
            number=declared.number,
            elapsed_s=elapsed_s,
            rejected={str(number): reason for number, reason in declared.rejected.items()},
            **{name: figures[name] for name in ("tflops", "share_of_reference", "ties")},
        )

    def tell(self, elapsed_s: float, message: str | None = None, *, at_once: bool = False) -> None:
        """Report how far the run is, unless that was just done."""
        now = time.perf_counter()
        if self._report is not None and (at_once or message or now - self._reported >= REPORT_EVERY_S):
            self._reported = now
            self._report(self.progress(elapsed_s, message))

    def progress(self, elapsed_s: float, message: str | None = None) -> Progress:
        """Return how far the run is."""
        rate = self._rate(elapsed_s)
        figures = {} if self._best is None else self._rated(self._best, "median_s")
        return Progress(
            problem=self._session.problem.label,
            device=self._device,
            trials=self.trials,
            elapsed_s=elapsed_s,
            counts=counts(self._states),
            slug=self._slug,
            audited=self._audited,
            best_tflops=figures.get("tflops"),
            best_share_of_reference=figures.get("share_of_reference"),
            best_share_of_peak=figures.get("share_of_peak"),
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

    def _rated(self, record: TrialRecord, *without: str) -> dict[str, float | None]:
        assert record.median_s is not None  # noqa: S101 - a best has a time
        figures = rating(self._session.problem, self._session.device, record.median_s, self.reference_s)
        return {name: value for name, value in figures.items() if name not in without}

    def _rate(self, elapsed_s: float) -> float | None:
        """Return the trials per second of late; None at the beginning."""
        self._paces.append((elapsed_s, self.trials))
        while elapsed_s - self._paces[0][0] > RATE_OVER_S:
            self._paces.popleft()
        since_s, before = self._paces[0]
        return (self.trials - before) / (elapsed_s - since_s) if elapsed_s - since_s > 1.0 else None

    def _left_s(self, elapsed_s: float, rate: float | None) -> float | None:
        """Return the seconds until the first limit is reached."""
        left = [] if self._time_limit_s is None else [max(0.0, self._time_limit_s - elapsed_s)]
        if self._trials_limit is not None and rate:
            left.append(max(0, self._trials_limit - self.trials) / rate)
        return min(left, default=None)
