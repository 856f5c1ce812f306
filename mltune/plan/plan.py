"""A plan: the problems of a night, each with its priority and its bounds, and the budget that they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mltune.problem.problem import Problem

Unit = Literal["s", "trials"]
"""What a budget is counted in: seconds of each device, or trials."""

REPLAY = "replay"
"""The device of a plan that is replayed: each problem answers from recorded timings of its own."""

PRODUCTS = ("report", "winners", "datasets")
"""What may lie in the directory of a plan at its end, besides the records."""


@dataclass(frozen=True, slots=True)
class Task:
    """One kernel on one problem: what a slice of the night is spent on.

    Attributes
    ----------
    slug : str
        Name of its folder, unique in the plan: lower-case letters, digits, ``-`` and ``.``.
    kernel : str
        Name or folder of the bundle.
    problem : Problem
    dataset : str or None
        Name or path of the recorded timings that it is replayed from; None on a GPU.
    priority : float
        What a gain is weighed with; tasks of a higher one come first.
    minimum : float
        What is spent on it before any other gets more than its minimum, in the plan's unit.
    maximum : float or None
        Most that is spent on it, in the plan's unit.
    """

    slug: str
    kernel: str
    problem: Problem
    dataset: str | None
    priority: float
    minimum: float
    maximum: float | None = None

    @property
    def device(self) -> str | None:
        """The device specification of its run: ``"replay:NAME"``; None on a GPU: whichever of the plan's is free."""
        return None if self.dataset is None else f"{REPLAY}:{self.dataset}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a night is to do. Made by :func:`mltune.plan.reader.load_plan`.

    Attributes
    ----------
    name : str
        The file's stem.
    title : str
        For people.
    unit : {"s", "trials"}
        What budget, minima and maxima are counted in.
    budget : float
        Seconds of each device, or trials in all.
    tasks : tuple of Task
        In the order of doing: by priority, then as the plan has them.
    devices : tuple of str
        As written: ``("auto",)``, ``("all",)``, ``("replay",)`` or ``"cuda:N"`` each; after
        :func:`mltune.plan.placement.place` what they stand for: ``("replay",)`` or ``"cuda:N"`` each.
    seed : int
        Of every task's search.
    produce : frozenset of str
        Some of :data:`PRODUCTS`.
    text : str
        The file, verbatim.
    """

    name: str
    title: str
    unit: Unit
    budget: float
    tasks: tuple[Task, ...]
    devices: tuple[str, ...] = ("auto",)
    seed: int = 0
    produce: frozenset[str] = frozenset(PRODUCTS[:2])
    text: str = ""

    @property
    def capacity(self) -> float:
        """What all tasks share: trials, or seconds summed over the devices."""
        return self.budget * len(self.devices) if self.unit == "s" else self.budget

    @property
    def replayed(self) -> bool:
        """Whether it answers from recorded timings."""
        return self.devices == (REPLAY,)

    def task(self, slug: str) -> Task:
        """Return the task of a slug.

        Raises
        ------
        KeyError
            There is none.
        """
        for task in self.tasks:
            if task.slug == slug:
                return task
        raise KeyError(slug)


@dataclass(frozen=True, slots=True)
class Standing:
    """How a task stands: all that the sharing out of the night knows of it.

    Attributes
    ----------
    slug : str
    spent : float
        Seconds or trials of its run so far, in the plan's unit.
    limit : float or None
        Up to where the slice under way goes, in the plan's unit; None when the last one was ended.
    curve : sequence of (float, float)
        The best time so far, at every moment that it fell: (spent, seconds of the kernel).
    stopped : bool
        Whether its search has ended by itself: nothing faster is to be expected.
    failed : str
        Why nothing more is to be spent on it; empty when nothing is wrong.
    trials : int
        Trials on record, whatever the plan's unit.
    total_s : float
        Seconds of its run so far, whatever the plan's unit.
    """

    slug: str
    spent: float = 0.0
    limit: float | None = None
    curve: Sequence[tuple[float, float]] = ()
    stopped: bool = False
    failed: str = ""
    trials: int = 0
    total_s: float = 0.0

    @property
    def ended(self) -> bool:
        """Whether nothing more is to be spent on it."""
        return self.stopped or bool(self.failed)

    @property
    def unfinished(self) -> bool:
        """Whether a slice of it is under way."""
        return not self.ended and self.limit is not None and self.spent < self.limit


@dataclass(frozen=True, slots=True)
class Slice:
    """A piece of the night: a task, and up to where its run goes.

    Attributes
    ----------
    slug : str
    limit : float
        Seconds or trials of the task's run in all, those of earlier slices included.
    unit : {"s", "trials"}
    reason : str
        Why it is this task's turn, for the log: ``"resumed"``, ``"minimum"`` or ``"gain"``.
    """

    slug: str
    limit: float
    unit: Unit
    reason: Literal["resumed", "minimum", "gain"]

    @property
    def trials(self) -> int | None:
        """Limit in trials; None where seconds are counted."""
        return int(self.limit) if self.unit == "trials" else None

    @property
    def time_s(self) -> float | None:
        """Limit in seconds; None where trials are counted."""
        return self.limit if self.unit == "s" else None
