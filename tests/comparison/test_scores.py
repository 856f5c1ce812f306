"""Scores: exact against enumeration, and the same as the package of the methodology's authors."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltune.comparison.scores import (
    bands,
    best_so_far,
    evaluations_to,
    expected_minimum,
    holm,
    paired_test,
    scored_range,
    scores,
    spent_seconds,
    standardised,
)
from mltune.comparison.simulation import BUILD, Trace


def trace(indices: list[int], own: float = 0.0, recorded: float = 0.0) -> Trace:
    return Trace(np.array([(index, True, place, own, recorded) for place, index in enumerate(indices)], BUILD))


def random_runs(times: np.ndarray, runs: int, evaluations: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    traces = [trace(rng.permutation(len(times))[:evaluations].tolist()) for _ in range(runs)]
    return best_so_far(times, traces, evaluations)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=7), st.data())
def test_the_expected_minimum_is_that_over_all_subsets(values: list[int], data: st.DataObject) -> None:
    draws = data.draw(st.integers(1, len(values)))
    expected = expected_minimum(np.array(values, dtype=float), draws)
    by_enumeration = [np.mean([min(c) for c in itertools.combinations(values, n)]) for n in range(1, draws + 1)]
    np.testing.assert_allclose(expected, by_enumeration, atol=1e-12)


def test_random_search_scores_nothing_and_the_optimum_one(hill) -> None:
    times = hill().pessimal_s
    runs = scores(random_runs(times, 2000, 50, seed=1), times)
    assert abs(runs.mean()) < 4 * runs.std() / np.sqrt(len(runs))
    at_once = np.full((3, 50), times.min())
    np.testing.assert_allclose(scores(at_once, times), 1.0)


def test_best_so_far_keeps_what_it_has_and_knows_nothing_before_a_success() -> None:
    times = np.array([3.0, np.nan, 1.0, 2.0])
    best = best_so_far(times, [trace([1, 0, 3]), trace([2])], 4)
    assert best.tolist() == [[np.inf, 3.0, 2.0, 2.0], [1.0, 1.0, 1.0, 1.0]]


def test_seconds_are_spent_until_the_end_of_a_run() -> None:
    assert spent_seconds([trace([0, 1], own=0.5, recorded=1.0)], 3).tolist() == [[1.5, 3.0, 3.0]]


def test_over_evaluations_at_most_250_count_and_over_time_all() -> None:
    times = np.concatenate([[1.0], np.linspace(2.0, 3.0, 4999)])
    best = np.full((1, 1000), 2.0)
    best[:, 300:] = 1.0
    assert scored_range(times, 1000)[1] == 1000
    assert scores(best, times) < 0.1 < 0.6 < scores(best, times, most=1000)


def test_evaluations_to_a_target() -> None:
    fraction = np.array([[0.5, 0.96, 1.0], [0.1, 0.2, 0.3]])
    assert evaluations_to(fraction, 0.95).tolist() == [2.0, np.inf]


def test_a_band_is_around_the_mean_and_narrower_with_more_runs() -> None:
    rng = np.random.default_rng(0)
    few, many = (rng.normal(size=(runs, 5)) for runs in (10, 1000))
    low, high = bands([few], rng)
    assert ((low < few.mean(axis=0)) & (few.mean(axis=0) < high)).all()
    narrow_low, narrow_high = bands([many], rng)
    assert (narrow_high - narrow_low).max() < (high - low).min()


def test_the_test_finds_a_difference_and_none_where_there_is_none() -> None:
    rng = np.random.default_rng(3)
    ours = [rng.normal(size=30) for _ in range(3)]
    same = [each[rng.permutation(30)] for each in ours]
    difference, p = paired_test(ours, [each - 1.0 for each in same])
    assert difference == pytest.approx(1.0)
    assert p < 0.001
    assert paired_test(ours, same)[1] > 0.05
    assert paired_test(ours, ours) == (0.0, 1.0)


def test_holm_multiplies_the_least_by_most_and_never_reorders() -> None:
    adjusted = holm({"a": 0.04, "b": 0.01, "c": 0.03})
    assert adjusted == pytest.approx({"a": 0.06, "b": 0.03, "c": 0.06})


@pytest.fixture(scope="module")
def package_statistics(hill):
    """Return the methodology's own statistics of a recording without failures, made without its file formats."""
    statistics = pytest.importorskip("autotuning_methodology.searchspace_statistics")
    times = hill(failures=False).median_s
    made = object.__new__(statistics.SearchspaceStatistics)
    made.minimization = True
    made.objective_performances_total = times
    made.objective_performances_total_sorted = np.sort(times)
    made.objective_performances_total_sorted_nan = np.sort(times)
    return made


def test_the_scored_range_ends_where_the_package_does(package_statistics) -> None:
    times = package_statistics.objective_performances_total
    _, last = package_statistics.cutoff_point(0.95)
    _, first = package_statistics.cutoff_point(0.01)
    assert scored_range(times, 250) == (max(first, 1), last)


def test_the_score_is_the_package_s_but_for_its_approximate_baseline(package_statistics) -> None:
    from autotuning_methodology.baseline import RandomSearchCalculatedBaseline

    times = package_statistics.objective_performances_total
    first, last = scored_range(times, 250)
    evaluations = np.arange(first, last + 1)
    baseline = RandomSearchCalculatedBaseline(package_statistics)
    random = baseline.get_curve_over_fevals(evaluations)
    best = random_runs(times, 20, last, seed=2)
    best[:, 3:] *= 0.97  # somewhat better than random
    best = np.maximum(best, times.min())
    ours = standardised(best[:, first - 1 :], random, times)
    for run, curve in zip(ours, best, strict=True):
        theirs = baseline.get_standardised_curve(evaluations, curve[first - 1 :], "fevals")
        np.testing.assert_allclose(run, theirs, rtol=1e-12)
    # the package's baseline is the value at the expected rank, ours the expected value: on this skewed landscape that
    # is worth 0.08
    assert scores(best, times).mean() == pytest.approx(ours.mean(), abs=0.1)


def test_the_package_s_baseline_has_the_ranks_of_the_exact_expectation(package_statistics) -> None:
    from autotuning_methodology.baseline import RandomSearchCalculatedBaseline

    baseline = RandomSearchCalculatedBaseline(package_statistics)
    size = len(package_statistics.objective_performances_total)
    from_worst = [baseline._redwhite_index(draws, size) for draws in range(2, 100)]
    ranks = expected_minimum(np.arange(1.0, size + 1), 99)[1:]
    assert np.abs(size + 1 - np.array(from_worst) - ranks).max() <= 0.5
