"""The initial design: the configurations that a search measures before it has learned anything."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mltune.cost.gaussian_process import JITTER, Hyperparameters
from mltune.kernel.columns import Floats, Indices

SCENARIOS = 256
"""Scenarios that are drawn. Half of them have the opposite errors of the others."""

ERROR = 0.1
"""Standard deviation of the errors of the logs of speeds that a source expects."""

CANDIDATES = 600
"""Most configurations that a portfolio is chosen from: the first of each source and of their mean."""


def portfolio(expected: Floats, points: Floats, count: int, rng: np.random.Generator) -> Indices:
    """Choose configurations of which the fastest is expected to be fast, whichever source is right.

    In each of many scenarios one of the sources is right, but for errors that are alike for configurations that are
    alike. The first configuration is the best by the mean of the sources. Each further one adds most to the speed of
    the fastest of those chosen, on the average over the scenarios: so what the sources disagree about is covered, and
    configurations that are nearly the same are not all chosen. The gain is submodular, and a greedy choice is nearly as
    good as the best one (Nemhauser, Wolsey and Fisher, 1978).

    Parameters
    ----------
    expected : ndarray of shape (n_sources, n_configs)
        Logs of speeds, as each source expects them; at least one source. A source counts more where it expects more.
    points : ndarray of shape (n_configs, n_dimensions)
        Configurations as points of the unit cube.
    count : int
    rng : numpy.random.Generator

    Returns
    -------
    ndarray of shape (min(count, n_configs),)
        Positions of distinct configurations in the order of choice.

    Examples
    --------
    >>> sources = np.log([[1.0, 0.9, 0.3], [0.2, 0.3, 1.0]])
    >>> points = np.array([[0.0], [0.1], [1.0]])
    >>> portfolio(sources, points, 2, np.random.default_rng(0)).tolist()
    [2, 0]
    """
    orders: Sequence[Floats] = [expected.mean(axis=0), *expected]
    most = CANDIDATES // len(orders)
    kept = np.unique(np.concatenate([np.argsort(-order, kind="stable")[:most] for order in orders]))
    logs, points = expected[:, kept], points[kept]
    covariance = Hyperparameters.usual(points.shape[1]).covariance(points, points)
    covariance[np.diag_indices(len(kept))] += JITTER
    errors = ERROR * np.linalg.cholesky(covariance) @ rng.standard_normal((len(kept), SCENARIOS // 2))
    right = rng.permutation(np.arange(SCENARIOS) % len(logs))
    speeds = np.exp(logs[right].T + np.hstack([errors, -errors]))
    chosen = [int(np.argmax(logs.mean(axis=0)))]
    while len(chosen) < min(count, len(kept)):
        fastest = speeds[chosen].max(axis=0)
        gain = np.maximum(speeds, fastest).mean(axis=1)
        gain[chosen] = -np.inf
        chosen.append(int(np.argmax(gain)))
    found: Indices = kept[chosen]
    return found
