"""Where proposals are looked for: variants of the best configurations, and spread-out subsets of many."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mltune.kernel.space import SearchSpace

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


def neighbours_of(space: SearchSpace, parents: Indices) -> Indices:
    """Return the valid configurations that differ from any of the parents in one parameter, each once, sorted."""
    if len(parents) == 0:
        return np.empty(0, dtype=np.int64)
    return np.unique(np.concatenate([space.neighbours(int(parent)) for parent in parents]))


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
