"""The cost model: from the features of a configuration to its speed, with a spread that says how sure it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sklearn.ensemble import ExtraTreesRegressor

Floats = NDArray[np.float64]


def log_share(flops: float, median_s: float, peak_flops: float) -> float:
    """Return the target of every cost model: the log of the achieved share of the device's peak.

    Comparable across sizes, precisions and GPUs, and larger is faster.

    Parameters
    ----------
    flops : float
        Floating-point operations of the problem.
    median_s : float
        Run time, seconds.
    peak_flops : float
        Peak of the device for the problem's arithmetic, operations per second.
    """
    return float(np.log(max(flops, 1.0) / (median_s * peak_flops)))


class CostModel(Protocol):
    """Learns speed from measured configurations.

    ``y`` is the log share of the device's peak (:func:`log_share`), NaN for a configuration that failed: a model learns
    it as very slow. Predictions are in the same unit. The same ``random_state`` and rows in the same order give the
    same model.
    """

    def fit(self, X: Floats, y: Floats) -> Self:
        """Learn.

        Parameters
        ----------
        X : ndarray of shape (n_configs, n_features)
        y : ndarray of shape (n_configs,)
            At least one value is not NaN.
        """
        ...

    def predict(self, X: Floats) -> tuple[Floats, Floats]:
        """Return the mean and the spread (one standard deviation) of the speed.

        Parameters
        ----------
        X : ndarray of shape (n_configs, n_features)

        Returns
        -------
        mean, spread : ndarray of shape (n_configs,)
        """
        ...

    def unseen(self) -> Floats:
        """Return what those members of the model that never saw a row predict for it.

        Returns
        -------
        ndarray of shape (n_configs,)
            In the order of the rows given to :meth:`fit`; NaN where every member saw the row.
        """
        ...


class ExtraTreesModel:
    """Extremely randomised trees (Geurts, Ernst and Wehenkel, 2006) on bootstrap samples.

    Each tree sees about 63 % of the rows, so every row has trees that never saw it: residuals for calibration out of a
    single fit (Kim, Xu and Barber, 2020, "Predictive inference is free with the jackknife+-after-bootstrap").

    Half of a search space is hopeless, and how hopeless does not matter: below the median of what was measured, the
    target is compressed before fitting, so that the trees spend their splits on telling the fast ones apart.
    Predictions are given back uncompressed.

    Parameters
    ----------
    random_state : int
    trees : int
    min_samples_leaf : int
    max_features : float
        Share of the features tried at a split.
    compression : float
        Slope of the target below the median; 1 leaves it alone.

    Attributes
    ----------
    knee_ : float
        The median speed of what was measured.
    floor_ : float
        The speed that failed configurations were learned as.
    """

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
        self.compression = compression

    def fit(self, X: Floats, y: Floats) -> Self:
        """Learn; see :meth:`CostModel.fit`."""
        from sklearn.ensemble import ExtraTreesRegressor

        rows, y = np.asarray(X, dtype=np.float32), np.asarray(y, dtype=np.float64)
        measured = np.isfinite(y)
        if len(rows) != len(y) or not measured.any():
            raise ValueError(
                f"a cost model needs as many rows as targets and one measured target, got {len(rows)} rows, "
                f"{len(y)} targets, {int(measured.sum())} measured"
            )
        self.knee_ = float(np.median(y[measured]))
        self.floor_ = float(y[measured].min())
        target = self._compress(np.where(measured, y, self.floor_))
        self._forest: ExtraTreesRegressor = ExtraTreesRegressor(
            self.trees,
            min_samples_leaf=self.min_samples_leaf,
            max_features=self.max_features,
            bootstrap=True,
            n_jobs=1,
            random_state=self.random_state,
        ).fit(rows, target)
        self._rows = rows
        return self

    def predict(self, X: Floats) -> tuple[Floats, Floats]:
        """Predict; see :meth:`CostModel.predict`."""
        votes = self._votes(np.asarray(X, dtype=np.float32))
        return self._expand(votes.mean(axis=0)), votes.std(axis=0)

    def unseen(self) -> Floats:
        """Predict rows unseen; see :meth:`CostModel.unseen`."""
        votes = self._votes(self._rows)
        absent = np.ones_like(votes, dtype=bool)
        for tree, seen in enumerate(self._forest.estimators_samples_):
            absent[tree, seen] = False
        voters = absent.sum(axis=0)
        mean = np.where(absent, votes, 0.0).sum(axis=0) / np.maximum(voters, 1)
        return np.where(voters > 0, self._expand(mean), np.nan)

    def _votes(self, X: NDArray[np.float32]) -> Floats:
        """Return every tree's prediction, compressed: ndarray of shape (n_trees, n_configs)."""
        return np.stack([member.tree_.predict(X).ravel() for member in self._forest.estimators_])

    def _compress(self, y: Floats) -> Floats:
        return np.where(y < self.knee_, self.knee_ + self.compression * (y - self.knee_), y)

    def _expand(self, y: Floats) -> Floats:
        return np.where(y < self.knee_, self.knee_ + (y - self.knee_) / self.compression, y)
