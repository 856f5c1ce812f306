"""The core of the search: batches of valid, distinct configurations, planned from indices and scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property, partial
from itertools import repeat

import numpy as np

from mltune.cost.encoding import Encoding, Source, first_choice, portfolio
from mltune.kernel.coding import Indices, crossed
from mltune.kernel.space import SearchSpace
from mltune.records.distinct import DistinctCount
from mltune.records.trial import Skip
from mltune.search.gates import Gates
from mltune.search.history import History
from mltune.search.proposers import (
    EnumeratedPool,
    GaussianProposer,
    ProposalContext,
    Proposals,
    Proposer,
    SampledPool,
    maximin_subset,
    offspring,
)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A configuration to try next; ``audited`` is why a gate would have skipped it, were it not for the audit.

    ``proposed_by`` is ``"default"``, ``"wisdom"`` for one known to be fast, ``"start"`` for the initial design,
    ``"variant"`` for one of the best with other compiler parameters, or the proposer's name.
    """

    index: int
    proposed_by: str
    predicted: float | None = None
    audited: Skip | None = None


@dataclass(frozen=True, slots=True)
class PlannerOptions:
    """Options of the search; docs/explanation/search.md describes how the defaults were found."""

    offers: int = 3
    """Proposals for each one that is compiled, once a regressor can choose among them."""
    random: float = 0.03
    """Share of random proposals, throughout the run: a wrong model would otherwise confirm itself."""
    start_trials: int = 8
    """Measured configurations of the initial design before the proposer takes over."""
    start_informed: int = 5
    """First ones that the sources choose; then they choose every second one, as they may mislead."""
    start_pool: int = 4000
    """Random configurations that the initial design is chosen from."""
    start_head: float = 0.05
    """Share of the pool, the most promising, over which the initial design is spread."""
    start_rounds: int = 2
    """Times that variants of the most promising configurations are added to the pool."""
    start_parents: int = 64
    """Configurations of the pool that are varied each time."""
    variant_parents: int = 4
    """Best configurations that are tried with other compiler parameters."""
    variants: int = 4
    """Most such trials in a batch, of which they are at most a quarter."""
    listed: int = 50_000
    """Largest space whose configurations are listed."""
    drawn: int = 800
    """Most candidates of a batch from the whole space."""
    near: int = 400
    """Most candidates of a batch from the neighbourhood of the incumbents."""
    incumbents: int = 6
    """Best configurations whose neighbourhoods are searched."""


COMPARED, HOPELESS, CERTAIN = 128, 0.01, 3
"""A compiler value whose median of 3 or more among the 128 best is 1 % slower than the default is dropped."""

DRAWN = 64
"""Draws from a large space for each random proposal."""

_NONE: Indices = np.empty(0, dtype=np.int64)
LARGEST_DESIGN = 96
"""Most configurations of the initial design, in case its first ones fail or many run before any is measured."""


@dataclass(eq=False)
class BatchPlanner:
    """Plan batches of valid, distinct configurations from the scores of others.

    :meth:`plan` is a pure function of the seed, the batch number and the history: a resumed run proposes the same. By
    default a Gaussian process proposes, after an initial design by the ``sources``, or around the middle of the space.

    ``first`` are proposed first, each with its ``proposed_by``; ``elsewhere``, fast on similar devices, follow the
    first one of the initial design. ``varied`` are values of compiler parameters, the default first: the initial design
    has the defaults, later proposals the values of the best so far, and other values are tried on the best ones.
    ``hopes`` is that of the :class:`GaussianProposer` in the last plan.
    """

    space: SearchSpace
    sources: Sequence[Source] = ()
    _: KW_ONLY
    seed: int
    options: PlannerOptions = PlannerOptions()
    proposer: Proposer | None = None
    first: Mapping[int, str] = field(default_factory=dict)
    elsewhere: Sequence[int] = ()
    varied: Mapping[str, Sequence[int]] = field(default_factory=dict)
    scored: DistinctCount = field(default_factory=DistinctCount)
    skipped: DistinctCount = field(default_factory=DistinctCount)
    hopes: float = field(default=math.inf, init=False)

    def __post_init__(self) -> None:
        valid_values = {
            name: [value for value in values if value in self.space.values[name]]
            for name, values in self.varied.items()
        }
        self.varied = {name: values for name, values in valid_values.items() if len(values) > 1}

    def plan(self, history: History, batch: int, size: int, gates: Gates | None = None) -> list[Proposal]:
        """Plan a batch of distinct, valid, untried configurations, fewer than ``size`` only when none is left."""
        rng = np.random.default_rng((self.seed, batch))
        draft = _Draft(size, set(history.tried))
        for index, source in self.first.items():
            draft.add(Proposals(np.array([index])), 1, source)
        if len(self.elsewhere) and history.measured < self.options.start_trials:
            draft.add(Proposals(np.concatenate([self._initial_design[:1], self.elsewhere])), size, "start")
        fixed = None
        if self.proposer is None and self.varied:
            draft.add(Proposals(self._variants(history)), min(self.options.variants, max(size // 4, 1)), "variant")
            fixed = partial(self._fixed, best=history.best(1))
        context = ProposalContext(history, draft.taken, rng, fixed)
        if self.proposer is not None:
            draft.add(self.proposer.propose(context, size), size, self.proposer.name)
        elif history.measured < self.options.start_trials:
            draft.add(Proposals(self._initial_design), size, "start")
        else:
            chosen = min(size - int(rng.binomial(size, self.options.random)), draft.room)
            draft.add(self._screened(context, chosen, gates), chosen, self._model.name)
            self.hopes = self._model.hopes
        draft.add(Proposals(self._random(context, draft.room)), size, "random")
        return draft.proposals

    def _screened(self, context: ProposalContext, count: int, gates: Gates | None) -> Proposals:
        """Return the Gaussian process's proposals that the gates let compile, and count the others."""
        if gates is None or not gates.screens:
            return self._model.propose(context, count)
        offered = self._model.propose(context, self.options.offers * count)
        kept, audited = gates.screen(self.space.rows(offered.indices), count, context.rng)
        self.skipped.add(np.delete(offered.indices, kept))
        return Proposals(offered.indices[kept], None if offered.predicted is None else offered.predicted[kept], audited)

    def _variants(self, history: History) -> Indices:
        """Return the best configurations with all values of the compiler parameters that may be faster."""
        if not history.measured:
            return _NONE
        crossings = crossed(self.space.rows(history.best(COMPARED)), self.varied)
        table = self.space.index_of(crossings).reshape(-1, math.prod(map(len, self.varied.values())))
        scores = history.scores_of(np.unique(table, axis=0))  # the first of a row is that of the defaults
        gains = np.sort(scores - scores[:, :1], axis=0)  # NaN sorts last
        count = np.isfinite(gains).sum(axis=0)
        median = gains[np.maximum(count - 1, 0) // 2, np.arange(gains.shape[1])]
        promising = table[: self.options.variant_parents, (count < CERTAIN) | (median >= -HOPELESS)]
        return promising[promising >= 0]

    def _random(self, context: ProposalContext, count: int) -> Indices:
        """Return random configurations with the compiler parameters that the model proposes now."""
        if context.fixed is None:
            return self.space.sample(count, context.rng, context.taken)
        most = self.options.listed if self.space.count <= self.options.listed else DRAWN * count
        return context.rng.permutation(context.free(self.space.sample(most, context.rng)))[:count]

    def _fixed(self, indices: Indices, best: Indices = _NONE) -> Indices:
        """Return configurations with the compiler parameters of the best, or defaults, where a recording has them."""
        if not self.varied:
            return indices
        columns = self.space.rows(best)
        fixed = {name: columns[name].tolist() or values[:1] for name, values in self.varied.items()}
        indices_with_fixed = self.space.index_of(crossed(self.space.rows(indices), fixed))
        return np.unique(np.where(indices_with_fixed >= 0, indices_with_fixed, indices))

    @cached_property
    def _encoding(self) -> Encoding:
        return Encoding(self.space, self.sources)

    @cached_property
    def _model(self) -> GaussianProposer:
        options = self.options
        listed = self.space.count <= options.listed
        encoding = Encoding(self.space, [source for source in self.sources if listed or source.smooth])
        make = EnumeratedPool if listed else SampledPool
        pool = make(self.space, encoding, drawn=options.drawn, near=options.near, incumbents=options.incumbents)
        return GaussianProposer(encoding, pool, seed=self.seed, scored=self.scored)

    @cached_property
    def _initial_design(self) -> Indices:
        """The first configurations: a portfolio by the sources, then promising ones, far apart."""
        rng, options = np.random.default_rng(self.seed), self.options
        pool = self.space.sample(options.start_pool, rng)
        if any(source.decides for source in self.sources) and self.space.count <= options.listed:
            _, basis = self._model.pool.describe(np.arange(self.space.count))
            pool = np.union1d(pool, first_choice(basis[:, 1:].T, self.sources))
        pool = self._fixed(pool)
        points, basis = self._encoding.describe(self.space.rows(pool))
        for _ in range(options.start_rounds if self.sources else 0):
            best = np.argsort(-basis[:, 1:].mean(axis=1), kind="stable")[: options.start_parents]
            bred = self._fixed(offspring(self.space, pool[best], len(pool) // 2, rng))
            bred = np.setdiff1d(bred, pool)
            if not len(bred):
                break
            described = self._encoding.describe(self.space.rows(bred))
            pool = np.concatenate([pool, bred])
            order = np.argsort(pool)
            points, basis = (np.concatenate(two)[order] for two in zip((points, basis), described, strict=True))
            pool = pool[order]
        if self.sources:
            self.scored.add(pool)
        promising = basis[:, 1:].mean(axis=1) if self.sources else basis[:, 0]
        # Without a source the order within the head is not known.
        share = options.start_head * (1.0 if self.sources else 2.0)
        head = np.argsort(-promising, kind="stable")[: max(4 * options.start_trials, int(share * len(pool)))]
        if not self.sources:
            head = rng.permutation(head)
            return pool[head[maximin_subset(points[head], LARGEST_DESIGN)]]
        first = portfolio(basis[:, 1:].T, points, options.start_trials, rng, self.sources)
        head = np.concatenate([first, np.setdiff1d(head, first)])
        design = pool[head[maximin_subset(points[head], LARGEST_DESIGN, fixed=len(first))]]
        return _alternating(design, replace(self, sources=())._initial_design, options.start_informed)


def _alternating(design: Indices, other: Indices, start: int) -> Indices:
    """Return a design with the configurations of another one at every second place from ``start`` on."""
    places = np.arange(len(design))
    places = np.concatenate([np.maximum(places, 2 * places - start + 1), start + 2 * np.arange(len(other))])
    ordered = np.concatenate([design, other])[np.argsort(places, kind="stable")]
    return np.array([*dict.fromkeys(ordered.tolist())][:LARGEST_DESIGN], dtype=np.int64)


@dataclass(slots=True)
class _Draft:
    """A batch under construction, of distinct configurations."""

    size: int
    taken: set[int]
    proposals: list[Proposal] = field(default_factory=list)

    @property
    def room(self) -> int:
        return self.size - len(self.proposals)

    def add(self, choice: Proposals, count: int, proposed_by: str) -> None:
        """Add up to ``count`` configurations of a choice while there is room."""
        predicted = repeat(None) if choice.predicted is None else map(float, choice.predicted)
        audited = choice.audited or repeat(None)
        for index, expected, skip in zip(map(int, choice.indices), predicted, audited, strict=False):
            if count < 1 or self.room < 1:
                return
            if index not in self.taken:
                self.taken.add(index)
                self.proposals.append(Proposal(index, proposed_by, expected, skip))
                count -= 1
