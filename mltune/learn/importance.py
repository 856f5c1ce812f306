"""Which parameters mattered: how much of the order of the measured configurations each of them explains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mltune.kernel.columns import Columns, length

FEWEST_ROWS = 24
"""Measured configurations below which nothing is said."""

TREES = 32


@dataclass(frozen=True, slots=True)
class Importance:
    """What a forest found in the measured configurations of a run.

    Attributes
    ----------
    shares : mapping of str to float
        Of every parameter that varied, the most important first: by how much the unexplained variance of the ranks
        grows when its values are shuffled, as a share of their variance. 0 is no importance; chance makes it slightly
        negative.
    explained : float
        Share of the variance of the ranks that the forest explains for configurations that it had not seen (R2). At 0
        or below it knows nothing, and ``shares`` mean nothing.
    rows : int
        Configurations that it was fitted to.
    """

    shares: Mapping[str, float]
    explained: float
    rows: int

    def top(self, count: int = 5) -> list[tuple[str, float]]:
        """Return the most important parameters of those that mattered at all."""
        return [(name, share) for name, share in list(self.shares.items())[:count] if share > 0.0]


def importance(columns: Columns, median_s: ArrayLike, *, random_state: int = 0) -> Importance | None:
    """Return the permutation importance of every parameter, out of bag (Breiman, 2001, "Random Forests", section 10).

    A random forest learns the rank of each configuration among the measured ones, so that a few very slow ones do not
    outweigh the rest; every tree is asked about the rows that it did not see, with one parameter at a time shuffled
    among them. It speaks of the configurations that a run measured, which lie where its search looked.

    Parameters
    ----------
    columns : Columns
        The measured configurations: every parameter.
    median_s : array_like of shape (n_configs,)
        Their times.
    random_state : int

    Returns
    -------
    Importance or None
        None where there are fewer than :data:`FEWEST_ROWS`, or nothing varied.
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
    told, times_told = np.zeros(len(rows)), np.zeros(len(rows))
    for tree, seen in zip(forest.estimators_, forest.estimators_samples_, strict=True):
        unseen = np.setdiff1d(np.arange(len(rows)), seen)
        if not len(unseen):
            continue
        answers = tree.tree_.predict(_shuffled(rows[unseen], rng)).reshape(len(varied) + 1, len(unseen))
        errors = np.square(answers - ranks[unseen]).mean(axis=1)
        growth += errors[1:] - errors[0]
        told[unseen] += answers[0]
        times_told[unseen] += 1.0
    judged = times_told > 0.0
    left = np.square(told[judged] / times_told[judged] - ranks[judged]).mean()
    shares = growth / TREES / ranks.var()
    order = np.argsort(-shares, kind="stable")
    return Importance({varied[at]: float(shares[at]) for at in order}, float(1.0 - left / ranks.var()), len(rows))


def _shuffled(rows: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """Return the rows, and then the rows once for each parameter with its values shuffled among them."""
    count, parameters = rows.shape
    copies = np.repeat(rows[None], parameters + 1, axis=0)
    order = rng.permutation(count)
    for parameter in range(parameters):
        copies[parameter + 1, :, parameter] = rows[order, parameter]
    return copies.reshape(-1, parameters)


def mean_importance(found: list[Importance]) -> dict[str, float]:
    """Return the mean over runs of each parameter's share, the most important first.

    A run counts as much as its forest explains; one that explains nothing does not count. Nothing is negative.
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
