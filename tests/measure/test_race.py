"""The rounds of a race, with simulated runners."""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltune.device.query import GpuState
from mltune.measure.timing import (
    BUDGET_S,
    MAX_ROUNDS,
    MIN_ROUNDS,
    Series,
    UsualClock,
    how_many_fit,
    run_rounds,
    starting_orders,
)
from mltune.records.trial import TrialState


class MadeUpRunners:
    """Runners of fixed times; some rounds run at half the clock."""

    def __init__(self, *times_s, disturbed=()):
        self._times_s = times_s
        self._disturbed = disturbed
        self.orders = []
        self.rested_s = 0.0

    def take(self, order):
        held_back = len(self.orders) in self._disturbed
        self.orders.append(list(order))
        state = GpuState(sm_clock_hz=1e9 if held_back else 2e9, throttle_reasons=0)
        return Series(tuple(self._times_s[runner] * (2 if held_back else 1) for runner in order), (state,))

    def rest(self, duration_s):
        self.rested_s += duration_s

    def race(self, budget_s=BUDGET_S):
        return run_rounds(len(self._times_s), self.take, self.rest, UsualClock(), budget_s)


@pytest.mark.parametrize("count", range(1, 10))
def test_orders_are_balanced_by_place_and_by_predecessor(count):
    orders = starting_orders(count)
    places = Counter(place for order in orders for place in enumerate(order))
    neighbours = Counter(pair for order in orders for pair in itertools.pairwise(order))

    assert all(sorted(order) == list(range(count)) for order in orders)
    assert len(places) == count**2
    assert len(set(places.values())) == 1
    assert len(neighbours) == count * (count - 1)
    assert len(set(neighbours.values())) <= 1


def test_times_stand_in_the_column_of_their_runner():
    found = MadeUpRunners(1e-3, 2e-3, 3e-3).race()

    assert found.samples_s == ((1e-3, 2e-3, 3e-3),) * MAX_ROUNDS
    assert found.state is TrialState.OK


def test_the_first_round_is_a_warm_up():
    runners = MadeUpRunners(1e-3, 2e-3)
    assert len(runners.race().samples_s) == len(runners.orders) - 1


def test_disturbed_rounds_are_discarded_and_repeated_after_a_rest():
    runners = MadeUpRunners(1e-3, 2e-3, disturbed={3, 4})
    found = runners.race()

    assert found.samples_s == ((1e-3, 2e-3),) * MAX_ROUNDS
    assert len(runners.orders) == 1 + MAX_ROUNDS + 2
    assert runners.rested_s > 0


def test_where_hardly_a_round_is_undisturbed_all_count():
    found = MadeUpRunners(1e-2, 2e-2, disturbed=range(3, 1000)).race(budget_s=1.0)

    assert len(found.samples_s) >= MIN_ROUNDS
    assert found.state is TrialState.UNSTABLE


def test_a_race_of_slow_kernels_has_few_rounds_and_no_warm_up():
    runners = MadeUpRunners(0.3, 0.3)
    found = runners.race()

    assert len(found.samples_s) == len(runners.orders) == 5


@given(st.lists(st.floats(1e-6, 2.0), min_size=1, max_size=9), st.sets(st.integers(0, 100)), st.floats(0.1, BUDGET_S))
def test_a_race_ends_within_its_budget_but_for_its_first_round(times_s, disturbed, budget_s):
    runners = MadeUpRunners(*times_s, disturbed=disturbed)
    found = runners.race(budget_s)
    first_s = 2 * sum(times_s)
    spent_s = runners.rested_s + sum(sum(times_s) * (2 if at in disturbed else 1) for at in range(len(runners.orders)))

    assert len(found.samples_s) <= MAX_ROUNDS + len(runners.orders)
    assert spent_s <= budget_s + first_s + sum(times_s) + 0.06
    assert all(len(row) == len(times_s) for row in found.samples_s)


@given(st.lists(st.floats(1e-5, 5.0), max_size=8).map(sorted), st.sampled_from([0.3, 1.0, BUDGET_S]))
def test_so_many_fit_as_leave_time_for_a_race(times_s, budget_s):
    count = how_many_fit(times_s, budget_s)

    assert 0 <= count <= len(times_s)
    if count:
        assert MIN_ROUNDS * (sum(times_s[:count]) + times_s[0]) <= budget_s
        assert len(MadeUpRunners(*times_s[:count], times_s[0]).race(budget_s).samples_s) >= MIN_ROUNDS


def test_all_of_the_usual_sizes_fit():
    assert how_many_fit([25e-3] * 8) == 8
    assert how_many_fit([0.2] * 8) == 4
    assert how_many_fit([2.0] * 8) == 0
