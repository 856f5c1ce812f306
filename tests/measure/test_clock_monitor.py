"""The clock monitor on simulated readings of the GPU."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltune.device.query import SLOWDOWNS, GpuState, summarize
from mltune.measure.pipeline import SamplingRule
from mltune.measure.timing import (
    DIP_REPEATS,
    REMEMBERED,
    RESTS_S,
    ClockMonitor,
    Series,
    UsualClock,
    disturbance,
    sample,
)

RULE = SamplingRule()
FULL_HZ = 1.98e9
POWER_CAP = 0x4
HEAT = 0x40


class SimulatedKernel:
    """A kernel on a GPU whose clock and reasons follow a script, one entry per monitored series; the last one stays."""

    def __init__(self, *script, time_s=2e-3):
        self._script = itertools.chain(script, itertools.repeat(script[-1]))
        self._time_s = time_s
        self.series = []
        self.rests_s = []

    def run(self, count, *, monitored):
        self.series.append((count, monitored))
        if not monitored:
            return Series((self._time_s,) * count)
        state = self.read_state()
        return Series((self._time_s * FULL_HZ / (state.sm_clock_hz or FULL_HZ),) * count, (state,))

    def read_state(self):
        clock_hz, reasons = next(self._script)
        return GpuState(sm_clock_hz=clock_hz, throttle_reasons=reasons)

    def rest(self, duration_s):
        self.rests_s.append(duration_s)


def usual(clock_hz=FULL_HZ):
    clock = UsualClock()
    clock.add([GpuState(sm_clock_hz=clock_hz)])
    return clock


def monitored_sampling(kernel, *, clock=None, best_s=None, rule=RULE):
    monitor = ClockMonitor(kernel, clock or usual(), rule, best_s)
    return monitor, sample(monitor.take, rule, best_s)


def test_an_undisturbed_kernel_is_timed_as_without_a_monitor():
    kernel = SimulatedKernel((FULL_HZ, 0))
    monitor, taken = monitored_sampling(kernel)

    assert taken.samples_s == (2e-3,) * 3
    assert kernel.series == [(1, False), (3, True)]
    assert (monitor.discarded, monitor.persisting, kernel.rests_s) == (0, None, [])


def test_a_disturbed_series_is_taken_again_after_a_rest():
    kernel = SimulatedKernel((0.9 * FULL_HZ, POWER_CAP), (FULL_HZ, POWER_CAP))
    monitor, taken = monitored_sampling(kernel)

    assert taken.samples_s == (2e-3,) * 3, "no sample of the disturbed series is kept"
    assert monitor.discarded == 3
    assert monitor.persisting is None
    assert kernel.rests_s == [RESTS_S[0]]
    assert summarize(monitor.states) == GpuState(sm_clock_hz=FULL_HZ, throttle_reasons=POWER_CAP)


def test_a_power_cap_that_persists_is_the_kernels_own():
    kernel = SimulatedKernel((0.9 * FULL_HZ, POWER_CAP))
    monitor, taken = monitored_sampling(kernel)

    assert not monitor.persisting.slowdown
    assert taken.median_s == pytest.approx(2e-3 / 0.9)
    assert monitor.discarded == 3 * DIP_REPEATS
    assert tuple(kernel.rests_s) == RESTS_S[:DIP_REPEATS]
    assert summarize(monitor.states).throttle_reasons == POWER_CAP


@pytest.mark.parametrize("bit", SLOWDOWNS)
def test_a_slowdown_that_persists_is_told(bit):
    monitor, _ = monitored_sampling(SimulatedKernel((FULL_HZ, bit)))

    assert monitor.persisting.slowdown
    assert monitor.persisting.detail == SLOWDOWNS[bit]
    assert monitor.discarded == 3 * len(RESTS_S)


def test_a_slowdown_in_an_early_series_is_not_forgotten_over_a_later_one():
    kernel = SimulatedKernel(*[(FULL_HZ, HEAT)] * (1 + len(RESTS_S)), (FULL_HZ, 0))
    monitor = ClockMonitor(kernel, usual(), RULE, None)
    for count in (1, 3, 3):
        monitor.take(count)

    assert monitor.persisting.slowdown


def test_a_measurement_has_so_many_rests_and_no_more():
    kernel = SimulatedKernel((0.9 * FULL_HZ, POWER_CAP))
    monitor = ClockMonitor(kernel, usual(), RULE, None)
    for count in (1, 3, 3, 3):
        monitor.take(count)

    assert tuple(kernel.rests_s) == RESTS_S


def test_what_runs_for_seconds_is_not_repeated_for_longer_than_a_second():
    kernel = SimulatedKernel((0.9 * FULL_HZ, POWER_CAP), time_s=3.0)
    monitor, taken = monitored_sampling(kernel)

    assert len(taken.samples_s) == 1
    assert monitor.discarded == 0
    assert monitor.persisting is not None


def test_a_kernel_that_is_too_slow_even_at_the_usual_clock_is_not_repeated():
    kernel = SimulatedKernel((0.9 * FULL_HZ, POWER_CAP), time_s=4e-3)
    monitor, taken = monitored_sampling(kernel, best_s=2e-3)

    assert taken.stopped_early
    assert kernel.rests_s == []
    assert monitor.states, "its state is on record all the same"


def test_a_kernel_that_only_a_low_clock_made_too_slow_is_repeated():
    kernel = SimulatedKernel((0.5 * FULL_HZ, 0x8), (FULL_HZ, 0))
    monitor, taken = monitored_sampling(kernel, best_s=1.7e-3)

    assert not taken.stopped_early
    assert taken.median_s == 2e-3
    assert monitor.discarded == 3


def test_the_state_after_a_warm_up_that_is_the_only_sample_is_read():
    kernel = SimulatedKernel((FULL_HZ, 0), time_s=8e-3)
    monitor, taken = monitored_sampling(kernel, best_s=2e-3)

    assert kernel.series == [(1, False)]
    assert taken.samples_s == (8e-3,)
    assert summarize(monitor.states).sm_clock_hz == FULL_HZ


def test_without_nvml_nothing_is_disturbed():
    monitor, taken = monitored_sampling(SimulatedKernel((None, None)), clock=UsualClock())

    assert len(taken.samples_s) == 3
    assert monitor.discarded == 0
    assert summarize(monitor.states) == GpuState()


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
        clock.add([GpuState(sm_clock_hz=2.1e9)])
    assert clock.hz == 2.1e9
    for _ in range(REMEMBERED):
        clock.add([GpuState(sm_clock_hz=1.9e9)])
    assert clock.hz == 1.9e9


def test_the_usual_clock_survives_that_most_series_are_held_back():
    clock = UsualClock()
    for at in range(REMEMBERED):
        clock.add([GpuState(sm_clock_hz=FULL_HZ if at % 3 == 0 else 0.9 * FULL_HZ)])

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
    kernel = SimulatedKernel(*script, time_s=time_s)
    monitor, taken = monitored_sampling(kernel, clock=UsualClock(), best_s=best_s)

    assert len(kernel.rests_s) <= len(RESTS_S)
    assert len(taken.samples_s) >= 1
    runs = sum(count for count, _ in kernel.series)
    assert len(taken.samples_s) + monitor.discarded in (runs, runs - 1), "every run is kept, discarded or the warm-up"
    assert monitor.discarded == 0 or kernel.rests_s
