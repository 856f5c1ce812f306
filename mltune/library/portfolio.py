"""The portfolio: the few configurations that a library holds, chosen from times of many at many sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MOST_THAT_PAY, _PAYS = (10, 24, 48), 0.005
"""Most configurations of a portfolio by default: more where they gain 0.5 % of the mean speed."""

FLOOR = 0.8
"""Share of the best at every size that comes before the mean, by default."""

_LEAST_GAIN = 3e-4
_OF_THE_FLOOR = 10.0


def shares(times_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the speed of each configuration at each size as a share of the best one there, 0 where it has no time.

    Shapes are (n_sizes, n_configurations).
    """
    finite_s = np.where(np.isfinite(times_s), times_s, np.inf)
    best = finite_s.min(axis=1, keepdims=True)
    return np.where(np.isfinite(finite_s), np.where(np.isfinite(best), best, 1.0) / finite_s, 0.0)


def choose_portfolio(
    speed: NDArray[np.float64],
    weights: NDArray[np.float64],
    is_fallback: NDArray[np.bool_],
    *,
    most: int | None = None,
    floor: float = FLOOR,
) -> list[int]:
    """Return at most `most` columns of `speed` whose best one is fast at the sizes, on the mean and at the worst.

    By default they are at most the first of :data:`MOST_THAT_PAY`, or the next where these gain more than 0.5 % of the
    mean.

    What is maximised is facility location: the weighted mean over the sizes of the best share among the chosen, and ten
    times the mean of that share cut off at the floor, where every size counts the same. Both are monotone and
    submodular, and so is their sum: the greedy choice reaches at least 1 - 1/e of the best possible (Nemhauser, Wolsey
    and Fisher, An analysis of approximations for maximizing submodular set functions, 1978), and mostly far more.

    `speed` has :func:`shares`, (n_sizes, n_configurations). Of `is_fallback`, valid at every size, one is chosen if
    there are any. The choice ends where a further one gains less than 0.03 %.
    """
    share_of = weights / weights.sum()
    if most is None:
        chosen: list[int] = []
        for most in MOST_THAT_PAY:
            larger = choose_portfolio(speed, weights, is_fallback, most=most, floor=floor)
            mean, of_larger = (share_of @ speed[:, columns].max(axis=1, initial=0.0) for columns in (chosen, larger))
            if of_larger <= (1 + _PAYS) * mean:
                break
            chosen = larger
        return chosen

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
