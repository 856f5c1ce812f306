"""Mean of extra trees and a Gaussian process: the cost model of the pruned sweep.

Trees find the regions that are slow for a reason (a spill, a half-empty warp); the Gaussian process interpolates
between the fast configurations and knows how far it is from anything measured. Where the two disagree, one of them is
wrong: half of their difference is part of the spread.
"""

from __future__ import annotations

from typing import Self

import numpy as np

from mltune.cost.extra_trees import ExtraTreesModel
from mltune.cost.gaussian_process import GaussianProcess, Hyperparameters
from mltune.kernel.columns import Floats

MOST_LIKELY_FROM = 200
"""Fastest configurations from which the hyperparameters of the Gaussian process are estimated."""

AT_ONCE = 10_000
"""Configurations that are predicted together: the covariances with all rows of the fit are in memory."""


class Ensemble:
    """The mean of extra trees and a Gaussian process.

    Satisfies :class:`mltune.cost.cost_model.CostModel`, but learns speeds as they are: without compression, and
    without NaN.

    Parameters
    ----------
    random_state : int
    hyperparameters : Hyperparameters, optional
        Those of an earlier fit; by default they are estimated.

    Attributes
    ----------
    hyperparameters : Hyperparameters or None
        Those of the fit.

    Examples
    --------
    >>> X = np.random.default_rng(0).random((100, 3))
    >>> model = Ensemble(random_state=0).fit(X, -X[:, 0])
    >>> mean, spread = model.predict(np.array([[0.1, 0.5, 0.5], [0.9, 0.5, 0.5]]))
    >>> bool(mean[0] > mean[1])
    True
    """

    def __init__(self, *, random_state: int, hyperparameters: Hyperparameters | None = None) -> None:
        self.hyperparameters = hyperparameters
        self._trees = ExtraTreesModel(random_state=random_state, slope=1.0)

    def fit(self, X: Floats, y: Floats) -> Self:
        """Learn; see :meth:`mltune.cost.cost_model.CostModel.fit`. The features are scaled by their range."""
        self._least, self._range = X.min(axis=0), np.maximum(np.ptp(X, axis=0), 1e-12)
        points = self._points(X)
        if self.hyperparameters is None:
            fastest = np.argsort(-y, kind="stable")[:MOST_LIKELY_FROM]
            self.hyperparameters = Hyperparameters.most_likely(points[fastest], y[fastest])
        self._process = GaussianProcess(self.hyperparameters).fit(points, y)
        self._trees.fit(X, y)
        return self

    def predict(self, X: Floats) -> tuple[Floats, Floats]:
        """Predict; see :meth:`mltune.cost.cost_model.CostModel.predict`."""
        parts = [self._predict(X[start : start + AT_ONCE]) for start in range(0, max(len(X), 1), AT_ONCE)]
        return np.concatenate([mean for mean, _ in parts]), np.concatenate([spread for _, spread in parts])

    def _predict(self, X: Floats) -> tuple[Floats, Floats]:
        if not len(X):
            return np.empty(0), np.empty(0)
        posterior = self._process.posterior(self._points(X))
        return _joined(self._trees.predict(X), (posterior.mean, posterior.spread))

    def unseen(self) -> tuple[Floats, Floats]:
        """Predict each row without itself; see :meth:`mltune.cost.cost_model.CostModel.unseen`."""
        return _joined(self._trees.unseen(), self._process.unseen())

    def _points(self, X: Floats) -> Floats:
        points: Floats = (X - self._least) / self._range
        return points


def _joined(trees: tuple[Floats, Floats], process: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    """Return the mean of two predictions, and its spread: of each by itself and between them."""
    mean = (trees[0] + process[0]) / 2
    within = (np.square(trees[1]) + np.square(process[1])) / 2
    return mean, np.sqrt(within + np.square(trees[0] - process[0]) / 4)
