"""Sharing out of a budget: a pure function from the standings of all tasks to the next time slice.

An unfinished time slice is finished first. Then every task gets its minimum, in the order of the plan. The rest goes,
one time slice after the other, to the tasks with the largest expected gain (:mod:`mltune.campaign.gain`). A task that
has stopped, failed or reached its maximum gets nothing more, and leaves its share to the others. The same holds for a
kernel that is too far behind another kernel for the same problem to catch up.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Literal

from mltune.campaign.gain import allot, chances, gain_constants
from mltune.campaign.standing import Standing, TimeSlice
from mltune.records.candidate import BATCH
from mltune.resolve.plan import Plan, Task

SHORTEST = 0.5
"""Shortest time slice, in minima: the start and the end of a run take time as well."""

_TOLERANCE = 0.02
"""Relative shortfall of a minimum that is not made up for."""


def next_slice(
    plan: Plan, standings: Sequence[Standing], busy: Collection[str] = (), left: float | None = None
) -> TimeSlice | None:
    """Choose the next time slice of a free device.

    Parameters
    ----------
    plan : Plan
        Placed: its devices are known (:func:`mltune.resolve.placement.place`).
    standings : sequence of Standing
        A task without a standing has spent nothing.
    busy : collection of str
        Slugs of the tasks that other devices work on.
    left : float, optional
        The rest of the budget, where it is less than the standings say because time has passed outside of runs:
        seconds of each device, or trials in all.

    Returns
    -------
    TimeSlice or None
        None when there is nothing to do for this device; the campaign is over when no other device is busy either.
    """
    state = _State(plan, standings, busy, left)
    return state.resumed() or state.minimum() or state.gain()


class _State:
    """The state of a plan at one moment."""

    def __init__(self, plan: Plan, standings: Sequence[Standing], busy: Collection[str], left: float | None) -> None:
        known = {standing.slug: standing for standing in standings}
        self.plan = plan
        self.standings = {task.slug: known.get(task.slug, Standing(task.slug)) for task in plan.tasks}
        self.free = [task for task in plan.tasks if task.slug not in busy and not self.standings[task.slug].ended]
        elsewhere = sum(self.under_way(task) for task in plan.tasks if task.slug in busy)
        unspent = plan.capacity - sum(standing.spent for standing in self.standings.values())
        if left is not None:
            unspent = min(unspent, left if plan.unit == "trials" else left * len(plan.devices))
        # the budget that no device uses yet, and the longest and the shortest time slice
        self.unassigned = max(0.0, unspent - elsewhere)
        self.longest = self.unassigned if left is None else max(0.0, min(self.unassigned, left))
        self.least = 1.0 if plan.unit == "trials" else 0.0

    def spent(self, task: Task) -> float:
        return self.standings[task.slug].spent

    def under_way(self, task: Task) -> float:
        """Return the rest of the unfinished time slice of a task."""
        standing = self.standings[task.slug]
        return standing.limit - standing.spent if standing.unfinished and standing.limit is not None else 0.0

    def resumed(self) -> TimeSlice | None:
        """Resume the first unfinished time slice."""
        for task in self.free:
            more = min(self.under_way(task), self.longest)
            if more > 0:
                return self.time_slice(task, more, "resumed")
        return None

    def minimum(self) -> TimeSlice | None:
        """Give the first task below its minimum the rest of it; minima that no longer fit shrink in proportion."""
        lacking = [task for task in self.free if self.spent(task) < (1 - _TOLERANCE) * task.minimum]
        minima = [task.minimum for task in lacking]
        for task, share in zip(lacking, self.allotted(lacking, minima, minima), strict=True):
            more = min(share - self.spent(task), self.longest)
            if more >= max(_TOLERANCE * task.minimum, self.least):
                return self.time_slice(task, more, "minimum")
        return None

    def gain(self) -> TimeSlice | None:
        """Give the task with the largest expected gain per time its share, but at most as much as it has spent.

        After that its expected gain is estimated again. The last time slice takes the rest of the budget, as does the
        only kernel of a choice that is left.
        """
        constants = gain_constants(self.plan.tasks, self.standings)
        factors = chances(self.plan.tasks, self.standings, constants)
        free = [task for task in self.free if factors[task.slug] > 0.0]
        most = [self.most(task) for task in free]
        weights = [math.sqrt(task.priority * constants[task.slug] * factors[task.slug]) for task in free]
        shares = self.allotted(free, weights, most)
        left = [task for task in self.plan.tasks if factors[task.slug] and not self.standings[task.slug].ended]
        alone = len(left) == 1 and bool(left[0].choice)
        best, chosen = 0.0, None
        for task, weight, share, top in zip(free, weights, shares, most, strict=True):
            spent, least = self.spent(task), max(SHORTEST * task.minimum, self.least)
            more = self.longest if alone else min(max(share - spent, least), max(spent, task.minimum))
            more = self.longest if self.longest - more < least else more
            more = min(more, top - spent)
            rate = weight / spent if spent else math.inf
            if more >= least and rate > best:
                best, chosen = rate, self.time_slice(task, more, "gain")
        return chosen

    def most(self, task: Task) -> float:
        """Return the largest budget of a task: what its maximum leaves to it beside the other kernels of its choice."""
        if task.maximum is None:
            return math.inf
        others = [one for one in self.plan.tasks if one.choice == task.choice and one != task] if task.choice else []
        return task.maximum - sum(map(self.spent, others))

    def allotted(self, tasks: Sequence[Task], weights: Sequence[float], most: Sequence[float]) -> list[float]:
        return allot(self.unassigned, [self.spent(task) for task in tasks], weights, most)

    def time_slice(self, task: Task, more: float, reason: Literal["resumed", "minimum", "gain"]) -> TimeSlice:
        """Return the time slice that adds to the budget of a task; limits in trials are whole batches if possible."""
        spent = self.spent(task)
        limit = spent + more
        if self.plan.unit == "trials":
            whole = limit // BATCH * BATCH
            limit = whole if reason == "gain" and more < self.longest and whole > spent else math.floor(limit + 1e-6)
        return TimeSlice(task.slug, limit, self.plan.unit, reason)
