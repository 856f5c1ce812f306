"""Run times of a kernel: how many samples to take, repeats where the clock throttled, and races of several.

A series with a low clock is discarded and repeated after a rest. A low clock that persists is caused by the kernel,
which draws more power than the board allows, or by a GPU in poor condition. The rules are tested without a GPU.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from mltune.device.query import SLOWDOWNS, GpuState, summarize
from mltune.measure.pipeline import SamplingRule
from mltune.records.trial import Measurement, TrialState

MARGIN = 50.0
"""Multiple of the peak outside the tensor cores that no kernel reaches, even with operands split for tensor cores."""

NORMAL_MEDIAN = math.sqrt(math.pi / 2)
"""Standard error of a normal sample's median over that of its mean."""

_ROUNDING = 1e-3  # datasets round samples and median differently
_NORMAL_MAD = 1.4826  # standard deviation of a normal distribution over its median absolute deviation
_FEW = 6  # samples below which the median absolute deviation is too often small by chance


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
    return NORMAL_MEDIAN * spread / (center * math.sqrt(count))


def next_samples(samples: Sequence[float], warm_up_s: float, rule: SamplingRule, best_s: float | None = None) -> int:
    """Return the number of samples to take next, as one series: 0 when sampling is over.

    The first series has ``min_samples``, or one when the warm-up was too slow. The next ones reduce the noise to the
    target if it falls with the square root of their number, but at most double the samples.
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
    missing = math.ceil(taken * (noise / target) ** 2) - taken
    affordable = int((rule.max_s - spent_s) * taken / spent_s)
    return max(1, min(missing, taken, affordable, rule.max_samples - taken))


def warm_up_suffices(warm_up_s: float, rule: SamplingRule, best_s: float | None = None) -> bool:
    """Return whether the first run of a kernel suffices as its sample, because a warm-up changes it little.

    It does when it was slower than the best by the square of the rule's ratio, or when it took ``max_s`` or longer.
    """
    return warm_up_s >= rule.max_s or (best_s is not None and warm_up_s > rule.slow_ratio**2 * best_s)


def sample(take: Callable[[int], Sequence[float]], rule: SamplingRule, best_s: float | None = None) -> Measurement:
    """Sample a kernel's run time by a rule; the first run is a warm-up and not kept, unless it suffices."""
    (warm_up_s,) = take(1)
    samples: list[float] = []
    if warm_up_suffices(warm_up_s, rule, best_s):
        samples.append(warm_up_s)
    else:
        while count := next_samples(samples, warm_up_s, rule, best_s):
            samples += take(count)
    median_s, noise = statistics.median(samples), relative_noise(samples)
    sampled = Measurement(TrialState.OK, "", tuple(samples), median_s, noise, _too_slow(samples, rule, best_s))
    bound = rule.target(median_s, best_s)
    if sum(samples) >= rule.max_s:
        bound = max(bound, rule.limited_noise)
    if sampled.stopped_early or noise is None or noise <= bound:
        return sampled
    fact = f"the noise of the median is {100 * noise:.2f} %; it must fall to {100 * bound:.2f} %"
    return replace(sampled, state=TrialState.UNSTABLE, detail=fact)


def _too_slow(samples: Sequence[float], rule: SamplingRule, best_s: float | None) -> bool:
    return best_s is not None and min(samples) > rule.slow_ratio * best_s


def within_limits(measurement: Measurement, flops: int, peak_flops: float) -> Measurement:
    """Return a measurement, ``UNSTABLE`` and without times where these beat :data:`MARGIN` times the peak."""
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
        return "the samples have no median" if samples_s else ""
    times_s = (median_s, *samples_s)
    if not all(math.isfinite(time_s) and time_s > 0 for time_s in times_s):
        return f"a time among {[*times_s]!r:.200} is not finite and positive"
    if samples_s and not (1 - _ROUNDING) * min(samples_s) <= median_s <= (1 + _ROUNDING) * max(samples_s):
        return f"the median {median_s:.6g} s does not lie among its samples {[*samples_s]!r:.200}"
    if flops > MARGIN * peak_flops * min(times_s):
        share = flops / (min(times_s) * peak_flops)
        return f"{min(times_s):.6g} s means {share:.3g} times the GPU's peak"
    return ""


TOLERANCE = 0.02
"""Share by which the clock may be below the usual one: an H200 has steps of 0.8 %, and frequent single steps down."""

RESTS_S = (0.02, 0.1, 0.2)
"""Seconds of rest before the first, second and last repeated series; most dips do not last longer than one trial."""

DIP_REPEATS = 1
"""Repeats of a series for a low clock alone."""

DIP_RATIO = 1.05
"""Multiple of the best time beyond which a low clock alone, frequent under a power limit, is no reason to repeat."""

REMEMBERED = 64
"""Number of series from which the usual clock is computed."""


@dataclass(frozen=True, slots=True)
class Series:
    """Runs that were queued together, with readings of the GPU's state; none when the series was not monitored."""

    samples_s: tuple[float, ...]
    states: tuple[GpuState, ...] = ()


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What disturbed a series: a named slowdown, or a low clock alone."""

    slowdown: bool
    detail: str


class UsualClock:
    """The clock of the GPU under load: the upper quartile over the last series that were kept.

    The highest clock would be wrong on GPUs that boost while they are cold; the nominal one, where the owner has
    limited it.
    """

    def __init__(self) -> None:
        self._clocks_hz: deque[float] = deque(maxlen=REMEMBERED)

    @property
    def hz(self) -> float | None:
        """The usual clock; None before the first reading."""
        clocks_hz = sorted(self._clocks_hz)
        return clocks_hz[-1 - len(clocks_hz) // 4] if clocks_hz else None

    def add(self, states: Sequence[GpuState]) -> None:
        """Add the readings of one series."""
        clock_hz = lowest_clock_hz(states)
        if clock_hz is not None:
            self._clocks_hz.append(clock_hz)


def lowest_clock_hz(states: Sequence[GpuState]) -> float | None:
    """Return the lowest clock of some readings; None where none is known."""
    return min((state.sm_clock_hz for state in states if state.sm_clock_hz is not None), default=None)


def disturbance(states: Sequence[GpuState], usual_hz: float | None) -> Disturbance | None:
    """Return the disturbance of a series according to its readings; None when there is none.

    A power limit is also reported at full clock: then only a clock below the usual one counts, where that is known.
    """
    reasons = summarize(states).throttle_reasons or 0
    if named := [name for bit, name in SLOWDOWNS.items() if reasons & bit]:
        return Disturbance(True, " and ".join(named))
    clock_hz = lowest_clock_hz(states)
    if clock_hz is None or usual_hz is None or clock_hz >= (1 - TOLERANCE) * usual_hz:
        return None
    return Disturbance(False, f"a clock of {clock_hz / 1e6:.0f} MHz where {usual_hz / 1e6:.0f} are usual")


class TimedKernel(Protocol):
    """A kernel on a GPU, or a simulation of one."""

    def run(self, count: int, *, monitored: bool) -> Series:
        """Run the kernel ``count`` times; if monitored, read the state of the GPU during the runs."""

    def read_state(self) -> GpuState:
        """Read the state of the GPU now."""

    def rest(self, duration_s: float) -> None:
        """Leave the GPU idle."""


class ClockMonitor:
    """Take the series of one measurement, and repeat those that were disturbed.

    Not repeated are kernels that would be too slow even at the usual clock, or whose repeats would take longer than the
    rule's ``max_s``. A disturbance persists after the rests of :data:`RESTS_S`; a low clock alone after
    :data:`DIP_REPEATS`. `states` are readings during kept series, `reasons` NVML's clock event reasons during all.
    """

    def __init__(self, kernel: TimedKernel, usual: UsualClock, rule: SamplingRule, best_s: float | None) -> None:
        self.discarded = 0
        self.states: list[GpuState] = []
        self.reasons = 0
        self.persisting: Disturbance | None = None
        self._kernel = kernel
        self._usual = usual
        self._rule = rule
        self._best_s = best_s
        self._warm = False
        self._rests_s = list(RESTS_S)
        self._wasted_s = 0.0

    def take(self, count: int) -> Sequence[float]:
        """Take one series (see :func:`mltune.measure.timing.sample`); the first is the warm-up.

        The state during a warm-up is read only if it is to be the one sample, and then at its end.
        """
        series = self._kernel.run(count, monitored=self._warm)
        if not self._warm:
            self._warm = True
            if not warm_up_suffices(series.samples_s[0], self._rule, self._best_s):
                return series.samples_s
            series = replace(series, states=(*series.states, self._kernel.read_state()))
        repeats = 0
        while (disturbance_of_series := self._disturbance(series)) is not None:
            self._wasted_s += sum(series.samples_s)
            enough = not disturbance_of_series.slowdown and repeats >= DIP_REPEATS
            if enough or not self._rests_s or self._wasted_s > self._rule.max_s:
                self.persisting = disturbance_of_series
                break
            self.discarded += len(series.samples_s)
            self._kernel.rest(self._rests_s.pop(0))
            series = self._kernel.run(count, monitored=True)
            repeats += 1
        self._usual.add(series.states)
        self.states += series.states
        return series.samples_s

    def _disturbance(self, series: Series) -> Disturbance | None:
        """Return the disturbance of a series that should be repeated for it."""
        usual_hz, clock_hz = self._usual.hz, lowest_clock_hz(series.states)
        self.reasons |= summarize(series.states).throttle_reasons or 0
        disturbed = disturbance(series.states, usual_hz)
        if disturbed is None or self._best_s is None or usual_hz is None or clock_hz is None:
            return disturbed
        at_usual_clock_s = min(series.samples_s) * min(1.0, clock_hz / usual_hz)
        ratio = self._rule.slow_ratio if disturbed.slowdown else DIP_RATIO
        return None if at_usual_clock_s > ratio * self._best_s else disturbed


BUDGET_S = 3.0
"""Most seconds of runs and rests in a race."""

SHARE, LEAST_S = 0.12, 0.3
"""Most of a race as a share of the seconds of the run before it, and the least of that."""

MAX_ROUNDS = 31
"""Most rounds of a race: enough for an interval of the median that spans the middle 13 of 31 samples."""

MIN_ROUNDS = 3
"""Fewest rounds of a race."""

_WARM_UP_S = 0.5  # a first round shorter than this is a warm-up and not kept
_REST_S = 0.05  # after a disturbed round


@dataclass(frozen=True, slots=True)
class RaceResult:
    """The result of a race: a row of run times for each round, in the order of entry, and those of the reference.

    It is ``UNSTABLE`` when disturbed rounds count too; otherwise it has the state of a kernel that failed, and no
    samples.
    """

    state: TrialState
    detail: str = ""
    samples_s: tuple[tuple[float, ...], ...] = ()
    reference_s: tuple[float, ...] = ()

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return len(self.samples_s)


def starting_orders(count: int) -> list[list[int]]:
    """Return the orders in which ``count`` runners are timed, one per round, to be repeated.

    They form a Latin square balanced for carry-over effects (Williams, Experimental designs balanced for the estimation
    of residual effects of treatments, 1949); an odd number of runners needs twice as many rounds.
    """
    first = [0]
    for step in range(1, count):
        first.append(-(step // 2) % count if step % 2 == 0 else (step + 1) // 2)
    orders = [[(runner + shift) % count for runner in first] for shift in range(count)]
    return orders if count % 2 == 0 else orders + [order[::-1] for order in orders]


def how_many_fit(times_s: Sequence[float], budget_s: float = BUDGET_S) -> int:
    """Return how many of the fastest kernels, by their seconds, can be raced in time with the reference."""
    count = len(times_s)
    while count:
        round_s = sum(times_s[:count]) + times_s[0]
        warm_up_s = round_s if round_s < _WARM_UP_S else 0.0
        if warm_up_s + MIN_ROUNDS * round_s <= budget_s:
            break
        count -= 1
    return count


def budget_after(run_s: float) -> float:
    """Return the most seconds of a race after a run that took some seconds.

    >>> budget_after(0.5), budget_after(5.0), budget_after(60.0)
    (0.3, 0.6, 3.0)
    """
    return min(BUDGET_S, max(LEAST_S, SHARE * run_s))


FINALS = 1.3
"""Seconds of the finals, as a multiple of those of the race: the finalists are also built and verified."""


def finals_s(time_s: float) -> float:
    """Return the seconds of a run's time that are kept for the finals.

    >>> finals_s(0.5), finals_s(5.0), finals_s(3600.0)
    (0.25, 0.78, 3.9000000000000004)
    """
    return min(FINALS * budget_after(time_s), time_s / 2)


def race_within(left_s: float, run_s: float) -> float:
    """Return the most seconds of a race after a run that took some seconds, with some seconds left of its time.

    >>> race_within(1.3, 5.0), race_within(-2.0, 5.0), race_within(math.inf, 60.0)
    (0.6, 0.3, 3.0)
    """
    return max(LEAST_S, min(left_s / FINALS, budget_after(run_s)))


def run_rounds(
    runners: int,
    take: Callable[[Sequence[int]], Series],
    rest: Callable[[float], None],
    usual: UsualClock,
    budget_s: float = BUDGET_S,
    orders: Sequence[Sequence[int]] = (),
) -> RaceResult:
    """Run a race: `take` times runners once each in the order of a round, by default of a Latin square.

    A disturbed round is repeated after a rest while there is time. If too few rounds are left, the disturbed ones count
    as well, because the disturbance affected all runners alike. The first round is always run.
    """
    most = len(orders) or MAX_ROUNDS
    orders = orders or starting_orders(runners)
    kept: list[tuple[float, ...]] = []
    disturbed: list[tuple[float, ...]] = []
    last_disturbance: Disturbance | None = None
    spent_s = longest_s = 0.0
    warm = False
    while len(kept) < most and (not warm or spent_s + longest_s <= budget_s):
        order = orders[len(kept) % len(orders)]
        series = take(order)
        by_runner = dict(zip(order, series.samples_s, strict=True))
        times_s = tuple(by_runner[runner] for runner in range(runners))
        spent_s, longest_s = spent_s + sum(times_s), max(longest_s, sum(times_s))
        usual.add(series.states)
        if not warm and sum(times_s) < _WARM_UP_S:
            longest_s = 0.0
        elif (why := disturbance(series.states, usual.hz)) is not None:
            last_disturbance = why
            disturbed.append(times_s)
            rest(_REST_S)
            spent_s += _REST_S
        else:
            kept.append(times_s)
        warm = True
    if last_disturbance is None or len(kept) >= MIN_ROUNDS:
        return RaceResult(TrialState.OK, samples_s=tuple(kept))
    return RaceResult(TrialState.UNSTABLE, f"throughout the race, {last_disturbance.detail}", (*kept, *disturbed))
