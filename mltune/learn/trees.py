"""Cost models made of trees: extra trees, a random forest, gradient boosting.

Each is an ensemble whose members saw different parts of the rows, so every row has members that never saw it:
residuals for calibration out of a single fit (Kim, Xu and Barber, 2020, "Predictive inference is free with the
jackknife+-after-bootstrap").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from mltune.kernel.columns import Floats
from mltune.learn.cost_model import Compression

if TYPE_CHECKING:
    from sklearn.ensemble import BaseEnsemble, HistGradientBoostingRegressor

Rows = NDArray[np.float32]


class _Ensemble:
    """What ensembles share: members vote; a row is judged unseen by those that never saw it."""

    _target: Compression
    _rows: Rows
    _saw: NDArray[np.bool_]

    def _votes(self, X: Rows) -> Floats:
        """Return every member's prediction, compressed: ndarray of shape (n_members, n_configs)."""
        raise NotImplementedError

    def _fit_members(self, rows: Rows, target: Floats) -> NDArray[np.bool_]:
        """Fit the members; return which rows each saw: ndarray of shape (n_members, n_configs), bool."""
        raise NotImplementedError

    def fit(self, X: Floats, y: Floats) -> Self:
        """Learn; see :meth:`mltune.learn.cost_model.CostModel.fit`."""
        self._rows = np.asarray(X, dtype=np.float32)
        target = self._target.fit(len(self._rows), np.asarray(y, dtype=np.float64))
        self._saw = self._fit_members(self._rows, target)
        return self

    def predict(self, X: Floats) -> tuple[Floats, Floats]:
        """Predict; see :meth:`mltune.learn.cost_model.CostModel.predict`."""
        votes = self._votes(np.asarray(X, dtype=np.float32))
        return self._target.expand(votes.mean(axis=0)), votes.std(axis=0, ddof=1)

    def unseen(self) -> tuple[Floats, Floats]:
        """Predict rows unseen, where two members did not see them; see :meth:`CostModel.unseen`."""
        votes = self._votes(self._rows)
        votes[self._saw] = np.nan
        known = (~self._saw).sum(axis=0) > 1
        mean, spread = np.full((2, len(known)), np.nan)
        mean[known] = self._target.expand(np.nanmean(votes[:, known], axis=0))
        spread[known] = np.nanstd(votes[:, known], axis=0, ddof=1)
        return mean, spread


class _Forest(_Ensemble):
    """Trees on bootstrap samples: each sees about 63 % of the rows."""

    def __init__(
        self,
        *,
        random_state: int,
        trees: int = 64,
        min_samples_leaf: int = 2,
        max_features: float = 0.5,
        compression: float = 0.2,
    ) -> None:
        self.random_state = random_state
        self.trees = trees
        self.min_samples_leaf = min_samples_leaf
        self.max_features = max_features
        self._target = Compression(compression)

    def _make(self) -> BaseEnsemble:
        raise NotImplementedError

    def _fit_members(self, rows: Rows, target: Floats) -> NDArray[np.bool_]:
        self._forest = self._make().fit(rows, target)
        saw = np.zeros((self.trees, len(rows)), dtype=bool)
        for tree, samples in enumerate(self._forest.estimators_samples_):
            saw[tree, samples] = True
        return saw

    def _votes(self, X: Rows) -> Floats:
        return np.stack([member.tree_.predict(X).ravel() for member in self._forest.estimators_])

    @property
    def _options(self) -> dict[str, object]:
        return {
            "n_estimators": self.trees,
            "min_samples_leaf": self.min_samples_leaf,
            "max_features": self.max_features,
            "bootstrap": True,
            "n_jobs": 1,
            "random_state": self.random_state,
        }


class ExtraTreesModel(_Forest):
    """Extremely randomised trees (Geurts, Ernst and Wehenkel, 2006) on bootstrap samples.

    Parameters
    ----------
    random_state : int
    trees : int
    min_samples_leaf : int
    max_features : float
        Share of the features tried at a split.
    compression : float
        See :class:`mltune.learn.cost_model.Compression`.
    """

    def _make(self) -> BaseEnsemble:
        from sklearn.ensemble import ExtraTreesRegressor

        return ExtraTreesRegressor(**self._options)


class RandomForestModel(_Forest):
    """A random forest (Breiman, 2001): splits at the best threshold, where extra trees draw one.

    Parameters
    ----------
    random_state : int
    trees : int
    min_samples_leaf : int
    max_features : float
        Share of the features tried at a split.
    compression : float
        See :class:`mltune.learn.cost_model.Compression`.
    """

    def _make(self) -> BaseEnsemble:
        from sklearn.ensemble import RandomForestRegressor

        return RandomForestRegressor(**self._options)


class BoostingModel(_Ensemble):
    """Gradient boosting on histograms (Ke and others, 2017, "LightGBM"), each member fitted to two thirds of the rows.

    Boosting alone knows no spread. So the rows are divided into three parts, ``repeats`` times over, and a member
    learns from all but one part: every row is unseen by exactly ``repeats`` members.

    Parameters
    ----------
    random_state : int
    repeats : int
        At least 2.
    iterations : int
        Trees of a member.
    learning_rate : float
    min_samples_leaf : int
    compression : float
        See :class:`mltune.learn.cost_model.Compression`.
    """

    def __init__(
        self,
        *,
        random_state: int,
        repeats: int = 3,
        iterations: int = 100,
        learning_rate: float = 0.1,
        min_samples_leaf: int = 4,
        compression: float = 0.2,
    ) -> None:
        self.random_state = random_state
        self.repeats = repeats
        self.iterations = iterations
        self.learning_rate = learning_rate
        self.min_samples_leaf = min_samples_leaf
        self._target = Compression(compression)

    def _fit_members(self, rows: Rows, target: Floats) -> NDArray[np.bool_]:
        from sklearn.ensemble import HistGradientBoostingRegressor

        rng = np.random.default_rng(self.random_state)
        parts = np.array([rng.permutation(len(rows)) % 3 for _ in range(self.repeats)])
        saw = np.concatenate([parts != part for part in range(3)])
        self._members: list[HistGradientBoostingRegressor] = [
            HistGradientBoostingRegressor(
                max_iter=self.iterations,
                learning_rate=self.learning_rate,
                min_samples_leaf=self.min_samples_leaf,
                early_stopping=False,
                random_state=int(rng.integers(2**31)),
            ).fit(rows[seen] if seen.any() else rows, target[seen] if seen.any() else target)
            for seen in saw
        ]
        return saw

    def _votes(self, X: Rows) -> Floats:
        return np.stack([member.predict(X) for member in self._members])
