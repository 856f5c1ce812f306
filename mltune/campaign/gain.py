"""Expected gain of further search time, and the allotment of a budget by it.

The best time of a search has diminishing returns: after t seconds the remaining gain is about gap(t) = c / t, in the
logarithm of the time, so that d further seconds gain c (1 / t - 1 / (t + d)). The constant c of a problem cannot be
estimated from its own curve, which consists of steps: on recorded curves the gain of the last doubling of the time does
not predict that of the next one (rank correlations from -0.4 to 0.4, mean 0). Two other quantities do: the mean gain of
the last doubling over all problems, and the distance of a problem from the fastest of its siblings, the same product
with other transpositions (rank correlations from 0.4 to 0.7). See benchmarks/plan_sharing.py.

The sum of all gains is largest where the marginal gains p c / t^2 are equal (p: priority): t is proportional to
sqrt(p c).

Of several kernels for one problem only the best counts. A kernel that is behind the best of them by d, in the logarithm
of the time, brings something only if its remaining gain is larger than d. With an exponential distribution of mean
gap(t) that is expected to be gap(t) exp(-d / gap(t)): its constant is c exp(-d / gap(t)).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Hashable, Mapping, Sequence
from operator import itemgetter

import numpy as np

from mltune.campaign.standing import Standing
from mltune.kernel.columns import Floats
from mltune.resolve.plan import Task

LEAST_GAIN = 0.01
"""Least remaining gain of a problem, as a share of its time, also when no curve has fallen lately."""

HOPELESS = 1e-3
"""Expected gain, as a share of the time, below which a kernel that is behind another one gets nothing more."""


def gain_constants(tasks: Sequence[Task], standings: Mapping[str, Standing]) -> dict[str, float]:
    """Estimate the constant c of gap(t) = c / t for each task, in the unit of the plan; by slug, positive."""
    found = {slug: standing for slug, standing in standings.items() if standing.curve and standing.spent > 0}
    if not found:
        return {task.slug: 1.0 for task in tasks}
    spent = sum(standing.spent for standing in found.values()) / len(found)
    doubling = sum(map(last_doubling, found.values())) / len(found)
    behind = deficits(tasks, found)
    usual = sum(behind.values()) / len(behind) if behind else 0.0
    return {task.slug: spent * (max(doubling, LEAST_GAIN) + behind.get(task.slug, usual)) for task in tasks}


def chances(
    tasks: Sequence[Task], standings: Mapping[str, Standing], constants: Mapping[str, float]
) -> dict[str, float]:
    """Return a factor for the expected gain of each task, by slug, which counts the other kernels of its choice.

    It is 1 for a task on its own and for the fastest kernel of a choice, less for the other kernels, and 0 for those
    that are hopeless (:data:`HOPELESS`) or have no successful trial.
    """
    best_s = best_of_choices(tasks, standings)
    factors = {task.slug: 1.0 for task in tasks}
    for task in tasks:
        standing = standings[task.slug]
        if task.choice in best_s and standing.spent > 0:
            behind = math.log(standing.curve[-1][1] / best_s[task.choice]) if standing.curve else math.inf
            gap = constants[task.slug] / standing.spent
            factor = math.exp(-behind / gap)
            factors[task.slug] = factor if not behind or gap * factor >= HOPELESS else 0.0
    return factors


def best_of_choices(tasks: Sequence[Task], standings: Mapping[str, Standing]) -> dict[str, float]:
    """Return the best time of each choice among kernels so far, seconds; without those that have none."""
    best_s: dict[str, float] = {}
    for task in tasks:
        found_s = standings[task.slug].best_s
        if task.choice and found_s is not None:
            best_s[task.choice] = min(found_s, best_s.get(task.choice, found_s))
    return best_s


def last_doubling(standing: Standing) -> float:
    """Return log(best(t / 2) / best(t)), the gain of the second half of the time.

    If nothing was found in the first half, best(t / 2) is the first time that was found.
    """
    at = bisect_right(standing.curve, standing.spent / 2, key=itemgetter(0))
    return max(0.0, math.log(standing.curve[max(at - 1, 0)][1] / standing.curve[-1][1]))


def deficits(tasks: Sequence[Task], standings: Mapping[str, Standing]) -> dict[str, float]:
    """Return the logarithm of the best time of each problem relative to the fastest of its siblings.

    Siblings are problems of the same kernel with the same amount of work
    (:attr:`mltune.problem.problem.Problem.work_class`). Problems without siblings are left out.
    """
    families: dict[Hashable, list[tuple[str, float]]] = {}
    for task in tasks:
        if task.slug in standings and task.problem.work_class is not None and task.dataset is None:
            family = (task.bundle, task.problem.work_class)
            families.setdefault(family, []).append((task.slug, standings[task.slug].curve[-1][1]))
    behind: dict[str, float] = {}
    for members in families.values():
        fastest_s = min(best_s for _, best_s in members)
        if len(members) > 1:
            behind |= {slug: math.log(best_s / fastest_s) for slug, best_s in members}
    return behind


def allot(room: float, spent: Sequence[float], weights: Sequence[float], most: Sequence[float]) -> list[float]:
    """Share out a budget in proportion to weights, within a lower and an upper bound for each.

    The sum of the shares is linear in the level between two levels at which a share reaches a bound: a bisection finds
    the two, and the rest is a division.

    Parameters
    ----------
    room : float
        The budget to share out, on top of ``spent``.
    spent, most : sequence of float
        Lower and upper bounds of each share; a share that is larger than its upper bound already is kept.
    weights : sequence of float
        Positive; shares within their bounds are proportional to them.

    Examples
    --------
    >>> [round(share, 6) for share in allot(90.0, [10.0, 10.0, 70.0], [1.0, 1.0, 1.0], [30.0, 100.0, 100.0])]
    [30.0, 75.0, 75.0]
    """
    if not weights:
        return []
    bottom, weight = np.array(spent, dtype=np.float64), np.array(weights, dtype=np.float64)
    top = np.maximum(bottom, np.array(most, dtype=np.float64))
    enters, leaves = bottom / weight, top / weight  # the levels between which a share is level * weight

    def filled(level: float) -> Floats:
        return np.minimum(np.maximum(bottom, level * weight), top)

    total = float(bottom.sum()) + room
    levels = np.unique(np.concatenate([enters, leaves[np.isfinite(leaves)]]))
    at = bisect_right(levels, total, key=lambda level: float(filled(level).sum())) - 1
    level = max(float(levels[max(at, 0)]), 0.0)
    growing = float(weight[(enters <= level) & (leaves > level)].sum())
    if growing:
        level += max(0.0, total - float(filled(level).sum())) / growing
    shares: list[float] = filled(level).tolist()
    return shares
