"""Plans: problems with their kernels, priorities and bounds, and the budget that they share."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from mltune.files.text import many
from mltune.kernel.bundle import Kernel
from mltune.problem.problem import Problem
from mltune.resolve.device import Target

Unit = Literal["s", "trials"]
"""Unit of a budget: seconds of each device, or trials."""

REPLAY = "replay"
"""The device of a plan without a GPU: every problem is replayed from its recorded timings."""

MAX_BUDGET_S = 366 * 86_400.0
"""Longest budget, seconds."""

MAX_BUDGET_TRIALS = 10_000_000
"""Largest budget of trials."""

MAX_TASKS = 1000
"""Most tasks of a plan."""

MAX_RIVALS = 20
"""Most kernels that compete for a problem."""

_LONGEST_SLUG = 100


@dataclass(frozen=True, slots=True)
class Task:
    """One kernel on one problem.

    `slug` is the name of its folder, unique in the plan: lower-case letters, digits, ``-`` and ``.``. `dataset` is None
    on a GPU. Tasks of higher `priority`, the weight of the expected gain, come first. `minimum` is what it gets before
    any task gets more than its minimum, `maximum` the most, in the unit of the plan. The tasks of a `choice` are one
    problem with several kernels, of which only the best counts, and which share the maximum. `model` is that of its
    GPUs where a cluster has several.
    """

    slug: str
    kernel: Kernel
    problem: Problem
    dataset: str | None
    priority: float
    minimum: float
    maximum: float | None = None
    choice: str = ""
    model: str = ""

    @property
    def target(self) -> Target | None:
        """The dataset that it replays; None on a GPU, which is any free device of the plan."""
        return None if self.dataset is None else Target(dataset=self.dataset)

    @property
    def bundle(self) -> tuple[Path, str]:
        """Folder and preset of the kernel, by which two kernels of the same name differ."""
        return self.kernel.folder, self.kernel.space.preset


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan, read from a file (:mod:`mltune.resolve.plan_file`) or made of objects (:mod:`mltune.resolve.resolve`).

    The `unit` of budget, minima and maxima is ``"s"``, of each device, or ``"trials"``, in all. `tasks` are by
    priority, then in the order of the file. `devices` are ``("auto",)``, ``("all",)``, ``("replay",)`` or ``"cuda:N"``
    each; once :mod:`mltune.resolve.placement` has placed the plan, the latter two or the names of workers. `produce`
    has some of ``"report"``, ``"winners"`` and ``"datasets"``; for none runs hold no finals. `options` are fields of
    :class:`mltune.resolve.request.TuneRequest`. A campaign is resumed from `text`, TOML.
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

    def __repr__(self) -> str:
        return f"Plan({self.title}: {many(len(self.tasks), 'problem')}, {self.budget:g} {self.unit})"

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


def rivals(task: Task, kernels: Sequence[Kernel], unit: Unit) -> list[Task]:
    """Return the tasks of a problem, one for each of its kernels, which share its minimum."""
    if len(kernels) == 1:
        return [replace(task, kernel=kernels[0])]
    share = task.minimum / len(kernels)
    minimum = max(1.0, math.floor(share)) if unit == "trials" else share
    choice = _slug(f"{task.problem.label} {' '.join(kernel.label for kernel in kernels)}")
    return [replace(task, kernel=kernel, minimum=minimum, choice=choice) for kernel in kernels]


def in_order(groups: Iterable[Sequence[Task]]) -> tuple[Task, ...]:
    """Return the tasks of all problems by priority, with slugs.

    A slug is the name of the dataset or the problem; the kernel, then a number, are added where names are equal. So is
    a number to the name of a choice.
    """
    tasks: list[Task] = []
    choices: Counter[str] = Counter()
    for group in groups:
        choice = group[0].choice
        choices[choice] += bool(choice)
        again = f"-{choices[choice]}" if choices[choice] > 1 else ""
        tasks += [replace(task, choice=choice + again) for task in group]
    plain = [_slug(task.problem.label if task.dataset is None else Path(task.dataset).stem) for task in tasks]
    named: dict[str, Task] = {}
    for task, slug in zip(tasks, plain, strict=True):
        name = slug if plain.count(slug) == 1 else _slug(f"{task.kernel.label} {slug}")
        numbered = (name if again == 1 else f"{name}-{again}" for again in itertools.count(1))
        unique = next(candidate for candidate in numbered if candidate not in named)
        named[unique] = replace(task, slug=unique)
    return tuple(sorted(named.values(), key=lambda task: -task.priority))


def _slug(text: str) -> str:
    words = re.findall(r"[a-z0-9.]+", text.lower())
    return "-".join(words)[:_LONGEST_SLUG].strip(".-") or "problem"
