"""Confidence intervals cover what they should on generated samples, and rankings follow from them."""

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltune.records.declaration import Declaration
from mltune.records.facts import Facts
from mltune.records.trial import Measurement, TrialState
from mltune.tuning.finals import REFERENCE, median_interval, rank_race, rank_records


def covered(rng, draw, count, truth, repeats=400):
    """Return the share of intervals that hold the truth."""
    intervals = [median_interval(draw(rng, count)) for _ in range(repeats)]
    return sum(one.low <= truth <= one.high for one in intervals) / repeats


@pytest.mark.parametrize("count", [3, 5, 6, 7, 31])
def test_the_interval_of_a_median_covers_it(count):
    normal = covered(np.random.default_rng(1), lambda rng, n: rng.normal(2.0, 0.01, n).tolist(), count, 2.0)

    assert normal >= 0.93


@pytest.mark.parametrize("count", [7, 31])
def test_from_six_samples_on_no_distribution_is_assumed(count):
    skewed = covered(np.random.default_rng(2), lambda rng, n: rng.exponential(1.0, n).tolist(), count, np.log(2))

    assert skewed >= 0.93


@given(st.lists(st.floats(1e-6, 10.0), min_size=2, max_size=40))
def test_a_median_lies_in_its_interval(values):
    found = median_interval(values)

    assert found.low <= found.center <= found.high
    assert found.center == statistics.median(values)


def race(rng, *times_s, noise=0.002, rounds=31, together=0.05):
    """Return the times of a race whose rounds are slowed together."""
    slowed = 1 + together * rng.random(rounds)
    return {number: time_s * slowed * rng.normal(1.0, noise, rounds) for number, time_s in enumerate(times_s)}


def test_the_fastest_wins_though_rounds_differ_more_than_runners():
    found, reference = rank_race(race(np.random.default_rng(3), 2.04e-3, 2.00e-3, 2.5e-3))

    assert [one.number for one in found] == [1, 0, 2]
    assert (found[0].ratio, found[0].ratio_low, found[0].ratio_high) == (1, 1, 1)
    assert found[1].ratio_low > 1, "2 % are detected although the rounds vary by 5 %: times are paired"
    assert found[2].ratio == pytest.approx(1.25, rel=0.005)
    assert reference is None


@given(st.lists(st.tuples(*[st.floats(1e-7, 100.0)] * 3), min_size=2, max_size=9))
def test_a_store_holds_the_ranking_of_any_race(rounds):
    first, second, reference = ([one[runner] for one in rounds] for runner in range(3))
    found, raced = rank_race({0: first, 1: second, REFERENCE: reference})
    declared = Declaration(found[0].number, found, raced, rounds=len(rounds))

    assert Facts.of({"declaration": declared.to_json()}).declaration == declared


def test_indistinguishable_trials_are_ties():
    found, _ = rank_race(race(np.random.default_rng(4), 2.0e-3, 2.0001e-3))

    assert found[1].ratio_low <= 1 <= found[1].ratio_high


def test_of_two_equal_kernels_hardly_ever_one_is_declared_faster():
    wrong = 0
    for seed in range(200):
        found, _ = rank_race(race(np.random.default_rng(seed), 2e-3, 2e-3))
        wrong += not found[1].ratio_low <= 1 <= found[1].ratio_high

    assert wrong <= 20


def test_the_ratio_of_the_reference_is_the_share_of_it():
    times_s = race(np.random.default_rng(5), 2e-3, 2.2e-3)
    found, reference = rank_race({**times_s, REFERENCE: 1.5 * times_s[0]})

    assert REFERENCE not in [one.number for one in found]
    assert reference.ratio == pytest.approx(1.5)
    assert reference.ratio_low <= 1.5 + 1e-9
    assert reference.median_s == pytest.approx(1.5 * found[0].median_s)


def test_the_reference_does_not_win():
    found, reference = rank_race({3: [2e-3] * 7, REFERENCE: [1e-3] * 7})

    assert [one.number for one in found] == [3]
    assert reference.ratio == pytest.approx(0.5)


@given(st.integers(2, 31), st.integers(1, 6), st.integers(0, 1000), st.floats(0.1, 10.0))
def test_a_unit_of_time_changes_no_ratio(rounds, runners, seed, unit):
    times_s = race(np.random.default_rng(seed), *[2e-3] * runners, rounds=rounds)
    found, _ = rank_race(times_s)
    scaled, _ = rank_race({number: unit * times for number, times in times_s.items()})

    assert [one.number for one in scaled] == [one.number for one in found]
    assert [one.ratio_high for one in scaled] == pytest.approx([one.ratio_high for one in found])
    assert [one.low_s for one in scaled] == pytest.approx([unit * one.low_s for one in found])


def recorded(median_s, *shares):
    return Measurement(
        TrialState.OK, samples_s=tuple(median_s * share for share in shares), median_s=median_s, noise=0.001
    )


def test_records_are_ranked_by_their_medians():
    steady = (1.0, 1.0001, 0.9999)
    found = rank_records({7: recorded(2.1e-3, *steady), 4: recorded(2e-3, *steady), 5: recorded(2.0002e-3, *steady)})

    assert [one.number for one in found] == [4, 5, 7]
    assert found[1].ratio_low <= 1 <= found[1].ratio_high
    assert found[2].ratio_low > 1
    assert found[2].ratio == pytest.approx(1.05)


def test_noisy_records_are_ties_where_steady_ones_are_not():
    apart = dict.fromkeys((0.001, 0.02))
    for noise in apart:
        one, other = (recorded(median_s, 1 - noise, 1.0, 1 + noise) for median_s in (2e-3, 2.02e-3))
        apart[noise] = rank_records({0: one, 1: other})[1].ratio_low > 1

    assert apart == {0.001: True, 0.02: False}


def test_of_a_median_without_samples_some_noise_is_assumed():
    found = rank_records({0: recorded(2e-3), 1: recorded(2.01e-3), 2: recorded(2.1e-3)})

    assert found[0].low_s < 2e-3 < found[0].high_s
    assert found[1].ratio_low <= 1
    assert found[2].ratio_low > 1
