"""Configurations as points: what a Gaussian process measures distances between, and what it expects of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mltune.kernel.columns import Columns, Floats, length

if TYPE_CHECKING:
    from mltune.kernel.space import SearchSpace

SMALLEST_PRIOR = 0.02
"""Share of peak below which expected speeds are not told apart."""


class Encoding:
    """The configurations of a search space as points of the unit cube, by what holds of every kernel's parameters.

    Sizes matter by ratios: a parameter is a log2 from its smallest value to its largest, or its place in the list where
    a value is not positive. Hardware works in powers of two: what is left of a value when those are divided out (its
    odd part: 3 of 48) is a coordinate of its own, so that 48 need not lie between 32 and 64. The prior, if any, is the
    last coordinate.

    Parameters
    ----------
    space : SearchSpace
    prior : callable or None
        From Columns to ndarray of shape (n_configs,): expected share of peak before anything was measured.

    Attributes
    ----------
    trend_weights : ndarray of shape (n_trends,)
        What the trends of :meth:`describe` count for before anything was measured.
    """

    def __init__(self, space: SearchSpace, prior: Callable[[Columns], Floats] | None = None) -> None:
        self.prior = prior
        self._scales = [_Scale(name, space.values[name]) for name in space.names if len(space.values[name]) > 1]
        self.trend_weights = np.array([0.5] if prior is None else [0.25, 0.5])

    def describe(self, columns: Columns) -> tuple[Floats, Floats]:
        """Return points and trends: where configurations lie, and what to expect where nothing near was measured.

        The first trend is minus the square of the distance from the middle of the lists of values, and of the distance
        from powers of two: who writes a search space puts bounds on either side of what is likely. The second is the
        log of the prior, if there is one, bounded: between log(SMALLEST_PRIOR) and 0.

        Returns
        -------
        points : ndarray of shape (n_configs, n_dimensions)
        trends : ndarray of shape (n_configs, n_trends)
        """
        coordinates = [coordinate for scale in self._scales for coordinate in scale.coordinates(columns[scale.name])]
        trends = [-sum((scale.eccentricity(columns[scale.name]) for scale in self._scales), np.zeros(length(columns)))]
        if self.prior is not None:
            expected = np.log(np.clip(self.prior(columns), SMALLEST_PRIOR, 1.0))
            coordinates.append(1.0 + expected / -np.log(SMALLEST_PRIOR))
            trends.append(expected)
        points: Floats = np.column_stack(coordinates) if coordinates else np.zeros((length(columns), 1))
        return points, np.column_stack(trends)


class _Scale:
    """The values of one parameter, each with its coordinates and how far it lies from the middle."""

    def __init__(self, name: str, values: tuple[int, ...]) -> None:
        self.name = name
        listed = np.array(values, dtype=np.int64)
        positive = listed.min() > 0
        places = np.arange(len(listed)) / (len(listed) - 1)
        odd = np.log2(listed // (listed & -listed)) if positive and len(listed) > 2 else np.zeros(len(listed))
        self._order = np.argsort(listed)
        self._sorted = listed[self._order]
        coordinates = [_unit(np.log2(listed)) if positive else places] + ([_unit(odd)] if odd.any() else [])
        self._coordinates = [coordinate[self._order] for coordinate in coordinates]
        self._eccentricity = (np.square(places - 0.5) * (len(listed) > 2) + odd)[self._order]

    def coordinates(self, column: NDArray[np.int64]) -> list[Floats]:
        """Return the coordinates of a column of values, each an ndarray of shape (n_configs,)."""
        found = np.searchsorted(self._sorted, column)
        return [coordinate[found] for coordinate in self._coordinates]

    def eccentricity(self, column: NDArray[np.int64]) -> Floats:
        """Return how far values lie from the middle and from powers of two: ndarray of shape (n_configs,)."""
        eccentricity: Floats = self._eccentricity[np.searchsorted(self._sorted, column)]
        return eccentricity


def _unit(values: Floats) -> Floats:
    scaled: Floats = (values - values.min()) / max(float(np.ptp(values)), 1e-12)
    return scaled


class Trend:
    """A weighted sum of trends, corrected by what was measured: what a Gaussian process departs from.

    Ridge regression about the weights that were expected; a weight is never negative, for a trend that points the wrong
    way is no trend.

    Parameters
    ----------
    expected : ndarray of shape (n_trends,)
        Weights before anything was measured.
    confidence : float
        What the expectation counts for, as a sum of squares of the trend.
    """

    def __init__(self, expected: Floats, *, confidence: float = 5.0) -> None:
        self.expected = expected
        self.confidence = confidence

    def fit(self, trends: Floats, y: Floats) -> Floats:
        """Return the weights.

        Parameters
        ----------
        trends : ndarray of shape (n_configs, n_trends)
        y : ndarray of shape (n_configs,)

        Returns
        -------
        ndarray of shape (n_trends,)
        """
        centred = trends - trends.mean(axis=0)
        left = y - y.mean() - centred @ self.expected
        precision = centred.T @ centred + self.confidence * np.eye(trends.shape[1])
        return np.maximum(self.expected + np.linalg.solve(precision, centred.T @ left), 0.0)
