"""Plans: the problems of a campaign with their priorities and bounds, and the budget that they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mltune.problem.problem import Problem

Unit = Literal["s", "trials"]
"""Unit of a budget: seconds of each device, or trials."""

REPLAY = "replay"
"""The device of a plan without a GPU: every problem is replayed from its recorded timings."""


@dataclass(frozen=True, slots=True)
class Task:
    """One kernel on one problem.

    Attributes
    ----------
    slug : str
        Name of its folder, unique in the plan: lower-case letters, digits, ``-`` and ``.``.
    kernel : str
        Name or folder of the bundle.
    problem : Problem
    dataset : str or None
        Name or path of its recorded timings in a replay; None on a GPU.
    priority : float
        Weight of its expected gain; tasks of higher priority come first.
    minimum : float
        Budget that it gets before any task gets more than its minimum, in the unit of the plan.
    maximum : float or None
        Largest budget that it gets, in the unit of the plan.
    choice : str
        Name of a choice among kernels: its tasks are one problem with several kernels, of which only the best counts,
        and which share the maximum. Empty for a task on its own.
    model : str
        The model of the GPUs that it is tuned for, where a cluster has several; empty for any.
    """

    slug: str
    kernel: str
    problem: Problem
    dataset: str | None
    priority: float
    minimum: float
    maximum: float | None = None
    choice: str = ""
    model: str = ""

    @property
    def device(self) -> str | None:
        """The device specification of a replay, ``"replay:NAME"``; None on a GPU: any free device of the plan."""
        return None if self.dataset is None else f"{REPLAY}:{self.dataset}"


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan, as returned by :func:`mltune.resolve.plan_reader.load_plan`.

    Attributes
    ----------
    name : str
        Stem of its file.
    title : str
        Title in reports.
    unit : {"s", "trials"}
        Unit of the budget, minima and maxima.
    budget : float
        Seconds of each device, or trials in all.
    tasks : tuple of Task
        By priority, then in the order of the file.
    devices : tuple of str
        As written: ``("auto",)``, ``("all",)``, ``("replay",)`` or ``"cuda:N"`` each; after
        :func:`mltune.resolve.placement.place` ``("replay",)`` or ``"cuda:N"`` each, after
        :func:`mltune.resolve.placement.place_on_workers` the names of workers.
    seed : int
        Seed of every search.
    produce : frozenset of str
        Some of ``"report"``, ``"winners"`` and ``"datasets"``, written at the end.
    options : mapping of str to object
        Options of every run: some fields of :class:`mltune.resolve.request.TuneRequest`.
    text : str
        Text of the file.
    """

    name: str
    title: str
    unit: Unit
    budget: float
    tasks: tuple[Task, ...]
    devices: tuple[str, ...] = ("auto",)
    seed: int = 0
    produce: frozenset[str] = frozenset({"report", "winners"})
    options: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""

    @property
    def capacity(self) -> float:
        """Budget of all tasks together: trials, or seconds summed over the devices."""
        return self.budget * len(self.devices) if self.unit == "s" else self.budget

    @property
    def replayed(self) -> bool:
        """Whether recorded timings replace a GPU."""
        return all(task.dataset for task in self.tasks)

    def task(self, slug: str) -> Task:
        """Return the task with a slug, which must exist."""
        return next(task for task in self.tasks if task.slug == slug)


@dataclass(frozen=True, slots=True)
class Standing:
    """The progress of a task, from which time slices are chosen.

    Attributes
    ----------
    slug : str
    spent : float
        Seconds or trials of its run so far, in the unit of the plan.
    limit : float or None
        Limit of an unfinished time slice, in the unit of the plan; None when the last one has ended.
    curve : sequence of (float, float)
        The steps of the best time so far: (spent, seconds of the kernel). Noisy times count: a kernel at the limit of
        the GPU's power may have no others, and finals decide what it is worth.
    stopped : str
        Why its search has ended by itself: nothing faster is expected, or nothing is left to try. Empty if it has not.
    failed : str
        Reason why it gets no further time; empty for none.
    unread : str
        Reason why its run cannot be read; empty for none. The rest is then what was known before. A worker opens the
        store for writing, which repairs what a kill has left, before the problem is set aside.
    trials : int
        Number of trials on record, for both units.
    total_s : float
        Seconds of its run so far, for both units.
    declared : bool
        Whether a winner was declared when all trials were known, or there is none to declare.
    notice : str
        What may be missing from its run; empty if nothing is.
    """

    slug: str
    spent: float = 0.0
    limit: float | None = None
    curve: Sequence[tuple[float, float]] = ()
    stopped: str = ""
    failed: str = ""
    unread: str = ""
    trials: int = 0
    total_s: float = 0.0
    declared: bool = True
    notice: str = ""

    @property
    def ended(self) -> bool:
        """Whether it gets no further time."""
        return bool(self.stopped or self.failed)

    @property
    def unfinished(self) -> bool:
        """Whether it has an unfinished time slice."""
        return not self.ended and self.limit is not None and self.spent < self.limit


@dataclass(frozen=True, slots=True)
class TimeSlice:
    """A time slice: a task, and the new limit of its run; or the repair of a run that cannot be read.

    Attributes
    ----------
    slug : str
    limit : float
        Seconds or trials of the whole run of the task, earlier time slices included.
    unit : {"s", "trials"}
    reason : str
        Why the task was chosen: an unfinished time slice, its minimum, its expected gain, or a run that cannot be
        read.
    """

    slug: str
    limit: float
    unit: Unit
    reason: Literal["resumed", "minimum", "gain", "repair"]

    @property
    def trials(self) -> int | None:
        """Limit in trials; None where seconds are counted."""
        return int(self.limit) if self.unit == "trials" else None

    @property
    def time_s(self) -> float | None:
        """Limit in seconds; None where trials are counted."""
        return self.limit if self.unit == "s" else None
