"""Run times of a kernel: how many samples to take, by those taken so far, and times that are impossible."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mltune.measure.protocols import SamplingRule
from mltune.records.trial import Measurement, TrialState

MARGIN = 50.0
"""Multiple of the peak outside the tensor cores that no kernel reaches. It is wide because kernels that split operands
into parts of fewer bits for the tensor cores exceed that peak, by far on cards with few units for double precision."""

_ROUNDING = 1e-3  # datasets round samples and median differently
_NORMAL_MAD = 1.4826  # standard deviation of a normal distribution over its median absolute deviation
_NORMAL_MEDIAN = math.sqrt(math.pi / 2)  # standard error of a normal sample's median over that of its mean
_FEW = 6  # samples below which the median absolute deviation is too often small by chance


@dataclass(frozen=True, slots=True)
class Sampling:
    """The samples of one kernel in the order taken, seconds, and their :func:`relative_noise`.

    Attributes
    ----------
    stopped_early : bool
        Whether sampling ended because the kernel is too slow to be the best.
    unstable : bool
        Whether sampling ended with more noise than the rule bears.
    """

    samples_s: tuple[float, ...]
    noise: float | None
    stopped_early: bool
    unstable: bool

    @property
    def median_s(self) -> float:
        """Median run time, seconds."""
        return statistics.median(self.samples_s)


def relative_noise(samples: Sequence[float]) -> float | None:
    """Return the standard error of the median of some samples, as a share of the median; None for a single sample.

    The spread is the median absolute deviation, which one disturbed sample changes little, scaled to the standard
    deviation of a normal distribution with the correction n / (n - 0.8) for small samples (Croux and Rousseeuw,
    Time-efficient algorithms for two highly robust estimators of scale, 1992). With fewer than six samples it is the
    standard deviation itself: two of three samples often agree by chance, and then sampling would end too soon.
    """
    count = len(samples)
    if count < 2:
        return None
    center = statistics.median(samples)
    if count < _FEW:
        spread = statistics.stdev(samples)
    else:
        deviation = statistics.median(abs(sample - center) for sample in samples)
        spread = _NORMAL_MAD * count / (count - 0.8) * deviation
    return _NORMAL_MEDIAN * spread / (center * math.sqrt(count))


def next_samples(samples: Sequence[float], warm_up_s: float, rule: SamplingRule, best_s: float | None = None) -> int:
    """Return the number of samples to take next, as one series: 0 when sampling is over.

    The first series has ``min_samples``, or a single one when the warm-up, which is not a sample, was too slow. The
    next ones have as many as reduce the noise to the target if it falls with the square root of their number, but at
    most double the samples.
    """
    taken = len(samples)
    if taken == 0:
        return 1 if _too_slow((warm_up_s,), rule, best_s) else rule.min_samples
    if _too_slow(samples, rule, best_s) or taken >= rule.max_samples:
        return 0
    if taken < rule.min_samples:
        return rule.min_samples - taken
    noise, spent_s = relative_noise(samples), sum(samples)
    if noise is None:
        return 1
    target = rule.target(statistics.median(samples), best_s)
    if noise <= target or spent_s >= rule.max_s:
        return 0
    wanted = math.ceil(taken * (noise / target) ** 2) - taken
    affordable = int((rule.max_s - spent_s) * taken / spent_s)
    return max(1, min(wanted, taken, affordable, rule.max_samples - taken))


def warm_up_suffices(warm_up_s: float, rule: SamplingRule, best_s: float | None = None) -> bool:
    """Return whether the first run of a kernel suffices as its sample.

    It does when it was slower than the best by the square of the rule's ratio, or when it took ``max_s`` or longer: a
    warm-up changes neither much.
    """
    return warm_up_s >= rule.max_s or (best_s is not None and warm_up_s > rule.slow_ratio**2 * best_s)


def sample(take: Callable[[int], Sequence[float]], rule: SamplingRule, best_s: float | None = None) -> Sampling:
    """Sample the run time of a kernel by a rule; `take` runs it a number of times and returns the seconds.

    The first run is a warm-up and is not kept, unless it suffices (:func:`warm_up_suffices`): then it is the only
    sample.
    """
    (warm_up_s,) = take(1)
    if warm_up_suffices(warm_up_s, rule, best_s):
        stopped_early = _too_slow((warm_up_s,), rule, best_s)
        return Sampling((warm_up_s,), None, stopped_early=stopped_early, unstable=False)
    samples: list[float] = []
    while count := next_samples(samples, warm_up_s, rule, best_s):
        samples += take(count)
    noise = relative_noise(samples)
    stopped_early = _too_slow(samples, rule, best_s)
    bound = rule.target(statistics.median(samples), best_s)
    if sum(samples) >= rule.max_s:
        bound = max(bound, rule.limited_noise)
    unstable = not stopped_early and noise is not None and noise > bound
    return Sampling(tuple(samples), noise, stopped_early, unstable)


def _too_slow(samples: Sequence[float], rule: SamplingRule, best_s: float | None) -> bool:
    return best_s is not None and min(samples) > rule.slow_ratio * best_s


def within_limits(measurement: Measurement, flops: int, peak_flops: float) -> Measurement:
    """Return a measurement; one with impossible times is ``UNSTABLE`` instead, without them and with the reason.

    `flops` are the operations of the problem, and `peak_flops` the device's peak for its arithmetic outside its tensor
    cores.
    """
    reason = _contradiction(measurement, flops, peak_flops)
    if not reason:
        return measurement
    return replace(
        measurement,
        state=TrialState.UNSTABLE,
        detail=reason,
        samples_s=(),
        median_s=None,
        noise=None,
        stopped_early=False,
    )


def _contradiction(measurement: Measurement, flops: int, peak_flops: float) -> str:
    """Return why the times are impossible; empty when they are possible."""
    median_s, samples_s = measurement.median_s, measurement.samples_s
    if median_s is None:
        return "samples must have a median, but this measurement has none" if samples_s else ""
    times_s = (median_s, *samples_s)
    if not all(math.isfinite(time_s) and time_s > 0 for time_s in times_s):
        return f"times must be finite and positive, got {[*times_s]!r:.200}"
    if samples_s and not (1 - _ROUNDING) * min(samples_s) <= median_s <= (1 + _ROUNDING) * max(samples_s):
        return f"a median must lie among its samples, got {median_s:.6g} s for {[*samples_s]!r:.200}"
    if flops > MARGIN * peak_flops * min(times_s):
        share = flops / (min(times_s) * peak_flops)
        return f"a time must be possible at the GPU's peak, but {min(times_s):.6g} s means {share:.3g} times that"
    return ""
