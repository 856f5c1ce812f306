"""Failures learned: how likely a configuration is to fail, which no speed says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

from mltune.kernel.columns import Floats

if TYPE_CHECKING:
    from sklearn.ensemble import ExtraTreesClassifier


class FailureModel:
    """The probability that a configuration fails: does not compile, cannot be launched, crashes, is wrong.

    A cost model learns failures as slow, which leads a search away from them, but says nothing of a configuration that
    looks fast and fails. This one is fitted only where something has failed; until then nothing is expected to. A
    search weighs a gain by ``1 - probability``.

    Parameters
    ----------
    random_state : int
    trees : int
    min_samples_leaf : int

    Attributes
    ----------
    rate_ : float
        Share of the configurations that failed.
    """

    def __init__(self, *, random_state: int, trees: int = 48, min_samples_leaf: int = 2) -> None:
        self.random_state = random_state
        self.trees = trees
        self.min_samples_leaf = min_samples_leaf

    def fit(self, X: Floats, y: Floats) -> Self:
        """Learn.

        Parameters
        ----------
        X : ndarray of shape (n_configs, n_features)
        y : ndarray of shape (n_configs,)
            As for a cost model: NaN for a configuration that failed.

        Raises
        ------
        ValueError
            There are no rows, or not as many as targets.
        """
        from sklearn.ensemble import ExtraTreesClassifier

        failed = ~np.isfinite(np.asarray(y, dtype=np.float64))
        if len(X) != len(failed) or len(failed) == 0:
            raise ValueError(f"as many rows as targets and at least one, got {len(X)} rows, {len(failed)} targets")
        self.rate_ = float(failed.mean())
        self._forest: ExtraTreesClassifier | None = None
        if 0.0 < self.rate_ < 1.0:
            self._forest = ExtraTreesClassifier(
                self.trees,
                min_samples_leaf=self.min_samples_leaf,
                max_features=0.5,
                bootstrap=True,
                n_jobs=1,
                random_state=self.random_state,
            ).fit(np.asarray(X, dtype=np.float32), failed)
        return self

    def probability(self, X: Floats) -> Floats:
        """Return the probability of failing: ndarray of shape (n_configs,)."""
        if self._forest is None:
            return np.full(len(X), self.rate_)
        chances: Floats = self._forest.predict_proba(np.asarray(X, dtype=np.float32))[:, 1]
        return chances
