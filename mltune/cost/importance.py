"""Parameter importance: how differently the fastest measured configurations choose the values of each parameter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mltune.kernel.coding import Columns, length

FASTEST = 0.1
"""Share of the configurations, the fastest of them, that is compared with all."""

FEWEST_ROWS = 50
"""Least number of measured configurations for an estimate: five of them are then the fastest."""


def importance(columns: Columns, median_s: ArrayLike, values: Mapping[str, Sequence[int]]) -> dict[str, float] | None:
    r"""Return the share of each parameter in the importance of all, the most important first (PED-ANOVA).

    For a parameter with the values :math:`v`, of which :math:`p(v)` of all measured configurations and :math:`q(v)` of
    the fastest tenth have each (smoothed by Parzen estimators), the importance is the Pearson divergence :math:`\sum_v
    p(v)\,(q(v) / p(v) - 1)^2` (Watanabe, Bansal and Hutter, 2023, "PED-ANOVA: Efficiently Quantifying Hyperparameter
    Importance in Arbitrary Subspaces", algorithm 1). Chance gives a parameter with many values a larger share than one
    with few. The result is None for fewer than :data:`FEWEST_ROWS`, or if nothing varied.

    The shares are those of ``optuna.importance.PedAnovaImportanceEvaluator``, which optuna-dashboard shows, for
    categorical parameters. They are computed from columns, because Optuna's objects take about 11 kB for each trial.

    Examples
    --------
    >>> columns = {"block": np.arange(60) // 6, "order": np.arange(60) % 2}
    >>> shares = importance(columns, columns["block"] + 1.0, {"block": range(10), "order": (0, 1)})
    >>> max(shares, key=shares.get)
    'block'
    """
    times = np.asarray(median_s, dtype=np.float64)
    if length(columns) < FEWEST_ROWS:
        return None
    last = math.ceil(FASTEST * len(times)) - 1
    fastest = times <= np.partition(times, last)[last]
    divergences = {name: _divergence(column, fastest, values[name]) for name, column in columns.items()}
    total = sum(divergences.values())
    if total <= 0.0:
        return None
    return {name: divergences[name] / total for name in sorted(divergences, key=lambda name: -divergences[name])}


def _divergence(column: NDArray[np.int64], fastest: NDArray[np.bool_], values: Sequence[int]) -> float:
    """Return the Pearson divergence of the values of the fastest from those of all."""
    if len(values) < 2:
        return 0.0
    ordered = np.sort(values)
    among_all, among_fastest = (
        _density(np.bincount(np.searchsorted(ordered, values), minlength=len(ordered)))
        for values in (column, column[fastest])
    )
    return float(among_all @ np.square(among_fastest / among_all - 1.0))


def _density(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the Parzen estimate of a categorical distribution, with a uniform prior of one observation's weight."""
    spread = 1.0 / (np.count_nonzero(counts) + 1)
    kernels = (counts + counts.sum() * spread) / (1.0 + len(counts) * spread)
    density: NDArray[np.float64] = (kernels + 1.0 / len(counts)) / (counts.sum() + 1.0) + 1e-12
    return density


def mean_importance(importances: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean share of each parameter over several runs, the most important first."""
    names = dict.fromkeys(name for shares in importances for name in shares)
    means = {name: sum(shares.get(name, 0.0) for shares in importances) / len(importances) for name in names}
    return dict(sorted(means.items(), key=lambda item: -item[1]))
