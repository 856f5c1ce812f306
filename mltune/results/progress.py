"""Progress of a run and of a campaign, and the observer that counts the trials of a run."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field
from typing import Any, ClassVar

from mltune.device.facts import Device
from mltune.problem.problem import Problem
from mltune.records.declaration import Declaration
from mltune.records.events import EventWriter, no_events
from mltune.records.trial import TrialRecord, TrialState
from mltune.records.trials import Trials
from mltune.results.rating import RATED, declared_rating, rating
from mltune.results.run import counts

REPORT_EVERY_S = 0.5
"""Seconds between two reports of progress."""

RATE_OVER_S = 60.0
"""Seconds over which the rate of trials is averaged."""

_ENDED_WELL = frozenset({TrialState.OK, TrialState.UNSTABLE, TrialState.SKIPPED})


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run; None is what is not known yet, and a limit that the run does not have.

    `slug` is the name of the problem in its plan, `audited` the trials that a gate would have skipped, `trials_per_min`
    of the last minute, and `left_s` the estimated seconds until the first limit.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"allow_inf_nan": False}

    problem: str
    device: str
    trials: int
    elapsed_s: float
    counts: Mapping[str, int]
    slug: str = ""
    audited: int = 0
    best_s: float | None = None
    best_tflops: float | None = None
    best_gb_per_s: float | None = None
    best_share_of_reference: float | None = None
    best_share_of_peak: float | None = None
    reference: str = ""
    trials_per_min: float | None = None
    left_s: float | None = None
    trials_limit: int | None = None
    time_limit_s: float | None = None
    message: str | None = None

    @property
    def best(self) -> dict[str, float | None]:
        """The rating of the fastest trial so far: fields of :func:`mltune.results.rating.rating`."""
        return {"median_s": self.best_s, **{name: getattr(self, f"best_{name}") for name in RATED[1:]}}

    def to_json(self) -> dict[str, Any]:
        """Return the progress as plain JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class CampaignProgress:
    """The progress of a campaign: `runs` are the time slices under way, `done` the problems that had their minimum.

    Seconds are without interruptions. A budget in seconds has no `trials_limit`, one in trials no `left_s`: None.
    """

    runs: tuple[Progress, ...] = ()
    done: int = 0
    problems: int = 1
    trials: int = 0
    trials_limit: int | None = None
    elapsed_s: float = 0.0
    left_s: float | None = None
    message: str | None = None

    @property
    def share_done(self) -> float:
        """Share of the budget that is spent; where there is none, of the problems that have had their minimum."""
        if self.trials_limit:
            share = self.trials / self.trials_limit
        elif self.left_s is not None:
            share = self.elapsed_s / max(self.elapsed_s + self.left_s, 1e-9)
        else:
            share = self.done / max(self.problems, 1)
        return min(share, 1.0)


Report = Callable[[Progress], None]
CampaignReport = Callable[[CampaignProgress], None]


@dataclass(slots=True)
class Observer:
    """Count the trials of a run one by one, so that a question for its progress never walks through all of them."""

    problem: Problem
    device: Device
    spec: str
    _: KW_ONLY
    trials_limit: int | None = None
    time_limit_s: float | None = None
    slug: str = ""
    report: Report | None = None
    events: EventWriter = no_events
    reference_s: float | None = None
    _states: Counter[TrialState] = field(default_factory=Counter, init=False)
    _audited: int = field(default=0, init=False)
    _best_s: float | None = field(default=None, init=False)
    _reported: float = field(default=0.0, init=False)
    _recent: deque[tuple[float, int]] = field(default_factory=deque, init=False)

    @property
    def trials(self) -> int:
        """Number of trials that have ended."""
        return self._states.total()

    def recall(self, trials: Trials) -> None:
        """Count trials of an earlier part of the run, without events."""
        self._states.update(map(TrialState, trials.column("state").tolist()))
        self._audited += int(trials.column("audited").sum())
        medians = trials.column("median_s")[trials.succeeded]
        self._best_s = min([*medians.tolist(), *([] if self._best_s is None else [self._best_s])], default=None)

    def see(self, records: Iterable[TrialRecord]) -> None:
        """Count trials that have just ended, and write their events."""
        for record in records:
            if self._note(record):
                self.events("best", number=record.number, elapsed_s=record.elapsed_s, **self._best_rating())
            if record.state not in _ENDED_WELL:
                self.events("failure", number=record.number, state=str(record.state), detail=record.detail)
            measured = record.measurement
            if measured is not None and measured.discarded:
                facts = {name: getattr(measured, name) for name in ("discarded", "throttle_reasons")}
                self.events("throttled", number=record.number, **facts)

    def declared(self, declared: Declaration, elapsed_s: float) -> None:
        """Write the event of a declaration."""
        figures = declared_rating(self.problem, self.device, declared, self.reference_s)
        rejected = {str(number): reason for number, reason in declared.rejected.items()}
        facts = {name: figures[name] for name in (*RATED, "ties")}
        self.events("declared", number=declared.number, elapsed_s=elapsed_s, rejected=rejected, **facts)

    def tell(self, elapsed_s: float, message: str | None = None, *, at_once: bool = False) -> None:
        """Report the progress, unless that was just done."""
        now = time.perf_counter()
        if self.report is not None and (at_once or message or now - self._reported >= REPORT_EVERY_S):
            self._reported = now
            self.report(self.progress(elapsed_s, message))

    def progress(self, elapsed_s: float, message: str | None = None) -> Progress:
        """Return the progress of the run."""
        rate, figures = self._rate(elapsed_s), self._best_rating()
        return Progress(
            problem=self.problem.label,
            device=self.spec,
            trials=self.trials,
            elapsed_s=elapsed_s,
            counts=counts(self._states),
            slug=self.slug,
            audited=self._audited,
            best_s=figures.get("median_s"),
            **{f"best_{name}": figures.get(name) for name in RATED[1:]},
            reference=self.problem.reference,
            trials_per_min=None if rate is None else 60.0 * rate,
            left_s=self._left_s(elapsed_s, rate),
            trials_limit=self.trials_limit,
            time_limit_s=self.time_limit_s,
            message=message,
        )

    def _note(self, record: TrialRecord) -> bool:
        """Count a record; return whether it is the best so far."""
        self._states[record.state] += 1
        self._audited += record.audited
        median_s = record.median_s
        if record.state is not TrialState.OK or median_s is None:
            return False
        if self._best_s is not None and median_s >= self._best_s:
            return False
        self._best_s = median_s
        return True

    def _best_rating(self) -> dict[str, float | None]:
        """Return the rating of the best trial so far; empty without one."""
        return {} if self._best_s is None else rating(self.problem, self.device, self._best_s, self.reference_s)

    def _rate(self, elapsed_s: float) -> float | None:
        """Return the trials per second over the last :data:`RATE_OVER_S`; None at the beginning."""
        self._recent.append((elapsed_s, self.trials))
        while elapsed_s - self._recent[0][0] > RATE_OVER_S:
            self._recent.popleft()
        since_s, before = self._recent[0]
        return (self.trials - before) / (elapsed_s - since_s) if elapsed_s - since_s > 1.0 else None

    def _left_s(self, elapsed_s: float, rate: float | None) -> float | None:
        """Return the seconds until the first limit is reached."""
        limits_s = [] if self.time_limit_s is None else [max(0.0, self.time_limit_s - elapsed_s)]
        if self.trials_limit is not None and rate:
            limits_s.append(max(0, self.trials_limit - self.trials) / rate)
        return min(limits_s, default=None)
