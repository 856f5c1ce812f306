"""Candidates for proposals: configurations from the whole space and from the neighbourhood of the best ones."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mltune.cost.encoding import Encoding
from mltune.kernel.coding import ValueList
from mltune.kernel.columns import Floats, Indices
from mltune.kernel.space import SearchSpace


def offspring(
    space: SearchSpace,
    parents: Indices,
    count: int,
    rng: np.random.Generator,
    *,
    crossover: float = 0.5,
    changes: float = 2.5,
) -> Indices:
    """Return at most ``count`` variants of configurations by crossover and mutation, made valid, distinct and sorted.

    Where restrictions couple parameters, they reach configurations that no change of one parameter reaches.

    Parameters
    ----------
    parents : ndarray of shape (n_parents,)
        Indices of configurations, the best first: earlier ones are drawn more often.
    crossover : float
        Share of variants that take about half of their parameters from a second parent.
    changes : float
        Mean number of mutated parameters in the other variants: mostly a step to the next value, sometimes any value.
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
    mutated = rng.random(child.shape) < np.where(crossed, 0.5, changes) / len(sizes)
    step = child + rng.choice((-1, 1), size=child.shape)
    jump = rng.integers(0, sizes, size=child.shape)
    moved = np.clip(np.where(rng.random(child.shape) < 0.7, step, jump), 0, sizes - 1)
    child = np.where(mutated, moved, child)
    values = [np.asarray(space.values[name], dtype=np.int64) for name in space.names]
    columns = {name: values[at][child[:, at]] for at, name in enumerate(space.names)}
    return np.unique(space.nearest(columns))


def _codes(space: SearchSpace, indices: Indices) -> NDArray[np.int64]:
    """Return the position of each value among its parameter's values: ndarray of shape (n_configs, n_parameters)."""
    columns = space.rows(indices)
    return np.column_stack([ValueList(space.values[name]).encode(columns[name]) for name in space.names])


def maximin_subset(points: Floats, count: int, *, fixed: int = 1) -> Indices:
    """Choose points that are far from each other: a greedy maximin design (Gonzalez, 1985).

    Parameters
    ----------
    points : ndarray of shape (n_points, n_features)
    fixed : int
        Number of points, the first ones, that are always chosen.

    Returns
    -------
    ndarray of shape (min(count, n_points),)
        Positions in the order of choice.
    """
    count = min(count, len(points))
    chosen = list(range(min(max(fixed, 1), count)))
    if count == 0:
        return np.empty(0, dtype=np.int64)
    deviation = points.std(axis=0)
    points = points / np.where(deviation > 0, deviation, 1.0)
    distance = np.full(len(points), np.inf)
    for position in chosen:
        distance = np.minimum(distance, np.square(points - points[position]).sum(axis=1))
    while len(chosen) < count:
        distance[chosen] = -1.0
        chosen.append(int(np.argmax(distance)))
        distance = np.minimum(distance, np.square(points - points[chosen[-1]]).sum(axis=1))
    return np.array(chosen, dtype=np.int64)


class Pool(Protocol):
    """Candidates for a proposer, with the points and basis functions of their encoding.

    Pools are made with three limits: the most candidates ``drawn`` from the whole space and from ``near`` the
    incumbents, and the number of ``incumbents``, the best configurations.
    """

    def describe(self, indices: Indices) -> tuple[Floats, Floats]:
        """Return points and basis functions of configurations; see :meth:`mltune.cost.encoding.Encoding.describe`."""
        ...

    def draw(self, best: Indices, taken: Collection[int], rng: np.random.Generator) -> Indices:
        """Return candidates that are not taken, distinct and sorted: some near the best, some from the whole space.

        Parameters
        ----------
        best : ndarray of shape (n_best,)
            The fastest configurations known, the fastest first.
        """
        ...

    def vary(self, candidates: Indices, taken: Collection[int], rng: np.random.Generator) -> Indices:
        """Return variants of candidates that are not taken, distinct and sorted; none where the space is small.

        Parameters
        ----------
        candidates : ndarray of shape (n_candidates,)
            The most promising first.
        """
        ...


class EnumeratedPool:
    """All configurations of a search space that is small enough to enumerate. Satisfies :class:`Pool`.

    A configuration is near another if they differ in one or two parameters.
    """

    def __init__(self, space: SearchSpace, encoding: Encoding, *, drawn: int, near: int, incumbents: int) -> None:
        everything = np.arange(space.count)
        self._points, self._basis = encoding.describe(space.rows(everything))
        self._codes = _codes(space, everything).astype(np.int16)
        self._limits = drawn, near, incumbents
        self._around = cache(self._differing_in_two)

    def describe(self, indices: Indices) -> tuple[Floats, Floats]:
        """Return points and basis functions; see :meth:`Pool.describe`."""
        return self._points[indices], self._basis[indices]

    def draw(self, best: Indices, taken: Collection[int], rng: np.random.Generator) -> Indices:
        """Draw candidates; see :meth:`Pool.draw`."""
        drawn, near, incumbents = self._limits
        free = np.ones(len(self._points), dtype=bool)
        free[np.fromiter(taken, dtype=np.int64, count=len(taken))] = False
        close = _near(self._around, best[:incumbents])
        parts = [(np.flatnonzero(free), drawn), (close[free[close]], near)]
        return np.unique(np.concatenate([_some(part, count, rng) for part, count in parts]))

    def vary(self, candidates: Indices, taken: Collection[int], rng: np.random.Generator) -> Indices:
        """Return none; see :meth:`Pool.vary`."""
        return candidates[:0]

    def _differing_in_two(self, index: int) -> Indices:
        return np.flatnonzero((self._codes != self._codes[index]).sum(axis=1) <= 2)


class SampledPool:
    """Samples of a search space that is too large to enumerate. Satisfies :class:`Pool`.

    Near an incumbent are its neighbours in the space and its :func:`offspring`; the best configurations, four times as
    many as there are incumbents, are parents.
    """

    def __init__(self, space: SearchSpace, encoding: Encoding, *, drawn: int, near: int, incumbents: int) -> None:
        self._space = space
        self._encoding = encoding
        self._limits = drawn, near, incumbents
        self._neighbours = cache(space.neighbours)

    def describe(self, indices: Indices) -> tuple[Floats, Floats]:
        """Return points and basis functions; see :meth:`Pool.describe`."""
        return self._encoding.describe(self._space.rows(indices))

    def draw(self, best: Indices, taken: Collection[int], rng: np.random.Generator) -> Indices:
        """Draw candidates; see :meth:`Pool.draw`."""
        drawn, near, incumbents = self._limits
        parts = (
            self._space.sample(drawn, rng, taken),
            _some(_near(self._neighbours, best[:incumbents]), near // 2, rng),
            offspring(self._space, best[: 4 * incumbents], near - near // 2, rng),
        )
        return _free(np.unique(np.concatenate(parts)), taken)

    def vary(self, candidates: Indices, taken: Collection[int], rng: np.random.Generator) -> Indices:
        """Return :func:`offspring`; see :meth:`Pool.vary`."""
        return _free(offspring(self._space, candidates, self._limits[1], rng), taken)


def _near(around: Callable[[int], Indices], incumbents: Indices) -> Indices:
    return np.unique(np.concatenate([incumbents[:0], *map(around, incumbents.tolist())]))


def _free(indices: Indices, taken: Collection[int]) -> Indices:
    return indices[~np.isin(indices, np.fromiter(taken, dtype=np.int64, count=len(taken)))]


def _some(indices: Indices, count: int, rng: np.random.Generator) -> Indices:
    return indices if len(indices) <= count else rng.choice(indices, count, replace=False)
