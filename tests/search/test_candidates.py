"""Candidates are valid and distinct, and variants are near their parents."""

import numpy as np
import pytest

from mltune.cost.encoding import Encoding, physical
from mltune.search import proposers
from mltune.search.proposers import EnumeratedPool, SampledPool, maximin_subset, offspring


def test_variants_are_valid_distinct_and_repeatable(landscape):
    parents = np.array([10, 700, 1500])
    found = offspring(landscape.space, parents, 200, np.random.default_rng(0))
    assert len(set(found.tolist())) == len(found) > 50
    assert ((found >= 0) & (found < landscape.space.count)).all()
    np.testing.assert_array_equal(found, offspring(landscape.space, parents, 200, np.random.default_rng(0)))


def test_variants_keep_most_of_a_parent(landscape, monkeypatch):
    monkeypatch.setattr(proposers, "CROSSOVER", 0.0)
    monkeypatch.setattr(proposers, "CHANGES", 1.5)
    parent = np.array([1234])
    found = offspring(landscape.space, parent, 300, np.random.default_rng(0))
    here, there = landscape.space.rows(parent), landscape.space.rows(found)
    assert np.mean([there[name] == here[name] for name in here]) > 0.6


def test_crossing_takes_values_from_two_parents_only(landscape, monkeypatch):
    monkeypatch.setattr(proposers, "CROSSOVER", 1.0)
    parents = np.array([0, landscape.space.count - 1])
    rng = np.random.default_rng(0)
    children = landscape.space.rows(offspring(landscape.space, parents, 100, rng))
    both = landscape.space.rows(parents)
    assert np.mean([np.isin(children[name], both[name]) for name in both]) > 0.8


def test_no_parents_no_variants(landscape):
    nobody = np.empty(0, dtype=np.int64)
    assert len(offspring(landscape.space, nobody, 10, np.random.default_rng(0))) == 0


def test_spread_out_points_lie_far_apart():
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.normal(centre, 0.01, (50, 2)) for centre in ((0, 0), (1, 0), (0, 1), (1, 1))])
    chosen = maximin_subset(points, 4)
    assert chosen[0] == 0
    assert sorted(chosen // 50) == [0, 1, 2, 3]


def test_spreading_out_takes_no_point_twice():
    assert sorted(maximin_subset(np.zeros((5, 2)), 9)) == [0, 1, 2, 3, 4]
    assert len(maximin_subset(np.zeros((0, 2)), 3)) == 0


@pytest.mark.parametrize("Pool", [EnumeratedPool, SampledPool])
class TestPool:
    @pytest.fixture
    @staticmethod
    def pool(landscape, Pool):
        return Pool(
            landscape.space,
            Encoding(landscape.space, [physical(landscape.prior, landscape.columns)]),
            drawn=100,
            near=60,
            incumbents=3,
        )

    def test_candidates_are_distinct_valid_and_not_taken(self, landscape, pool):
        rng = np.random.default_rng(0)
        best = np.array([700, 10, 1500, 2200])
        taken = set(best.tolist()) | set(rng.choice(landscape.space.count, 3000, replace=False).tolist())
        found = pool.draw(best, taken, rng)
        assert 0 < len(found) <= 160
        assert (np.diff(found) > 0).all()
        assert ((found >= 0) & (found < landscape.space.count)).all()
        assert not taken & set(found.tolist())

    def test_the_same_generator_draws_the_same(self, pool):
        best = np.array([700, 10])
        first, again = (pool.draw(best, {700, 10}, np.random.default_rng(3)) for _ in range(2))
        np.testing.assert_array_equal(first, again)

    def test_some_are_near_the_best_and_some_anywhere(self, landscape, pool):
        best = np.array([1234])
        found = pool.draw(best, {1234}, np.random.default_rng(0))
        here, there = landscape.space.rows(best), landscape.space.rows(found)
        differing = np.sum([there[name] != here[name] for name in here], axis=0)
        assert (differing <= 2).sum() >= 20
        assert (differing > 2).sum() >= 50

    def test_without_anything_measured_they_come_from_anywhere(self, pool):
        assert len(pool.draw(np.empty(0, dtype=np.int64), set(), np.random.default_rng(0))) == 100

    def test_nothing_is_left_when_everything_is_taken(self, landscape, pool):
        everything = set(range(landscape.space.count))
        assert len(pool.draw(np.array([5]), everything, np.random.default_rng(0))) == 0
        assert pool.draw(np.array([5]), everything - {77}, np.random.default_rng(0)).tolist() == [77]

    def test_it_describes_as_the_encoding_does(self, landscape, pool):
        some = np.array([9, 3, 3000])
        expected = Encoding(landscape.space, [physical(landscape.prior, landscape.columns)]).describe(
            landscape.space.rows(some)
        )
        for found, part in zip(pool.describe(some), expected, strict=True):
            np.testing.assert_array_equal(found, part)
        assert len(pool.describe(some[:0])[0]) == 0
