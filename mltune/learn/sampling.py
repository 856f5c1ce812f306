"""Samplers: valid, duplicate-free proposals, planned in whole batches and handed to Optuna one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution

from mltune.errors import SpaceError
from mltune.kernel.columns import Columns, Floats, Indices, row
from mltune.learn.candidates import EnumeratedPool, SampledPool, maximin_subset
from mltune.learn.encoding import Encoding
from mltune.learn.history import History, HistoryReader
from mltune.learn.proposers import Choice, GaussianProposer, Proposer, Situation

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

    from mltune.kernel.space import SearchSpace


@dataclass(frozen=True, slots=True)
class Proposal:
    """A configuration to try next.

    Attributes
    ----------
    index : int
        Of the configuration in the search space.
    proposed_by : {"start", "random", "tpe", "model"}
    predicted : float or None
        Log share of peak that is expected of it; None where nobody said.
    """

    index: int
    proposed_by: str
    predicted: float | None = None


@dataclass(frozen=True, slots=True)
class SamplerOptions:
    """How a sampler searches; docs/search.md says how the defaults were found.

    Attributes
    ----------
    random : float
        Share drawn at random, for ever: a wrong model confirms itself.
    start_trials : int
        Configurations of the opening that are measured before the proposer takes over.
    start_pool : int
        Random configurations from which the opening is chosen.
    start_head : float
        Share of them, the most promising, that the opening is spread out over.
    listed : int
        A space of at most this many configurations is listed.
    drawn, near : int
        Most candidates of a batch from everywhere, and from near the best.
    elites : int
        How many of the best have their surroundings looked at.
    """

    random: float = 0.03
    start_trials: int = 8
    start_pool: int = 4000
    start_head: float = 0.05
    listed: int = 50_000
    drawn: int = 800
    near: int = 400
    elites: int = 6


LONGEST_OPENING = 96
"""Configurations of an opening, should the first of them all fail, or many be under way before any is measured."""


class BatchSampler(optuna.samplers.BaseSampler):  # type: ignore[misc]
    """Plans batches of valid configurations that were never proposed before, and hands them out one by one.

    Optuna sees one :class:`~optuna.distributions.CategoricalDistribution` a parameter; the study maximises the log
    share of the device's peak. The sampler keeps nothing that it could not rebuild from the study: :meth:`plan` is a
    pure function of the seed, the batch and the trials of the study, so a resumed run proposes what the interrupted one
    would have.

    Parameters
    ----------
    space : SearchSpace
    prior : callable or None
        From Columns to ndarray of shape (n_configs,): expected share of peak before anything was measured.
    seed : int
    batch_size : int
        Proposals of a batch when Optuna asks for one trial at a time.
    first_batch : int
        Number of the batch that the first question opens: in a resumed run the one after the last finished.
    options : SamplerOptions
    proposer : Proposer, optional
        Who proposes, from the first trial on; by default an opening is measured first, chosen by the prior or by the
        middle of the space, and then a Gaussian process proposes.

    Attributes
    ----------
    proposals : dict of int to Proposal
        What was handed out, by trial number.
    distributions : dict of str to CategoricalDistribution
    history : History or None
        What the last batch was planned from.
    """

    def __init__(
        self,
        space: SearchSpace,
        prior: Callable[[Columns], Floats] | None = None,
        *,
        seed: int,
        batch_size: int = 16,
        first_batch: int = 0,
        options: SamplerOptions | None = None,
        proposer: Proposer | None = None,
    ) -> None:
        self.space = space
        self.prior = prior
        self.seed = seed
        self.batch_size = batch_size
        self.batch = first_batch
        self.options = options or SamplerOptions()
        self.proposer = proposer
        self.proposals: dict[int, Proposal] = {}
        self.distributions = distributions_of(space)
        self.history: History | None = None
        self._queue: deque[Proposal] = deque()
        self._reader = HistoryReader(space)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, CategoricalDistribution]:
        """Return the distributions of all parameters."""
        return self.distributions

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, CategoricalDistribution]
    ) -> dict[str, int]:
        """Hand out the next proposal, planning a batch when none is left.

        Raises
        ------
        SpaceError
            Every configuration of the space has been proposed.
        """
        if not self._queue:
            self.enqueue(self.plan(study, self.batch, self.batch_size))
            self.batch += 1
        if not self._queue:
            raise SpaceError(
                f"a configuration is proposed once, but all {self.space.count} of the search space have been; "
                "end the run when a planned batch is empty."
            )
        proposal = self._queue.popleft()
        self.proposals[trial.number] = proposal
        self._reader.index_of[trial.number] = proposal.index
        return row(self.space.rows(np.array([proposal.index])), 0)

    def sample_independent(self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: Any) -> Any:
        """Refuse: a configuration is proposed whole."""
        raise ValueError(
            f"BatchSampler proposes whole configurations of {', '.join(self.space.names)}, but was asked for "
            f"{param_name} alone; suggest exactly the parameters of the search space with their distributions."
        )

    def enqueue(self, proposals: Iterable[Proposal]) -> None:
        """Have these handed out next, in order: for a loop that plans its batches itself."""
        self._queue.extend(proposals)

    def plan(self, study: Study, batch: int, size: int) -> list[Proposal]:
        """Plan one batch.

        Parameters
        ----------
        study : Study
            Its trials are what is known; those still running count as tried.
        batch : int
            Number of the batch, from 0.
        size : int

        Returns
        -------
        list of Proposal
            Distinct, valid and untried; fewer than ``size`` only when the space is exhausted.
        """
        rng = np.random.default_rng((self.seed, batch))
        history = self.history = self._reader.read(study)
        draft = _Draft(self.space, size, history.tried | {proposal.index for proposal in self._queue}, rng)
        situation = Situation(study, history, draft.taken, rng)
        if self.proposer is not None:
            draft.add(self.proposer.propose(situation, size), size, self.proposer.name)
        elif history.measured < self.options.start_trials:
            draft.add(Choice(self._opening), size, "start")
        else:
            chosen = size - int(rng.binomial(size, self.options.random))
            draft.add(self._model.propose(situation, chosen), chosen, self._model.name)
        draft.add_random(size)
        return draft.proposals

    @cached_property
    def _encoding(self) -> Encoding:
        return Encoding(self.space, self.prior)

    @cached_property
    def _model(self) -> GaussianProposer:
        options = self.options
        make = EnumeratedPool if self.space.count <= options.listed else SampledPool
        pool = make(self.space, self._encoding, drawn=options.drawn, near=options.near, incumbents=options.elites)
        return GaussianProposer(self._encoding, pool, seed=self.seed)

    @cached_property
    def _opening(self) -> Indices:
        """What is measured first: of the most promising by the trends, some that lie far from each other."""
        rng = np.random.default_rng(self.seed)
        pool = self.space.sample(self.options.start_pool, rng)
        points, trends = self._encoding.describe(self.space.rows(pool))
        # Where physics says nothing, there is no telling the first from the tenth of the head.
        share = self.options.start_head * (1.0 if self.prior is not None else 2.0)
        head = np.argsort(-trends[:, -1], kind="stable")[: max(4 * self.options.start_trials, int(share * len(pool)))]
        if self.prior is None:
            head = rng.permutation(head)
        return pool[head[maximin_subset(points[head], LONGEST_OPENING, fixed=1 if self.prior is None else 2)]]


def distributions_of(space: SearchSpace) -> dict[str, CategoricalDistribution]:
    """Return a search space as Optuna sees it: one categorical parameter each."""
    return {name: CategoricalDistribution(space.values[name]) for name in space.names}


class _Draft:
    """A batch in the making: what is taken is never added again."""

    def __init__(self, space: SearchSpace, size: int, taken: set[int], rng: np.random.Generator) -> None:
        self.space = space
        self.size = size
        self.taken = set(taken)
        self.rng = rng
        self.proposals: list[Proposal] = []

    @property
    def room(self) -> int:
        return self.size - len(self.proposals)

    def add(self, choice: Choice, count: int, proposed_by: str) -> None:
        """Add up to ``count`` of a choice, as far as there is room."""
        predicted = repeat(None) if choice.predicted is None else map(float, choice.predicted)
        for index, expected in zip(map(int, choice.indices), predicted, strict=False):
            if count < 1 or self.room < 1:
                return
            if index not in self.taken:
                self.taken.add(index)
                self.proposals.append(Proposal(index, proposed_by, expected))
                count -= 1

    def add_random(self, count: int) -> None:
        """Add up to ``count`` random configurations, as far as there is room."""
        count = min(count, self.room)
        if count > 0:
            self.add(Choice(self.space.sample(count, self.rng, self.taken)), count, "random")
