"""Extra trees as the cost model of the gates, with out-of-bag predictions for calibration.

Each tree is fitted to a bootstrap sample of the rows, so every row has trees that never saw it. Their residuals
calibrate the interval of a gate without a second fit (Kim, Xu and Barber, 2020, "Predictive inference is free with the
jackknife+-after-bootstrap").
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mltune.cost.cost_model import SLOPE, Compression
from mltune.kernel.columns import Floats

Rows = NDArray[np.float32]


class ExtraTreesModel:
    """Extremely randomised trees (Geurts, Ernst and Wehenkel, 2006) on bootstrap samples.

    Satisfies :class:`mltune.cost.cost_model.CostModel`; the targets are those of
    :class:`mltune.cost.cost_model.Compression`.

    Parameters
    ----------
    random_state : int
    slope : float
        Slope of the targets below the median; 1 leaves the speeds as they are.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).random((200, 3))
    >>> model = ExtraTreesModel(random_state=0).fit(X, -X[:, 0])
    >>> mean, spread = model.predict(np.array([[0.1, 0.5, 0.5], [0.9, 0.5, 0.5]]))
    >>> bool(mean[0] > mean[1])
    True
    """

    def __init__(self, *, random_state: int, slope: float = SLOPE) -> None:
        self.options = {
            "n_estimators": 64,
            "min_samples_leaf": 2,
            "max_features": 0.5,
            "bootstrap": True,
            "n_jobs": 1,
            "random_state": random_state,
        }
        self._target = Compression(slope)

    def fit(self, X: Floats, y: Floats) -> Self:
        """Learn; see :meth:`mltune.cost.cost_model.CostModel.fit`."""
        self._rows = np.asarray(X, dtype=np.float32)
        target = self._target.fit(len(self._rows), np.asarray(y, dtype=np.float64))
        self._saw = self._fit_members(self._rows, target)
        return self

    def predict(self, X: Floats) -> tuple[Floats, Floats]:
        """Predict; see :meth:`mltune.cost.cost_model.CostModel.predict`."""
        predictions = self._predictions(np.asarray(X, dtype=np.float32))
        return self._target.expand(predictions.mean(axis=0)), predictions.std(axis=0, ddof=1)

    def unseen(self) -> tuple[Floats, Floats]:
        """Predict each row from the trees that did not see it, NaN where there are fewer than two.

        See :meth:`mltune.cost.cost_model.CostModel.unseen`.
        """
        predictions = self._predictions(self._rows)
        predictions[self._saw] = np.nan
        known = (~self._saw).sum(axis=0) > 1
        mean, spread = np.full((2, len(known)), np.nan)
        mean[known] = self._target.expand(np.nanmean(predictions[:, known], axis=0))
        spread[known] = np.nanstd(predictions[:, known], axis=0, ddof=1)
        return mean, spread

    def _forest(self) -> Any:
        """Return the forest before it is fitted."""
        from sklearn.ensemble import ExtraTreesRegressor

        return ExtraTreesRegressor(**self.options)

    def _fit_members(self, rows: Rows, target: Floats) -> NDArray[np.bool_]:
        """Fit the trees; return which rows each saw: ndarray of shape (n_trees, n_configs)."""
        forest = self._forest().fit(rows, target)
        self._members = forest.estimators_
        saw = np.zeros((len(self._members), len(rows)), dtype=bool)
        for tree, samples in enumerate(forest.estimators_samples_):
            saw[tree, samples] = True
        return saw

    def _predictions(self, X: Rows) -> Floats:
        """Return the compressed prediction of every tree: ndarray of shape (n_trees, n_configs)."""
        return np.stack([member.tree_.predict(X).ravel() for member in self._members])
