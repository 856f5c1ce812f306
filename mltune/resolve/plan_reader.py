"""Reader of plan files: validates the TOML document and expands it to tasks."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mltune.errors import MltuneError, PlanError
from mltune.files import assets
from mltune.files.documents import parse_toml
from mltune.files.reading import read_text, reason
from mltune.files.text import did_you_mean
from mltune.files.validation import problems_of
from mltune.kernel.reader import load_kernel
from mltune.problem.kinds import KINDS
from mltune.records.directory import is_begun
from mltune.resolve.kernels import DEFAULT_KERNEL, kernels_for
from mltune.resolve.plan import REPLAY, Plan, Task, Unit
from mltune.resolve.request import TuneRequest, parse_duration

if TYPE_CHECKING:
    from mltune.dataset.manifest import Manifest
    from mltune.kernel.bundle import Kernel
    from mltune.problem.problem import Problem
    from mltune.resolve.plan_schema import Document, ProblemsTable

MAX_BYTES = 2**20
"""Largest plan file."""

MAX_KERNELS = 100
"""Most kernels of a plan: to read a thousand takes half a minute."""

_LONGEST_SLUG = 100
_TRIALS = re.compile(r"(\d{1,12}) trials?")
_SEE = "See docs/reference/plans.md."


def load_plan(name_or_path: str | Path) -> Plan:
    """Read a plan and check everything that needs no device.

    Parameters
    ----------
    name_or_path : str or pathlib.Path
        A file, or the name of a shipped plan such as ``"quick"``. Relative paths of kernels and datasets in a plan are
        relative to the working directory, as in options.

    Raises
    ------
    PlanError
        There is no such plan, or it is malformed. The message names the file and the key.

    Examples
    --------
    >>> plan = load_plan("quick")
    >>> plan.budget, plan.tasks[0].problem.label
    (600.0, 'sgemm NN 4096')
    """
    path = find_plan(name_or_path)
    try:
        text = read_text(path, MAX_BYTES)
    except OSError as error:
        raise PlanError(f"{path}: a plan must be readable UTF-8 text: {reason(error)}. {_SEE}") from error
    return parse_plan(text, path.stem, where=str(path))


def find_plan(name_or_path: str | Path) -> Path:
    """Return the file of a plan.

    Raises
    ------
    PlanError
        There is none.
    """
    ours = {found.stem: found for found in sorted(assets.folder("search").glob("*.toml"))}
    if str(name_or_path) in ours:
        return ours[str(name_or_path)]
    path = Path(name_or_path)
    if path.is_file():
        return path
    hint = "; the directory of a single run is resumed by its `mltune tune` command." if is_begun(path) else ""
    raise PlanError(
        f"a plan is a shipped one ({', '.join(ours) or 'none'}) or a TOML file, got {str(name_or_path)!r}"
        f"{hint or did_you_mean(str(name_or_path), ours) or '.'}"
    )


def parse_plan(text: str, name: str, *, where: str = "") -> Plan:
    """Read the text of a plan.

    Parameters
    ----------
    text : str
        TOML; see docs/reference/plans.md.
    name : str
        Name of the plan.
    where : str, optional
        Name of the plan in messages, such as its file.

    Raises
    ------
    PlanError
        It is malformed, or a kernel, problem or dataset in it does not exist.
    """
    return _Reader(where or name, _validated(where or name, text)).plan(text, name)


def _validated(where: str, text: str) -> Document:
    from pydantic import ValidationError

    from mltune.resolve.plan_schema import Document

    try:
        document = parse_toml(text)
    except ValueError as error:
        raise PlanError(f"{where}: a plan must be valid TOML: {error}. {_SEE}") from error
    try:
        return Document.model_validate(document)
    except ValidationError as error:
        raise PlanError(f"{where}: {problems_of(error, document, model=Document)}. {_SEE}") from error


class _Reader:
    """Expands a document to a plan, and checks what a schema cannot."""

    def __init__(self, where: str, document: Document) -> None:
        self.where = where
        self.document = document
        self.kernels: dict[str, Kernel] = {}
        self.manifests: dict[str, Manifest] = {}

    def error(self, key: str, message: object) -> PlanError:
        text = str(message).rstrip(".")
        return PlanError(f"{self.where}: {key}: {text}{'' if text.endswith('?') else '.'} {_SEE}")

    def plan(self, text: str, name: str) -> Plan:
        table = self.document.plan
        if not table.title.isprintable():
            raise self.error("plan.title", f"a title is one line of printable text, got {table.title!r}")
        self.unit, budget = self.budget(table.budget)
        devices = self.devices()
        tasks, options = self.tasks(), self.document.options.model_dump(exclude_unset=True)
        try:
            TuneRequest(tasks[0].problem, **options)
        except MltuneError as error:
            raise self.error("options", error) from error
        return Plan(
            name=name,
            title=table.title,
            unit=self.unit,
            budget=budget,
            tasks=tuple(sorted(tasks, key=lambda task: -task.priority)),
            devices=devices,
            seed=table.seed,
            produce=frozenset(table.produce),
            options=options,
            text=text,
        )

    def budget(self, text: str) -> tuple[Unit, float]:
        from mltune.resolve.plan_schema import MAX_BUDGET_S, MAX_BUDGET_TRIALS

        unit, amount = self.amount("plan.budget", text)
        most = MAX_BUDGET_S if unit == "s" else MAX_BUDGET_TRIALS
        if amount > most:
            limit = "366 days" if unit == "s" else f"{MAX_BUDGET_TRIALS} trials"
            raise self.error("plan.budget", f"a budget is at most {limit}, got {text!r}")
        return unit, amount

    def amount(self, key: str, text: str) -> tuple[Unit, float]:
        """Read a time or a number of trials."""
        if match := _TRIALS.fullmatch(text.strip()):
            if int(match[1]) < 1:
                raise self.error(key, f"a number of trials is positive, got {text!r}")
            return "trials", float(match[1])
        try:
            return "s", parse_duration(text)
        except MltuneError as error:
            raise self.error(key, f"{str(error).rstrip('.')}, or a number such as 300 trials") from error

    def bound(self, key: str, text: str) -> float:
        """Read a minimum or a maximum, in the unit of the budget."""
        unit, amount = self.amount(key, text)
        if unit != self.unit:
            raise self.error(
                key,
                f"a plan counts in seconds or in trials, but its budget is {self.document.plan.budget!r}, got {text!r}",
            )
        return amount

    def devices(self) -> tuple[str, ...]:
        devices = self.document.plan.devices
        if len(set(devices)) != len(devices) or (len(devices) > 1 and {"auto", "all", REPLAY} & set(devices)):
            raise self.error("plan.devices", f"devices are distinct cuda:N, or one of auto, all, replay, got {devices}")
        recorded = [bool(table.datasets) for table in self.document.problems]
        if any(recorded) and (not all(recorded) or devices not in (["auto"], [REPLAY])):
            raise self.error(
                "problems",
                "a plan with `datasets` is replayed as a whole: no `kernel`s and no GPUs beside them",
            )
        return (REPLAY,) if all(recorded) else tuple(devices)

    def tasks(self) -> list[Task]:
        """Return the tasks in the order of the plan, all distinct."""
        from mltune.resolve.plan_schema import MAX_TASKS

        drafts: list[tuple[str, Task]] = []
        for number, table in enumerate(self.document.problems, 1):
            key = f"problems {number}"
            for kernels, problem, dataset in self.expanded(number, table):
                drafts += [(key, task) for task in self.competing(key, table, kernels, problem, dataset)]
                if len(drafts) > MAX_TASKS:
                    raise self.error(key, f"a plan has at most {MAX_TASKS} problems, got more")
        self.check_distinct(drafts)
        slugs = _slugs([(self.kernels[task.kernel].label, task) for _, task in drafts])
        return [replace(task, slug=slug) for slug, (_, task) in zip(slugs, drafts, strict=True)]

    def expanded(self, number: int, table: ProblemsTable) -> Iterator[tuple[Sequence[str], Problem, str | None]]:
        """Yield kernels, problem and dataset of each problem of one table."""
        from pydantic import ValidationError

        try:
            yield from self.recorded(table) if table.datasets else self.measured(table)
        except ValidationError as error:
            problems = problems_of(error, table.model_extra, within=("problems", number - 1))
            raise PlanError(f"{self.where}: {problems}. {_SEE}") from error
        except MltuneError as error:
            raise self.error(f"problems {number}", error) from error

    def recorded(self, table: ProblemsTable) -> Iterator[tuple[Sequence[str], Problem, str | None]]:
        from mltune.dataset.dataset import load_manifest

        if table.model_extra:
            raise PlanError(f"recorded timings know their problem: `datasets` excludes {', '.join(table.model_extra)}")
        if isinstance(table.kernel, list) or table.accuracy is not None:
            raise PlanError("recorded timings know their kernel: `datasets` excludes `accuracy` and several kernels")
        for name in table.datasets or ():
            manifest = self.manifests[name] = self.manifests.get(name) or load_manifest(name)
            kernel = table.kernel or manifest.kernel
            if self.kernel(kernel).name != manifest.kernel:
                raise PlanError(f"a dataset is replayed for its own kernel, but {name} is of {manifest.kernel}")
            yield [kernel], manifest.problem, name

    def measured(self, table: ProblemsTable) -> Iterator[tuple[Sequence[str], Problem, str | None]]:
        named = [table.kernel] if isinstance(table.kernel, str) else table.kernel
        kernel = self.kernel(named[0] if named else DEFAULT_KERNEL)
        extra = table.model_extra or {}
        expand = KINDS[kernel.problem].expand
        problems = expand(extra) if expand is not None else _of_arrays(kernel, extra)
        chosen: dict[str, list[str]] = {}
        for problem in problems:
            if problem.name not in chosen:
                chosen[problem.name] = kernels_for(problem, named, table.accuracy)
            for name in chosen[problem.name]:
                self.kernel(name).check_problem(problem)
            yield chosen[problem.name], problem, None

    def kernel(self, name: str) -> Kernel:
        if name not in self.kernels:
            if len(self.kernels) == MAX_KERNELS:
                raise PlanError(f"a plan has at most {MAX_KERNELS} kernels, got more")
            self.kernels[name] = load_kernel(name)
        return self.kernels[name]

    def competing(
        self, key: str, table: ProblemsTable, kernels: Sequence[str], problem: Problem, dataset: str | None
    ) -> list[Task]:
        """Return the tasks of a problem, one for each of its kernels, which share its minimum."""
        task = self.task(key, table, kernels[0], problem, dataset)
        if len(kernels) == 1:
            return [task]
        share = task.minimum / len(kernels)
        minimum = max(1.0, math.floor(share)) if self.unit == "trials" else share
        choice = _slug(f"{problem.label} {' '.join(kernels)}")
        return [replace(task, kernel=name, minimum=minimum, choice=choice) for name in kernels]

    def task(self, key: str, table: ProblemsTable, kernel: str, problem: Problem, dataset: str | None) -> Task:
        plan = self.document.plan
        minimum = self.bound(f"{key}.minimum" if table.minimum else "plan.minimum", table.minimum or plan.minimum)
        most = table.maximum or plan.maximum
        maximum = None if most is None else self.bound(f"{key}.maximum" if table.maximum else "plan.maximum", most)
        if maximum is not None and maximum < minimum:
            raise self.error(key, f"minimum <= maximum must hold, got {table.minimum or plan.minimum!r}, {most!r}")
        return Task("", kernel, problem, dataset, float(table.priority), minimum, maximum)

    def check_distinct(self, drafts: Sequence[tuple[str, Task]]) -> None:
        seen: dict[tuple[Path, str, str, str | None], str] = {}
        for key, task in drafts:
            identity = (
                self.kernels[task.kernel].folder,
                self.kernels[task.kernel].preset,
                repr(task.problem),
                task.dataset,
            )
            if identity in seen:
                raise self.error(
                    key, f"a plan has each problem once, but {task.problem.label} is in {seen[identity]} too"
                )
            seen[identity] = key


def _slugs(tasks: Sequence[tuple[str, Task]]) -> list[str]:
    """Name tasks after dataset or problem; add the kernel, then a number, where names would be equal."""
    plain = [_slug(task.problem.label if task.dataset is None else Path(task.dataset).stem) for _, task in tasks]
    slugs: list[str] = []
    for (kernel, _), slug in zip(tasks, plain, strict=True):
        name = slug if plain.count(slug) == 1 else _slug(f"{kernel} {slug}")
        numbered = (name if again == 1 else f"{name}-{again}" for again in itertools.count(1))
        slugs.append(next(found for found in numbered if found not in slugs))
    return slugs


def _slug(text: str) -> str:
    words = re.findall(r"[a-z0-9.]+", text.lower())
    return "-".join(words)[:_LONGEST_SLUG].strip(".-") or "problem"


def _of_arrays(kernel: Kernel, table: Mapping[str, object]) -> Iterator[Problem]:
    """Yield the problems of a kernel of any kind at the sizes of a table."""
    from mltune.resolve.plan_schema import SizesTable

    for sizes in SizesTable.model_validate(table).sizes:
        assert kernel.arrays is not None  # noqa: S101 - kernels of other kinds have an expansion
        yield kernel.arrays.problem(sizes)
