"""Points of the unit cube in which similar configurations are near, the mean function, and the initial design."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mltune.cost.encoding import (
    PLAUSIBLE,
    SMALLEST_PRIOR,
    Encoding,
    MeanFunction,
    Source,
    first_choice,
    physical,
    portfolio,
)
from mltune.cost.gaussian_process import Hyperparameters
from mltune.kernel.space import TableSpace
from mltune.search.planning import BatchPlanner, PlannerOptions


def table(**values):
    rows = np.array(list(itertools.product(*values.values())), dtype=np.int64).reshape(-1, len(values))
    return TableSpace(dict(zip(values, rows.T, strict=True)))


def encoding_of(space, prior=None):
    return Encoding(space, [physical(prior, space.rows(np.arange(space.count)))] if prior else [])


def described(space, prior=None):
    return encoding_of(space, prior).describe(space.rows(np.arange(space.count)))


@given(st.lists(st.sets(st.integers(-5, 300), min_size=1, max_size=6), min_size=1, max_size=3), st.booleans())
def test_points_lie_in_the_unit_cube(lists, with_prior):
    space = table(**{f"P{at}": tuple(sorted(values)) for at, values in enumerate(lists)})
    prior = (lambda columns: columns["P0"] / 100.0) if with_prior else None
    points, basis = described(space, prior)
    assert len(points) == len(basis) == space.count
    assert ((points >= -1e-12) & (points <= 1 + 1e-12)).all()
    assert np.isfinite(basis).all()
    assert (basis <= 0).all()


def test_distinct_configurations_are_distinct_points(landscape):
    points, _ = described(landscape.space)
    assert len(np.unique(points, axis=0)) == landscape.space.count


def test_sizes_matter_by_ratios():
    points, _ = described(table(P=(1, 2, 4, 8, 16)))
    np.testing.assert_allclose(points[:, 0], np.linspace(0, 1, 5))
    assert points.shape == (5, 1)


def test_48_does_not_lie_between_32_and_64():
    points, basis = described(table(P=(16, 32, 48, 64)))
    p32, p48, p64 = points[1:]
    assert np.linalg.norm(p48 - p32) > np.linalg.norm(p64 - p32)
    assert basis[2, 0] == basis[:, 0].min()


def test_values_that_are_not_positive_lie_at_their_places():
    points, _ = described(table(P=(-3, 0, 1, 100)))
    np.testing.assert_allclose(points[:, 0], [0, 1 / 3, 2 / 3, 1])


def test_two_values_are_no_odd_part_and_have_no_middle():
    points, basis = described(table(P=(2, 3)))
    np.testing.assert_allclose(points, [[0.0], [1.0]])
    np.testing.assert_array_equal(basis, 0.0)


def test_parameters_of_one_value_say_nothing():
    points, basis = described(table(P=(7,)))
    assert points.shape == (1, 1)
    assert basis.tolist() == [[0.0]]
    np.testing.assert_array_equal(described(table(P=(7,), Q=(1, 2, 4)))[0], described(table(Q=(1, 2, 4)))[0])


def test_the_middle_and_powers_of_two_are_expected_to_be_fast():
    _, basis = described(table(P=(1, 2, 4, 8, 16), Q=(16, 32, 48, 64, 128)))
    best = int(np.argmax(basis[:, 0]))
    assert best // 5 == 2
    assert best % 5 in (1, 3)


def test_the_prior_is_the_last_coordinate_and_the_last_basis_function_and_is_bounded():
    shares = {1: 0.0, 2: SMALLEST_PRIOR / 1000, 4: 1.0 / 1000}  # of a problem that is too small for the device
    space = table(P=tuple(shares))
    points, basis = described(space, lambda columns: np.array([shares[value] for value in columns["P"].tolist()]))
    np.testing.assert_allclose(points[:, -1], [0, 0, 1], atol=1e-12)
    np.testing.assert_allclose(basis[:, -1], np.log([SMALLEST_PRIOR, SMALLEST_PRIOR, 1]), atol=1e-12)


@pytest.mark.parametrize("prior", [None, lambda columns: np.ones(len(columns["P"]))])
def test_there_is_a_weight_for_each_basis_function(prior):
    space = table(P=(1, 2, 4))
    assert described(space, prior)[1].shape[1] == len(encoding_of(space, prior).mean_weights)


def test_every_row_is_described_by_itself(landscape):
    encoding = Encoding(landscape.space, [physical(landscape.prior, landscape.columns)])
    some = np.array([5, 900, 17])
    whole = encoding.describe(landscape.columns)
    for part, expected in zip(encoding.describe(landscape.space.rows(some)), whole, strict=True):
        np.testing.assert_array_equal(part, expected[some])


NUMBERS = st.floats(-10, 10)


class TestMeanFunction:
    @given(arrays(np.float64, (8, 2), elements=NUMBERS), arrays(np.float64, 8, elements=NUMBERS))
    def test_no_weight_is_negative(self, basis, y):
        assert (MeanFunction(np.array([0.25, 0.5])).fit(basis, y) >= 0).all()

    def test_what_was_expected_stands_while_little_is_known(self):
        mean = MeanFunction(np.array([0.5]))
        assert mean.fit(np.array([[1.0]]), np.array([3.0])).tolist() == [0.5]
        assert mean.fit(np.zeros((9, 1)), np.arange(9.0)).tolist() == [0.5]
        np.testing.assert_allclose(
            MeanFunction(np.array([0.5]), confidence=1e12).fit(np.eye(3)[:, :1], np.eye(3)[:, 0]), [0.5], atol=1e-9
        )

    def test_much_data_is_least_squares(self):
        rng = np.random.default_rng(0)
        basis = rng.normal(size=(5000, 2))
        y = 3.0 + basis @ [2.0, 0.7] + rng.normal(0, 0.1, 5000)
        np.testing.assert_allclose(MeanFunction(np.array([0.25, 0.5])).fit(basis, y), [2.0, 0.7], atol=0.02)

    def test_it_is_ridge_regression_about_the_expectation(self):
        rng = np.random.default_rng(1)
        basis, y, expected = rng.normal(size=(12, 2)), rng.normal(size=12) + 5, np.array([1.0, 1.0])
        found = MeanFunction(expected, confidence=5.0).fit(basis, y)

        def loss(weights):
            left = (y - y.mean()) - (basis - basis.mean(axis=0)) @ weights
            return left @ left + 5.0 * np.square(weights - expected).sum()

        assert all(loss(found) <= loss(found + step) for step in rng.normal(0, 0.01, (50, 2)))


def line(count=50):
    return np.linspace(0.0, 1.0, count)[:, None]


def test_the_first_is_the_best_by_the_mean_of_the_sources():
    rng = np.random.default_rng(0)
    expected = -rng.random((3, 50))
    chosen = portfolio(expected, line(), 8, rng)
    assert chosen[0] == np.argmax(expected.mean(axis=0))
    assert len(set(chosen.tolist())) == 8


def test_what_sources_disagree_about_is_covered():
    points = line()[:, 0]
    expected = np.stack([-6.0 * np.abs(points - 0.1), -6.0 * np.abs(points - 0.9)])
    chosen = portfolio(expected, line(), 4, np.random.default_rng(0))
    assert np.abs(points[chosen] - 0.1).min() < 0.05
    assert np.abs(points[chosen] - 0.9).min() < 0.05


def test_near_copies_of_the_best_are_not_all_chosen():
    """Of many configurations that are expected to be equally fast, some from everywhere are chosen."""
    chosen = portfolio(np.zeros((1, 50)), line(), 6, np.random.default_rng(1))
    assert np.ptp(line()[chosen]) > 0.7
    assert np.diff(np.sort(line()[chosen, 0])).min() > 0.02


@pytest.mark.parametrize("count", [1, 3])
def test_no_more_than_there_are(count):
    assert len(portfolio(np.zeros((2, count)), line(count), 8, np.random.default_rng(0))) == count


def test_variants_of_the_promising_are_found_in_a_large_space(landscape):
    """From a pool of 40, variation reaches configurations that are expected to be faster."""
    speeds = np.nan_to_num(landscape.scores, nan=-3.0)
    source = Source(lambda columns: speeds[landscape.space.index_of(columns)] - speeds.max(), -3.0)
    best = []
    for rounds in (0, 4):
        options = PlannerOptions(start_pool=40, start_rounds=rounds)
        designs = [BatchPlanner(landscape.space, [source], seed=seed, options=options) for seed in range(5)]
        best.append(np.mean([speeds[sampler._initial_design[0]] for sampler in designs]))
    assert best[0] < best[1]
    assert best[1] > speeds.max() - 0.1


def test_parameters_with_more_values_have_shorter_length_scales():
    space = table(SWITCH=(0, 1), VEC=(1, 2, 4), TILE=(16, 32, 48, 64), LONG=tuple(2**at for at in range(40)))
    found = encoding_of(space)
    usual = Hyperparameters.usual(5).scales[0]
    switch, vec, tile, odd, long = found.prior.scales
    assert switch > vec > tile == odd == usual > long > usual / 3
    assert found.deviation < 1.0


def test_length_scales_are_open_where_a_source_explains_what_sizes_do(landscape):
    found = encoding_of(landscape.space, landscape.prior)
    assert len(found.prior.scales) == found.describe(landscape.columns)[0].shape[1]
    assert np.ptp(found.prior.scales) == 0.0
    assert found.deviation == 1.0


def test_a_source_that_decides_has_the_first_choice_among_the_plausible():
    points = line()[:, 0]
    expected = np.stack([-points, -4.0 * np.square(points - 0.4)])
    sources = [Source(len, -3.0), Source(len, -3.0, decides=True)]
    first = portfolio(expected, line(), 8, np.random.default_rng(0), sources)[0]
    assert first == first_choice(expected, sources) == np.flatnonzero(points <= PLAUSIBLE)[-1]
    assert first != np.argmax(expected.sum(axis=0))


def test_a_source_that_decides_alone_has_no_other_to_ask():
    expected = -np.random.default_rng(1).random((1, 50))
    assert first_choice(expected, [Source(len, -3.0, decides=True)]) == np.argmax(expected)
