"""Parameter importance: the share of the variance of measured ranks that each parameter explains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mltune.kernel.columns import Columns, length

FEWEST_ROWS = 24
"""Least number of measured configurations for an estimate."""

TREES = 32


@dataclass(frozen=True, slots=True)
class Importance:
    """Importance of the parameters of the measured configurations of a run.

    Attributes
    ----------
    shares : mapping of str to float
        For every parameter that varied, the most important first: the increase of the unexplained variance of the ranks
        when its values are shuffled, as a share of their variance. 0 is no importance; chance can make it slightly
        negative.
    explained : float
        Share of the variance of the ranks that the forest explains for configurations that it did not see (R2). At 0
        or below, ``shares`` have no meaning.
    rows : int
        Number of configurations that the forest was fitted to.
    """

    shares: Mapping[str, float]
    explained: float
    rows: int

    def top(self, count: int = 5) -> list[tuple[str, float]]:
        """Return up to ``count`` of the most important parameters with positive importance."""
        return [(name, share) for name, share in list(self.shares.items())[:count] if share > 0.0]


def importance(columns: Columns, median_s: ArrayLike, *, random_state: int = 0) -> Importance | None:
    """Return the permutation importance of every parameter, out of bag (Breiman, 2001, "Random Forests", section 10).

    A random forest learns the rank of each configuration among the measured ones, so that a few very slow ones do not
    dominate. Each tree predicts the rows that it did not see, with one parameter at a time shuffled among them. The
    result describes the configurations that the run measured, most of which are where its search looked.

    Parameters
    ----------
    columns : Columns
        The measured configurations: every parameter.
    median_s : array_like of shape (n_configs,)
        Their times.

    Returns
    -------
    Importance or None
        None if there are fewer than :data:`FEWEST_ROWS`, or nothing varied.
    """
    varied = [name for name, column in columns.items() if len(np.unique(column)) > 1]
    times = np.asarray(median_s, dtype=np.float64)
    if not varied or length(columns) < FEWEST_ROWS or len(np.unique(times)) < 2:
        return None
    from scipy.stats import rankdata
    from sklearn.ensemble import RandomForestRegressor

    rows = np.column_stack([columns[name] for name in varied]).astype(np.float32)
    ranks = rankdata(times) / len(times)
    forest = RandomForestRegressor(
        TREES, min_samples_leaf=2, max_features=0.5, n_jobs=1, random_state=random_state
    ).fit(rows, ranks)
    rng = np.random.default_rng(random_state)
    growth = np.zeros(len(varied))
    total, trees = np.zeros(len(rows)), np.zeros(len(rows))  # of predictions of each row, and how many
    for tree, seen in zip(forest.estimators_, forest.estimators_samples_, strict=True):
        unseen = np.setdiff1d(np.arange(len(rows)), seen)
        if not len(unseen):
            continue
        predicted = tree.tree_.predict(_shuffled(rows[unseen], rng)).reshape(len(varied) + 1, len(unseen))
        errors = np.square(predicted - ranks[unseen]).mean(axis=1)
        growth += errors[1:] - errors[0]
        total[unseen] += predicted[0]
        trees[unseen] += 1.0
    known = trees > 0.0
    unexplained = np.square(total[known] / trees[known] - ranks[known]).mean()
    shares = growth / TREES / ranks.var()
    order = np.argsort(-shares, kind="stable")
    ordered = {varied[at]: float(shares[at]) for at in order}
    return Importance(ordered, float(1.0 - unexplained / ranks.var()), len(rows))


def _shuffled(rows: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """Return the rows, and then the rows once for each parameter with its values shuffled among them."""
    count, parameters = rows.shape
    copies = np.repeat(rows[None], parameters + 1, axis=0)
    order = rng.permutation(count)
    for parameter in range(parameters):
        copies[parameter + 1, :, parameter] = rows[order, parameter]
    return copies.reshape(-1, parameters)


def mean_importance(found: Sequence[Importance]) -> dict[str, float]:
    """Return the mean share of each parameter over runs, the most important first.

    Runs are weighted by the variance that their forests explain, none negative; negative shares count as 0.
    """
    weights = [max(one.explained, 0.0) for one in found]
    total = sum(weights)
    if total <= 0.0:
        return {}
    names = dict.fromkeys(name for one in found for name in one.shares)
    means = {
        name: sum(weight * max(one.shares.get(name, 0.0), 0.0) for weight, one in zip(weights, found, strict=True))
        / total
        for name in names
    }
    return dict(sorted(means.items(), key=lambda item: -item[1]))
