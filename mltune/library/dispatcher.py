"""The dispatcher: from the sizes of a call to the configurations of a portfolio, the best first.

It is data that C and Python evaluate alike: times that each configuration is expected to take, by the waves of its
tiles, corrected by small trees over logarithms and alignments of the sizes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mltune.library.portfolio import shares

MOST_ALIGNED = 4
"""A size counts as divisible by at most 2 to this power."""

_UNKNOWN_S = 1e9
_TREES, _RATE, _DEPTH, _LEAST_LEAF = 40, 0.15, 5, 3
_MATTERS, _LEAST_WEIGHT = 0.3, 0.05  # a configuration that takes exp(_MATTERS) times the best matters 1 / e as much
_PRIOR = 0.5  # further ones at a leaf, with no error


def inputs(sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return what trees decide by, (n, n_inputs), for sizes (n, n_extents).

    The log2 of every size, the power of 2 that divides it, and sums of these and differences (the logarithms of
    products and ratios): of two sizes both, of more than two the sum of all.
    """
    sizes = np.maximum(np.asarray(sizes, dtype=np.int64), 1)
    lowest = np.minimum(sizes & -sizes, 1 << MOST_ALIGNED)
    logs = np.vectorize(math.log2, otypes=[float])(sizes)  # as C has them: those of NumPy differ in the last bit
    pairs = [logs[:, a] + sign * logs[:, b] for a, b in combinations(range(logs.shape[1]), 2) for sign in (1, -1)]
    return np.column_stack([logs, np.log2(lowest), *pairs, *([logs.sum(axis=1)] if logs.shape[1] > 2 else [])])


class Node(NamedTuple):
    """A node of a tree: it goes on ``above`` where the input exceeds the threshold; a child less than 0 is a leaf."""

    place: int
    threshold: float
    below: int
    above: int


@dataclass(frozen=True, slots=True)
class Dispatcher:
    """A map from sizes to the configurations, by their numbers, the one for the sizes first.

    Each configuration has in `waves` coefficients of :func:`wave_terms`, whose sum is its expected time. A tree begins
    at its root, a node or a leaf; the leaf ``-1 - child`` is a row of `longer`: factors of the times, for each
    configuration one. Rows of `exact`, in ascending order, are sizes and the number of the configuration that was the
    fastest there.
    """

    waves: Sequence[Sequence[float]]
    processors: int
    nodes: Sequence[Node] = ()
    roots: Sequence[int] = ()
    longer: Sequence[Sequence[float]] = ()
    exact: Sequence[Sequence[int]] = ()

    def leaves(self, sizes: Sequence[int]) -> list[int]:
        """Return the leaf of each tree for the sizes of a call."""
        x, leaves = inputs(np.array([sizes]))[0].tolist(), []
        for at in self.roots:
            while at >= 0:
                node = self.nodes[at]
                at = node.above if x[node.place] > node.threshold else node.below
            leaves.append(-1 - at)
        return leaves

    def order(self, sizes: Sequence[int], tiles: ArrayLike) -> tuple[int, ...]:
        """Return the numbers of the configurations for some sizes, the best first, by the tiles of each one's launch.

        These are of shape (n_configurations, 2), as in :func:`wave_terms`. One that is not valid may have NaN, and is
        last.
        """
        leaves = self.leaves(sizes)
        terms = wave_terms(np.array(tiles, dtype=float), np.array([sizes]), self.processors)
        longer = np.array([self.longer[leaf] for leaf in leaves], dtype=np.float32).prod(axis=0) if leaves else 1.0
        expected = np.add.accumulate(terms * np.array(self.waves), axis=1)[:, -1] * longer  # rounded as in C
        expected = np.where(np.isfinite(expected), expected, np.inf)
        place = bisect_left(self.exact, [*sizes], key=lambda row: [*row[:-1]])
        if place < len(self.exact) and [*self.exact[place][:-1]] == [*sizes]:
            expected[self.exact[place][-1]] = -np.inf
        return tuple(np.argsort(expected, kind="stable").tolist())

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {
            "nodes": [list(node) for node in self.nodes],
            "roots": list(self.roots),
            "waves": [list(terms) for terms in self.waves],
            "longer": [list(terms) for terms in self.longer],
            "processors": self.processors,
            "exact": [list(row) for row in self.exact],
        }


def wave_terms(tiles: NDArray[np.float64], sizes: NDArray[np.int64], processors: int) -> NDArray[np.float64]:
    """Return terms of the times of launches, of shape (n, 7 + 5 n_extents).

    Their tiles are of shape (n, 2): how many, and the work of each, 0 where it is not known; then that of all is the
    product of the sizes. Sizes are of shape (n, n_extents) or (1, n_extents). A wave is as many tiles as the
    multiprocessors hold at once: 1, 2 or 4 each. The terms are a constant, the work, the number of waves, and the work
    of a tile; for each size the product of the others and itself; and for the waves of each kind their work, and each
    size times their number.
    """
    tiles, of_tile = np.moveaxis(tiles, -1, 0)
    extents, product = np.maximum(np.asarray(sizes, dtype=float), 1.0), np.asarray(sizes, dtype=float).prod(axis=1)
    of_tile = np.where(of_tile > 0, of_tile, product / np.maximum(tiles, 1.0))
    zero = np.zeros_like(tiles)
    terms = [zero + 1.0, np.maximum(tiles, 1.0) * of_tile, np.ceil(tiles / processors), of_tile]
    for extent in extents.T:
        terms += [product / extent + zero, extent + zero]
    for held in (1, 2, 4):
        waves = np.ceil(tiles / (processors * held)) * held
        terms += [waves * of_tile, *(waves * extent for extent in extents.T)]
    return np.stack(terms, axis=-1)


def _fitted(times_s: NDArray[np.float64], terms: NDArray[np.float64]) -> tuple[float, ...]:
    """Return coefficients, none below 0, with the least squares of relative errors."""
    from scipy.optimize import nnls

    finite = np.isfinite(times_s)
    if not finite.any():
        return (_UNKNOWN_S, *[0.0] * (terms.shape[1] - 1))
    relative = terms[finite] / times_s[finite, None]
    scale = np.maximum(relative.max(axis=0), 1e-300)
    return tuple((nnls(relative / scale, np.ones(len(relative)))[0] / scale).tolist())


def expected(
    observed: tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]],
    sizes: NDArray[np.int64],
    tiles: NDArray[np.float64],
    processors: int,
) -> NDArray[np.float64]:
    """Return times that configurations are expected to take at sizes, by the waves of observed sizes, times and tiles.

    They are NaN where a configuration is not valid, and of one without a time.
    """
    at, times_s, of_known = observed
    expected_s = np.full(tiles.shape[:2], np.nan)
    for number in np.flatnonzero(np.isfinite(times_s).any(axis=0)):
        wave = _fitted(times_s[:, number], wave_terms(of_known[:, number], at, processors))
        expected_s[:, number] = wave_terms(tiles[:, number], sizes, processors) @ np.array(wave)
    return np.where(expected_s > 0, expected_s, np.nan)


def learn(
    sizes: NDArray[np.int64],
    times_s: NDArray[np.float64],
    weights: NDArray[np.float64],
    tiles: NDArray[np.float64],
    processors: int,
) -> Dispatcher:
    """Learn a dispatcher from times (n_sizes, n_configurations) of the portfolio, not finite where one is not valid.

    Sizes are (n_sizes, n_extents), their weights (n_sizes,) and tiles (n_sizes, n_configurations, 2) as in
    :func:`wave_terms`, NaN where one is not valid; `processors` are the multiprocessors of the GPU.
    """
    terms = [wave_terms(of_configuration, sizes, processors) for of_configuration in np.moveaxis(tiles, 1, 0)]
    waves = tuple(_fitted(times_s[:, number], of_one) for number, of_one in enumerate(terms))
    sums = np.stack([of_one @ np.array(wave) for of_one, wave in zip(terms, waves, strict=True)], axis=1)
    usable = np.isfinite(times_s) & (sums > 0)
    longer = np.log(np.where(usable, times_s, 1.0) / np.where(usable, sums, 1.0))
    matters = np.maximum(shares(times_s) ** (1 / _MATTERS), _LEAST_WEIGHT) * usable
    return _corrected(Dispatcher(waves, processors), inputs(sizes), longer, matters, weights / weights.mean())


def _corrected(
    dispatcher: Dispatcher,
    x: NDArray[np.float64],
    longer: NDArray[np.float64],
    matters: NDArray[np.float64],
    weights: NDArray[np.float64],
) -> Dispatcher:
    """Return the dispatcher with boosted trees of all configurations at once (Friedman, 2001) for its errors.

    A slow configuration matters little: how slow it is decides nothing.
    """
    nodes: list[Node] = []
    roots: list[int] = []
    rows: list[tuple[float, ...]] = []
    explained, single = np.zeros(longer.shape), np.ascontiguousarray(x, dtype=np.float32)  # as trees compare
    for _ in range(_TREES):
        remainder = matters * (longer - explained)
        added, root, at = _tree(single, remainder, weights, len(nodes), len(rows))
        in_leaf = weights * (np.arange(at.max() + 1)[:, None] == at)
        values = _RATE * (in_leaf @ remainder) / (in_leaf @ matters + _PRIOR)
        factors = np.exp(values).astype(np.float32).tolist()
        nodes, roots, rows = nodes + added, [*roots, root], rows + [tuple(row) for row in factors]
        explained += values[at]
    return replace(dispatcher, nodes=tuple(nodes), roots=tuple(roots), longer=tuple(rows))


def _tree(
    x: NDArray[np.float32], y: NDArray[np.float64], weights: NDArray[np.float64], nodes: int, leaves: int
) -> tuple[list[Node], int, NDArray[np.intp]]:
    """Fit a tree; return its nodes and root, numbered after those before, and each row's leaf."""
    from sklearn.tree import DecisionTreeRegressor

    model = DecisionTreeRegressor(min_samples_leaf=_LEAST_LEAF, max_depth=_DEPTH, random_state=0)
    model.fit(x, y, sample_weight=weights, check_input=False)
    tree = model.tree_
    children = np.stack([tree.children_left, tree.children_right], axis=1)
    ends, inner = np.flatnonzero(children[:, 0] < 0), np.flatnonzero(children[:, 0] >= 0)
    place = {int(node): -1 - leaves - number for number, node in enumerate(ends)}
    place |= {int(node): nodes + number for number, node in enumerate(inner)}
    added = [
        Node(int(tree.feature[node]), float(tree.threshold[node]), *(place[child] for child in children[node].tolist()))
        for node in inner
    ]
    return added, place[0], np.searchsorted(ends, tree.apply(x))
