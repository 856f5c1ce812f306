"""Candidates are valid, distinct, and near what they came from."""

import numpy as np

from mltune.learn.candidates import breed, neighbours_of, spread_out


def test_variants_are_valid_distinct_and_repeatable(landscape):
    parents = np.array([10, 700, 1500])
    found = breed(landscape.space, parents, 200, np.random.default_rng(0))
    assert len(set(found.tolist())) == len(found) > 50
    assert ((found >= 0) & (found < landscape.space.count)).all()
    np.testing.assert_array_equal(found, breed(landscape.space, parents, 200, np.random.default_rng(0)))


def test_variants_keep_most_of_a_parent(landscape):
    parent = np.array([1234])
    found = breed(landscape.space, parent, 300, np.random.default_rng(0), crossover=0.0, changes=1.5)
    here, there = landscape.space.rows(parent), landscape.space.rows(found)
    assert np.mean([there[name] == here[name] for name in here]) > 0.6


def test_crossing_takes_values_from_two_parents_only(landscape):
    parents = np.array([0, landscape.space.count - 1])
    rng = np.random.default_rng(0)
    children = landscape.space.rows(breed(landscape.space, parents, 100, rng, crossover=1.0))
    both = landscape.space.rows(parents)
    assert np.mean([np.isin(children[name], both[name]) for name in both]) > 0.8


def test_no_parents_no_variants(landscape):
    nobody = np.empty(0, dtype=np.int64)
    assert len(breed(landscape.space, nobody, 10, np.random.default_rng(0))) == 0
    assert len(neighbours_of(landscape.space, nobody)) == 0


def test_neighbours_of_several_are_listed_once(landscape):
    found = neighbours_of(landscape.space, np.array([5, 6]))
    assert set(found.tolist()) == set(landscape.space.neighbours(5).tolist() + landscape.space.neighbours(6).tolist())
    assert (np.diff(found) > 0).all()


def test_spread_out_points_lie_far_apart():
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.normal(centre, 0.01, (50, 2)) for centre in ((0, 0), (1, 0), (0, 1), (1, 1))])
    chosen = spread_out(points, 4)
    assert chosen[0] == 0
    assert sorted(chosen // 50) == [0, 1, 2, 3]


def test_spreading_out_takes_no_point_twice():
    assert sorted(spread_out(np.zeros((5, 2)), 9)) == [0, 1, 2, 3, 4]
    assert len(spread_out(np.zeros((0, 2)), 3)) == 0
