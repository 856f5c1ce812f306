"""Proposers: a Gaussian process, random draws, and the candidates that they choose from."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mltune.cost.encoding import Encoding
from mltune.cost.regressors import Compression
from mltune.kernel.coding import Columns, Floats, Indices, ValueList
from mltune.kernel.space import SearchSpace
from mltune.records.distinct import DistinctCount
from mltune.records.trial import Skip
from mltune.search.beliefs import Beliefs
from mltune.search.history import History, fastest_and_some, milestone
from mltune.search.stopping import GAIN

CROSSOVER, CHANGES = 0.5, 2.5
"""Share of variants with two parents, and the mean number of parameters that the others change."""


def offspring(space: SearchSpace, parents: Indices, count: int, rng: np.random.Generator) -> Indices:
    """Return at most ``count`` valid, distinct, sorted variants of configurations by crossover and mutation.

    Where restrictions couple parameters, they reach what no change of one parameter reaches. ``parents`` are the best
    first and drawn by rank; a share ``CROSSOVER`` takes about half of its parameters from a second parent, the others
    change ``CHANGES`` parameters in the mean, mostly to the next value.
    """
    if len(parents) == 0 or count < 1:
        return np.empty(0, dtype=np.int64)
    weights = 1.0 / np.arange(1, len(parents) + 1)
    first, second = rng.choice(len(parents), size=(2, count), p=weights / weights.sum())
    codes = _codes(space, parents)
    child = codes[first]
    sizes = np.array([len(space.values[name]) for name in space.names])
    crossed = (rng.random(count) < CROSSOVER)[:, None]
    child = np.where(crossed & (rng.random(child.shape) < 0.5), codes[second], child)
    mutated = rng.random(child.shape) < np.where(crossed, 0.5, CHANGES) / len(sizes)
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
    """Return positions of points far from each other and from ``fixed`` first ones: maximin (Gonzalez, 1985)."""
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


class EnumeratedPool:
    """Candidates from a space small enough to enumerate, with the points and basis of their encoding.

    Most are ``drawn`` from the whole space, and ``near`` so many best ``incumbents``: one or two parameters differ.
    """

    def __init__(self, space: SearchSpace, encoding: Encoding, *, drawn: int, near: int, incumbents: int) -> None:
        everything = np.arange(space.count)
        self._points, self._basis = encoding.describe(space.rows(everything))
        self._codes = _codes(space, everything).astype(np.int16)
        self._limits = drawn, near, incumbents
        self._around = cache(self._differing_in_two)

    def describe(self, indices: Indices) -> tuple[Floats, Floats]:
        """Return points and basis functions of configurations; see :meth:`mltune.cost.encoding.Encoding.describe`."""
        return self._points[indices], self._basis[indices]

    def draw(self, best: Indices, taken: Collection[int], rng: np.random.Generator) -> Indices:
        """Return untaken, distinct, sorted candidates: some near the ``best``, fastest first, some from everywhere."""
        drawn, near, incumbents = self._limits
        free = np.ones(len(self._points), dtype=bool)
        free[np.fromiter(taken, dtype=np.int64, count=len(taken))] = False
        close = _near(self._around, best[:incumbents])
        parts = [(np.flatnonzero(free), drawn), (close[free[close]], near)]
        return np.unique(np.concatenate([_some(part, count, rng) for part, count in parts]))

    def vary(self, candidates: Indices, taken: Collection[int], rng: np.random.Generator) -> Indices:
        """Return no variants: the draw contains all configurations near the incumbents."""
        return candidates[:0]

    def _differing_in_two(self, index: int) -> Indices:
        return np.flatnonzero((self._codes != self._codes[index]).sum(axis=1) <= 2)


class SampledPool:
    """Candidates from a space too large to enumerate, also neighbours and :func:`offspring` of the incumbents."""

    def __init__(self, space: SearchSpace, encoding: Encoding, *, drawn: int, near: int, incumbents: int) -> None:
        self._space = space
        self._encoding = encoding
        self._limits = drawn, near, incumbents
        self._neighbours = cache(space.neighbours)

    def describe(self, indices: Indices) -> tuple[Floats, Floats]:
        """Return points and basis functions; see :meth:`EnumeratedPool.describe`."""
        return self._encoding.describe(self._space.rows(indices))

    def draw(self, best: Indices, taken: Collection[int], rng: np.random.Generator) -> Indices:
        """Draw candidates; see :meth:`EnumeratedPool.draw`."""
        drawn, near, incumbents = self._limits
        parts = (
            self._space.sample(drawn, rng, taken),
            _some(_near(self._neighbours, best[:incumbents]), near // 2, rng),
            offspring(self._space, best[: 4 * incumbents], near - near // 2, rng),
        )
        return _free(np.unique(np.concatenate(parts)), taken)

    def vary(self, candidates: Indices, taken: Collection[int], rng: np.random.Generator) -> Indices:
        """Return the :func:`offspring` of candidates (most promising first) that are not taken."""
        return _free(offspring(self._space, candidates, self._limits[1], rng), taken)


Pool: TypeAlias = EnumeratedPool | SampledPool


def _near(around: Callable[[int], Indices], incumbents: Indices) -> Indices:
    return np.unique(np.concatenate([incumbents[:0], *map(around, incumbents.tolist())]))


def _free(indices: Indices, taken: Collection[int]) -> Indices:
    return indices[~np.isin(indices, np.fromiter(taken, dtype=np.int64, count=len(taken)))]


def _some(indices: Indices, count: int, rng: np.random.Generator) -> Indices:
    return indices if len(indices) <= count else rng.choice(indices, count, replace=False)


MOST_ROWS = 224
"""Most measured configurations that the Gaussian process is fitted to: half the fastest, half drawn from the others."""

MOST_SKIPPED = 112
"""Most skipped configurations, the latest, that are added to the measured ones."""

PROMISING = 16
"""Candidates for each proposal of a batch that remain after the first proposal has been chosen."""

REFINEMENTS = 2
"""Times that variants of the most promising candidates become candidates, in a space too large to enumerate."""

PARENTS = 32
"""Most promising candidates that are varied."""

ROUNDS = 20
"""Rounds of drawing after which a filter is assumed to pass no further configuration."""


@dataclass(frozen=True, slots=True)
class ProposalContext:
    """The knowledge from which a batch is planned; ``fixed`` sets the compiler parameters that are proposed now."""

    history: History
    taken: set[int]
    rng: np.random.Generator
    fixed: Callable[[Indices], Indices] | None = None

    def free(self, indices: Indices) -> Indices:
        """Return configurations that are not taken, with the compiler parameters that are proposed now."""
        return indices if self.fixed is None else _free(self.fixed(indices), self.taken)


@dataclass(frozen=True, slots=True)
class Proposals:
    """Distinct configurations that a proposer chooses, the best first, their log shares, and audited skips."""

    indices: Indices
    predicted: Floats | None = None
    audited: Sequence[Skip | None] | None = None


class Proposer(Protocol):
    """Choose configurations, given the measurements so far. The same context gives the same choice.

    Attributes
    ----------
    name : str
        Name under which its proposals are recorded (:attr:`mltune.search.planning.Proposal.proposed_by`).
    """

    name: str

    def propose(self, context: ProposalContext, count: int) -> Proposals:
        """Choose up to ``count`` configurations. The caller drops those that are already taken."""


class GaussianProposer:
    """Propose by expected improvement under a Gaussian process with a mean function.

    The mean function predicts configurations far from all measurements: from the physical prior, if there is one, and
    from the distance to the middle of the space (:class:`mltune.cost.encoding.Encoding`). Measurements determine its
    weights, and the process models the residuals. Speeds below the median are compressed, because differences among
    slow configurations carry no information about the fast ones.

    A batch is chosen greedily: each proposal assumes that the earlier ones, and the running ones, turn out as predicted
    (kriging believer: Ginsbourger, Le Riche and Carraro, 2010). Hyperparameters are fitted to the earliest measurements
    on a fixed schedule from the same starting point, so that a resumed run has the same ones. ``hopes`` is how many of
    the last candidates the likeliest belief expects to be faster than the best by
    :data:`mltune.search.stopping.GAIN`.
    """

    name = "model"

    def __init__(self, encoding: Encoding, pool: Pool, *, seed: int, scored: DistinctCount | None = None) -> None:
        self.pool = pool
        self.scored = DistinctCount() if scored is None else scored
        self.seed = seed
        self._target = Compression()
        self._beliefs = Beliefs(encoding)
        self.hopes = math.inf

    def propose(self, context: ProposalContext, count: int) -> Proposals:
        """Choose by expected improvement; see :meth:`Proposer.propose`."""
        history, rng, self.hopes = context.history, context.rng, math.inf
        candidates = context.free(self.pool.draw(history.best(len(history.indices)), context.taken, rng))
        if len(candidates) == 0 or count < 1:
            return Proposals(candidates[:0])
        target = self._target.fit(len(history.scores), history.scores)
        best = float(target.max())
        rows = fastest_and_some(target, MOST_ROWS, MOST_ROWS // 2, rng)
        # Recently skipped configurations enter with the prediction of the gate, which used more features.
        skipped = history.skipped[-MOST_SKIPPED:]
        target = np.concatenate([target[rows], self._target.compress(history.predicted[-MOST_SKIPPED:])])
        measured = np.concatenate([history.indices[rows], skipped])
        points, basis = self.pool.describe(np.concatenate([measured, history.running]))
        self._learn(history)
        self._beliefs.condition(points, basis, target, len(rows))
        for refinement in reversed(range(1 + REFINEMENTS)):
            self.scored.add(candidates)
            outlook = self._beliefs.outlook(*self.pool.describe(candidates), best)
            self.hopes = outlook.hopes(math.log1p(GAIN))
            promising = np.argsort(-outlook.gain(), kind="stable")[: PROMISING * count]  # gains only fall from here on
            if not refinement:
                break
            variants = context.free(self.pool.vary(candidates[promising[:PARENTS]], context.taken, rng))
            if not len(variants):
                break
            candidates = np.union1d(candidates[promising], variants)
        promising = np.sort(promising)
        candidates, outlook = candidates[promising], outlook.among(promising)
        predicted = self._target.expand(outlook.mean())
        chosen: list[int] = []
        for _ in range(min(count, len(candidates))):
            gain = outlook.gain()
            gain[chosen] = -np.inf
            chosen.append(int(np.argmax(gain)))
            outlook.expect(chosen[-1])
        return Proposals(candidates[chosen], predicted[chosen])

    def _learn(self, history: History) -> None:
        """Fit the hyperparameters to the earliest measurements."""
        first = milestone(len(history.indices))
        indices, scores = history.indices[:first], history.scores[:first]
        if not np.isfinite(scores).any():
            return self._beliefs.forget()
        target = Compression().fit(first, scores)
        rows = fastest_and_some(target, MOST_ROWS, MOST_ROWS // 2, np.random.default_rng((self.seed, first)))
        self._beliefs.learn(*self.pool.describe(indices[rows]), target[rows], key=indices.tobytes() + scores.tobytes())


@dataclass(eq=False)
class RandomProposer:
    """Random search: uniform over the valid configurations that pass the filter ``keeps``."""

    name = "random"
    space: SearchSpace
    keeps: Callable[[Columns], NDArray[np.bool_]] | None = None

    def propose(self, context: ProposalContext, count: int) -> Proposals:
        """Draw at random, fewer if :data:`ROUNDS` rounds do not yield enough; see :meth:`Proposer.propose`."""
        if self.keeps is None:
            return Proposals(self.space.sample(count, context.rng, context.taken))
        indices = np.empty(0, dtype=np.int64)
        for _ in range(ROUNDS):
            drawn = self.space.sample(64 * count, context.rng, context.taken)
            indices = np.concatenate([indices, drawn[self.keeps(self.space.rows(drawn))]])
            if len(indices) >= count:
                break
        return Proposals(indices)
