"""The contract of search spaces."""

from __future__ import annotations

import numpy as np

from mltune.kernel.coding import length, row
from mltune.kernel.space import SearchSpace


class SearchSpaceContract:
    """The laws of :class:`~mltune.kernel.space.SearchSpace`: indices are configurations, draws are distinct.

    Override :meth:`make` to return a space of 10 to a few thousand configurations, with at least one parameter of
    several values.
    """

    def make(self) -> SearchSpace:
        """Return the space; each call returns an equal one."""
        raise NotImplementedError

    def test_every_index_is_a_configuration_of_its_own(self) -> None:
        """``rows`` and ``index_of`` undo each other, and a configuration is nearest to itself."""
        space = self.make()
        everything = np.arange(space.count)
        columns = space.rows(everything)
        assert tuple(columns) == space.names == tuple(space.values)
        assert all(set(columns[name].tolist()) <= set(space.values[name]) for name in space.names)
        assert np.array_equal(space.index_of(columns), everything)
        assert np.array_equal(space.nearest(columns), everything)
        assert len({tuple(row(columns, i).items()) for i in range(space.count)}) == space.count

    def test_two_spaces_of_the_same_kernel_have_the_same_indices(self) -> None:
        """What a run recorded by index is found again by the run that resumes it."""
        first, second = self.make(), self.make()
        assert first.count == second.count
        everything = np.arange(first.count)
        assert np.array_equal(second.index_of(first.rows(everything)), everything)

    def test_nothing_is_asked_for_nothing(self) -> None:
        """Empty columns are valid arguments."""
        space = self.make()
        nothing = space.rows(np.zeros(0, dtype=np.int64))
        assert length(nothing) == 0
        assert len(space.index_of(nothing)) == len(space.nearest(nothing)) == 0
        assert len(space.sample(0, np.random.default_rng(0))) == 0

    def test_an_index_outside_is_refused(self) -> None:
        """A negative index is an error, and so is one that is not below the count."""
        import pytest

        from mltune.errors import SpaceError

        space = self.make()
        for index in (-1, space.count):
            with pytest.raises(SpaceError):
                space.rows(np.array([0, index]))

    def test_a_configuration_outside_has_no_index_and_a_nearest_one(self) -> None:
        """A value that is not in the list of its parameter is outside."""
        space = self.make()
        name = space.names[0]
        outside = {**space.rows(np.array([0])), name: np.array([max(space.values[name]) + 1])}
        assert space.index_of(outside).tolist() == [-1]
        (nearest,) = space.nearest(outside).tolist()
        assert 0 <= nearest < space.count

    def test_a_sample_is_distinct_and_ends_with_the_space(self) -> None:
        """Draws are without replacement, and never among the excluded."""
        space, rng = self.make(), np.random.default_rng(0)
        assert sorted(space.sample(10 * space.count, rng).tolist()) == list(range(space.count))
        counts = {1, space.count - 1}
        taken = set(range(space.count)) - counts
        assert set(space.sample(5, rng, taken).tolist()) == counts
        assert len(space.sample(5, rng, range(space.count))) == 0

    def test_the_same_seed_gives_the_same_sample(self) -> None:
        """All randomness comes from the generator that is passed in."""
        space = self.make()
        first, second = (space.sample(5, np.random.default_rng(8), {1, 2}) for _ in range(2))
        assert np.array_equal(first, second)

    def test_neighbours_are_near_and_sorted(self) -> None:
        """Whatever differs in one parameter is a neighbour; the configuration itself is none."""
        space = self.make()
        columns = space.rows(np.arange(space.count))
        for index in range(0, space.count, max(1, space.count // 50)):
            neighbours = space.neighbours(index)
            differing = np.sum([column != column[index] for column in columns.values()], axis=0)
            assert set(np.flatnonzero(differing == 1).tolist()) <= set(neighbours.tolist())
            assert index not in neighbours
            assert np.array_equal(neighbours, np.unique(neighbours))
