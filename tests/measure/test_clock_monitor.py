"""The guard over a series of runs, on made-up readings of the GPU."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltune.device.nvml import SLOWDOWNS, GpuState, summed_up
from mltune.measure.clock_monitor import DIP_REPEATS, REMEMBERED, RESTS_S, ClockMonitor, Series, UsualClock, disturbance
from mltune.measure.protocols import SamplingRule
from mltune.measure.timing import sample

RULE = SamplingRule()
FULL_HZ = 1.98e9
POWER_CAP = 0x4
HEAT = 0x40


class MadeUpTrack:
    """A GPU whose clock and reasons follow a script, one entry a watched series; the last entry stays."""

    def __init__(self, *script, time_s=2e-3):
        self._script = itertools.chain(script, itertools.repeat(script[-1]))
        self._time_s = time_s
        self.series = []
        self.rests_s = []

    def run(self, count, *, watched):
        self.series.append((count, watched))
        if not watched:
            return Series((self._time_s,) * count)
        state = self.look()
        return Series((self._time_s * FULL_HZ / (state.sm_clock_hz or FULL_HZ),) * count, (state,))

    def look(self):
        clock_hz, reasons = next(self._script)
        return GpuState(sm_clock_hz=clock_hz, throttle_reasons=reasons)

    def rest(self, duration_s):
        self.rests_s.append(duration_s)


def usual(clock_hz=FULL_HZ):
    clock = UsualClock()
    clock.see([GpuState(sm_clock_hz=clock_hz)])
    return clock


def guarded(track, *, clock=None, best_s=None, rule=RULE):
    guard = ClockMonitor(track, clock or usual(), rule, best_s)
    return guard, sample(guard.take, rule, best_s)


def test_an_undisturbed_kernel_is_timed_as_without_a_guard():
    track = MadeUpTrack((FULL_HZ, 0))
    guard, taken = guarded(track)

    assert taken.samples_s == (2e-3,) * 3
    assert track.series == [(1, False), (3, True)]
    assert (guard.discarded, guard.persisting, track.rests_s) == (0, None, [])


def test_a_disturbed_series_is_taken_again_after_a_rest():
    track = MadeUpTrack((0.9 * FULL_HZ, POWER_CAP), (FULL_HZ, POWER_CAP))
    guard, taken = guarded(track)

    assert taken.samples_s == (2e-3,) * 3, "no sample of the disturbed series is kept"
    assert guard.discarded == 3
    assert guard.persisting is None
    assert track.rests_s == [RESTS_S[0]]
    assert summed_up(guard.states) == GpuState(sm_clock_hz=FULL_HZ, throttle_reasons=POWER_CAP)


def test_a_power_cap_that_persists_is_the_kernels_own():
    track = MadeUpTrack((0.9 * FULL_HZ, POWER_CAP))
    guard, taken = guarded(track)

    assert not guard.persisting.slowdown
    assert taken.median_s == pytest.approx(2e-3 / 0.9)
    assert guard.discarded == 3 * DIP_REPEATS
    assert tuple(track.rests_s) == RESTS_S[:DIP_REPEATS]
    assert summed_up(guard.states).throttle_reasons == POWER_CAP


@pytest.mark.parametrize("bit", SLOWDOWNS)
def test_a_slowdown_that_persists_is_told(bit):
    guard, _ = guarded(MadeUpTrack((FULL_HZ, bit)))

    assert guard.persisting.slowdown
    assert guard.persisting.detail == SLOWDOWNS[bit]
    assert guard.discarded == 3 * len(RESTS_S)


def test_a_slowdown_in_an_early_series_is_not_forgotten_over_a_later_one():
    track = MadeUpTrack(*[(FULL_HZ, HEAT)] * (1 + len(RESTS_S)), (FULL_HZ, 0))
    guard = ClockMonitor(track, usual(), RULE, None)
    for count in (1, 3, 3):
        guard.take(count)

    assert guard.persisting.slowdown


def test_a_measurement_has_so_many_rests_and_no_more():
    track = MadeUpTrack((0.9 * FULL_HZ, POWER_CAP))
    guard = ClockMonitor(track, usual(), RULE, None)
    for count in (1, 3, 3, 3):
        guard.take(count)

    assert tuple(track.rests_s) == RESTS_S


def test_what_runs_for_seconds_is_not_repeated_for_longer_than_a_second():
    track = MadeUpTrack((0.9 * FULL_HZ, POWER_CAP), time_s=3.0)
    guard, taken = guarded(track)

    assert len(taken.samples_s) == 1
    assert guard.discarded == 0
    assert guard.persisting is not None


def test_what_is_hopeless_at_the_usual_clock_too_is_not_repeated():
    track = MadeUpTrack((0.9 * FULL_HZ, POWER_CAP), time_s=4e-3)
    guard, taken = guarded(track, best_s=2e-3)

    assert taken.stopped_early
    assert track.rests_s == []
    assert guard.states, "its state is on record all the same"


def test_what_a_slow_clock_made_look_hopeless_is_repeated():
    track = MadeUpTrack((0.5 * FULL_HZ, 0x8), (FULL_HZ, 0))
    guard, taken = guarded(track, best_s=1.7e-3)

    assert not taken.stopped_early
    assert taken.median_s == 2e-3
    assert guard.discarded == 3


def test_a_warm_up_that_is_the_one_sample_is_looked_at_afterwards():
    track = MadeUpTrack((FULL_HZ, 0), time_s=8e-3)
    guard, taken = guarded(track, best_s=2e-3)

    assert track.series == [(1, False)]
    assert taken.samples_s == (8e-3,)
    assert summed_up(guard.states).sm_clock_hz == FULL_HZ


def test_without_nvml_nothing_is_disturbed():
    guard, taken = guarded(MadeUpTrack((None, None)), clock=UsualClock())

    assert len(taken.samples_s) == 3
    assert guard.discarded == 0
    assert summed_up(guard.states) == GpuState()


@pytest.mark.parametrize(("share", "disturbed"), [(1.0, False), (0.992, False), (0.985, False), (0.97, True)])
def test_single_steps_of_the_clock_are_within_the_tolerance(share, disturbed):
    state = GpuState(sm_clock_hz=share * FULL_HZ, throttle_reasons=POWER_CAP)

    assert (disturbance([GpuState(sm_clock_hz=FULL_HZ), state], FULL_HZ) is not None) == disturbed


def test_what_the_owner_has_set_disturbs_nothing():
    applications_clocks, display_clock, idle = 0x2, 0x100, 0x1
    state = GpuState(sm_clock_hz=1.2e9, throttle_reasons=applications_clocks | display_clock | idle)

    assert disturbance([state], 1.2e9) is None


def test_the_usual_clock_ignores_a_boost_and_follows_a_change():
    clock = usual(2.3e9)  # cold
    for _ in range(10):
        clock.see([GpuState(sm_clock_hz=2.1e9)])
    assert clock.hz == 2.1e9
    for _ in range(REMEMBERED):
        clock.see([GpuState(sm_clock_hz=1.9e9)])
    assert clock.hz == 1.9e9


def test_the_usual_clock_survives_that_most_series_are_held_back():
    clock = UsualClock()
    for at in range(REMEMBERED):
        clock.see([GpuState(sm_clock_hz=FULL_HZ if at % 3 == 0 else 0.9 * FULL_HZ)])

    assert clock.hz == FULL_HZ


READINGS = st.lists(
    st.tuples(
        st.none() | st.floats(1e8, 3e9), st.none() | st.sampled_from([0, 1, POWER_CAP, HEAT, HEAT | POWER_CAP, 0x1FF])
    ),
    min_size=1,
    max_size=30,
)


@given(READINGS, st.none() | st.floats(1e-4, 1e-1), st.floats(1e-4, 2.0))
def test_whatever_the_readings_the_guard_ends_and_what_it_keeps_is_what_was_run(script, best_s, time_s):
    track = MadeUpTrack(*script, time_s=time_s)
    guard, taken = guarded(track, clock=UsualClock(), best_s=best_s)

    assert len(track.rests_s) <= len(RESTS_S)
    assert len(taken.samples_s) >= 1
    runs = sum(count for count, _ in track.series)
    assert len(taken.samples_s) + guard.discarded in (runs, runs - 1), "every run is kept, discarded or the warm-up"
    assert guard.discarded == 0 or track.rests_s
