"""Who is fastest, and how sure that is: intervals of medians and of ratios, from a race or from what was recorded."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mltune.records.declaration import Finalist
from mltune.records.trial import Measurement

REFERENCE = -1
"""The number of cuBLAS among finalists."""

CONFIDENCE = 0.95
"""Of every interval."""

UNKNOWN_NOISE = 0.005
"""Relative noise of a median whose samples are not known, or of a single sample: what sampling ends at."""

_FEW = 6  # samples below which no interval of order statistics reaches 95 %
_NORMAL_MEDIAN = math.sqrt(math.pi / 2)  # standard error of a normal sample's median over that of its mean


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure, and between what it lies with the confidence :data:`CONFIDENCE`."""

    center: float
    low: float
    high: float

    def exp(self) -> Interval:
        """Return the interval of what this is the logarithm of."""
        return Interval(math.exp(self.center), math.exp(self.low), math.exp(self.high))


def median_interval(values: Sequence[float]) -> Interval:
    """Return the median of a sample, and its interval.

    The ends are order statistics (the inverted sign test), which suppose no distribution. Of fewer than six values none
    are so sure: then the values are taken to be normally distributed, and the interval is Student's.

    Parameters
    ----------
    values : sequence of float
        At least two.
    """
    from scipy import stats

    center = statistics.median(values)
    if len(values) >= _FEW:
        ends = stats.quantile_test(values, p=0.5).confidence_interval(confidence_level=CONFIDENCE)
        return Interval(center, float(ends.low), float(ends.high))
    error = _NORMAL_MEDIAN * statistics.stdev(values) / math.sqrt(len(values))
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * error
    return Interval(center, center - half, center + half)


def rank_race(times_s: Mapping[int, Sequence[float]]) -> tuple[tuple[Finalist, ...], Finalist | None]:
    """Rank those that were raced.

    The winner has the smallest median. The ratio of another to it is the median over the rounds of its time over the
    winner's in the same round: what slowed a round slowed both.

    Parameters
    ----------
    times_s : mapping of int to sequence of float
        Run times by trial, seconds, one per round; of cuBLAS under :data:`REFERENCE`, where it took part. At least one
        trial, and two rounds.

    Returns
    -------
    tuple of Finalist
        The fastest first.
    Finalist or None
        cuBLAS.
    """
    medians = {number: statistics.median(times) for number, times in times_s.items() if number != REFERENCE}
    order = sorted(medians, key=lambda number: (medians[number], number))
    winner_s = times_s[order[0]]
    finalists = []
    for number in (*order, *([REFERENCE] if REFERENCE in times_s else [])):
        logs = [math.log(time_s / best_s) for time_s, best_s in zip(times_s[number], winner_s, strict=True)]
        ratio = Interval(1.0, 1.0, 1.0) if number == order[0] else median_interval(logs).exp()
        finalists.append(_finalist(number, median_interval(times_s[number]), ratio))
    count = len(order)
    return tuple(finalists[:count]), finalists[count] if len(finalists) > count else None


def rank_records(measurements: Mapping[int, Measurement]) -> tuple[Finalist, ...]:
    """Rank trials by what was recorded of each, at different times.

    The interval of a ratio comes from those of both medians, on a logarithmic scale, by recovering their variances
    (MOVER: Zou and Donner, Construction of confidence limits about effect measures, Statistics in Medicine 27, 2008).

    Parameters
    ----------
    measurements : mapping of int to Measurement
        By trial; each with a median.

    Returns
    -------
    tuple of Finalist
        The fastest first.
    """
    intervals = {number: _recorded(measured) for number, measured in measurements.items()}
    order = sorted(intervals, key=lambda number: (intervals[number].center, number))
    winner = intervals[order[0]]
    return tuple(
        _finalist(
            number,
            intervals[number].exp(),
            Interval(1.0, 1.0, 1.0) if number == order[0] else _difference(intervals[number], winner).exp(),
        )
        for number in order
    )


def _recorded(measured: Measurement) -> Interval:
    """Return the logarithm of a recorded median, and its interval."""
    if measured.median_s is None:
        raise ValueError("a measurement with a median can be ranked")
    center = math.log(measured.median_s)
    if len(measured.samples_s) < 2:
        half = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * UNKNOWN_NOISE
        return Interval(center, center - half, center + half)
    found = median_interval([math.log(sample_s) for sample_s in measured.samples_s])
    return Interval(center, min(center, found.low), max(center, found.high))


def _difference(one: Interval, other: Interval) -> Interval:
    """Return the interval of a difference of what two intervals were found for independently."""
    center = one.center - other.center
    below = math.hypot(one.center - one.low, other.high - other.center)
    above = math.hypot(one.high - one.center, other.center - other.low)
    return Interval(center, center - below, center + above)


def _finalist(number: int, time_s: Interval, ratio: Interval) -> Finalist:
    return Finalist(number, time_s.center, time_s.low, time_s.high, ratio.center, ratio.low, ratio.high)
