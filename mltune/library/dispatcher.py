"""The dispatcher: from the sizes of a call to the configurations of a portfolio, the best first.

It is data that C and Python evaluate alike: times that each configuration is expected to take, by its waves of blocks,
also corrected by what measured sizes nearby took; a decision tree over logarithms and alignments of the sizes; or the
measured sizes, of which the nearest decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mltune.library.portfolio import shares

LEARNERS: Mapping[str, float] = {
    "waves": 0.0,
    "waves, within 2": 2.0,
    "waves, within 3": 3.0,
    "nearest": 0.0,
    "tree": 0.0,
}
"""What is compared, with the radius of the sizes that correct expected times: a distance of 1 is a factor of 2."""

MOST_ALIGNED = 4
"""A size counts as divisible by at most 2 to this power."""

PRIOR = 0.3
"""Weight of no correction beside the sizes nearby, each of which has at most 1."""

_OF_ALIGNMENT = 0.5
_SLOWEST = 1e-2
_UNKNOWN_S = 1e9
_MOST_DEPTH, _LEAST_LEAF = 12, 2


def inputs(sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return what a dispatcher is computed from: the log2 of every size, then the power of 2 that divides it.

    Parameters
    ----------
    sizes : ndarray of shape (n, n_extents)

    Returns
    -------
    ndarray of shape (n, 2 n_extents)

    Examples
    --------
    >>> inputs(np.array([[64, 12]])).round(2).tolist()
    [[6.0, 3.58, 4.0, 2.0]]
    """
    sizes = np.maximum(np.asarray(sizes, dtype=np.int64), 1)
    lowest = np.minimum(sizes & -sizes, 1 << MOST_ALIGNED)
    return np.hstack([np.log2(sizes), np.log2(lowest)])


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a tree: where ``weights`` times the inputs exceed the threshold it goes on at ``right``."""

    weights: tuple[float, ...]
    threshold: float
    left: int
    right: int


@dataclass(frozen=True, slots=True)
class Dispatcher:
    """A map from inputs to a row of ``orders``: configurations by their numbers, the one for the sizes first.

    With ``waves`` there are no rows: each configuration has coefficients of :func:`wave_terms`, whose sum is its
    expected time. With a ``radius`` a point within it has the logarithms of how much longer than their sums the
    configurations took there; their mean, weighted by nearness, corrects the sum. Without waves, the row is that of the
    nearest point. Otherwise it is found from node 0; a child that is negative is the row ``-1 - child``. A tree without
    nodes has one row.
    """

    learner: str
    orders: tuple[tuple[int, ...], ...]
    nodes: tuple[Node, ...] = ()
    points: tuple[tuple[float, ...], ...] = ()
    scale: tuple[float, ...] = ()
    waves: tuple[tuple[float, ...], ...] = ()
    longer: tuple[tuple[float, ...], ...] = ()
    radius: float = 0.0
    processors: int = 0

    def row(self, x: Sequence[float]) -> int:
        """Return the row of orders for the inputs of one call."""
        if self.points:
            return int(np.argmin(self._distances(x)))
        at = 0 if self.nodes else -1
        while at >= 0:
            node = self.nodes[at]
            at = node.right if sum(w * v for w, v in zip(node.weights, x, strict=True)) > node.threshold else node.left
        return -1 - at

    def _distances(self, x: Sequence[float]) -> NDArray[np.float64]:
        """Return the squared distances of all points."""
        return np.asarray(np.square((np.array(self.points) - x) * self.scale).sum(axis=1))

    def _corrections(self, sizes: Sequence[int]) -> NDArray[np.float64] | float:
        """Return logarithms of factors of the expected times of all configurations."""
        if not self.radius:
            return 0.0
        near = np.maximum(1 - self._distances(inputs(np.array([sizes]))[0].tolist()) / self.radius**2, 0.0) ** 2
        return np.asarray(near @ np.array(self.longer) / (near.sum() + PRIOR))

    def order(self, sizes: Sequence[int], blocks: Sequence[float] | NDArray[np.float64] = ()) -> tuple[int, ...]:
        """Return the numbers of the configurations for some sizes, the best first.

        With ``waves`` the blocks of each one's launch must be given; one that is not valid may have NaN, and is last.
        """
        if self.waves:
            terms = wave_terms(np.array(blocks, dtype=float), np.array([sizes]), self.processors)
            expected = (terms * np.array(self.waves)).sum(axis=1) * np.exp(self._corrections(sizes))
            return tuple(np.argsort(np.where(np.isfinite(expected), expected, np.inf), kind="stable").tolist())
        return self.orders[self.row(inputs(np.array([sizes]))[0].tolist())]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {
            "learner": self.learner,
            "orders": [list(order) for order in self.orders],
            "nodes": [[list(one.weights), one.threshold, one.left, one.right] for one in self.nodes],
            "points": [list(point) for point in self.points],
            "scale": list(self.scale),
            "waves": [list(one) for one in self.waves],
            "longer": [list(one) for one in self.longer],
            "radius": self.radius,
            "processors": self.processors,
        }


def wave_terms(blocks: NDArray[np.float64], sizes: NDArray[np.int64], processors: int) -> NDArray[np.float64]:
    """Return terms of the times of launches, of shape (n, 7 + 5 n_extents).

    Their blocks are of shape (n,), the sizes of shape (n, n_extents) or (1, n_extents). The work is the product of the
    sizes. A wave is as many blocks as the multiprocessors hold at once: 1, 2 or 4 each. The terms are a constant, the
    work, the number of waves, and the work of a block; for each size the product of the others and itself; and for the
    waves of each kind their work, and each size times their number.
    """
    extents = np.maximum(np.asarray(sizes, dtype=float), 1.0)
    work = np.asarray(sizes, dtype=float).prod(axis=1) + np.zeros_like(blocks)
    of_block = work / np.maximum(blocks, 1.0)
    terms = [np.ones_like(blocks), work, np.ceil(blocks / processors), of_block]
    for extent in extents.T:
        terms += [work / extent, extent + np.zeros_like(blocks)]
    for held in (1, 2, 4):
        waves = np.ceil(blocks / (processors * held)) * held
        terms += [waves * of_block, *(waves * extent for extent in extents.T)]
    return np.stack(terms, axis=-1)


def _fitted(times_s: NDArray[np.float64], terms: NDArray[np.float64]) -> tuple[float, ...]:
    """Return coefficients, none below 0, with the least squares of relative errors."""
    from scipy.optimize import nnls

    known = np.isfinite(times_s)
    if not known.any():
        return (_UNKNOWN_S, *[0.0] * (terms.shape[1] - 1))
    relative = terms[known] / times_s[known, None]
    scale = np.maximum(relative.max(axis=0), 1e-300)
    return tuple((nnls(relative / scale, np.ones(len(relative)))[0] / scale).tolist())


def learn(
    learner: str,
    sizes: NDArray[np.int64],
    times_s: NDArray[np.float64],
    weights: NDArray[np.float64],
    blocks: NDArray[np.float64],
    processors: int,
) -> Dispatcher:
    """Learn a dispatcher.

    Parameters
    ----------
    learner : str
        One of :data:`LEARNERS`.
    sizes : ndarray of shape (n_sizes, n_extents)
    times_s : ndarray of shape (n_sizes, n_configurations)
        Of the configurations of the portfolio; not finite where one is not valid.
    weights : ndarray of shape (n_sizes,)
    blocks : ndarray of shape (n_sizes, n_configurations)
        Of their launches.
    processors : int
        Multiprocessors of the GPU.

    Returns
    -------
    Dispatcher
        A tree is one of regression, whose leaves predict the logarithm of all shares at once: an error counts by what
        it costs, and a leaf has an order of all configurations, for sizes at which its first one is not valid.
    """
    logs, x = np.log(np.maximum(shares(times_s), _SLOWEST)), inputs(sizes)
    scale = tuple(np.repeat([1.0, _OF_ALIGNMENT], sizes.shape[1]).tolist())
    if learner.startswith("waves"):
        terms = [wave_terms(one, sizes, processors) for one in blocks.T]
        waves = tuple(_fitted(times_s[:, one], of_one) for one, of_one in enumerate(terms))
        found = Dispatcher(learner, (tuple(range(len(waves))),), waves=waves, processors=processors)
        if not (radius := LEARNERS[learner]):
            return found
        sums = np.stack([of_one @ np.array(wave) for of_one, wave in zip(terms, waves, strict=True)], axis=1)
        longer = np.log(np.where(np.isfinite(times_s) & (sums > 0), times_s, 1.0) / np.where(sums > 0, sums, 1.0))
        longer = np.where(np.isfinite(times_s) & (sums > 0), longer, 0.0).astype(np.float32)
        return replace(found, points=_tuples(x), scale=scale, longer=_tuples(longer), radius=radius)
    if learner == "nearest":
        return Dispatcher(learner, _orders(logs), points=_tuples(x), scale=scale)
    from sklearn.tree import DecisionTreeRegressor

    combined = _combinations(sizes.shape[1])
    model = DecisionTreeRegressor(min_samples_leaf=_LEAST_LEAF, max_depth=_MOST_DEPTH, random_state=0)
    tree = model.fit(x @ combined.T, logs, sample_weight=weights / weights.mean()).tree_
    leaves = np.flatnonzero(tree.children_left < 0)
    inner = np.flatnonzero(tree.children_left >= 0)
    place = {int(node): -1 - number for number, node in enumerate(leaves)}
    place |= {int(node): number for number, node in enumerate(inner)}
    nodes = tuple(
        Node(
            tuple(combined[tree.feature[one]].tolist()),
            float(tree.threshold[one]),
            place[int(tree.children_left[one])],
            place[int(tree.children_right[one])],
        )
        for one in inner
    )
    return Dispatcher(learner, _orders(tree.value[leaves, :, 0]), nodes)


def _combinations(extents: int) -> NDArray[np.float64]:
    """Return weights of the inputs: each, the products and ratios of two sizes, and the product of all."""
    one = np.eye(2 * extents)
    rows = [*one, *(one[a] + sign * one[b] for a, b in combinations(range(extents), 2) for sign in (1, -1))]
    return np.array([*rows, *([one[:extents].sum(axis=0)] if extents > 2 else [])])


def _orders(logs: NDArray[np.float64]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(np.argsort(-row, kind="stable").tolist()) for row in logs)


def _tuples(rows: NDArray[np.float64]) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, rows.tolist()))
