"""Samplers: valid, duplicate-free proposals, planned in whole batches and handed to Optuna one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import CategoricalDistribution

from mltune.errors import SpaceError
from mltune.kernel.table import Columns, row
from mltune.learn.candidates import breed, neighbours_of, spread_out
from mltune.learn.cost_model import CostModel, ExtraTreesModel
from mltune.learn.study import History, ask_tpe, read_history

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

    from mltune.kernel.space import SearchSpace

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


CROWDING = 0.01
"""Log share of peak that a candidate loses for every twin that is already in the batch."""

TWINS_DIFFER = 2
"""Parameters in which twins differ at most."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A configuration to try next.

    Attributes
    ----------
    index : int
        Of the configuration in the search space.
    proposed_by : {"start", "random", "tpe", "model"}
    """

    index: int
    proposed_by: str


@dataclass(frozen=True, slots=True)
class Mixture:
    """Where the proposals of a batch come from.

    Attributes
    ----------
    start_random : float
        Share of the first batch drawn at random; the others lead the physical prior.
    tpe : float
        Share from Optuna's TPESampler, once ``start_trials`` have been measured.
    random : float
        Share drawn at random, for ever: a wrong model confirms itself.
    start_trials : int
        Measured configurations before the model proposes.
    start_pool : int
        Random configurations from which the prior chooses.
    whole : int
        A space of at most this many configurations is looked through as a whole: the model chooses from all of it.
    pool : int
        Random configurations of a larger space from which the model chooses.
    bred : int
        Variants of the best configurations from which it chooses as well (:func:`mltune.learn.candidates.breed`).
    elites : int
        Best configurations whose neighbours it looks at; variants are bred from four times as many.
    """

    start_random: float = 0.35
    tpe: float = 0.08
    random: float = 0.06
    start_trials: int = 12
    start_pool: int = 4000
    whole: int = 20_000
    pool: int = 1500
    bred: int = 800
    elites: int = 6


class BatchSampler(optuna.samplers.BaseSampler):  # type: ignore[misc]
    """Plans batches of valid configurations that were never proposed before, and hands them out one by one.

    Optuna sees one :class:`~optuna.distributions.CategoricalDistribution` a parameter; the study maximises the log
    share of the device's peak. The sampler keeps nothing that it could not rebuild from the study: :meth:`plan` is a
    pure function of the seed, the batch and the trials of the study, so a resumed run proposes what the interrupted one
    would have.

    Parameters
    ----------
    space : SearchSpace
    features : callable
        From Columns to ndarray of shape (n_configs, n_features): what the cost model sees before compiling.
    prior : callable or None
        From Columns to ndarray of shape (n_configs,): expected speed before anything was measured, larger is faster.
    seed : int
    batch_size : int
        Proposals of a batch when Optuna asks for one trial at a time.
    first_batch : int
        Number of the batch that the first question opens: in a resumed run the one after the last finished.
    mixture : Mixture
    make_model : callable
        From ``random_state`` to a :class:`CostModel`.

    Attributes
    ----------
    proposals : dict of int to Proposal
        What was handed out, by trial number.
    distributions : dict of str to CategoricalDistribution
    model : CostModel or None
        The model that the last batch was planned with: what the gate before compiling uses, without another fit.
    history : History or None
        What it was fitted to: ``gate.calibrate(history.scores, model.unseen(), history.by_model)``.
    """

    def __init__(
        self,
        space: SearchSpace,
        features: Callable[[Columns], Floats],
        prior: Callable[[Columns], Floats] | None,
        *,
        seed: int,
        batch_size: int = 24,
        first_batch: int = 0,
        mixture: Mixture | None = None,
        make_model: Callable[[int], CostModel] = lambda random_state: ExtraTreesModel(random_state=random_state),
    ) -> None:
        self.space = space
        self.features = features
        self.prior = prior
        self.seed = seed
        self.batch_size = batch_size
        self.batch = first_batch
        self.mixture = mixture or Mixture()
        self.make_model = make_model
        self.proposals: dict[int, Proposal] = {}
        self.distributions = {name: CategoricalDistribution(space.values[name]) for name in space.names}
        self.model: CostModel | None = None
        self.history: History | None = None
        self._queue: deque[Proposal] = deque()
        self._index_of: dict[int, int] = {}
        self._features_of: dict[int, Floats] = {}

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
        self._index_of[trial.number] = proposal.index
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
        history = read_history(study, self.space, self._index_of)
        draft = _Draft(self.space, size, history.tried | {proposal.index for proposal in self._queue}, rng)
        if history.measured < self.mixture.start_trials:
            self._start(draft)
        else:
            self._propose(study, history, draft)
        draft.add_random(size)
        return draft.proposals

    def _start(self, draft: _Draft) -> None:
        """Lead with what the physical prior holds best, spread out, and add random ones."""
        if self.prior is None:
            return
        count = round(draft.size * (1.0 - self.mixture.start_random))
        pool = self.space.sample(self.mixture.start_pool, draft.rng, draft.taken)
        columns = self.space.rows(pool)
        order = np.argsort(-self.prior(columns), kind="stable")[: max(8 * count, len(pool) // 20)]
        head = pool[order]
        chosen = spread_out(self.features(self.space.rows(head)), count, chosen=max(1, count // 4))
        draft.add(head[chosen], count, "start")

    def _propose(self, study: Study, history: History, draft: _Draft) -> None:
        mixture = self.mixture
        tpe = round(draft.size * mixture.tpe)
        random = max(1, round(draft.size * mixture.random))
        draft.add(self._by_tpe(study, tpe, draft), tpe, "tpe")
        self.model = self.make_model(int(draft.rng.integers(2**31)))
        self.model.fit(self._rows_of(history.indices), history.scores)
        self.history = history
        self._by_model(self.model, history, draft, draft.room - random)

    def _by_tpe(self, study: Study, count: int, draft: _Draft) -> Indices:
        """Ask TPE, and repair what it says to the nearest valid configurations."""
        answers = ask_tpe(study, self.distributions, count, draft.rng) if count > 0 else []
        if not answers:
            return np.empty(0, dtype=np.int64)
        columns = {name: np.array([answer[name] for answer in answers], dtype=np.int64) for name in self.space.names}
        return self.space.nearest(columns)

    def _by_model(self, model: CostModel, history: History, draft: _Draft, count: int) -> None:
        pool = self._pool(history, draft)
        if len(pool) == 0:
            return
        columns = self.space.rows(pool)
        mean, spread = model.predict(self.features(columns))
        values = np.column_stack(list(columns.values()))
        chosen: list[int] = []
        # Each proposal trades mean against spread in its own way, so a batch holds both the sure and the promising
        # (Hutter, Hoos and Leyton-Brown, 2012, "Parallel algorithm configuration"); twins would say the same twice.
        for kappa in draft.rng.exponential(size=max(0, min(count, len(pool)))):
            position = int(np.argmax(mean + kappa * spread))
            chosen.append(position)
            mean -= CROWDING * ((values != values[position]).sum(axis=1) <= TWINS_DIFFER)
            mean[position] = -np.inf
        draft.add(pool[chosen], count, "model")

    def _pool(self, history: History, draft: _Draft) -> Indices:
        """Return the untried configurations that the model chooses from, sorted."""
        mixture = self.mixture
        if self.space.count <= mixture.whole:
            return draft.untaken(np.arange(self.space.count))
        pool = (
            self.space.sample(mixture.pool, draft.rng, draft.taken),
            neighbours_of(self.space, history.best(mixture.elites)),
            breed(self.space, history.best(4 * mixture.elites), mixture.bred, draft.rng),
        )
        return draft.untaken(np.unique(np.concatenate(pool)))

    def _rows_of(self, indices: Indices) -> Floats:
        new = np.array([index for index in indices.tolist() if index not in self._features_of], dtype=np.int64)
        if len(new):
            self._features_of.update(zip(new.tolist(), self.features(self.space.rows(new)), strict=True))
        return np.stack([self._features_of[index] for index in indices.tolist()])


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

    def untaken(self, indices: Indices) -> Indices:
        return np.array([index for index in indices.tolist() if index not in self.taken], dtype=np.int64)

    def add(self, indices: Iterable[int] | Indices, count: int, proposed_by: str) -> None:
        """Add up to ``count`` of the indices, as far as there is room."""
        for index in map(int, indices):
            if count < 1 or self.room < 1:
                return
            if index not in self.taken:
                self.taken.add(index)
                self.proposals.append(Proposal(index, proposed_by))
                count -= 1

    def add_random(self, count: int) -> None:
        """Add up to ``count`` random configurations, as far as there is room."""
        count = min(count, self.room)
        if count > 0:
            self.add(self.space.sample(count, self.rng, self.taken), count, "random")
