"""Is the GPU itself while a kernel is timed? Rules over clock readings, which can be tried on made-up ones.

A series of runs during which something held the clock down says more of the GPU than of the kernel: it is discarded,
the GPU rests a moment, and the series is taken again. What persists although the GPU has rested is either the kernel's
own doing (it draws more power than the board may, whoever runs it) and belongs to its time, or the GPU is not well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from mltune.device.nvml import SLOWDOWNS, GpuState
from mltune.measure.protocols import SamplingRule
from mltune.measure.timing import warm_up_suffices

TOLERANCE = 0.02
"""Share by which the clock may lie below the usual one. The clocks of an H200 come in steps of 0.8 %; single steps down
are frequent under a power limit, and their effect is within what a median of few samples can tell."""

RESTS_S = (0.02, 0.1, 0.2)
"""Seconds of rest before a measurement's first repeated series, its second, its third and last. Most dips of the clock
last no longer than one trial, so the first is short."""

DIP_REPEATS = 1
"""Times that a series is repeated for a low clock alone."""

DIP_RATIO = 1.05
"""What would be slower than this many times the best even at the usual clock is not repeated for a low clock alone.
Under a power limit dips are frequent, and a search needs many trials more than it needs exact ones of slow kernels."""

REMEMBERED = 64
"""Series by which the usual clock is known."""


@dataclass(frozen=True, slots=True)
class Series:
    """Runs that were queued together, and what the GPU said of itself meanwhile.

    Attributes
    ----------
    samples_s : tuple of float
        Run times, seconds.
    states : tuple of GpuState
        Readings in the order taken; empty when nobody looked.
    """

    samples_s: tuple[float, ...]
    states: tuple[GpuState, ...] = ()


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Why the samples of a series are not to be trusted.

    Attributes
    ----------
    slowdown : bool
        Whether the GPU slows itself down, from heat or for want of power: no kernel is to be judged then.
    detail : str
        What a person reads.
    """

    slowdown: bool
    detail: str


class UsualClock:
    """The clock that the GPU reaches under load: that of the fastest quarter of the last series that were kept.

    The highest clock of all would be wrong on GPUs that boost while they are cold; the nominal one, on those whose
    owner has limited it. So it follows what changes slowly, which the reference kernel is there to see, and a dip
    stands out.
    """

    def __init__(self) -> None:
        self._seen_hz: deque[float] = deque(maxlen=REMEMBERED)

    @property
    def hz(self) -> float | None:
        """The usual clock; None before the first reading."""
        seen = sorted(self._seen_hz)
        return seen[-1 - len(seen) // 4] if seen else None

    def see(self, states: Sequence[GpuState]) -> None:
        """Take note of the readings of one series."""
        clock_hz = lowest_clock_hz(states)
        if clock_hz is not None:
            self._seen_hz.append(clock_hz)


def lowest_clock_hz(states: Sequence[GpuState]) -> float | None:
    """Return the lowest clock among some readings; None where none is known."""
    return min((state.sm_clock_hz for state in states if state.sm_clock_hz is not None), default=None)


def disturbance(states: Sequence[GpuState], usual_hz: float | None) -> Disturbance | None:
    """Return what disturbed a series, by the readings taken during it; None when nothing did.

    A power limit alone disturbs nothing: under load it is reported at full clock too. What counts is the clock.

    Parameters
    ----------
    states : sequence of GpuState
    usual_hz : float or None
        The clock to expect; None where it is not known yet.
    """
    reasons = 0
    for state in states:
        reasons |= state.throttle_reasons or 0
    if named := [name for bit, name in SLOWDOWNS.items() if reasons & bit]:
        return Disturbance(True, " and ".join(named))
    clock_hz = lowest_clock_hz(states)
    if clock_hz is None or usual_hz is None or clock_hz >= (1 - TOLERANCE) * usual_hz:
        return None
    return Disturbance(False, f"a clock of {clock_hz / 1e6:.0f} MHz where {usual_hz / 1e6:.0f} are usual")


class Track(Protocol):
    """Where a kernel runs: the GPU, or what stands for it."""

    def run(self, count: int, *, watched: bool) -> Series:
        """Run the kernel so many times; ``watched``: and read the state of the GPU while it is busy with that."""
        ...

    def look(self) -> GpuState:
        """Read the state of the GPU now."""
        ...

    def rest(self, duration_s: float) -> None:
        """Leave the GPU alone."""
        ...


class ClockMonitor:
    """Takes the series of one measurement, and takes those again that were disturbed.

    Not taken again is what would be hopelessly slow even at the usual clock, and what runs so long that it would cost
    more than a second: a search has better things to do. After as many repeats as there are rests in
    :data:`RESTS_S`, and of a low clock after :data:`DIP_REPEATS` of the series, a disturbance is accepted: it persists.

    Parameters
    ----------
    track : Track
    usual : UsualClock
        Outlives the measurement.
    rule : SamplingRule
    best_s : float or None
        Best median of the run so far, seconds.

    Attributes
    ----------
    discarded : int
        Samples that were discarded.
    states : list of GpuState
        Readings during the series that were kept.
    reasons : int
        NVML's clock event reasons that were given during any series, those discarded too.
    persisting : Disturbance or None
        What rest did not end.
    """

    def __init__(self, track: Track, usual: UsualClock, rule: SamplingRule, best_s: float | None) -> None:
        self.discarded = 0
        self.states: list[GpuState] = []
        self.reasons = 0
        self.persisting: Disturbance | None = None
        self._track = track
        self._usual = usual
        self._rule = rule
        self._best_s = best_s
        self._warm = False
        self._rests_s = list(RESTS_S)
        self._wasted_s = 0.0

    def take(self, count: int) -> Sequence[float]:
        """Take one series (see :func:`mltune.measure.timing.sample`); the first is the warm-up.

        A warm-up is looked at only if it is to be the one sample, and then when it has ended.
        """
        series = self._track.run(count, watched=self._warm)
        if not self._warm:
            self._warm = True
            if not warm_up_suffices(series.samples_s[0], self._rule, self._best_s):
                return series.samples_s
            series = replace(series, states=(*series.states, self._track.look()))
        repeats = 0
        while (found := self._judge(series)) is not None:
            self._wasted_s += sum(series.samples_s)
            enough = not found.slowdown and repeats >= DIP_REPEATS
            if enough or not self._rests_s or self._wasted_s > self._rule.max_s:
                self.persisting = found
                break
            self.discarded += len(series.samples_s)
            self._track.rest(self._rests_s.pop(0))
            series = self._track.run(count, watched=True)
            repeats += 1
        self._usual.see(series.states)
        self.states += series.states
        return series.samples_s

    def _judge(self, series: Series) -> Disturbance | None:
        """Return what disturbed a series that is worth taking again."""
        usual_hz, clock_hz = self._usual.hz, lowest_clock_hz(series.states)
        for state in series.states:
            self.reasons |= state.throttle_reasons or 0
        found = disturbance(series.states, usual_hz)
        if found is None or self._best_s is None or usual_hz is None or clock_hz is None:
            return found
        at_usual_clock_s = min(series.samples_s) * min(1.0, clock_hz / usual_hz)
        ratio = self._rule.hopeless_ratio if found.slowdown else DIP_RATIO
        return None if at_usual_clock_s > ratio * self._best_s else found
