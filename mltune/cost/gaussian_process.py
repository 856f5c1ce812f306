"""Gaussian process regression, a smooth prior over logs of sizes, which needs ten measurements to rank the fast."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from mltune.kernel.coding import Floats

JITTER = 1e-6
SMALLEST_VARIANCE = 1e-10

_NOISE = (0.01, 1.0)
_AMPLITUDE = (math.exp(-2.0), math.exp(2.0))
_SCALE = (math.exp(-3.0), math.exp(3.0))


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """Hyperparameters on the unit cube, for targets of zero mean and unit deviation.

    ``scales`` are length scales, of shape (n_dimensions,); amplitude and noise are standard deviations.
    """

    scales: Floats
    amplitude: float
    noise: float

    @classmethod
    def usual(cls, dimensions: int, relative: Floats | float = 1.0) -> Self:
        """Return the mode of the prior, with length scales relative to the usual ones.

        Length scales grow with the number of dimensions, as distances do (Hvarfner, Hellsten and Nardi, ICML 2024,
        "Vanilla Bayesian optimization performs great in high dimensions").
        """
        return cls(np.full(dimensions, 0.5 * max(dimensions, 1) ** 0.35) * relative, 1.0, 0.1)

    @classmethod
    def most_likely(cls, X: Floats, y: Floats, prior: Self | None = None, deviation: float = 1.0) -> Self:
        """Return the maximum a posteriori estimate for points X of shape (n_points, n_dimensions) in the unit cube.

        ``prior`` is the mode of the prior, by default the usual one, ``deviation`` its standard deviation of each log.
        """
        from scipy.optimize import minimize

        start = (prior or cls.usual(X.shape[1]))._logs()
        bounds = [tuple(map(math.log, _SCALE))] * X.shape[1] + [tuple(map(math.log, _AMPLITUDE))]
        bounds += [tuple(map(math.log, _NOISE))]
        optimum = minimize(
            _loss,
            start,
            args=(X, (y - y.mean()) / _deviation(y), start, deviation),
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": 20},
        ).x
        return cls(np.exp(optimum[:-2]), float(np.exp(optimum[-2])), float(np.exp(optimum[-1])))

    def _logs(self) -> Floats:
        logs: Floats = np.log(np.concatenate([self.scales, [self.amplitude, self.noise]]))
        return logs

    def covariance(self, A: Floats, B: Floats) -> Floats:
        """Return the Matérn 5/2 covariance of two sets of points: ndarray of shape (len(A), len(B))."""
        radius = _radius(A / self.scales, B / self.scales)
        decay = np.exp(-radius)
        radius *= 1.0 + radius / 3.0
        radius += 1.0
        radius *= decay
        radius *= self.amplitude**2
        return radius


class GaussianProcess:
    """Regression by a Gaussian process with given hyperparameters (Rasmussen and Williams, 2006, algorithm 2.1)."""

    def __init__(self, hyperparameters: Hyperparameters) -> None:
        self.hyperparameters = hyperparameters

    def fit(self, X: Floats, y: Floats) -> Self:
        """Condition on points and targets, of the shapes in :meth:`Hyperparameters.most_likely`."""
        from scipy.linalg import cho_solve, cholesky

        self._X = X
        self._mean, self._deviation = float(y.mean()), _deviation(y)
        self._z = (y - self._mean) / self._deviation
        covariance = self.hyperparameters.covariance(X, X)
        covariance[np.diag_indices(len(X))] += self.hyperparameters.noise**2 + JITTER
        self._factor = cholesky(covariance, lower=True, overwrite_a=True, check_finite=False)
        self._weights = cho_solve((self._factor, True), self._z, check_finite=False)
        return self

    def mean(self, X: Floats) -> Floats:
        """Return the mean of the targets at points: ndarray of shape (n_points,)."""
        mean: Floats = self._mean + self._deviation * (self.hyperparameters.covariance(X, self._X) @ self._weights)
        return mean

    def unseen(self) -> tuple[Floats, Floats]:
        """Predict each point of :meth:`fit` from all others (Rasmussen and Williams, 2006, equation 5.12).

        The hyperparameters stay those of the fit; the standard deviations include the noise.
        """
        from scipy.linalg import cho_solve

        precision = np.diag(cho_solve((self._factor, True), np.eye(len(self._X)), check_finite=False))
        mean = self._mean + self._deviation * (self._z - self._weights / precision)
        return mean, self._deviation / np.sqrt(precision)

    def evidence(self) -> float:
        """Return the log likelihood of the targets, each predicted from all others, less a constant (equation 5.11)."""
        mean, spread = self.unseen()
        errors = (self._mean + self._deviation * self._z - mean) / spread
        return float(np.sum(-0.5 * np.square(errors) - np.log(spread)))

    def posterior(self, X: Floats) -> Posterior:
        """Return the joint posterior distribution at points."""
        from scipy.linalg import solve_triangular

        shared = self.hyperparameters.covariance(self._X, X)
        explained = solve_triangular(self._factor, shared, lower=True, check_finite=False)
        mean = self._mean + self._deviation * (self._weights @ shared)
        variance = self.hyperparameters.amplitude**2 - np.square(explained).sum(axis=0)
        return Posterior(self.hyperparameters, self._deviation, X, mean, variance, [explained])


@dataclass(eq=False, slots=True)
class Posterior:
    """The joint posterior distribution of a Gaussian process at a set of points; ``mean`` has the shape (n_points,)."""

    hyperparameters: Hyperparameters
    deviation: float
    X: Floats
    mean: Floats
    variance: Floats
    explained: list[Floats]

    @property
    def spread(self) -> Floats:
        """Standard deviation of the targets, without noise: ndarray of shape (n_points,)."""
        spread: Floats = self.deviation * np.sqrt(np.maximum(self.variance, SMALLEST_VARIANCE))
        return spread

    def among(self, positions: NDArray[np.int64]) -> Posterior:
        """Return the posterior at some of the points; the conditions of :meth:`expect` stay."""
        X, mean, variance = (values[positions] for values in (self.X, self.mean, self.variance))
        explained = [np.concatenate(self.explained)[:, positions]]
        return replace(self, X=X, mean=mean, variance=variance, explained=explained)

    def expect(self, position: int) -> None:
        """Condition on a point with its mean as the target: means stay, and points near it become less uncertain.

        A batch can so be chosen before any of it is measured: the kriging believer (Ginsbourger, Le Riche and Carraro,
        2010, "Kriging is well-suited to parallelize optimization").
        """
        covariance = self.hyperparameters.covariance(self.X[[position]], self.X)[0]
        for explained in self.explained:
            covariance -= explained[:, position] @ explained
        variance = max(float(self.variance[position]), SMALLEST_VARIANCE)
        row = covariance / math.sqrt(variance + self.hyperparameters.noise**2)
        self.explained.append(row[None, :])
        self.variance = self.variance - row * row


def _deviation(y: Floats) -> float:
    return max(float(y.std()), 1e-9)


def _radius(A: Floats, B: Floats) -> Floats:
    """Return sqrt(5) times the distances of points: ndarray of shape (len(A), len(B))."""
    squares = (-2.0 * A) @ B.T
    squares += np.square(A).sum(axis=1)[:, None]
    squares += np.square(B).sum(axis=1)
    np.maximum(squares, 0.0, out=squares)
    squares *= 5.0
    return np.sqrt(squares, out=squares)


def _loss(logs: Floats, X: Floats, z: Floats, centre: Floats, deviation: float) -> tuple[float, Floats]:
    """Return the negative log posterior of hyperparameters, and its gradient (Rasmussen and Williams, equation 5.9).

    The priors are log-normal with their mode at a centre.
    """
    from scipy.linalg import LinAlgError, cho_solve, cholesky

    scales, amplitude, noise = np.exp(logs[:-2]), math.exp(2.0 * logs[-2]), math.exp(2.0 * logs[-1])
    scaled = X / scales
    radius = _radius(scaled, scaled)
    decay = np.exp(-radius)
    signal = amplitude * (1.0 + radius + np.square(radius) / 3.0) * decay
    covariance = signal.copy()
    covariance[np.diag_indices(len(X))] += noise + JITTER
    try:
        factor = cholesky(covariance, lower=True, overwrite_a=True, check_finite=False)
    except LinAlgError:
        return 1e25, np.zeros_like(logs)
    inverse = cho_solve((factor, True), np.eye(len(X)), check_finite=False)
    weights = inverse @ z
    slope = inverse - np.outer(weights, weights)  # twice the derivative by the covariance
    by_square = slope * ((5.0 / 3.0) * amplitude) * (1.0 + radius) * decay
    gradient = np.empty_like(logs)
    gradient[:-2] = by_square.sum(axis=1) @ np.square(scaled) - np.einsum("ij,ij->j", scaled, by_square @ scaled)
    gradient[-2] = np.sum(slope * signal)
    gradient[-1] = noise * np.trace(slope)
    away = (logs - centre) / deviation
    loss = 0.5 * float(z @ weights) + float(np.log(np.diag(factor)).sum()) + 0.5 * float(away @ away)
    return loss, gradient + away / deviation
