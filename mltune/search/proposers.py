"""Proposers: a Gaussian process, Optuna's TPE restricted to valid configurations, and random search."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from mltune.cost.cost_model import Compression
from mltune.cost.encoding import Encoding, MeanFunction
from mltune.cost.gaussian_process import GaussianProcess, Hyperparameters
from mltune.kernel.columns import Columns, Floats, Indices, row
from mltune.kernel.space import SearchSpace
from mltune.search.candidates import Pool
from mltune.search.history import History, fastest_and_some, milestone

if TYPE_CHECKING:
    from optuna.study import Study


MOST_ROWS = 224
"""Most measured configurations that the Gaussian process is fitted to: half of them the fastest, half drawn from the
others."""

MOST_SKIPPED = 112
"""Most skipped configurations, the latest, that are added to them."""

PROMISING = 16
"""Candidates for each proposal of a batch that remain after the first proposal has been chosen."""

REFINEMENTS = 2
"""Times that variants of the most promising candidates become candidates, in a space too large to enumerate."""

PARENTS = 32
"""Most promising candidates that are varied."""

ROUNDS = 20
"""Rounds of drawing after which a filter is assumed to pass no further configuration."""

_TPE_BEST, _TPE_OTHERS = 40, 80


@dataclass(frozen=True, slots=True)
class ProposalContext:
    """The knowledge from which a batch is planned; ``taken`` configurations must not be proposed again."""

    history: History
    taken: set[int]
    rng: np.random.Generator


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice of a proposer.

    Attributes
    ----------
    indices : ndarray of shape (n_chosen,)
        Distinct configurations, the best first.
    predicted : ndarray of shape (n_chosen,) or None
        Their predicted log shares of peak; None for proposers that predict nothing.
    """

    indices: Indices
    predicted: Floats | None = None


class Proposer(Protocol):
    """Choose configurations, given the measurements so far. The same context gives the same choice.

    Attributes
    ----------
    name : str
        Name under which its proposals are recorded (:attr:`mltune.search.sampling.Proposal.proposed_by`).
    """

    name: str

    def propose(self, context: ProposalContext, count: int) -> Choice:
        """Choose up to ``count`` configurations. The caller drops those that are already taken."""
        ...


class GaussianProposer:
    """Expected improvement under a Gaussian process with a mean function.

    The mean function predicts configurations far from all measurements: from the physical prior, if there is one, and
    from the distance to the middle of the space (:class:`mltune.cost.encoding.Encoding`). Measurements determine its
    weights, and the process models the residuals. Speeds below the median are compressed, because differences among
    slow configurations carry no information about the fast ones.

    A batch is chosen greedily: each proposal assumes that the earlier ones, and the running ones, turn out as predicted
    (kriging believer: Ginsbourger, Le Riche and Carraro, 2010).

    Hyperparameters are fitted to the earliest measurements on a fixed schedule, each time from the same starting point,
    so that a resumed run has the same ones.
    """

    name = "model"

    def __init__(self, encoding: Encoding, pool: Pool, *, seed: int) -> None:
        self.pool = pool
        self.seed = seed
        self._target = Compression()
        self._mean_function = MeanFunction(encoding.mean_weights)
        self._known: dict[int, Hyperparameters] = {}

    def propose(self, context: ProposalContext, count: int) -> Choice:
        """Choose by expected improvement; see :meth:`Proposer.propose`."""
        history, rng = context.history, context.rng
        candidates = self.pool.draw(history.best(len(history.indices)), context.taken, rng)
        if len(candidates) == 0 or count < 1:
            return Choice(candidates[:0])
        target = self._target.fit(len(history.scores), history.scores)
        best = float(target.max())
        rows = fastest_and_some(target, MOST_ROWS, MOST_ROWS // 2, rng)
        # Recently skipped configurations enter with the prediction of the gate, which used more features.
        skipped = history.skipped[-MOST_SKIPPED:]
        target = np.concatenate([target[rows], self._target.compress(history.predicted[-MOST_SKIPPED:])])
        measured = np.concatenate([history.indices[rows], skipped])
        points, basis = self.pool.describe(np.concatenate([measured, history.running]))
        known, running = points[: len(measured)], points[len(measured) :]
        weights = self._mean_function.fit(basis[: len(rows)], target[: len(rows)])
        residual = target - basis[: len(known)] @ weights
        process = GaussianProcess(self._hyperparameters(history, points.shape[1])).fit(known, residual)
        if len(running):
            process.fit(points, np.concatenate([residual, process.mean(running)]))
        for left in reversed(range(1 + REFINEMENTS)):
            points, basis = self.pool.describe(candidates)
            posterior = process.posterior(points)
            mean = posterior.mean + basis @ weights
            gain = log_expected_improvement(mean, posterior.spread, best)
            promising = np.argsort(-gain, kind="stable")[: PROMISING * count]  # gains only fall from here on
            variants = self.pool.vary(candidates[promising[:PARENTS]], context.taken, rng) if left else candidates[:0]
            if not len(variants):
                break
            candidates = np.union1d(candidates[promising], variants)
        promising = np.sort(promising)
        candidates, mean, posterior = candidates[promising], mean[promising], posterior.among(promising)
        predicted = self._target.expand(mean)
        chosen: list[int] = []
        for _ in range(min(count, len(candidates))):
            gain = log_expected_improvement(mean, posterior.spread, best)
            gain[chosen] = -np.inf
            position = int(np.argmax(gain))
            chosen.append(position)
            posterior.expect(position)
            best = max(best, float(mean[position]))
        return Choice(candidates[chosen], predicted[chosen])

    def _hyperparameters(self, history: History, dimensions: int) -> Hyperparameters:
        first = milestone(len(history.indices))
        if first not in self._known:
            scores = history.scores[:first]
            if not np.isfinite(scores).any():
                return Hyperparameters.usual(dimensions)
            target = Compression().fit(first, scores)
            rng = np.random.default_rng((self.seed, first))
            rows = fastest_and_some(target, MOST_ROWS, MOST_ROWS // 2, rng)
            points, basis = self.pool.describe(history.indices[rows])
            residual = target[rows] - basis @ self._mean_function.fit(basis, target[rows])
            self._known[first] = Hyperparameters.most_likely(points, residual)
        return self._known[first]


@dataclass(eq=False)
class TpeProposer:
    """Optuna's TPE, with each proposal moved to the nearest valid configuration.

    TPE by itself proposes several invalid or repeated configurations for each one that can be measured.

    It slows down with every trial, so it gets a study of the best and of a random sample of the others. It weighs the
    latest trials most, so they are in the order of scores: its answer does not depend on when each finished.
    """

    name = "tpe"
    space: SearchSpace

    def propose(self, context: ProposalContext, count: int) -> Choice:
        """Ask TPE; see :meth:`Proposer.propose`."""
        distributions, rng = distributions_of(self.space), context.rng
        trials = self._trials(context.history, distributions, rng)
        study = new_study(
            optuna.samplers.TPESampler(seed=int(rng.integers(2**31)), n_startup_trials=0, multivariate=True)
        )
        study.add_trials(trials)
        answers = [study.ask(distributions).params for _ in range(2 * count)]
        columns = {name: np.array([answer[name] for answer in answers], dtype=np.int64) for name in self.space.names}
        return Choice(self.space.nearest(columns))

    def _trials(
        self, history: History, distributions: dict[str, CategoricalDistribution], rng: np.random.Generator
    ) -> list[FrozenTrial]:
        """Return what TPE learns from: a skipped trial is pruned with its prediction, a failed one without a value."""
        ended, skipped = len(history.scores), len(history.skipped)
        scores = np.concatenate([history.scores, history.predicted])
        known = np.concatenate([~np.isnan(history.scores), np.zeros(skipped, dtype=bool)])
        columns = self.space.rows(np.concatenate([history.indices, history.skipped]))
        keys = [columns[name] for name in reversed(list(distributions))]
        ranked = np.lexsort([*keys, np.nan_to_num(scores, nan=-np.inf)])
        others = max(0, len(ranked) - _TPE_BEST)
        drawn = np.sort(rng.choice(others, min(others, _TPE_OTHERS), replace=False))
        return [
            create_trial(
                state=TrialState.COMPLETE if known[at] else TrialState.PRUNED,
                value=float(scores[at]) if known[at] else None,
                params=row(columns, at),
                distributions=distributions,
                intermediate_values={} if at < ended else {int(history.gates[at - ended]): float(scores[at])},
            )
            for at in [*ranked[drawn].tolist(), *ranked[others:].tolist()]
        ]


class Values(CategoricalDistribution):  # type: ignore[misc]
    """A categorical distribution that is shared: Optuna compares and copies those of every trial, value by value."""

    def __eq__(self, other: object) -> bool:
        return self is other or bool(super().__eq__(other))

    __hash__ = CategoricalDistribution.__hash__

    def __deepcopy__(self, memo: object) -> Values:
        return self


def distributions_of(space: SearchSpace) -> dict[str, CategoricalDistribution]:
    """Return a search space as Optuna distributions: one categorical parameter each."""
    return {name: Values(space.values[name]) for name in space.names}


def new_study(sampler: optuna.samplers.BaseSampler) -> Study:
    """Return an empty study that maximises its values, without a message in Optuna's log."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return optuna.create_study(direction="maximize", sampler=sampler)
    finally:
        optuna.logging.set_verbosity(level)


@dataclass(eq=False)
class RandomProposer:
    """Random search: uniform over the valid configurations that pass a filter.

    Attributes
    ----------
    space : SearchSpace
    keeps : callable or None
        The filter, from Columns to ndarray of shape (n_configs,), bool, for example
        :meth:`mltune.search.astra.AstraThresholds.keeps`.
    """

    name = "random"
    space: SearchSpace
    keeps: Callable[[Columns], NDArray[np.bool_]] | None = None

    def propose(self, context: ProposalContext, count: int) -> Choice:
        """Draw at random, fewer if :data:`ROUNDS` rounds do not yield enough; see :meth:`Proposer.propose`."""
        if self.keeps is None:
            return Choice(self.space.sample(count, context.rng, context.taken))
        found = np.empty(0, dtype=np.int64)
        for _ in range(ROUNDS):
            drawn = self.space.sample(64 * count, context.rng, context.taken)
            found = np.concatenate([found, drawn[self.keeps(self.space.rows(drawn))]])
            if len(found) >= count:
                break
        return Choice(found)


def log_expected_improvement(mean: Floats, spread: Floats, best: float) -> Floats:
    """Return the log of the expected improvement over ``best`` (Jones, Schonlau and Welch, 1998, equation 15).

    Logarithms keep an order among tiny improvements (Ament and others, 2023, "Unexpected improvements to
    expected improvement").

    Parameters
    ----------
    mean, spread : ndarray of shape (n_configs,)
        Of normal distributions; spreads above 0.
    """
    from scipy.special import ndtr

    z = (mean - best) / spread
    density = -0.5 * z * z - 0.5 * math.log(2.0 * math.pi)
    with np.errstate(divide="ignore", invalid="ignore"):
        near = np.log(z * ndtr(z) + np.exp(density))
        far = density - 2.0 * np.log(np.abs(z))
    gain: Floats = np.log(spread) + np.where(z > -10.0, near, far)
    return gain
