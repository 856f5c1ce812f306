"""The stopping rule: a search ends once it has gained little for long, and what it says of going on holds."""

import math

import numpy as np
import pytest
from hidden_optima import FAMILIES, hidden, play, search_of
from scipy.stats import binomtest

from mltune.search.stopping import FALSE, FEWEST, GAIN, MEASURED, little_gained

LARGE = 10**12


def after(rising, level, count=LARGE, hopes=math.inf):
    """Return the reason after so many measurements that gained, and so many that did not."""
    return little_gained(np.append(np.arange(rising) - rising, np.full(level, -1.001)), count, hopes)


@pytest.mark.parametrize(("rising", "level"), [(1, MEASURED), (100, MEASURED), (MEASURED, MEASURED), (600, 600)])
def test_a_search_ends_when_half_of_its_measurements_and_so_many_gained_little(rising, level):
    assert not after(rising, level - 1)
    assert after(rising, level)


@pytest.mark.parametrize(("hopes", "is_certain"), [(1.0, False), (1e-3, True), (1e-4, True), (1e-9, False)])
def test_fewer_measurements_are_enough_where_the_model_is_certain_and_knows_the_best(hopes, is_certain):
    for count, certain in ((1000, FEWEST), (10_000, 180), (100_000, MEASURED)):
        needed = certain if is_certain else MEASURED
        assert not after(60, needed - 1, count, hopes)
        assert after(60, needed, count, hopes)


def test_small_gains_add_up():
    gaining = np.linspace(-1.0, -0.9, 2000)
    assert not any(little_gained(gaining[:at], LARGE) for at in range(300, 2000, 100))
    assert little_gained(np.linspace(-1.0, -0.99, 2000), LARGE)


def test_a_third_of_a_small_space_is_enough():
    assert not after(20, 99, count=300)
    assert after(20, 100, count=300)
    assert not after(10, 60, count=71)


def test_failures_do_not_count():
    failed = np.full(1000, np.nan)
    assert not little_gained(failed, LARGE)
    assert not little_gained(np.concatenate([np.linspace(-3.0, -1.0, 100), failed]), LARGE)


def test_the_reason_says_how_much_was_measured_and_what_is_promised():
    assert after(200, 300) == (
        "the last 250 of 500 measurements gained less than 1 %; of recorded searches at most 5 % gain 1 % by 500 more"
    )


def ended(family, number, seed):
    """Return after how many measurements a search ends, and its best log speed then and after as many again.

    The search goes on: what it measures is the same, and where it ends follows from that.
    """
    space = hidden(family, number)
    times_s = np.exp(-space.speed)
    search = search_of(space, seed=seed, stop=False)
    order, batch = play(search, times_s, FEWEST), play(search, times_s, 1)
    while not little_gained(space.speed[order], len(times_s), search._planner.hopes):
        order, batch = np.append(order, batch), play(search, times_s, 1)
    more = np.concatenate([order, batch, play(search, times_s, len(order))])
    return order, space.speed[order].max(), space.speed[more].max()


@pytest.mark.sampled(1, nightly=4)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_search_ends_and_as_many_measurements_again_gain_little(family):
    measured, best, later = ended(family, 3, 0)
    space = hidden(family, 3)
    assert np.array_equal(play(search_of(space, seed=0), np.exp(-space.speed), 1000), measured)
    assert FEWEST < len(measured) < 500
    assert later - best < np.log1p(GAIN)


@pytest.mark.system
@pytest.mark.long
@pytest.mark.parametrize(
    ("families", "numbers"),
    [
        (("narrow",), (10,)),
        pytest.param(FAMILIES, (10,), marks=pytest.mark.nightly),
        pytest.param(FAMILIES, range(10, 14), marks=pytest.mark.slow),
    ],
)
@pytest.mark.nightly
def test_the_promise_holds_as_often_as_it_says(families, numbers):
    ends = [ended(family, number, seed=1) for family in families for number in numbers]
    false = sum(later - best >= np.log1p(GAIN) for _, best, later in ends)
    assert all(len(measured) < 1000 for measured, *_ in ends)
    assert binomtest(false, len(ends)).proportion_ci().low <= FALSE


def test_another_search_does_not_end_by_it():
    space = hidden("narrow", 0)
    assert len(play(search_of(space, search="random"), np.exp(-space.speed), 800)) >= 800
