"""Where proposals are looked for: near the best configurations and everywhere, and spread-out subsets of many."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from mltune.kernel.columns import Floats, Indices

if TYPE_CHECKING:
    from mltune.kernel.space import SearchSpace
    from mltune.learn.encoding import Encoding


def breed(
    space: SearchSpace,
    parents: Indices,
    count: int,
    rng: np.random.Generator,
    *,
    crossover: float = 0.5,
    changes: float = 2.5,
) -> Indices:
    """Return variants of the parents, made valid: what a change of one parameter cannot reach, where they are coupled.

    Parameters
    ----------
    space : SearchSpace
    parents : ndarray of shape (n_parents,)
        Indices of configurations, the best first: the earlier, the more often a parent.
    count : int
        Variants to make; fewer come back where two are the same.
    rng : numpy.random.Generator
    crossover : float
        Share of variants that take about half of their parameters from a second parent.
    changes : float
        Mean number of parameters given another value in the others: mostly a step to the next value, sometimes any.

    Returns
    -------
    ndarray of shape (at most count,)
        Distinct indices, sorted.
    """
    if len(parents) == 0 or count < 1:
        return np.empty(0, dtype=np.int64)
    weights = 1.0 / np.arange(1, len(parents) + 1)
    first, second = rng.choice(len(parents), size=(2, count), p=weights / weights.sum())
    codes = _codes(space, parents)
    child = codes[first]
    sizes = np.array([len(space.values[name]) for name in space.names])
    crossed = (rng.random(count) < crossover)[:, None]
    child = np.where(crossed & (rng.random(child.shape) < 0.5), codes[second], child)
    changed = rng.random(child.shape) < np.where(crossed, 0.5, changes) / len(sizes)
    step = child + rng.choice((-1, 1), size=child.shape)
    jump = rng.integers(0, sizes, size=child.shape)
    moved = np.clip(np.where(rng.random(child.shape) < 0.7, step, jump), 0, sizes - 1)
    child = np.where(changed, moved, child)
    columns = {
        name: np.asarray(space.values[name], dtype=np.int64)[child[:, position]]
        for position, name in enumerate(space.names)
    }
    return np.unique(space.nearest(columns))


def _codes(space: SearchSpace, indices: Indices) -> NDArray[np.int64]:
    """Return the position of each value among its parameter's values: ndarray of shape (n_configs, n_parameters)."""
    columns = space.rows(indices)
    return np.column_stack([_positions(space.values[name], columns[name]) for name in space.names])


def _positions(values: tuple[int, ...], column: NDArray[np.int64]) -> NDArray[np.int64]:
    order = np.argsort(values)
    return order[np.searchsorted(values, column, sorter=order)]


def spread_out(points: Floats, count: int, *, chosen: int = 1) -> Indices:
    """Return positions of points that lie far from each other: greedy maximin.

    Parameters
    ----------
    points : ndarray of shape (n_points, n_features)
    count : int
    chosen : int
        How many of the first points are taken as they stand before distance decides.

    Returns
    -------
    ndarray of shape (at most count,)
        Positions in the order of choice.
    """
    count = min(count, len(points))
    taken = list(range(min(max(chosen, 1), count)))
    if count == 0:
        return np.empty(0, dtype=np.int64)
    spread = points.std(axis=0)
    points = points / np.where(spread > 0, spread, 1.0)
    distance = np.full(len(points), np.inf)
    for position in taken:
        distance = np.minimum(distance, np.square(points - points[position]).sum(axis=1))
    while len(taken) < count:
        distance[taken] = -1.0
        taken.append(int(np.argmax(distance)))
        distance = np.minimum(distance, np.square(points - points[taken[-1]]).sum(axis=1))
    return np.array(taken, dtype=np.int64)


class Pool(Protocol):
    """Where a proposer looks for candidates: knows the points and trends of a search space's configurations."""

    def describe(self, indices: Indices) -> tuple[Floats, Floats]:
        """Return points and trends of configurations; see :class:`mltune.learn.encoding.Encoding`."""
        ...

    def draw(self, best: Indices, taken: Collection[int], rng: np.random.Generator) -> Indices:
        """Return candidates: some near the best, some drawn from everywhere.

        Parameters
        ----------
        best : ndarray of shape (n_best,)
            The fastest configurations known, the fastest first.
        taken : collection of int
            Configurations that are no candidates.
        rng : numpy.random.Generator

        Returns
        -------
        ndarray of shape (n_candidates,)
            Distinct, sorted; empty when everything is taken.
        """
        ...


class ListedPool:
    """All configurations of a search space small enough to list. Satisfies :class:`Pool`.

    Near is what differs in one parameter or two.

    Parameters
    ----------
    space : SearchSpace
    encoding : Encoding
    drawn, near : int
        Most candidates from everywhere, and from near the best.
    elites : int
        How many of the best have their surroundings looked at.
    """

    def __init__(self, space: SearchSpace, encoding: Encoding, *, drawn: int, near: int, elites: int) -> None:
        everything = np.arange(space.count)
        columns = space.rows(everything)
        self._points, self._trends = encoding.describe(columns)
        self._codes = _codes(space, everything).astype(np.int16)
        self._limits = drawn, near
        self._surroundings = _Surroundings(self._around, elites)

    def describe(self, indices: Indices) -> tuple[Floats, Floats]:
        """Return points and trends; see :meth:`Pool.describe`."""
        return self._points[indices], self._trends[indices]

    def draw(self, best: Indices, taken: Collection[int], rng: np.random.Generator) -> Indices:
        """Draw candidates; see :meth:`Pool.draw`."""
        drawn, near = self._limits
        free = np.ones(len(self._points), dtype=bool)
        free[np.fromiter(taken, dtype=np.int64, count=len(taken))] = False
        close = self._surroundings.of(best)
        parts = [(np.flatnonzero(free), drawn), (close[free[close]], near)]
        return np.unique(np.concatenate([_some(part, count, rng) for part, count in parts]))

    def _around(self, index: int) -> Indices:
        return np.flatnonzero((self._codes != self._codes[index]).sum(axis=1) <= 2)


class OpenPool:
    """A search space too large to list. Satisfies :class:`Pool`.

    Near is what differs in one parameter, and what is bred from the best (:func:`breed`).

    Parameters
    ----------
    space : SearchSpace
    encoding : Encoding
    drawn, near : int
        Most candidates from everywhere, and from near the best.
    elites : int
        How many of the best have their neighbours looked at; four times as many are bred from.
    """

    def __init__(self, space: SearchSpace, encoding: Encoding, *, drawn: int, near: int, elites: int) -> None:
        self._space = space
        self._encoding = encoding
        self._limits = drawn, near, elites
        self._surroundings = _Surroundings(space.neighbours, elites)

    def describe(self, indices: Indices) -> tuple[Floats, Floats]:
        """Return points and trends; see :meth:`Pool.describe`."""
        return self._encoding.describe(self._space.rows(indices))

    def draw(self, best: Indices, taken: Collection[int], rng: np.random.Generator) -> Indices:
        """Draw candidates; see :meth:`Pool.draw`."""
        drawn, near, elites = self._limits
        parts = (
            self._space.sample(drawn, rng, taken),
            _some(self._surroundings.of(best), near // 2, rng),
            breed(self._space, best[: 4 * elites], near - near // 2, rng),
        )
        found = np.unique(np.concatenate(parts))
        return found[~np.isin(found, np.fromiter(taken, dtype=np.int64, count=len(taken)))]


class _Surroundings:
    """What is near the best configurations, looked up once for each."""

    def __init__(self, around: Callable[[int], Indices], elites: int) -> None:
        self._around = around
        self._elites = elites
        self._known: dict[int, Indices] = {}

    def of(self, best: Indices) -> Indices:
        elites = best[: self._elites].tolist()
        self._known |= {index: self._around(index) for index in elites if index not in self._known}
        return np.unique(np.concatenate([best[:0], *(self._known[index] for index in elites)]))


def _some(indices: Indices, count: int, rng: np.random.Generator) -> Indices:
    return indices if len(indices) <= count else rng.choice(indices, count, replace=False)
