"""The reference kernel, timed again and again: what it says of the hours in between."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

TOLERANCE = 0.01
"""Share by which the reference's time may differ from the usual one."""

NOISES = 3.0
"""Standard errors by which it may differ."""


@dataclass(frozen=True, slots=True)
class Reference:
    """One timing of the reference kernel: cuBLAS on the run's own problem.

    Attributes
    ----------
    after : int
        Trials on record at the time.
    elapsed_s : float
        Seconds of the run at the time.
    median_s : float
        Median of its samples, seconds.
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
    """A stretch of records in which the reference kernel was off by more than noise.

    Attributes
    ----------
    first, last : int
        The records, by order of appending: from ``first`` up to but not including ``last``.
    ratio : float
        The reference's time there over its usual time: above 1 where the GPU was slower than usual.
    """

    first: int
    last: int
    ratio: float


def usual_s(references: Sequence[Reference]) -> float:
    """Return the usual time of the reference kernel, seconds: the median of all, of which there must be one.

    Of an even number it is the lower one: a GPU is held back, never spurred on. Not the first timing: were that off,
    every hour after it would be marked in place of its own.
    """
    return statistics.median_low(reference.median_s for reference in references)


def drifts(references: Sequence[Reference]) -> list[Drift]:
    """Return the stretches of records that a drift of the GPU makes doubtful.

    A reference is off when it differs from the usual time (:func:`usual_s`) by more than :data:`TOLERANCE` and by more
    than :data:`NOISES` times the noise of both together. A stretch between two references is doubtful when either is
    off, since nobody knows when in between it happened; its ratio is that of the one that is further off. What came
    after the last reference is not judged.

    Parameters
    ----------
    references : sequence of Reference
        In the order taken.

    Returns
    -------
    list of Drift
        In order, disjoint; none is empty.
    """
    if not references:
        return []
    usual = usual_s(references)
    usual_noise = statistics.median_low(reference.noise or 0.0 for reference in references)
    ratios = [_ratio(reference, usual, usual_noise) for reference in references]
    ends = [0, *(reference.after for reference in references)]
    pairs = zip([ratios[0], *ratios], ratios, strict=False)
    worst = [max(pair, key=lambda ratio: abs(math.log(ratio))) for pair in pairs]
    stretches = zip(ends, ends[1:], worst, strict=False)
    return [Drift(first, last, ratio) for first, last, ratio in stretches if first < last and ratio != 1.0]


def _ratio(reference: Reference, usual: float, usual_noise: float) -> float:
    """Return a reference's time over the usual one; 1 where noise explains the difference."""
    ratio = reference.median_s / usual
    tolerance = max(TOLERANCE, NOISES * math.hypot(reference.noise or 0.0, usual_noise))
    return ratio if abs(ratio - 1.0) > tolerance else 1.0
