"""Encode configurations as points, with a mean function from several sources and an initial design."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mltune.cost.gaussian_process import JITTER, Hyperparameters
from mltune.kernel.coding import Columns, Floats, Indices, length
from mltune.kernel.space import SearchSpace

SMALLEST_PRIOR = 0.02
"""Share of the best speed below which the physical prior does not distinguish configurations."""

EXPECTED_WEIGHT = 0.5
"""Weight of a source in the mean function before anything is measured."""

SCENARIOS = 256
"""Scenarios that are drawn, half of them with the opposite errors of the other half."""

MOST_VALUES = 16
"""Most values of a parameter with a shorter length scale: neighbours in a longer list are alike."""

ERROR = 0.1
"""Standard deviation of a source's errors, in log speed."""

PLAUSIBLE = 0.25
"""Log of the speed by which a first choice may be below the fastest by the mean of the other sources."""

CANDIDATES = 600
"""Most configurations that a portfolio is chosen from: the best of each source and of their mean."""


@dataclass(frozen=True, slots=True)
class Source:
    """Knowledge of the speed of configurations before anything is measured.

    ``expected`` returns log speeds of Columns, about 0 for the fastest that there is; below ``least`` it does not
    distinguish configurations. ``smooth`` is false for regression trees: a search for variants in a space too large to
    list would exploit their errors. ``decides`` gives a source, trained on this very problem on other devices, the
    :func:`first_choice`.
    """

    expected: Callable[[Columns], Floats]
    least: float
    smooth: bool = True
    decides: bool = False


def physical(prior: Callable[[Columns], Floats], columns: Columns) -> Source:
    """Return a physical prior, which gives shares of the device's peak, as a source.

    Speeds are relative to the fastest of some configurations: a small problem may reach a thousandth of the peak.
    """
    best = float(np.max(prior(columns), initial=0.0)) or 1.0
    return Source(lambda columns: np.log(np.maximum(prior(columns) / best, SMALLEST_PRIOR)), np.log(SMALLEST_PRIOR))


class Encoding:
    """The configurations of a search space as points of the unit cube, with the basis functions of a mean function.

    A parameter's coordinate is the log2 of its value, scaled to [0, 1], because ratios of sizes matter; its position in
    the list where a value is not positive. The odd part of a value (3 of 48) is a second coordinate: hardware works in
    powers of two, and 48 is not simply between 32 and 64. Each source is one more coordinate.

    ``mean_weights`` are those of the basis functions before any measurement. ``prior`` is the mode of the Gaussian
    process's prior; without a source, length scales are shorter for more values, and longest for switches: a long list
    of sizes changes more. ``deviation``, of the prior of a log hyperparameter, is larger with a source, because
    residuals vary more from kernel to kernel.
    """

    def __init__(self, space: SearchSpace, sources: Sequence[Source] = ()) -> None:
        self.sources = tuple(sources)
        self._space = space
        self._scales = [_Scale(name, space.values[name]) for name in space.names if len(space.values[name]) > 1]
        self.mean_weights = np.array([0.25, *(EXPECTED_WEIGHT for _ in sources)] if sources else [EXPECTED_WEIGHT])
        relative = np.array(
            [value for scale in self._scales for value in scale.relative] + [1.0] * len(sources) or [1.0]
        )
        self.prior = Hyperparameters.usual(len(relative), 1.0 if sources else relative)
        self.deviation = 1.0 if sources else 0.5

    @cached_property
    def without_sources(self) -> Encoding:
        """The encoding without the sources: it has the first coordinates and the first basis function of this one."""
        return Encoding(self._space)

    def describe(self, columns: Columns) -> tuple[Floats, Floats]:
        """Return points, of shape (n_configs, n_dimensions), and basis functions, of shape (n_configs, n_basis).

        The first basis function is minus the sum over parameters of the squared distance from the middle of the list of
        values and of the log2 of the odd part: a search space is usually written with bounds on either side of the
        likely values. The others are the sources' expected log speeds, at least their ``least``.
        """
        described = [scale.describe(columns[scale.name]) for scale in self._scales]
        coordinates = [coordinate for coordinates_of_scale, _ in described for coordinate in coordinates_of_scale]
        basis = [-sum((eccentricity for _, eccentricity in described), np.zeros(length(columns)))]
        for source in self.sources:
            expected = np.maximum(source.expected(columns), source.least)
            coordinates.append(1.0 - expected / source.least)
            basis.append(expected)
        points: Floats = np.column_stack(coordinates) if coordinates else np.zeros((length(columns), 1))
        return points, np.column_stack(basis)


class _Scale:
    """The values of one parameter, with their coordinates and their distance from the middle."""

    def __init__(self, name: str, values: tuple[int, ...]) -> None:
        self.name = name
        listed = np.array(values, dtype=np.int64)
        positive = listed.min() > 0
        places = np.arange(len(listed)) / (len(listed) - 1)
        odd = np.log2(listed // (listed & -listed)) if positive and len(listed) > 2 else np.zeros(len(listed))
        order = np.argsort(listed)
        self._sorted = listed[order]
        coordinates = [_unit(np.log2(listed)) if positive else places] + ([_unit(odd)] if odd.any() else [])
        self._coordinates = [coordinate[order] for coordinate in coordinates]
        self.relative = [(4.0 / min(len(listed), MOST_VALUES)) ** 0.7] + [1.0] * (len(self._coordinates) - 1)
        self._eccentricity = (np.square(places - 0.5) * (len(listed) > 2) + odd)[order]

    def describe(self, column: NDArray[np.int64]) -> tuple[list[Floats], Floats]:
        """Return the coordinates of values, and their distance from the middle and from powers of two."""
        places = np.searchsorted(self._sorted, column)
        return [coordinate[places] for coordinate in self._coordinates], self._eccentricity[places]


def _unit(values: Floats) -> Floats:
    scaled: Floats = (values - values.min()) / max(float(np.ptp(values)), 1e-12)
    return scaled


@dataclass(frozen=True, eq=False)
class MeanFunction:
    """The mean function of a Gaussian process: a weighted sum of basis functions.

    The weights are those of ridge regression about their ``expected`` values (compare Rasmussen and Williams, 2006,
    section 2.7), with the penalty ``confidence`` in units of a basis function's sum of squares. They are never
    negative: a basis function that is negatively correlated with speed is left out.
    """

    expected: Floats
    confidence: float = 0.3

    def fit(self, basis: Floats, y: Floats) -> Floats:
        """Return the weights, from a basis of shape (n_configs, n_basis) and targets of shape (n_configs,)."""
        centred = basis - basis.mean(axis=0)
        residual = y - y.mean() - centred @ self.expected
        precision = centred.T @ centred + self.confidence * np.eye(basis.shape[1])
        return np.maximum(self.expected + np.linalg.solve(precision, centred.T @ residual), 0.0)


def first_choice(expected: Floats, sources: Sequence[Source] = ()) -> int:
    """Return the position of the configuration to measure first.

    It is the best by the mean of the sources, whose log speeds ``expected`` has in rows. Where one of them decides, it
    is the best by that one among those that are :data:`PLAUSIBLE` by the mean of the others: bounds tell what is slow,
    and hardly rank what is fast, while regressors of other devices rank it, and err most where the bounds are low.
    """
    decides = np.array([source.decides for source in sources] or [False] * len(expected))
    if decides.all() or not decides.any():
        return int(np.argmax(expected.mean(axis=0)))
    average = expected[~decides].mean(axis=0)
    return int(np.argmax(np.where(average >= average.max() - PLAUSIBLE, expected[decides].mean(axis=0), -np.inf)))


def portfolio(
    expected: Floats, points: Floats, count: int, rng: np.random.Generator, sources: Sequence[Source] = ()
) -> Indices:
    """Return distinct configurations of which the fastest is expected to be fast, whichever source is right.

    In each of many scenarios one of the sources is right up to random errors, which are similar for configurations with
    similar ``points``. The first choice is :func:`first_choice`; each further one adds most to the speed of the fastest
    chosen one, on average over the scenarios. So the choice covers the disagreement of the sources, and holds no near
    copies. The gain is submodular: greedy choice is nearly optimal (Nemhauser, Wolsey and Fisher, 1978). A source
    counts more where its log speeds, a row of ``expected``, are higher.
    """
    orders: Sequence[Floats] = [expected.mean(axis=0), *expected]
    most = CANDIDATES // len(orders)
    first = first_choice(expected, sources)
    kept = np.unique(np.concatenate([[first], *(np.argsort(-order, kind="stable")[:most] for order in orders)]))
    logs, points = expected[:, kept], points[kept]
    covariance = Hyperparameters.usual(points.shape[1]).covariance(points, points)
    covariance[np.diag_indices(len(kept))] += JITTER
    errors = ERROR * np.linalg.cholesky(covariance) @ rng.standard_normal((len(kept), SCENARIOS // 2))
    right = rng.permutation(np.arange(SCENARIOS) % len(logs))
    speeds = np.exp(logs[right].T + np.hstack([errors, -errors]))
    chosen = [int(np.searchsorted(kept, first))]
    while len(chosen) < min(count, len(kept)):
        fastest = speeds[chosen].max(axis=0)
        gain = np.maximum(speeds, fastest).mean(axis=1)
        gain[chosen] = -np.inf
        chosen.append(int(np.argmax(gain)))
    return kept[chosen]
