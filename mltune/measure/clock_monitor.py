"""Detect clock throttling during timing and repeat the affected samples.

A series of runs with a low clock is discarded, the GPU rests for a moment, and the series is repeated. A low clock that
persists after the rests is caused either by the kernel itself, which draws more power than the board allows, and is
part of its time, or by a GPU in poor condition. The rules work on readings alone and are tested without a GPU.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from mltune.device.nvml import SLOWDOWNS, GpuState, summarize
from mltune.measure.protocols import SamplingRule
from mltune.measure.timing import warm_up_suffices

TOLERANCE = 0.02
"""Share by which the clock may be below the usual one. The clocks of an H200 have steps of 0.8 %; single steps down are
frequent under a power limit, and their effect is smaller than the noise of a median of few samples."""

RESTS_S = (0.02, 0.1, 0.2)
"""Seconds of rest before the first, second and last repeated series of a measurement. The first is short because most
dips of the clock do not last longer than one trial."""

DIP_REPEATS = 1
"""Repeats of a series for a low clock alone."""

DIP_RATIO = 1.05
"""Multiple of the best time. A kernel that is slower even at the usual clock is not repeated for a low clock alone:
under a power limit dips are frequent, and a search needs many trials more than exact times of slow kernels."""

REMEMBERED = 64
"""Number of series from which the usual clock is computed."""


@dataclass(frozen=True, slots=True)
class Series:
    """Runs that were queued together, with readings of the GPU's state; none when the series was not monitored."""

    samples_s: tuple[float, ...]
    states: tuple[GpuState, ...] = ()


@dataclass(frozen=True, slots=True)
class Disturbance:
    """The reason why the samples of a series are not reliable.

    Attributes
    ----------
    slowdown : bool
        Whether the GPU slows itself down because of heat or lack of power: then no kernel can be timed.
    """

    slowdown: bool
    detail: str


class UsualClock:
    """The clock of the GPU under load: the upper quartile over the last series that were kept.

    The highest clock would be wrong on GPUs that boost while they are cold; the nominal one, on those whose owner has
    limited it. This one follows slow changes, which repeated timings of the reference show, and reveals dips.
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

    A power limit alone is not a disturbance: under load it is also reported at full clock. Then only a clock below the
    usual one counts, where that is known.
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

    A kernel that would be too slow even at the usual clock is not repeated, nor is one whose repeats would take longer
    than the rule's ``max_s``. A disturbance persists after as many repeats as there are rests in :data:`RESTS_S`; a low
    clock alone, after :data:`DIP_REPEATS` of a series. All measurements on a GPU share the usual clock.

    Attributes
    ----------
    discarded : int
        Number of discarded samples.
    states : list of GpuState
        Readings during the series that were kept.
    reasons : int
        NVML's clock event reasons during all series, the discarded ones included.
    persisting : Disturbance or None
        A disturbance that did not end with the rests.
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
        while (found := self._disturbance(series)) is not None:
            self._wasted_s += sum(series.samples_s)
            enough = not found.slowdown and repeats >= DIP_REPEATS
            if enough or not self._rests_s or self._wasted_s > self._rule.max_s:
                self.persisting = found
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
        found = disturbance(series.states, usual_hz)
        if found is None or self._best_s is None or usual_hz is None or clock_hz is None:
            return found
        at_usual_clock_s = min(series.samples_s) * min(1.0, clock_hz / usual_hz)
        ratio = self._rule.slow_ratio if found.slowdown else DIP_RATIO
        return None if at_usual_clock_s > ratio * self._best_s else found
