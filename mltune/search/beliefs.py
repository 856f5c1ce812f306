"""Beliefs about speeds, with and without the sources of a search, which count by how well they foresee measurements.

A source may mislead: it is of other hardware, or leaves out what decides here. Measurements near its favourites do not
tell. Where the belief without sources expects an improvement, it is therefore part of the expectation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mltune.cost.encoding import Encoding, MeanFunction
from mltune.cost.gaussian_process import GaussianProcess, Hyperparameters, Posterior
from mltune.kernel.coding import Floats, Indices


class Belief:
    """A Gaussian process with a mean function, on the first coordinates and basis functions of a description.

    It conditions on targets of the measured configurations, the first ones, and of skipped ones, the following; what is
    running, the rest of the described configurations, is taken to turn out as expected.
    """

    def __init__(self, encoding: Encoding) -> None:
        self._prior, self._deviation = encoding.prior, encoding.deviation
        self._mean_function = MeanFunction(encoding.mean_weights)
        self.forget()

    def forget(self) -> None:
        """Return to the hyperparameters before any measurement."""
        self.hyperparameters, self._key = self._prior, b""

    def learn(self, points: Floats, basis: Floats, target: Floats, *, key: bytes) -> None:
        """Estimate the hyperparameters from measured configurations, unless they are those of the same key."""
        if key != self._key:
            points, basis = self._own(points, basis)
            residual = target - basis @ self._mean_function.fit(basis, target)
            self.hyperparameters = Hyperparameters.most_likely(points, residual, self._prior, self._deviation)
            self._key = key

    def condition(self, points: Floats, basis: Floats, target: Floats, measured: int, *, is_compared: bool) -> float:
        """Learn targets; return the evidence for a belief that is compared with others, otherwise 0."""
        points, basis = self._own(points, basis)
        self._weights = self._mean_function.fit(basis[:measured], target[:measured])
        residual = target - basis[: len(target)] @ self._weights
        process = self._process = GaussianProcess(self.hyperparameters)
        evidence = process.fit(points[:measured], residual[:measured]).evidence() if is_compared else 0.0
        if len(target) > measured or not is_compared:
            process.fit(points[: len(target)], residual)
        if len(points) > len(target):
            process.fit(points, np.concatenate([residual, process.mean(points[len(target) :])]))
        return evidence

    def posterior(self, points: Floats, basis: Floats) -> tuple[Floats, Posterior]:
        """Return the expected targets of configurations, and their joint distribution about the mean function."""
        points, basis = self._own(points, basis)
        posterior = self._process.posterior(points)
        return posterior.mean + basis @ self._weights, posterior

    def _own(self, points: Floats, basis: Floats) -> tuple[Floats, Floats]:
        return points[:, : len(self._prior.scales)], basis[:, : len(self._mean_function.expected)]


class Beliefs:
    """The beliefs of a search: with its sources, if there are any, and without."""

    def __init__(self, encoding: Encoding) -> None:
        self.beliefs = [Belief(encoding)]
        if encoding.sources:
            self.beliefs.append(Belief(encoding.without_sources))

    def forget(self) -> None:
        """See :meth:`Belief.forget`."""
        for belief in self.beliefs:
            belief.forget()

    def learn(self, points: Floats, basis: Floats, target: Floats, *, key: bytes) -> None:
        """See :meth:`Belief.learn`."""
        for belief in self.beliefs:
            belief.learn(points, basis, target, key=key)

    def condition(self, points: Floats, basis: Floats, target: Floats, measured: int) -> None:
        """Learn targets (see :meth:`Belief.condition`), and weigh the beliefs.

        A belief counts as likely as it makes each measurement, given the others (Geisser and Eddy, 1979, "A predictive
        approach to model selection"). The likelihood of all together would trust a source too early.
        """
        several = len(self.beliefs) > 1
        evidence = np.array(
            [belief.condition(points, basis, target, measured, is_compared=several) for belief in self.beliefs]
        )
        self._logs = evidence - np.logaddexp.reduce(evidence)

    def outlook(self, points: Floats, basis: Floats, best: float) -> Outlook:
        """Return what is expected of candidates beside the best target so far."""
        means, posteriors = zip(*(belief.posterior(points, basis) for belief in self.beliefs), strict=True)
        return Outlook(self._logs, means, posteriors, np.full(len(means), best))


@dataclass(eq=False, slots=True)
class Outlook:
    """What several beliefs expect of candidates: each with the log of its weight, and the best target so far."""

    logs: Floats
    means: Sequence[Floats]
    posteriors: Sequence[Posterior]
    bests: Floats

    def mean(self) -> Floats:
        """Return the expected targets: ndarray of shape (n_candidates,)."""
        return np.exp(self.logs) @ np.array(self.means)

    def gain(self) -> Floats:
        """Return the log of the expected improvement of each candidate."""
        gains = [
            log + log_expected_improvement(mean, posterior.spread, best)
            for log, mean, posterior, best in zip(self.logs, self.means, self.posteriors, self.bests, strict=True)
        ]
        gain: Floats = np.logaddexp.reduce(gains)
        return gain

    def hopes(self, gain: float) -> float:
        """Return how many candidates the likeliest belief expects to be above the best by a gain of the target."""
        from scipy.special import ndtr

        likeliest = int(np.argmax(self.logs))
        above = self.means[likeliest] - self.bests[likeliest] - gain
        return float(ndtr(above / self.posteriors[likeliest].spread).sum())

    def among(self, positions: Indices) -> Outlook:
        """Return the outlook on some of the candidates."""
        means = [mean[positions] for mean in self.means]
        return Outlook(self.logs, means, [posterior.among(positions) for posterior in self.posteriors], self.bests)

    def expect(self, position: int) -> None:
        """Take a candidate to turn out as expected, by each belief as it expects."""
        for posterior in self.posteriors:
            posterior.expect(position)
        self.bests = np.maximum(self.bests, [mean[position] for mean in self.means])


def log_expected_improvement(mean: Floats, spread: Floats, best: float) -> Floats:
    """Return the log of the expected improvement over ``best`` (Jones, Schonlau and Welch, 1998, equation 15).

    Logarithms keep an order among tiny improvements (Ament and others, 2023, "Unexpected improvements to expected
    improvement"). Spreads are standard deviations of shape (n_configs,), above 0.
    """
    from scipy.special import ndtr

    z = (mean - best) / spread
    density = -0.5 * z * z - 0.5 * math.log(2.0 * math.pi)
    with np.errstate(divide="ignore", invalid="ignore"):
        near = np.log(z * ndtr(z) + np.exp(density))
        far = density - 2.0 * np.log(np.abs(z))
    return np.log(spread) + np.where(z > -10.0, near, far)
