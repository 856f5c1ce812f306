"""The cost model protocol: from the features of a configuration to its speed, with a standard deviation."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol, Self

import numpy as np

from mltune.kernel.columns import Floats

SLOPE = 0.2
"""Slope of the targets below the median of the measured speeds."""


def log_share(flops: float, median_s: float, peak_flops: float) -> float:
    """Return the target of every cost model: the log of the achieved share of the device's peak.

    It is comparable across sizes, precisions and GPUs, and larger is faster. ``peak_flops`` is that of the problem's
    arithmetic, in operations per second.
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
        ...

    def predict(self, X: Floats) -> tuple[Floats, Floats]:
        """Return the mean and the standard deviation of the speed, each of shape (n_configs,)."""
        ...

    def unseen(self) -> tuple[Floats, Floats]:
        """Return predictions for the rows of :meth:`fit`, each from the parts of the model that did not see the row.

        Returns
        -------
        mean, spread : ndarray of shape (n_configs,)
            In the order of the rows given to :meth:`fit`; NaN where every part of the model saw the row.
        """
        ...


def compress(speed: Floats, knee: float, slope: float = SLOPE) -> Floats:
    """Return speeds with their distances below the knee multiplied by a slope above 0."""
    return np.where(speed < knee, knee + slope * (speed - knee), speed)


def expand(target: Floats, knee: float, slope: float = SLOPE) -> Floats:
    """Return the speeds that :func:`compress` turned into these targets."""
    return np.where(target < knee, knee + (target - knee) / slope, target)


class Compression:
    """The transformation of speeds into the targets that a model is fitted to.

    Speeds below the median of the measured ones (``knee_``) are compressed by a slope above 0: differences among slow
    configurations matter little, and the model resolves the fast ones better. A configuration that failed has the
    target of the slowest that ran.
    """

    def __init__(self, slope: float = SLOPE) -> None:
        self.slope = slope

    def fit(self, rows: int, y: Floats) -> Floats:
        """Set the knee, and return the targets of log shares of peak, NaN for failures: ndarray of shape (rows,)."""
        measured = np.isfinite(y)
        if rows != len(y) or not measured.any():
            raise ValueError(
                f"a cost model needs as many rows as targets and one measured target, got {rows} rows, "
                f"{len(y)} targets, {int(measured.sum())} measured"
            )
        self.knee_ = float(np.median(y[measured]))
        return self.compress(np.where(measured, y, y[measured].min()))

    def compress(self, y: Floats) -> Floats:
        """Return the targets of speeds."""
        return compress(y, self.knee_, self.slope)

    def expand(self, target: Floats) -> Floats:
        """Return the speeds of targets."""
        return expand(target, self.knee_, self.slope)


def preload() -> None:
    """Import the modules that a search that fits models needs later, before a compile pool takes all cores."""
    import importlib

    for name in ("scipy.linalg", "scipy.optimize", "scipy.special", "sklearn.ensemble"):
        importlib.import_module(name)


def one_thread(*, fits_models: bool = True) -> AbstractContextManager[object]:
    """Return a context in which a search computes with one thread, with the modules of its models imported.

    Its matrices are small, and every other core compiles: threads would only compete with the compilers. Sums also
    depend on the number of threads. The limit holds for libraries that are loaded already.

    Parameters
    ----------
    fits_models : bool
        Whether the search fits models: without them it starts seconds earlier.
    """
    from threadpoolctl import threadpool_limits

    if fits_models:
        preload()
    limits: AbstractContextManager[object] = threadpool_limits(limits=1)
    return limits
