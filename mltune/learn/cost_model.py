"""The cost model: from the features of a configuration to its speed, with a spread that says how sure it is."""

from __future__ import annotations

from typing import Protocol, Self

import numpy as np

from mltune.kernel.columns import Floats


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

    def unseen(self) -> tuple[Floats, Floats]:
        """Return what the model would predict for the rows that it learned from, had it not seen them.

        Returns
        -------
        mean, spread : ndarray of shape (n_configs,)
            In the order of the rows given to :meth:`fit`; NaN where every part of the model saw the row.
        """
        ...


class Compression:
    """What a model is fitted to in place of the speed: where half of a space is hopeless, how hopeless matters little.

    Below the median of what was measured the target is compressed, so that a model spends itself on telling the fast
    ones apart. Failures are learned as the slowest that ran.

    Parameters
    ----------
    slope : float
        Slope of the target below the median, above 0; 1 leaves it alone.

    Attributes
    ----------
    knee_ : float
        The median speed of what was measured.
    floor_ : float
        The speed that failed configurations are learned as.
    """

    def __init__(self, slope: float) -> None:
        self.slope = slope

    def fit(self, rows: int, y: Floats) -> Floats:
        """Learn the knee, and return the target that a model is fitted to: ndarray of shape (n_configs,).

        Parameters
        ----------
        rows : int
            Number of configurations.
        y : ndarray of shape (n_configs,)
            Log share of peak; NaN for failures.

        Raises
        ------
        ValueError
            There is nothing to learn from.
        """
        measured = np.isfinite(y)
        if rows != len(y) or not measured.any():
            raise ValueError(
                f"a cost model needs as many rows as targets and one measured target, got {rows} rows, "
                f"{len(y)} targets, {int(measured.sum())} measured"
            )
        self.knee_ = float(np.median(y[measured]))
        self.floor_ = float(y[measured].min())
        return self.compress(np.where(measured, y, self.floor_))

    def compress(self, y: Floats) -> Floats:
        """Return the targets of these speeds."""
        return np.where(y < self.knee_, self.knee_ + self.slope * (y - self.knee_), y)

    def expand(self, target: Floats) -> Floats:
        """Return the speeds of these targets."""
        return np.where(target < self.knee_, self.knee_ + (target - self.knee_) / self.slope, target)
