"""Drift of the GPU, detected from repeated timings of the reference kernel."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltune.records.declaration import Drift, Reference, drifts


def stream(*times_ms, noise=0.001, every=10):
    return [Reference(every * at, 120.0 * at, 1e-3 * time, noise) for at, time in enumerate(times_ms)]


def test_constant_times_are_no_drift():
    assert drifts(stream(2.700, 2.703, 2.695, 2.71, 2.70)) == []
    assert drifts([]) == []
    assert drifts(stream(2.7)) == []


def test_both_intervals_around_a_slow_timing_are_marked():
    found = drifts(stream(2.7, 2.7, 2.97, 2.7, 2.7))

    assert [(drift.first, drift.last) for drift in found] == [(10, 20), (20, 30)]
    assert all(drift.ratio == pytest.approx(1.1) for drift in found)


def test_what_stays_slow_is_marked_up_to_the_last_reference():
    assert [(drift.first, drift.last) for drift in drifts(stream(2.7, 2.7, 2.7, 2.9, 2.9))] == [(20, 30), (30, 40)]


def test_a_slow_first_timing_marks_only_the_records_before_it():
    found = drifts(stream(3.0, 2.7, 2.7, 2.7, 2.7))

    assert [(drift.first, drift.last) for drift in found] == [(0, 10)]
    assert found[0].ratio > 1.1


def test_records_before_the_first_timing_have_its_ratio():
    references = [Reference(5, 60.0, 3e-3), Reference(10, 120.0, 2e-3), Reference(20, 240.0, 2e-3)]

    assert drifts(references) == [Drift(0, 5, 1.5), Drift(5, 10, 1.5)]


def test_of_two_the_slower_is_off():
    assert [drift.ratio for drift in drifts(stream(2.0, 2.2))] == [pytest.approx(1.1)]
    assert [drift.ratio for drift in drifts(stream(2.2, 2.0))] == [pytest.approx(1.1)]


def test_a_fast_hour_is_a_drift_too():
    (found, _) = drifts(stream(2.7, 2.7, 2.5, 2.7, 2.7))

    assert found.ratio < 1


def test_noise_explains_what_it_can():
    times = (2.7, 2.7, 2.78, 2.7, 2.7)

    assert drifts(stream(*times, noise=0.001))
    assert not drifts(stream(*times, noise=0.01))
    assert drifts(stream(*times, noise=None)), "of a single sample the tolerance must do"


def test_where_nothing_was_recorded_in_between_nothing_is_marked():
    assert drifts([Reference(7, 1.0, 2e-3), Reference(7, 2.0, 3e-3), Reference(7, 3.0, 2e-3)]) == []


TIMES = st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=40)
STEPS = st.lists(st.integers(0, 50), min_size=40, max_size=40)


@given(TIMES, STEPS, st.floats(0.0, 0.05))
def test_stretches_are_in_order_disjoint_and_on_record(times, steps, noise):
    after, references = 0, []
    for time, step in zip(times, steps, strict=False):
        after += step
        references.append(Reference(after, 0.0, time, noise))

    found = drifts(references)

    assert all(drift.first < drift.last <= after for drift in found)
    assert all(one.last <= other.first for one, other in itertools.pairwise(found))
    assert all(abs(drift.ratio - 1) > 0.01 for drift in found)


@given(TIMES, st.floats(0.1, 10.0))
def test_a_unit_of_time_changes_nothing(times, unit):
    references = [Reference(3 * at, 0.0, time) for at, time in enumerate(times)]
    scaled = [Reference(3 * at, 0.0, unit * time) for at, time in enumerate(times)]
    near = [abs(time / sorted(times)[(len(times) - 1) // 2] - 1) for time in times]

    if all(abs(off - 0.01) > 1e-9 for off in near):  # on the very edge rounding decides
        assert [(drift.first, drift.last) for drift in drifts(scaled)] == [
            (drift.first, drift.last) for drift in drifts(references)
        ]


@given(st.lists(st.floats(0.9951, 1.0049), min_size=1, max_size=40))
def test_within_half_a_percent_nothing_is_a_drift(shares):
    assert drifts([Reference(at, 0.0, 2e-3 * share) for at, share in enumerate(shares)]) == []
