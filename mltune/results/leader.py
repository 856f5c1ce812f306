"""The leader of a run, its declared winner or else its fastest trial so far, and the documents that show it.

Each document is a view of the one record :class:`Leader`, by one function here: a rating, in progress, events and the
lists of runs; the result of a tune; an entry of ``winners.json``; the timing in ``winner.json``. The entry of a wisdom
is written in :mod:`mltune.tuning.wisdom`, for ties as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mltune.device.facts import Device
from mltune.problem.problem import Problem
from mltune.records.declaration import Declaration, Finalist
from mltune.records.trial import TrialRecord
from mltune.results.rating import RATED, UNITS, declared_rating, rating

RATES = tuple(unit.key for unit in UNITS if unit.higher_is_better)
"""Fields of a document for the rate of its problem: one of them has a value, the others are None."""


@dataclass(frozen=True, slots=True)
class Leader:
    """The declared winner of a run, or its fastest trial where none is declared.

    ``configuration`` is that of the ``record`` with labels in place of their positions; ``timed_reference_s`` the time
    of the reference kernel outside the finals, seconds.
    """

    problem: Problem
    device: Device
    record: TrialRecord
    configuration: Mapping[str, int | float | str]
    timed_reference_s: float | None
    declaration: Declaration | None

    @property
    def median_s(self) -> float:
        """Median time, seconds: as measured in the finals, where there were any."""
        if self.declaration is not None:
            return self.declaration.winner.median_s
        return math.nan if self.record.median_s is None else self.record.median_s

    @property
    def error(self) -> float | None:
        """Largest error in its verification: see :attr:`mltune.results.run.TuneResult.error`."""
        return None if self.record.measurement is None else self.record.measurement.error

    @property
    def raced_reference(self) -> Finalist | None:
        """The reference kernel in the finals; None where it was not there."""
        return None if self.declaration is None else self.declaration.reference

    @property
    def reference_s(self) -> float | None:
        """Median time of the reference kernel, seconds: in the finals, else outside them."""
        raced = self.raced_reference
        return self.timed_reference_s if raced is None else raced.median_s

    def rates(self, median_s: float) -> dict[str, float | None]:
        """Return a time as the rate of the problem, None for the other rates."""
        rated = rating(self.problem, self.device, median_s, None)
        return {name: rated[name] for name in RATES}


def rating_of(leader: Leader) -> dict[str, Any]:
    """Return the rating: of a declared winner with intervals, ties, and whether it is verified."""
    if leader.declaration is not None:
        return declared_rating(leader.problem, leader.device, leader.declaration, leader.timed_reference_s)
    return dict(rating(leader.problem, leader.device, leader.median_s, leader.timed_reference_s))


def result_of(leader: Leader) -> dict[str, Any]:
    """Return ``best`` of the output of ``mltune tune --json``."""
    return {"configuration": dict(leader.configuration), **rating_of(leader), "error": leader.error}


def finding_of(leader: Leader) -> dict[str, Any]:
    """Return what an entry of ``winners.json`` says of the leader: docs/reference/report.md explains every field."""
    figures, declared = rating_of(leader), leader.declaration
    reference = _reference(leader, figures)
    finding = {name: figures[name] for name in ("median_s", *RATES, "share_of_peak")} | {
        "state": "best so far",
        "trial": leader.record.number,
        "error": leader.error,
        "configuration": dict(leader.configuration),
        "reference": reference,
        "verdict": _compared(reference),
    }
    if declared is None:
        return finding
    low_s, high_s = figures["interval_s"]
    if low_s < high_s:
        low, high = leader.rates(high_s), leader.rates(low_s)
        finding["interval_s"] = [low_s, high_s]
        finding |= {f"{name}_interval": None if low[name] is None else [low[name], high[name]] for name in RATES}
    finding |= {name: figures[name] for name in ("ties", "verified")}
    rejected = {str(number): reason for number, reason in declared.rejected.items()}
    return finding | {"state": "declared", "rejected": rejected}


def _reference(leader: Leader, figures: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the reference kernel compared with the leader: in the finals, else as timed once in the same run."""
    share, raced, median_s = figures["share_of_reference"], leader.raced_reference, leader.reference_s
    if share is None or not 0.0 < share < math.inf:
        return None
    return {
        "median_s": median_s,
        **({} if median_s is None else leader.rates(median_s)),
        "interval_s": None if raced is None else [raced.low_s, raced.high_s],
        "share": share,
        "share_interval": figures.get("interval_share_of_reference"),
    }


def _compared(reference: Mapping[str, Any] | None) -> str | None:
    """Compare a leader with the reference in a word; a ratio whose interval contains 1 is a tie."""
    if reference is None:
        return None
    low, high = reference["share_interval"] or (reference["share"], reference["share"])
    return "faster" if low > 1.0 else "slower" if high < 1.0 else "level"


def timing_of(leader: Leader, declaration: Declaration) -> dict[str, Any]:
    """Return ``timing`` of ``winner.json``: docs/reference/winner.md explains every field."""
    figures, measured = rating_of(leader), leader.record.measurement
    return {
        "trial": leader.record.number,
        **{name: figures[name] for name in (*RATED, "interval_s")},
        "share_of_reference_interval": figures["interval_share_of_reference"],
        "ties": [
            {"trial": finalist.number, "ratio": finalist.ratio, "interval": [finalist.ratio_low, finalist.ratio_high]}
            for finalist in declaration.finalists
            if finalist.number in declaration.ties
        ],
        "rounds": declaration.rounds,
        "sm_clock_hz": None if measured is None else measured.sm_clock_hz,
    }
