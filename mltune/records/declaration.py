"""Declaration of a run, with confidence intervals and ties; repeated timings of the reference show drift."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mltune.files.validation import adapter
from mltune.records.columns import LONGEST_S, SHORTEST_S


@dataclass(frozen=True, slots=True)
class Finalist:
    """One of the fastest configurations, timed in alternation with the others; its number is -1 for the reference.

    Times are the median of the samples and its 95 % interval; ratios are relative to the winner, sample by sample.
    """

    number: int
    median_s: float
    low_s: float
    high_s: float
    ratio: float = 1.0
    ratio_low: float = 1.0
    ratio_high: float = 1.0

    @property
    def is_equal(self) -> bool:
        """Whether the winner may be as fast: 1 lies in the interval of the ratio."""
        return self.ratio_low <= 1.0 <= self.ratio_high


@dataclass(frozen=True, slots=True)
class Declaration:
    """The winner of a run, and the race that decided it: finalists, fastest first, and rounds, 0 without a race.

    The ratio of the `reference` is above 1 where the winner is faster. `as_of` is the number of trials at that time,
    and `rejected` has the reasons of faster trials that failed the verification. In replay nothing is `verified`.
    """

    number: int
    finalists: tuple[Finalist, ...]
    reference: Finalist | None = None
    rounds: int = 0
    as_of: int = 0
    rejected: Mapping[int, str] = dataclasses.field(default_factory=dict)
    verified: bool = False

    @property
    def winner(self) -> Finalist:
        """The winner among the finalists."""
        return next(finalist for finalist in self.finalists if finalist.number == self.number)

    @property
    def ties(self) -> tuple[int, ...]:
        """Trials that the race does not distinguish from the winner: the interval of their ratio contains 1."""
        return tuple(finalist.number for finalist in self.finalists if finalist.is_equal and finalist != self.winner)

    def to_json(self) -> dict[str, Any]:
        """Return the declaration as plain JSON values, including ``ties``."""
        document: dict[str, Any] = adapter(Declaration).dump_python(self, mode="json")
        return document | {"ties": list(self.ties)}

    @classmethod
    def from_json(cls, document: Any) -> Declaration:
        """Rebuild a declaration from :meth:`to_json`; one that no run writes raises a ValueError."""
        declaration: Declaration = adapter(Declaration).validate_python(document)
        timed = [*declaration.finalists, *([declaration.reference] if declaration.reference else [])]
        times = (value for finalist in timed for value in dataclasses.astuple(finalist)[1:])
        is_of_a_finalist = declaration.number in {finalist.number for finalist in declaration.finalists}
        if not is_of_a_finalist or not all(SHORTEST_S <= value <= LONGEST_S for value in times):
            raise ValueError("must hold times from 1e-12 to 1e12 s, and its winner among the finalists")
        return declaration


TOLERANCE = 0.01
"""Relative difference from the usual time that is not a drift."""

NOISES = 3.0
"""Difference from the usual time that is not a drift, in multiples of the noise."""


@dataclass(frozen=True, slots=True)
class Reference:
    """One timing of the reference kernel after some trials, with the state of the GPU while it was sampled."""

    after: int
    elapsed_s: float
    median_s: float
    noise: float | None = None
    sm_clock_hz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttle_reasons: int | None = None

    @property
    def is_sound(self) -> bool:
        """Whether every value is one that a run writes."""
        after, elapsed_s, median_s, *state = dataclasses.astuple(self)
        numbers = [value for value in state if value is not None]
        if type(after) is not int or not {*map(type, (elapsed_s, median_s, *numbers))} <= {int, float}:
            return False
        times = 0 <= elapsed_s <= LONGEST_S and SHORTEST_S <= median_s <= LONGEST_S
        return times and after >= 0 and all(map(math.isfinite, numbers)) and (self.noise or 0.0) >= 0.0


@dataclass(frozen=True, slots=True)
class Drift:
    """An interval of records, without the last, in which the GPU was slower than usual (ratio above 1) or faster."""

    first: int
    last: int
    ratio: float


def usual_s(references: Sequence[Reference]) -> float:
    """Return the reference's usual time, seconds: the lower median, as throttling makes a GPU only slower."""
    return statistics.median_low(reference.median_s for reference in references)


def drifts(references: Sequence[Reference]) -> list[Drift]:
    """Return the intervals of records that a drift of the GPU makes doubtful: in order, disjoint, none empty.

    A timing has drifted when it differs from :func:`usual_s` by more than :data:`TOLERANCE` and :data:`NOISES` times
    the noise of both. The interval between two timings is doubtful when either has drifted, because the moment in
    between is unknown; its ratio is the larger deviation. Records after the last timing are not marked.
    """
    if not references:
        return []
    usual = usual_s(references)
    usual_noise = statistics.median_low(reference.noise or 0.0 for reference in references)
    ratios = [_ratio(reference, usual, usual_noise) for reference in references]
    ends = [0, *(reference.after for reference in references)]
    pairs = zip([ratios[0], *ratios], ratios, strict=False)
    worst = [max(pair, key=lambda ratio: abs(math.log(ratio))) for pair in pairs]
    intervals = zip(ends, ends[1:], worst, strict=False)
    return [Drift(first, last, ratio) for first, last, ratio in intervals if first < last and ratio != 1.0]


def _ratio(reference: Reference, usual: float, usual_noise: float) -> float:
    """Return the ratio of a timing to the usual time; 1 where noise explains the difference."""
    ratio = reference.median_s / usual
    tolerance = max(TOLERANCE, NOISES * math.hypot(reference.noise or 0.0, usual_noise))
    return ratio if abs(ratio - 1.0) > tolerance else 1.0
