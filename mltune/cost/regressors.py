"""Cost models: their protocol, extra trees, which the gates use, and their mean with a Gaussian process."""

from __future__ import annotations

import functools
import sys
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack
from threading import Lock
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from mltune.cost.gaussian_process import GaussianProcess, Hyperparameters
from mltune.kernel.coding import Floats

SLOPE = 0.2
"""Slope of the targets below the median of the measured speeds."""


def log_share(flops: float, median_s: float, peak_flops: float) -> float:
    """Return the target of every cost model: the log share of the device's peak, in operations per second.

    It is comparable across sizes, precisions and GPUs, and larger is faster.
    """
    return float(np.log(max(flops, 1.0) / (median_s * peak_flops)))


class CostModel(Protocol):
    """A regression model of speed.

    ``y`` is the log share of the device's peak (:func:`log_share`), NaN for a configuration that failed: a model learns
    it as very slow. Predictions are in the same unit. The same ``random_state`` and the same rows in the same order
    give the same model.
    """

    def fit(self, X: Floats, y: Floats) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : ndarray of shape (n_configs, n_features)
        y : ndarray of shape (n_configs,)
            At least one value is not NaN.
        """

    def predict(self, X: Floats) -> tuple[Floats, Floats]:
        """Return the mean and the standard deviation of the speed, each of shape (n_configs,)."""

    def unseen(self) -> tuple[Floats, Floats]:
        """Return predictions for the rows of :meth:`fit`, each from the parts of the model that did not see the row.

        Returns
        -------
        mean, spread : ndarray of shape (n_configs,)
            In the order of the rows given to :meth:`fit`; NaN where every part of the model saw the row.
        """


def compress(speed: Floats, knee: float, slope: float = SLOPE) -> Floats:
    """Return speeds with their distances below the knee multiplied by a slope above 0."""
    return np.where(speed < knee, knee + slope * (speed - knee), speed)


def expand(target: Floats, knee: float, slope: float = SLOPE) -> Floats:
    """Return the speeds that :func:`compress` turned into these targets."""
    return np.where(target < knee, knee + (target - knee) / slope, target)


class Compression:
    """The transformation of speeds into the targets that a model is fitted to.

    Speeds below the median of the measured ones (``knee_``) are compressed by a slope above 0, so that the model
    resolves the fast ones better. A configuration that failed has the target of the slowest that ran.
    """

    def __init__(self, slope: float = SLOPE) -> None:
        self.slope = slope

    def fit(self, rows: int, y: Floats) -> Floats:
        """Set the knee, and return the targets of log shares of peak, NaN for failures: ndarray of shape (rows,)."""
        measured = np.isfinite(y)
        if rows != len(y) or not measured.any():
            raise ValueError(
                f"{rows} rows, {len(y)} targets and {int(measured.sum())} measured ones are no training data: there "
                "are as many rows as targets, and a measured one"
            )
        self.knee_ = float(np.median(y[measured]))
        return self.compress(np.where(measured, y, y[measured].min()))

    def compress(self, y: Floats) -> Floats:
        """Return the targets of speeds."""
        return compress(y, self.knee_, self.slope)

    def expand(self, target: Floats) -> Floats:
        """Return the speeds of targets."""
        return expand(target, self.knee_, self.slope)


_importing = Lock()


def preload(*, trees: bool = True) -> None:
    """Import the modules that the Gaussian process needs, and those of the trees, which take three times as long."""
    import importlib

    with _importing:  # two threads that import the same modules may see them half initialised
        for name in ("scipy.linalg", "scipy.optimize", "scipy.special", *(["sklearn.ensemble"] if trees else [])):
            importlib.import_module(name)


def one_thread(*, fits_models: bool = True) -> AbstractContextManager[object]:
    """Return a context of one thread for computations, with the modules of the models imported.

    Matrices are small and every other core compiles: threads would compete with the compilers. Sums also depend on the
    number of threads. The limit holds for libraries that are loaded already.
    """
    if fits_models:
        preload()
    limits: AbstractContextManager[object] = _thread_pools(len(sys.modules)).limit(limits=1)
    return limits


@functools.lru_cache(maxsize=1)
def _thread_pools(modules: int) -> Any:
    """Return the libraries that compute in threads: to look for them takes milliseconds, and imports load them."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


class Preloading:
    """Compute with one thread in a context, and import the modules of the models in another from :meth:`begin` on.

    The first of two stages has what the Gaussian process needs; the trees of the second are fitted later, or never.
    """

    def __init__(self, *, fits_models: bool, fits_trees: bool = True) -> None:
        self._stages = (False, True)[: 1 + fits_trees] if fits_models else ()  # whether they have the trees
        self._importing: list[Future[None]] = []
        self._finished = 0
        self._limits = ExitStack()

    def __enter__(self) -> Self:
        self._limits.enter_context(one_thread(fits_models=False))
        return self

    def __exit__(self, *error: object) -> None:
        self._limits.close()

    def begin(self) -> None:
        """Start the imports; whoever uses the modules reports an error."""
        if not self._importing:
            thread = ThreadPoolExecutor(1, "mltune-import")
            self._importing = [thread.submit(preload, trees=trees) for trees in self._stages]
            thread.shutdown(wait=False)

    def finish(self, *, trees: bool = True) -> None:
        """Wait for the imports: two threads that import the same modules may see them half initialised."""
        self.begin()
        for importing in self._importing[self._finished : 1 + trees]:
            wait([importing])
            self._limits.enter_context(one_thread(fits_models=False))  # of these modules, too
            self._finished += 1


MOST_LIKELY_FROM = 200
"""Fastest configurations from which the hyperparameters of the Gaussian process are estimated."""

AT_ONCE = 10_000
"""Configurations that are predicted together: the covariances with all rows of the fit are in memory."""


TREES = 64
"""Trees of a forest."""


class ExtraTreesModel:
    """Extremely randomised trees (Geurts, Ernst and Wehenkel, 2006) on bootstrap samples: a :class:`CostModel`.

    Every row has trees that never saw it. Their residuals calibrate the interval of a gate without a second fit (Kim,
    Xu and Barber, 2020, "Predictive inference is free with the jackknife+-after-bootstrap"). Targets are compressed
    (:class:`Compression`); with ``slope`` 1 they are the speeds.
    """

    def __init__(self, *, random_state: int, slope: float = SLOPE, trees: int = TREES) -> None:
        self._random_state = random_state
        self._target, self._count = Compression(slope), trees

    def fit(self, X: Floats, y: Floats) -> Self:
        """Learn; see :meth:`mltune.cost.regressors.CostModel.fit`."""
        from sklearn.ensemble import ExtraTreesRegressor

        self._rows = np.asarray(X, dtype=np.float32)
        target = self._target.fit(len(self._rows), np.asarray(y, dtype=np.float64))
        forest = ExtraTreesRegressor(
            n_estimators=self._count,
            min_samples_leaf=2,
            max_features=0.5,
            bootstrap=True,
            n_jobs=1,
            random_state=self._random_state,
        )
        self._forest = forest.fit(self._rows, target)
        return self

    def predict(self, X: Floats) -> tuple[Floats, Floats]:
        """Predict; see :meth:`mltune.cost.regressors.CostModel.predict`."""
        # Of one configuration NumPy adds in another order than of several, unless each is a row.
        predictions = np.ascontiguousarray(self._predictions(np.asarray(X, dtype=np.float32)).T)
        return self._target.expand(predictions.mean(axis=1)), predictions.std(axis=1, ddof=1)

    def unseen(self) -> tuple[Floats, Floats]:
        """Predict each row from the trees that did not see it, NaN where there are fewer than two."""
        predictions = self._predictions(self._rows)
        for of_tree, seen in zip(predictions, self._forest.estimators_samples_, strict=True):
            of_tree[seen] = np.nan
        counted = np.isfinite(predictions).sum(axis=0) > 1
        mean, spread = np.full((2, len(counted)), np.nan)
        mean[counted] = self._target.expand(np.nanmean(predictions[:, counted], axis=0))
        spread[counted] = np.nanstd(predictions[:, counted], axis=0, ddof=1)
        return mean, spread

    def _predictions(self, X: NDArray[np.float32]) -> Floats:
        """Return the compressed prediction of every tree: ndarray of shape (n_trees, n_configs)."""
        return np.stack([tree.tree_.predict(X).ravel() for tree in self._forest.estimators_])


class Ensemble:
    """The mean of extra trees and a Gaussian process: a :class:`CostModel` without compression and without NaN.

    Trees find the regions that are slow for a reason (a spill, a half-empty warp); the Gaussian process interpolates
    between the fast configurations and knows how far it is from anything measured. Where the two disagree, one of them
    is wrong: half of their difference is part of the spread.
    """

    def __init__(
        self, *, random_state: int, hyperparameters: Hyperparameters | None = None, trees: int = TREES
    ) -> None:
        self.hyperparameters = hyperparameters
        self._trees = ExtraTreesModel(random_state=random_state, slope=1.0, trees=trees)

    def fit(self, X: Floats, y: Floats) -> Self:
        """Learn; see :meth:`mltune.cost.regressors.CostModel.fit`. The features are scaled by their range."""
        self._least, self._range = X.min(axis=0), np.maximum(np.ptp(X, axis=0), 1e-12)
        points = self._points(X)
        if self.hyperparameters is None:
            fastest = np.argsort(-y, kind="stable")[:MOST_LIKELY_FROM]
            self.hyperparameters = Hyperparameters.most_likely(points[fastest], y[fastest])
        self._process = GaussianProcess(self.hyperparameters).fit(points, y)
        self._trees.fit(X, y)
        return self

    def predict(self, X: Floats) -> tuple[Floats, Floats]:
        """Predict; see :meth:`mltune.cost.regressors.CostModel.predict`."""
        parts = [self._predict(X[start : start + AT_ONCE]) for start in range(0, max(len(X), 1), AT_ONCE)]
        return np.concatenate([mean for mean, _ in parts]), np.concatenate([spread for _, spread in parts])

    def _predict(self, X: Floats) -> tuple[Floats, Floats]:
        if not len(X):
            return np.empty(0), np.empty(0)
        posterior = self._process.posterior(self._points(X))
        return _joined(self._trees.predict(X), (posterior.mean, posterior.spread))

    def unseen(self) -> tuple[Floats, Floats]:
        """Predict each row without itself; see :meth:`mltune.cost.regressors.CostModel.unseen`."""
        return _joined(self._trees.unseen(), self._process.unseen())

    def _points(self, X: Floats) -> Floats:
        points: Floats = (X - self._least) / self._range
        return points


def _joined(trees: tuple[Floats, Floats], process: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    """Return the mean of two predictions, and its spread: of each by itself and between them."""
    mean = (trees[0] + process[0]) / 2
    within = (np.square(trees[1]) + np.square(process[1])) / 2
    return mean, np.sqrt(within + np.square(trees[0] - process[0]) / 4)
