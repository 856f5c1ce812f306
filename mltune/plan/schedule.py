"""How the night is shared out: a pure function from how the problems stand to the next slice.

A slice under way is finished first. Then every problem gets its minimum, in the plan's order. What is left goes, slice
by slice, to the problems of which more time is expected to bring most (:mod:`mltune.plan.gain`); one that has nothing
left to gain, failed, or has its maximum gets nothing more, and leaves its share to the others.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Literal

from mltune.plan.gain import allot, gain_constants
from mltune.plan.plan import Plan, Slice, Standing, Task
from mltune.records.candidate import BATCH

LEAST = 0.5
"""Shortest slice, in minima: a shorter one spends its time on beginning and ending."""

_SLACK = 0.02
"""A minimum that is met but for this share of it is met."""


def next_slice(
    plan: Plan, standings: Sequence[Standing], busy: Collection[str] = (), left: float | None = None
) -> Slice | None:
    """Choose what a free device does next.

    Parameters
    ----------
    plan : Plan
        Placed: its devices are known (:func:`mltune.plan.placement.place`).
    standings : sequence of Standing
        How the tasks stand; on one without a standing nothing was spent.
    busy : collection of str
        Slugs of tasks that other devices are at.
    left : float, optional
        What the budget still allows, where it is less than the standings say (time that no record shows has passed):
        seconds of each device, or trials in all.

    Returns
    -------
    Slice or None
        None when there is nothing for this device to do; when no other is at work either, the night is over.
    """
    night = _Night(plan, standings, busy, left)
    return night.resumed() or night.minimum() or night.gain()


class _Night:
    """A plan at one moment."""

    def __init__(self, plan: Plan, standings: Sequence[Standing], busy: Collection[str], left: float | None) -> None:
        known = {standing.slug: standing for standing in standings}
        self.plan = plan
        self.at = {task.slug: known.get(task.slug, Standing(task.slug)) for task in plan.tasks}
        self.free = [task for task in plan.tasks if task.slug not in busy and not self.at[task.slug].ended]
        """What this device may do."""
        elsewhere = sum(self.under_way(task) for task in plan.tasks if task.slug in busy)
        room = plan.capacity - sum(standing.spent for standing in self.at.values())
        if left is not None:
            room = min(room, left if plan.unit == "trials" else left * len(plan.devices))
        self.room = max(0.0, room - elsewhere)
        """What no device is at yet."""
        self.unit = 1.0 if plan.unit == "trials" else 0.0
        """What cannot be divided."""
        self.longest = self.room if left is None else max(0.0, min(self.room, left))
        """What one slice can have."""

    def spent(self, task: Task) -> float:
        return self.at[task.slug].spent

    def under_way(self, task: Task) -> float:
        """Return what the unfinished slice of a task still takes."""
        standing = self.at[task.slug]
        return standing.limit - standing.spent if standing.unfinished and standing.limit is not None else 0.0

    def resumed(self) -> Slice | None:
        """Go on with a slice that was not finished."""
        for task in self.free:
            more = min(self.under_way(task), self.longest)
            if more > 0:
                return self.slice(task, more, "resumed")
        return None

    def minimum(self) -> Slice | None:
        """Give the first task below its minimum that; where not all can have theirs, the same part each."""
        lacking = [task for task in self.free if self.spent(task) < (1 - _SLACK) * task.minimum]
        minima = [task.minimum for task in lacking]
        for task, share in zip(lacking, self.allotted(lacking, minima, minima), strict=True):
            more = min(share - self.spent(task), self.longest)
            if more >= max(_SLACK * task.minimum, self.unit):
                return self.slice(task, more, "minimum")
        return None

    def gain(self) -> Slice | None:
        """Give the task that gains most for its time its next slice: up to what it deserves, but no more than it had.

        By then more will be known. The last slice takes what would be left.
        """
        constants = gain_constants(self.plan.tasks, self.at)
        most = [math.inf if task.maximum is None else task.maximum for task in self.free]
        weights = [math.sqrt(task.priority * constants[task.slug]) for task in self.free]
        shares = self.allotted(self.free, weights, most)
        best, chosen = 0.0, None
        for task, weight, share, top in zip(self.free, weights, shares, most, strict=True):
            spent, least = self.spent(task), max(LEAST * task.minimum, self.unit)
            more = min(max(share - spent, least), max(spent, task.minimum))
            more = self.longest if self.longest - more < least else more
            more = min(more, top - spent)
            worth = weight / spent if spent else math.inf
            if more >= least and worth > best:
                best, chosen = worth, self.slice(task, more, "gain")
        return chosen

    def allotted(self, tasks: Sequence[Task], weights: Sequence[float], most: Sequence[float]) -> list[float]:
        return allot(self.room, [self.spent(task) for task in tasks], weights, most)

    def slice(self, task: Task, more: float, reason: Literal["resumed", "minimum", "gain"]) -> Slice:
        """Return the slice that gives a task more; a limit of trials is a whole number, of batches where it may be."""
        spent = self.spent(task)
        limit = spent + more
        if self.plan.unit == "trials":
            whole = limit // BATCH * BATCH
            limit = whole if reason == "gain" and more < self.longest and whole > spent else math.floor(limit + 1e-6)
        return Slice(task.slug, limit, self.plan.unit, reason)
