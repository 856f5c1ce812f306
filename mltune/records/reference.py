"""Repeated timings of the reference kernel, from which drift of the GPU is detected."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

TOLERANCE = 0.01
"""Relative difference from the usual time that is not a drift."""

NOISES = 3.0
"""Difference from the usual time that is not a drift, in multiples of the noise."""


@dataclass(frozen=True, slots=True)
class Reference:
    """One timing of the reference kernel on the problem of the run.

    Attributes
    ----------
    after : int
        Number of trials on record at that time.
    elapsed_s : float
        Elapsed seconds of the run at that time.
    noise : float or None
        Relative noise of the samples.
    sm_clock_hz, temperature_c, power_w : float or None
        State of the GPU while it was sampled.
    throttle_reasons : int or None
        NVML's bit mask of clock event reasons.
    """

    after: int
    elapsed_s: float
    median_s: float
    noise: float | None = None
    sm_clock_hz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttle_reasons: int | None = None


@dataclass(frozen=True, slots=True)
class Drift:
    """An interval of records during which the time of the reference kernel differed by more than noise.

    Attributes
    ----------
    first, last : int
        The records in order of appending, from ``first`` up to but not including ``last``.
    ratio : float
        Time of the reference kernel over its usual time: above 1 where the GPU was slower than usual.
    """

    first: int
    last: int
    ratio: float


def usual_s(references: Sequence[Reference]) -> float:
    """Return the usual time of the reference kernel in seconds: the lower median of all timings, at least one.

    The lower median is used because throttling makes a GPU slower, never faster.
    """
    return statistics.median_low(reference.median_s for reference in references)


def drifts(references: Sequence[Reference]) -> list[Drift]:
    """Return the intervals of records that a drift of the GPU makes doubtful: in order, disjoint, none empty.

    A timing has drifted when it differs from the usual time (:func:`usual_s`) by more than :data:`TOLERANCE` and by
    more than :data:`NOISES` times the noise of both together. The interval between two timings is doubtful when either
    has drifted, because the moment in between is unknown; its ratio is the larger deviation of the two. Records after
    the last timing are not marked.
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
