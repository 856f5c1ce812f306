"""Cost models that are compared with the one that mltune uses: random forest, boosting, Gaussian process, classifier.

benchmarks/cost_models.py compares them; docs/explanation/features.md holds the result.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingRegressor, RandomForestRegressor

from mltune.cost.gaussian_process import JITTER, GaussianProcess, Hyperparameters
from mltune.cost.regressors import Compression, ExtraTreesModel

Floats = NDArray[np.float64]


class RandomForestModel(ExtraTreesModel):
    """A random forest (Breiman, 2001): it splits at the best threshold, where extra trees draw one."""

    def _forest(self) -> Any:
        return RandomForestRegressor(**self.options)


class BoostingModel(ExtraTreesModel):
    """Gradient boosting on histograms (Ke and others, 2017, "LightGBM"), each member fitted to two thirds of the rows.

    Boosting alone gives no spread. So the rows are divided into three parts, ``repeats`` times, and a member learns
    from all parts but one: every row is unseen by exactly ``repeats`` members (at least 2).
    """

    def __init__(self, *, random_state: int, repeats: int = 3, iterations: int = 100) -> None:
        super().__init__(random_state=random_state)
        self.random_state = random_state
        self.repeats = repeats
        self.iterations = iterations

    def _fit_members(self, rows: NDArray[np.float32], target: Floats) -> NDArray[np.bool_]:
        rng = np.random.default_rng(self.random_state)
        parts = np.array([rng.permutation(len(rows)) % 3 for _ in range(self.repeats)])
        saw = np.concatenate([parts != part for part in range(3)])
        self._members = [
            HistGradientBoostingRegressor(
                max_iter=self.iterations,
                learning_rate=0.1,
                min_samples_leaf=4,
                early_stopping=False,
                random_state=int(rng.integers(2**31)),
            ).fit(rows[seen] if seen.any() else rows, target[seen] if seen.any() else target)
            for seen in saw
        ]
        return saw

    def _predictions(self, X: NDArray[np.float32]) -> Floats:
        return np.stack([member.predict(X) for member in self._members])


class GaussianProcessModel:
    """A Gaussian process as a cost model; its cost is cubic in the number of rows.

    Features are scaled to the unit cube of the rows that it learns from.
    """

    def __init__(self, *, compression: float = 0.2) -> None:
        self._target = Compression(compression)

    def fit(self, X: Floats, y: Floats) -> Self:
        """Learn; see :meth:`mltune.cost.regressors.CostModel.fit`."""
        target = self._target.fit(len(X), y)
        self._low, extent = X.min(axis=0), np.ptp(X, axis=0)
        self._varies = extent > 0
        self._extent = extent[self._varies]
        points = self._points(X)
        self._known = points, target
        self._hyperparameters = Hyperparameters.most_likely(points, target)
        self._process = GaussianProcess(self._hyperparameters).fit(points, target)
        return self

    def predict(self, X: Floats) -> tuple[Floats, Floats]:
        """Predict; see :meth:`mltune.cost.regressors.CostModel.predict`."""
        posterior = self._process.posterior(self._points(X))
        return self._target.expand(posterior.mean), posterior.spread

    def unseen(self) -> tuple[Floats, Floats]:
        """Predict each row from the others (Rasmussen and Williams, 2006, equation 5.12)."""
        points, target = self._known
        deviation = max(float(target.std()), 1e-9)
        z = (target - target.mean()) / deviation
        covariance = self._hyperparameters.covariance(points, points)
        covariance[np.diag_indices(len(z))] += self._hyperparameters.noise**2 + JITTER
        inverse = np.linalg.inv(covariance)
        mean = z - inverse @ z / np.diag(inverse)
        return self._target.expand(target.mean() + deviation * mean), deviation / np.sqrt(np.diag(inverse))

    def _points(self, X: Floats) -> Floats:
        return (X - self._low)[:, self._varies] / self._extent


class FailureModel:
    """The probability that a configuration fails, by extra trees; fitted only where some failed and some did not."""

    def __init__(self, *, random_state: int) -> None:
        self.random_state = random_state

    def fit(self, X: Floats, y: Floats) -> Self:
        """Learn from targets that are NaN for a configuration that failed."""
        failed = ~np.isfinite(y)
        self._rate = float(failed.mean())
        self._forest = None
        if 0.0 < self._rate < 1.0:
            self._forest = ExtraTreesClassifier(
                48, min_samples_leaf=2, max_features=0.5, bootstrap=True, n_jobs=1, random_state=self.random_state
            ).fit(X.astype(np.float32), failed)
        return self

    def probability(self, X: Floats) -> Floats:
        """Return the probability of failing: ndarray of shape (n_configs,)."""
        if self._forest is None:
            return np.full(len(X), self._rate)
        return self._forest.predict_proba(X.astype(np.float32))[:, 1]
