"""What more time is expected to bring: who is likely to become faster yet, and how much time each deserves.

Best times of a search follow a law of diminishing returns: what is left to gain is about gap(t) = c / t, in units of
the logarithm of the time, so that the next d seconds bring c (1 / t - 1 / (t + d)). The c of a problem is not read off
its own curve, which stands still before it falls: on recorded curves what the last doubling of the time brought does
not foretell what the next one brings (rank correlations from -0.4 to 0.4, 0 in the mean). Two things do: what the last
doubling brought to all problems together, and how far a problem lies behind its siblings, the same product with other
transpositions (rank correlations from 0.4 to 0.7). See benchmarks/plan_sharing.py.

Summed gains are largest where all marginal gains p c / t^2 are equal (p: priority): time goes with sqrt(p c).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence

from mltune.plan.plan import Standing, Task

LEAST_GAIN = 0.01
"""What a problem may always still gain, however still all curves stand: a share of its time."""


def gain_constants(tasks: Sequence[Task], standings: Mapping[str, Standing]) -> dict[str, float]:
    """Estimate c of gap(t) = c / t for each task.

    Parameters
    ----------
    tasks : sequence of Task
    standings : mapping of str to Standing
        One for each task, by slug.

    Returns
    -------
    dict of str to float
        By slug, in the unit of the plan; positive.
    """
    found = {slug: standing for slug, standing in standings.items() if standing.curve and standing.spent > 0}
    if not found:
        return {task.slug: 1.0 for task in tasks}
    spent = sum(standing.spent for standing in found.values()) / len(found)
    doubling = sum(map(last_doubling, found.values())) / len(found)
    behind = deficits(tasks, found)
    usual = sum(behind.values()) / len(behind) if behind else 0.0
    return {task.slug: spent * (max(doubling, LEAST_GAIN) + behind.get(task.slug, usual)) for task in tasks}


def last_doubling(standing: Standing) -> float:
    """Return log(best(t / 2) / best(t)): what the second half of what was spent brought.

    Where nothing was found in the first half, its best is the first time that was found.
    """
    before = [best_s for spent, best_s in standing.curve if spent <= standing.spent / 2]
    return max(0.0, math.log((before or [standing.curve[0][1]])[-1] / standing.curve[-1][1]))


def deficits(tasks: Sequence[Task], standings: Mapping[str, Standing]) -> dict[str, float]:
    """Return how far each problem that has siblings lies behind the fastest of them: a logarithm of times.

    Siblings are the same kernel on GEMMs of the same precision and extents: all do the same work.
    """
    families: dict[Hashable, list[tuple[str, float]]] = {}
    for task in tasks:
        if task.slug in standings and task.problem.work_class is not None and task.dataset is None:
            family = (task.kernel, task.problem.work_class)
            families.setdefault(family, []).append((task.slug, standings[task.slug].curve[-1][1]))
    return {
        slug: math.log(best_s / min(of_all for _, of_all in family))
        for family in families.values()
        if len(family) > 1
        for slug, best_s in family
    }


def allot(room: float, spent: Sequence[float], weights: Sequence[float], most: Sequence[float]) -> list[float]:
    """Share out by weight, on top of what was spent: as water fills vessels that are joined.

    Parameters
    ----------
    room : float
        What there is to share out.
    spent : sequence of float
        What each has; nothing is taken away.
    weights : sequence of float
        Positive: where neither bound holds, shares are as the weights are.
    most : sequence of float
        What each can have; one that has more keeps it.

    Returns
    -------
    list of float
        What each has in the end; at most ``room`` more than before.
    """
    tops = [max(has, top) for has, top in zip(spent, most, strict=True)]

    def filled(level: float) -> list[float]:
        return [min(max(has, level * w), top) for has, w, top in zip(spent, weights, tops, strict=True)]

    low, high = 0.0, (sum(spent) + room + 1.0) / min(weights) if weights else 0.0
    for _ in range(200):
        level = (low + high) / 2
        low, high = (level, high) if sum(filled(level)) - sum(spent) <= room else (low, level)
    return filled(low)
