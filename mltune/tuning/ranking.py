"""Ranking of trials with confidence intervals of medians and ratios, from a race or from recorded times."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mltune.records.declaration import Finalist
from mltune.records.trial import Measurement

REFERENCE = -1
"""The number of the reference implementation among finalists."""

CONFIDENCE = 0.95
"""Confidence of all intervals."""

UNKNOWN_NOISE = 0.005
"""Assumed relative noise of a median of unknown samples, or of one sample: the noise at which sampling ends."""

_FARTHEST = 27.0  # logarithm of a time in seconds or of a ratio: a store holds those from 1e-12 to 1e12
_FEW = 6  # with fewer samples no interval of order statistics reaches 95 %
_NORMAL_MEDIAN = math.sqrt(math.pi / 2)  # standard error of a normal sample's median over that of its mean


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its interval with the confidence :data:`CONFIDENCE`."""

    center: float
    low: float
    high: float

    def exp(self) -> Interval:
        """Return the interval of the exponential, its ends within the limits of a store."""
        return Interval(math.exp(self.center), math.exp(max(self.low, -_FARTHEST)), math.exp(min(self.high, _FARTHEST)))


def median_interval(values: Sequence[float]) -> Interval:
    """Return the median of a sample and its interval.

    The ends are order statistics (the inverted sign test), which assume no distribution. With fewer than six values
    these cannot reach the confidence; the interval is then Student's, which assumes a normal distribution. There are at
    least two values.

    Examples
    --------
    >>> median_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    Interval(center=3.5, low=1.0, high=6.0)
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
    """Rank the trials of a race.

    The winner has the smallest median. The ratio of another trial to it is the median of the ratios of both times in
    the same round, because a disturbance of a round slows both.

    Parameters
    ----------
    times_s : mapping of int to sequence of float
        Run times by trial, seconds, one per round; those of the reference implementation under :data:`REFERENCE`, if it
        took part. At least one trial and two rounds.

    Returns
    -------
    tuple of Finalist
        Fastest first.
    Finalist or None
        The reference implementation.
    """
    medians = {number: statistics.median(times) for number, times in times_s.items() if number != REFERENCE}
    order = sorted(medians, key=lambda number: (medians[number], number))
    winner_s = times_s[order[0]]

    def finalist(number: int) -> Finalist:
        logs = [math.log(time_s / best_s) for time_s, best_s in zip(times_s[number], winner_s, strict=True)]
        ratio = Interval(1.0, 1.0, 1.0) if number == order[0] else median_interval(logs).exp()
        return _finalist(number, _log_interval(statistics.median(times_s[number]), times_s[number]).exp(), ratio)

    return tuple(map(finalist, order)), finalist(REFERENCE) if REFERENCE in times_s else None


def rank_records(measurements: Mapping[int, Measurement]) -> tuple[Finalist, ...]:
    """Rank trials by their measurements, which were made at different times.

    The interval of a ratio is computed from the intervals of both medians, on a logarithmic scale, with recovered
    variances (MOVER: Zou and Donner, Construction of confidence limits about effect measures, Statistics in Medicine
    27, 2008). Measurements have a median each; the fastest finalist is the first.
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
    """Return the logarithm of a recorded median and its interval."""
    if measured.median_s is None:
        raise ValueError("only a measurement with a median can be ranked")
    return _log_interval(measured.median_s, measured.samples_s)


def _log_interval(median_s: float, samples_s: Sequence[float]) -> Interval:
    """Return the logarithm of a median and its interval: times are above 0, and so are both ends."""
    center = math.log(median_s)
    if len(samples_s) < 2:
        half = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * UNKNOWN_NOISE
        return Interval(center, center - half, center + half)
    found = median_interval([math.log(sample_s) for sample_s in samples_s])
    return Interval(center, min(center, found.low), max(center, found.high))


def _difference(one: Interval, other: Interval) -> Interval:
    """Return the interval of the difference of two independent estimates."""
    center = one.center - other.center
    below = math.hypot(one.center - one.low, other.high - other.center)
    above = math.hypot(one.high - one.center, other.center - other.low)
    return Interval(center, center - below, center + above)


def _finalist(number: int, time_s: Interval, ratio: Interval) -> Finalist:
    return Finalist(number, time_s.center, time_s.low, time_s.high, ratio.center, ratio.low, ratio.high)
