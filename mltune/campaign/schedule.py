"""Sharing out of a budget: the standing of every task, the gain expected of more time, and the next time slice.

The best time of a search has diminishing returns: after t seconds the remaining gain is about gap(t) = c / t, in the
logarithm of the time, so that d further seconds gain c (1 / t - 1 / (t + d)). The constant c of a problem cannot be
estimated from its own curve, which consists of steps: on recorded curves the gain of the last doubling of the time does
not predict that of the next one (rank correlations from -0.4 to 0.4, mean 0). Two other quantities do: the mean gain of
the last doubling over all problems, and the distance of a problem from the fastest of its siblings, the same product
with other transpositions (rank correlations from 0.4 to 0.7). docs/explanation/time-sharing.md has the study.

The sum of all gains is largest where the marginal gains p c / t^2 are equal (p: priority): t is proportional to sqrt(p
c). A kernel that is behind the best one for its problem by d, in the logarithm of the time, matters only if its
remaining gain is larger. With an exponential distribution of mean gap(t) that is expected to be gap(t) exp(-d /
gap(t)): its constant is c exp(-d / gap(t)).

An unfinished time slice is finished first. Then every task gets its minimum, in the order of the plan. The rest goes,
one time slice after the other, to the tasks with the largest expected gain. A task that has stopped, failed, reached
its maximum, or is too far behind another kernel for its problem leaves its share to the others.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Literal

import numpy as np

from mltune.kernel.coding import Floats
from mltune.measure.timing import finals_s
from mltune.records.trial import BATCH
from mltune.resolve.plan import Plan, Task, Unit
from mltune.results.run import TuneResult


@dataclass(frozen=True, slots=True)
class Standing:
    """The progress of a task, from which time slices are chosen; budgets are in the unit of the plan."""

    slug: str
    spent: float = 0.0
    """Budget of its run so far."""
    limit: float | None = None
    """Limit of an unfinished time slice; None when the last one has ended."""
    curve: Sequence[tuple[float, float]] = ()
    """Steps (spent, seconds) of the best time, noisy ones too: a kernel at the GPU's power limit may have no others."""
    stopped: str = ""
    """Why its search has ended by itself: little is gained, or nothing is left to try."""
    failed: str = ""
    """Why it gets no further time."""
    unread: str = ""
    """Why its run cannot be read; the other fields are then earlier values. A worker first tries a repair."""
    trials: int = 0
    """Trials of its run so far, in any unit."""
    total_s: float = 0.0
    """Seconds of its run so far, in any unit."""
    declared: bool = True
    """Whether a winner was declared when all trials were on record, or there is none to declare."""
    notice: str = ""
    """What may be missing from its run."""

    @property
    def ended(self) -> bool:
        """Whether the task gets no further time."""
        return bool(self.stopped or self.failed)

    @property
    def unfinished(self) -> bool:
        """Whether the task has an unfinished time slice."""
        return not self.ended and self.limit is not None and self.spent < self.limit

    @property
    def best_s(self) -> float | None:
        """Best time of the task's kernel so far, seconds."""
        return self.curve[-1][1] if self.curve else None


@dataclass(frozen=True, slots=True)
class TimeSlice:
    """A time slice: a task, the new limit of its whole run in seconds or trials, and why it was chosen."""

    slug: str
    limit: float
    """Limit of an unfinished time slice; None when the last one has ended."""
    unit: Unit
    reason: Literal["resumed", "minimum", "gain", "repair"]

    @property
    def trials(self) -> int | None:
        """Limit in trials; None for one in seconds."""
        return int(self.limit) if self.unit == "trials" else None

    @property
    def time_s(self) -> float | None:
        """Limit in seconds; None for one in trials."""
        return self.limit if self.unit == "s" else None


def standing_of(run: TuneResult, unit: Unit) -> Standing:
    """Return the standing of the task of a run, whose slug is that of the task."""
    return Standing(
        run.slug,
        spent=float(len(run.records)) if unit == "trials" else run.elapsed_s,
        limit=None if run.limit is None else run.limit["trials" if unit == "trials" else "time_s"],
        curve=run.improvements(by_time=unit == "s", noisy=True),
        stopped=run.stopped if run.limit is None else "",  # one that was killed after that has trials to finish
        trials=len(run.records),
        total_s=run.elapsed_s,
        declared=run.settled,
        notice=run.notice,
    )


LEAST_GAIN = 0.01
"""Least remaining gain of a problem, as a share of its time, also when no curve has fallen lately."""

HOPELESS = 1e-3
"""Expected gain, as a share of the time, below which a kernel behind another one gets nothing more."""


def gain_constants(tasks: Sequence[Task], standings: Mapping[str, Standing]) -> dict[str, float]:
    """Estimate the constant c of gap(t) = c / t for each task, in the unit of the plan; by slug, positive."""
    started = {slug: standing for slug, standing in standings.items() if standing.curve and standing.spent > 0}
    if not started:
        return {task.slug: 1.0 for task in tasks}
    spent = sum(standing.spent for standing in started.values()) / len(started)
    doubling = sum(map(last_doubling, started.values())) / len(started)
    behind = deficits(tasks, started)
    usual = sum(behind.values()) / len(behind) if behind else 0.0
    return {task.slug: spent * (max(doubling, LEAST_GAIN) + behind.get(task.slug, usual)) for task in tasks}


def chances(
    tasks: Sequence[Task], standings: Mapping[str, Standing], constants: Mapping[str, float]
) -> dict[str, float]:
    """Return factors for the expected gains of tasks, by slug, from the other kernels of their choices.

    A factor is 1 for a task on its own and for the fastest kernel of a choice, less for the other kernels, and 0 for
    those that are hopeless (:data:`HOPELESS`) or have no successful trial.
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
    """Return the best time of each choice among kernels so far, seconds; without choices that have none."""
    best_s: dict[str, float] = {}
    for task in tasks:
        found_s = standings[task.slug].best_s
        if task.choice and found_s is not None:
            best_s[task.choice] = min(found_s, best_s.get(task.choice, found_s))
    return best_s


def last_doubling(standing: Standing) -> float:
    """Return log(best(t / 2) / best(t)), the gain of the second half of the time, or since the first time."""
    at = bisect_right(standing.curve, standing.spent / 2, key=itemgetter(0))
    return max(0.0, math.log(standing.curve[max(at - 1, 0)][1] / standing.curve[-1][1]))


def deficits(tasks: Sequence[Task], standings: Mapping[str, Standing]) -> dict[str, float]:
    """Return the logarithm of the best time of each problem relative to the fastest of its siblings, if it has any.

    Siblings have the same kernel and the same work (:attr:`mltune.problem.problem.Problem.work_class`).
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
    """Share out a budget ``room`` on top of ``spent`` in proportion to positive weights, within a bound for each.

    A share that is above its upper bound already is kept. The sum of the shares is linear in the level between two
    levels at which a share reaches a bound: a bisection finds the two, and the rest is a division.
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


SHORTEST = 0.5
"""Shortest time slice, in minima: the start and the end of a run take time as well."""

_TOLERANCE = 0.02
"""Relative shortfall of a minimum that is not made up for."""


def next_slice(
    plan: Plan, standings: Sequence[Standing], busy: Collection[str] = (), remaining: float | None = None
) -> TimeSlice | None:
    """Return the next time slice of a free device of a placed plan; None when there is nothing to do for it.

    A task without a standing has spent nothing; ``busy`` has the slugs of tasks on other devices. ``remaining``, in
    seconds of each device or trials in all, counts where it is less than the rest by the standings, because time has
    passed outside of runs.
    """
    state = _State(plan, standings, busy, remaining)
    return state.resumed() or state.minimum() or state.gain()


class _State:
    """The state of a plan at one moment."""

    def __init__(
        self, plan: Plan, standings: Sequence[Standing], busy: Collection[str], remaining: float | None
    ) -> None:
        by_slug = {standing.slug: standing for standing in standings}
        self.plan = plan
        self.standings = {task.slug: by_slug.get(task.slug, Standing(task.slug)) for task in plan.tasks}
        self.free = [task for task in plan.tasks if task.slug not in busy and not self.standings[task.slug].ended]
        elsewhere = sum(self.under_way(task) for task in plan.tasks if task.slug in busy)
        unspent = plan.capacity - sum(standing.spent for standing in self.standings.values())
        if remaining is not None:
            unspent = min(unspent, remaining if plan.unit == "trials" else remaining * len(plan.devices))
        # the budget that no device uses yet, and the longest and the shortest time slice
        self.unassigned = max(0.0, unspent - elsewhere)
        self.longest = self.unassigned if remaining is None else max(0.0, min(self.unassigned, remaining))
        self.least = 1.0 if plan.unit == "trials" else 0.0

    def spent(self, task: Task) -> float:
        return self.standings[task.slug].spent

    def under_way(self, task: Task) -> float:
        """Return the rest of the unfinished time slice of a task."""
        standing = self.standings[task.slug]
        return standing.limit - standing.spent if standing.unfinished and standing.limit is not None else 0.0

    def resumed(self) -> TimeSlice | None:
        """Resume the first unfinished time slice, if any."""
        for task in self.free:
            addition = min(self.under_way(task), self.longest)
            if addition > 0:
                return self.time_slice(task, addition, "resumed")
        return None

    def minimum(self) -> TimeSlice | None:
        """Give the first task below its minimum the rest of it; minima that do not fit shrink in proportion."""
        lacking = [task for task in self.free if self.spent(task) < self.sufficient(task)]
        minima = [task.minimum for task in lacking]
        for task, share in zip(lacking, self.allotted(lacking, minima, minima), strict=True):
            addition = min(share - self.spent(task), self.longest)
            if addition >= max(_TOLERANCE * task.minimum, self.least):
                return self.time_slice(task, addition, "minimum")
        return None

    def sufficient(self, task: Task) -> float:
        """Return the least spending that meets a task's minimum: finals may end before the time reserved for them."""
        kept = finals_s(task.minimum) if self.plan.unit == "s" else 0.0
        return (1 - _TOLERANCE) * task.minimum - kept

    def gain(self) -> TimeSlice | None:
        """Give the task with the largest expected gain per time its share, but at most as much as it has spent.

        Then its expected gain is estimated again. The last time slice, or the only kernel left, gets the rest.
        """
        constants = gain_constants(self.plan.tasks, self.standings)
        factors = chances(self.plan.tasks, self.standings, constants)
        free = [task for task in self.free if factors[task.slug] > 0.0]
        most = [self.most(task) for task in free]
        weights = [math.sqrt(task.priority * constants[task.slug] * factors[task.slug]) for task in free]
        shares = self.allotted(free, weights, most)
        open_tasks = [task for task in self.plan.tasks if factors[task.slug] and not self.standings[task.slug].ended]
        alone = len(open_tasks) == 1 and bool(open_tasks[0].choice)
        best, chosen = 0.0, None
        for task, weight, share, top in zip(free, weights, shares, most, strict=True):
            spent, least = self.spent(task), max(SHORTEST * task.minimum, self.least)
            addition = self.longest if alone else min(max(share - spent, least), max(spent, task.minimum))
            addition = self.longest if self.longest - addition < least else addition
            addition = min(addition, top - spent)
            rate = weight / spent if spent else math.inf
            if addition >= least and rate > best:
                best, chosen = rate, self.time_slice(task, addition, "gain")
        return chosen

    def most(self, task: Task) -> float:
        """Return the largest budget of a task: its maximum, without the other kernels of its choice."""
        if task.maximum is None:
            return math.inf
        rivals = [rival for rival in self.plan.tasks if task.choice and rival.choice == task.choice and rival != task]
        return task.maximum - sum(map(self.spent, rivals))

    def allotted(self, tasks: Sequence[Task], weights: Sequence[float], most: Sequence[float]) -> list[float]:
        return allot(self.unassigned, [self.spent(task) for task in tasks], weights, most)

    def time_slice(self, task: Task, addition: float, reason: Literal["resumed", "minimum", "gain"]) -> TimeSlice:
        """Return the time slice that adds to the budget of a task; trials come in whole batches if possible."""
        spent = self.spent(task)
        limit = spent + addition
        if self.plan.unit == "trials":
            whole = limit // BATCH * BATCH
            limit = (
                whole if reason == "gain" and addition < self.longest and whole > spent else math.floor(limit + 1e-6)
            )
        return TimeSlice(task.slug, limit, self.plan.unit, reason)
