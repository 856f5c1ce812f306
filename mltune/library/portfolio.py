"""The portfolio: the few configurations that a library holds, chosen from times of many at many sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MOST = 10
"""Most configurations of a portfolio by default."""

FLOOR = 0.8
"""Share of the best at every size that comes before the mean, by default."""

_LEAST_GAIN = 1e-3
_OF_THE_FLOOR = 10.0


def shares(times_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the speed of each configuration at each size as a share of the best one there.

    Parameters
    ----------
    times_s : ndarray of shape (n_sizes, n_configurations)
        Not finite where a configuration is not valid, or was not timed; its share is 0.

    Examples
    --------
    >>> shares(np.array([[1.0, 2.0], [np.nan, 3.0]])).tolist()
    [[1.0, 0.5], [0.0, 1.0]]
    """
    finite_s = np.where(np.isfinite(times_s), times_s, np.inf)
    best = finite_s.min(axis=1, keepdims=True)
    return np.where(np.isfinite(finite_s), np.where(np.isfinite(best), best, 1.0) / finite_s, 0.0)


def choose_portfolio(
    speed: NDArray[np.float64],
    weights: NDArray[np.float64],
    is_fallback: NDArray[np.bool_],
    *,
    most: int = MOST,
    floor: float = FLOOR,
) -> list[int]:
    """Choose configurations whose best one is fast at the sizes, on the mean and at the worst.

    What is maximised is facility location: the weighted mean over the sizes of the best share among the chosen, and ten
    times the mean of that share cut off at the floor, where every size counts the same. Both are monotone and
    submodular, and so is their sum: the greedy choice reaches at least 1 - 1/e of the best possible (Nemhauser, Wolsey
    and Fisher, An analysis of approximations for maximizing submodular set functions, 1978), and mostly far more.

    Parameters
    ----------
    speed : ndarray of shape (n_sizes, n_configurations)
        Shares of the best (:func:`shares`).
    weights : ndarray of shape (n_sizes,)
        How often a size is used.
    is_fallback : ndarray of shape (n_configurations,)
        Configurations that are valid at every size: where there are such, one of them is chosen.

    Returns
    -------
    list of int
        At most `most` columns, in the order of choosing; it ends where a further one gains less than 0.1 %.

    Examples
    --------
    >>> speed = np.array([[1.0, 0.9, 0.2], [0.3, 0.9, 1.0]])
    >>> choose_portfolio(speed, np.ones(2), np.array([False, True, False]), most=2)
    [1, 0]
    """
    share_of = weights / weights.sum()

    def value(covered: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the value of the best shares, of shape (n_sizes, n_alternatives)."""
        return np.asarray(share_of @ covered + _OF_THE_FLOOR * np.minimum(covered, floor).mean(axis=0))

    def greedy(chosen: list[int]) -> list[int]:
        covered = speed[:, chosen].max(axis=1, initial=0.0)
        while len(chosen) < most:
            values = value(np.maximum(covered[:, None], speed))
            best = int(np.argmax(values))
            if values[best] - value(covered[:, None])[0] < _LEAST_GAIN:
                break
            chosen.append(best)
            covered = np.maximum(covered, speed[:, best])
        return chosen

    chosen, is_fallback = greedy([]), is_fallback & (speed > 0).any(axis=0)
    if is_fallback.any() and not is_fallback[chosen].any():
        chosen = greedy([int(np.argmax(np.where(is_fallback, value(speed), -1.0)))])
    return chosen


def geometric_mean(values: Sequence[float], weights: NDArray[np.float64] | None = None) -> float:
    """Return the weighted geometric mean of shares; 0 where one is 0."""
    numbers = np.asarray(values, dtype=float)
    return float(np.exp(np.average(np.log(numbers), weights=weights))) if (numbers > 0).all() else 0.0
