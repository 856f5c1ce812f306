"""Who proposes: a Gaussian process, Optuna's TPE made valid, or chance within hand-set thresholds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from mltune.kernel.columns import Floats, Indices
from mltune.learn.cost_model import Compression
from mltune.learn.encoding import MeanFunction
from mltune.learn.gaussian_process import GaussianProcess, Hyperparameters
from mltune.learn.history import History, ask_tpe, fastest_and_some, milestone

if TYPE_CHECKING:
    from optuna.distributions import CategoricalDistribution
    from optuna.study import Study

    from mltune.kernel.columns import Columns
    from mltune.kernel.space import SearchSpace
    from mltune.learn.candidates import Pool
    from mltune.learn.encoding import Encoding

HOPEFUL = 16
"""Candidates for each proposal of a batch that are still looked at once the first is chosen."""

ROUNDS = 20
"""Of drawing before hand-set thresholds are taken to keep nothing more."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What a batch is planned from.

    Attributes
    ----------
    study : Study
    history : History
        What the study says.
    taken : set of int
        Configurations that must not be proposed.
    rng : numpy.random.Generator
    """

    study: Study
    history: History
    taken: set[int]
    rng: np.random.Generator


@dataclass(frozen=True, slots=True)
class Choice:
    """What a proposer has chosen.

    Attributes
    ----------
    indices : ndarray of shape (n_chosen,)
        Distinct configurations, the best first.
    predicted : ndarray of shape (n_chosen,) or None
        The log shares of peak that are expected of them; None where nothing is predicted.
    """

    indices: Indices
    predicted: Floats | None = None


class Proposer(Protocol):
    """Chooses configurations, given what was measured. The same situation gives the same answer.

    Attributes
    ----------
    name : str
        What its proposals are recorded as (:attr:`mltune.learn.sampling.Proposal.proposed_by`).
    """

    name: str

    def propose(self, situation: Situation, count: int) -> Choice:
        """Choose up to ``count`` configurations. Those taken are dropped by the caller."""
        ...


class GaussianProposer:
    """Expected improvement under a Gaussian process that departs from a trend.

    The trend is what may be expected of configurations that nothing near was measured of: the physical prior where
    there is one, and the middle of the space (:class:`mltune.learn.encoding.Encoding`). What was measured corrects its
    weights, and the process learns what it leaves. Speeds below the median are compressed: how hopeless the hopeless
    are says nothing of the fast.

    A batch is chosen one by one, each as if those before it, and those still running, had turned out as expected.

    Hyperparameters are fitted to the first configurations that were measured, as many as a schedule says, and not from
    where the last fit ended: so that a resumed run has the same.

    Parameters
    ----------
    encoding : Encoding
    pool : Pool
    seed : int
    most : int
        Measured configurations that the process learns from: the fastest half of them, and as many drawn from the
        others; and half as many of those that were skipped.
    compression : float
        See :class:`mltune.learn.cost_model.Compression`.
    """

    name = "model"

    def __init__(
        self,
        encoding: Encoding,
        pool: Pool,
        *,
        seed: int,
        most: int = 224,
        compression: float = 0.2,
    ) -> None:
        self.pool = pool
        self.seed = seed
        self.most = most
        self.most_skipped = most // 2
        self._target = Compression(compression)
        self._trend = MeanFunction(encoding.mean_weights)
        self._known: dict[int, Hyperparameters] = {}

    def propose(self, situation: Situation, count: int) -> Choice:
        """Choose by expected improvement; see :meth:`Proposer.propose`."""
        history, rng = situation.history, situation.rng
        candidates = self.pool.draw(history.best(len(history.indices)), situation.taken, rng)
        if len(candidates) == 0 or count < 1:
            return Choice(candidates[:0])
        target = self._target.fit(len(history.scores), history.scores)
        best = float(target.max())
        rows = fastest_and_some(target, self.most, self.most // 2, rng)
        # What was skipped last is learned as if it had turned out as the gate predicted, which knew more.
        skipped = history.skipped[-self.most_skipped :]
        target = np.concatenate([target[rows], self._target.compress(history.predicted[-self.most_skipped :])])
        parts = (np.concatenate([history.indices[rows], skipped]), history.running, candidates)
        points, trends = self.pool.describe(np.concatenate(parts))  # all at once: a call costs as much as many rows
        known, running, new = np.split(points, np.cumsum([len(part) for part in parts[:-1]]))
        weights = self._trend.fit(trends[: len(rows)], target[: len(rows)])
        left = target - trends[: len(known)] @ weights
        process = GaussianProcess(self._hyperparameters(history, points.shape[1])).fit(known, left)
        if len(running):
            process.fit(np.concatenate([known, running]), np.concatenate([left, process.mean(running)]))
        posterior = process.posterior(new)
        mean = posterior.mean + trends[-len(new) :] @ weights
        gain = log_expected_improvement(mean, posterior.spread, best)
        hopeful = np.sort(np.argsort(-gain, kind="stable")[: HOPEFUL * count])  # while a batch is chosen no gain rises
        candidates, mean, posterior = candidates[hopeful], mean[hopeful], posterior.among(hopeful)
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
            target = Compression(self._target.slope).fit(first, scores)
            rng = np.random.default_rng((self.seed, first))
            rows = fastest_and_some(target, self.most, self.most // 2, rng)
            points, trends = self.pool.describe(history.indices[rows])
            left = target[rows] - trends @ self._trend.fit(trends, target[rows])
            self._known[first] = Hyperparameters.most_likely(points, left)
        return self._known[first]


class TpeProposer:
    """Optuna's TPE, repaired: each answer is taken to the nearest valid configuration.

    Stock TPE asks for what it had before, and for what is not valid, several times for each that can be measured.

    Parameters
    ----------
    space : SearchSpace
    distributions : dict of str to CategoricalDistribution
    """

    name = "tpe"

    def __init__(self, space: SearchSpace, distributions: dict[str, CategoricalDistribution]) -> None:
        self.space = space
        self.distributions = distributions

    def propose(self, situation: Situation, count: int) -> Choice:
        """Ask TPE; see :meth:`Proposer.propose`."""
        answers = ask_tpe(situation.study, self.distributions, 2 * count, situation.rng)
        columns = {name: np.array([answer[name] for answer in answers], dtype=np.int64) for name in self.space.names}
        return Choice(self.space.nearest(columns))


class RandomProposer:
    """Chance: uniformly among what is valid, as far as it is kept.

    Parameters
    ----------
    space : SearchSpace
    keeps : callable, optional
        From Columns to ndarray of shape (n_configs,), bool: what may be proposed, such as
        :meth:`mltune.learn.astra.AstraThresholds.keeps`.
    """

    name = "random"

    def __init__(self, space: SearchSpace, keeps: Callable[[Columns], NDArray[np.bool_]] | None = None) -> None:
        self.space = space
        self.keeps = keeps

    def propose(self, situation: Situation, count: int) -> Choice:
        """Draw; see :meth:`Proposer.propose`. Fewer where not enough is kept of what a few rounds draw."""
        if self.keeps is None:
            return Choice(self.space.sample(count, situation.rng, situation.taken))
        found = np.empty(0, dtype=np.int64)
        for _ in range(ROUNDS):
            drawn = self.space.sample(64 * count, situation.rng, situation.taken)
            found = np.concatenate([found, drawn[self.keeps(self.space.rows(drawn))]])
            if len(found) >= count:
                break
        return Choice(found)


def log_expected_improvement(mean: Floats, spread: Floats, best: float) -> Floats:
    """Return the log of the expected improvement over ``best`` (Jones, Schonlau and Welch, 1998, equation 15).

    In logs, so that there is an order among what is hopeless (Ament and others, 2023, "Unexpected improvements to
    expected improvement").

    Parameters
    ----------
    mean, spread : ndarray of shape (n_configs,)
        Of normal distributions; spreads above 0.
    best : float
    """
    from scipy.special import ndtr

    z = (mean - best) / spread
    density = -0.5 * z * z - 0.5 * math.log(2.0 * math.pi)
    with np.errstate(divide="ignore", invalid="ignore"):
        near = np.log(z * ndtr(z) + np.exp(density))
        far = density - 2.0 * np.log(np.abs(z))
    gain: Floats = np.log(spread) + np.where(z > -10.0, near, far)
    return gain
