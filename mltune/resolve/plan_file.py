"""Plan files: the schema, the reader that expands a TOML document to a plan, and the writer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    StringConstraints,
    ValidationError,
    create_model,
)

from mltune.dataset.dataset import load_manifest
from mltune.dataset.manifest import Manifest
from mltune.errors import MltuneError, PlanError
from mltune.files import folders
from mltune.files.reading import parse_toml, raising, read_text
from mltune.files.text import no_such
from mltune.files.validation import matching, problems_of, validated
from mltune.kernel.bundle import Kernel
from mltune.kernel.reader import built_in, load_kernel
from mltune.problem.kinds import KINDS
from mltune.problem.problem import ACCURACIES, Problem
from mltune.records.directory import is_begun
from mltune.resolve.device import Target
from mltune.resolve.options import DECLARED, DEFAULT_KERNEL, USUAL
from mltune.resolve.plan import (
    MAX_BUDGET_S,
    MAX_BUDGET_TRIALS,
    MAX_RIVALS,
    MAX_TASKS,
    REPLAY,
    Plan,
    Task,
    Unit,
    in_order,
    rivals,
)
from mltune.resolve.problems import candidates, check_accuracies
from mltune.resolve.request import TuneRequest, parse_duration

MAX_BYTES = 2**20
"""Largest plan file."""

MAX_KERNELS = 100
"""Most kernels of a plan: to read a thousand takes half a minute."""

_TRIALS = re.compile(r"(\d{1,12}) trials?", re.ASCII)

_Text = Annotated[StrictStr, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)]
_NameOrPath = Annotated[StrictStr, Field(min_length=1, max_length=1000)]
_Amount = Annotated[StrictStr, Field(min_length=1, max_length=40)]
_DeviceName = Annotated[StrictStr, matching(r"auto|all|replay|cuda:\d{1,3}", "be auto, all, replay or cuda:N")]
_Priority = Annotated[StrictFloat | StrictInt, Field(ge=0.001, le=1000)]


class _Table(BaseModel, extra="forbid", allow_inf_nan=False):
    """A table without other keys."""


class _PlanTable(_Table):
    """``[plan]``: the budget, the devices and the defaults of all problems."""

    title: _Text
    budget: _Amount
    minimum: _Amount
    maximum: _Amount | None = None
    devices: Annotated[list[_DeviceName], Field(min_length=1, max_length=64)] = ["auto"]
    seed: Annotated[StrictInt, Field(ge=0, lt=2**31)] = 0
    produce: Annotated[list[Literal["report", "winners", "datasets"]], Field(max_length=3)] = ["report", "winners"]


_STRICT: Mapping[str, Any] = {
    "bool": StrictBool,
    "int | None": StrictInt | None,
    "float | None": StrictFloat | StrictInt | None,
    "str": _NameOrPath,
}
"""How the types of options are read; their laws are those of requests."""


_OPTIONS: dict[str, Any] = {
    name: (StrictStr if option.choices else _STRICT[kind], USUAL[name]) for name, (kind, option) in DECLARED.items()
}
_OptionsTable = create_model("_OptionsTable", __base__=_Table, **_OPTIONS)
"""``[options]``: the options of every run."""


class _ProblemsTable(_Table, extra="allow"):
    """``[[problems]]``: problems of one kernel, or of several that compete, or recorded timings.

    Other keys belong to the kind of problem of the kernel (:attr:`mltune.problem.kinds.ProblemKind.expand`).
    """

    kernel: _NameOrPath | Annotated[list[_NameOrPath], Field(min_length=1, max_length=MAX_RIVALS)] | None = None
    accuracy: Literal[ACCURACIES] | None = None  # type: ignore[valid-type]
    datasets: Annotated[list[_NameOrPath], Field(min_length=1, max_length=MAX_TASKS)] | None = None
    priority: _Priority = 1.0
    minimum: _Amount | None = None
    maximum: _Amount | None = None


class _SizesTable(_Table):
    """The keys of ``[[problems]]`` that only kernels of kind arrays have: sizes that differ from the defaults."""

    sizes: Annotated[list[dict[StrictStr, StrictInt]], Field(min_length=1, max_length=MAX_TASKS)] = [{}]


class _PlanDocument(_Table):
    """A plan file."""

    plan: _PlanTable
    options: _OptionsTable = _OptionsTable()  # type: ignore[valid-type]
    problems: Annotated[list[_ProblemsTable], Field(min_length=1, max_length=MAX_TASKS)]


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
    with raising(_refused, f"{path}: the plan is no readable UTF-8 text"):
        text = read_text(path, MAX_BYTES)
    return parse_plan(text, path.stem, where=str(path))


def find_plan(name_or_path: str | Path) -> Path:
    """Return the file of a plan."""
    shipped = {path.stem: path for path in sorted(folders.assets("search").glob("*.toml"))}
    if str(name_or_path) in shipped:
        return shipped[str(name_or_path)]
    path = Path(name_or_path)
    if path.is_file():
        return path
    law = f"A plan is a built-in one ({', '.join(shipped) or 'none'}) or a TOML file"
    if is_begun(path):
        law = "The directory of a single run is resumed by its `mltune tune` command"
    raise PlanError(no_such("plan", str(name_or_path), shipped, law))


def parse_plan(text: str, name: str, *, where: str = "") -> Plan:
    """Read the text of a plan (docs/reference/plans.md), called `where` in the messages of a PlanError."""
    return _Reader(where or name, _validated(where or name, text)).plan(text, name)


def write_plan(plan: Plan) -> str:
    """Return the text of a plan, which :func:`parse_plan` reads as the same plan, not placed.

    Problems that differ only in their sizes share a table.

    >>> plan = load_plan("quick")
    >>> parse_plan(write_plan(plan), "quick").tasks == plan.tasks
    True
    """
    tables: list[dict[str, Any]] = []
    for _, group in groupby(plan.tasks, key=lambda task: task.choice or task.slug):
        table = _problems_table(list(group), plan.unit)
        if tables and "sizes" in table and {**tables[-1], "sizes": table["sizes"]} == table:
            tables[-1]["sizes"] += table["sizes"]
        else:
            tables.append(table)
    head = {
        "title": plan.title,
        "budget": _amount(plan.budget, plan.unit),
        "minimum": tables[0]["minimum"],
        "devices": list(plan.devices),
        "seed": plan.seed,
        "produce": sorted(plan.produce),
    }
    parts = [("[plan]", head), *([("[options]", plan.options)] if plan.options else [])]
    parts += [("[[problems]]", table) for table in tables]
    return "\n".join(f"{name}\n{_lines(table)}" for name, table in parts)


def _problems_table(tasks: Sequence[Task], unit: Unit) -> dict[str, Any]:
    """Return the table of one problem with all its kernels."""
    first, kernels = tasks[0], [_name_of(task.kernel) for task in tasks]
    described = KINDS[first.problem.kind].table
    table: dict[str, Any] = {"kernel": kernels[0] if len(kernels) == 1 else kernels}
    table |= {"datasets": [first.dataset]} if described is None or first.dataset else described(first.problem)
    table |= {"priority": first.priority, "minimum": _amount(first.minimum * len(tasks), unit)}
    return table if first.maximum is None else {**table, "maximum": _amount(first.maximum, unit)}


def _name_of(kernel: Kernel) -> str:
    """Return the name of a built-in kernel, or the folder of another one."""
    name = kernel.folder.name if kernel.is_built_in else str(kernel.folder)
    return f"{name}:{kernel.space.preset}" if kernel.space.preset else name


def _amount(amount: float, unit: Unit) -> str:
    return f"{amount:.12g} trials" if unit == "trials" else f"{amount:.12g}s"


def _lines(table: Mapping[str, object]) -> str:
    return "".join(f"{key} = {_value(value)}\n" for key, value in table.items())


def _value(value: object) -> str:
    """Write a value as TOML."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key} = {_value(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _validated(where: str, text: str) -> _PlanDocument:
    with raising(_refused, f"{where}: this is no valid TOML", ValueError):
        document = parse_toml(text)
    with raising(_refused, where, ValueError):
        return validated(_PlanDocument, document)


def _refused(fact: str) -> PlanError:
    return PlanError(f"{fact} See {folders.page('reference/plans.md')}.")


class _Reader:
    """Expands a document to a plan, and checks what a schema cannot."""

    def __init__(self, where: str, document: _PlanDocument) -> None:
        self.where = where
        self.document = document
        self.kernels: dict[str, Kernel] = {}
        self.manifests: dict[str, Manifest] = {}

    def error(self, key: str, message: object) -> PlanError:
        text = str(message).rstrip(".")
        return _refused(f"{self.where}: {key}: {text}{'' if text.endswith('?') else '.'}")

    def plan(self, text: str, name: str) -> Plan:
        table = self.document.plan
        if not table.title.isprintable():
            raise self.error("plan.title", f"{table.title!r} is no title: it is one line of printable text")
        self.unit, budget = self.amount("plan.budget", table.budget)
        if budget > (MAX_BUDGET_S if self.unit == "s" else MAX_BUDGET_TRIALS):
            limit = "366 days" if self.unit == "s" else f"{MAX_BUDGET_TRIALS} trials"
            raise self.error("plan.budget", f"{table.budget!r} is too much: a budget is at most {limit}")
        devices = self.devices()
        tasks, options = self.tasks(), self.document.options.model_dump(exclude_unset=True)  # type: ignore[attr-defined]
        try:
            TuneRequest(tasks[0].problem, tasks[0].kernel, Target(), **options)
        except MltuneError as error:
            raise self.error("options", error) from error
        return Plan(
            name=name,
            title=table.title,
            unit=self.unit,
            budget=budget,
            tasks=tasks,
            devices=devices,
            seed=table.seed,
            produce=frozenset(table.produce),
            options=options,
            text=text,
        )

    def amount(self, key: str, text: str) -> tuple[Unit, float]:
        """Read a time or a number of trials."""
        if match := _TRIALS.fullmatch(text.strip()):
            if int(match[1]) < 1:
                raise self.error(key, f"{text!r} is no positive number of trials")
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
                f"{text!r} has another unit than the budget, {self.document.plan.budget!r}; a plan counts in one",
            )
        return amount

    def devices(self) -> tuple[str, ...]:
        devices = self.document.plan.devices
        if len(devices) > 1 and {"auto", "all", REPLAY} & set(devices):
            raise self.error(
                "plan.devices", f"{devices} cannot be: devices are some cuda:N, or one of auto, all, replay"
            )
        recorded = [bool(table.datasets) for table in self.document.problems]
        if any(recorded) and (not all(recorded) or devices not in (["auto"], [REPLAY])):
            raise self.error(
                "problems",
                "there are `kernel`s or GPUs beside `datasets`; a plan with `datasets` is replayed as a whole",
            )
        return (REPLAY,) if all(recorded) else tuple(devices)

    def tasks(self) -> tuple[Task, ...]:
        """Return the tasks of all tables, which are distinct."""
        groups: list[tuple[str, list[Task]]] = []
        count = 0
        for number, table in enumerate(self.document.problems, 1):
            key = f"problems {number}"
            for kernels, problem, dataset in self.expanded(number, table):
                group = rivals(self.task(key, table, kernels[0], problem, dataset), kernels, self.unit)
                groups.append((key, group))
                count += len(group)
                if count > MAX_TASKS:
                    raise self.error(key, f"there are more than {MAX_TASKS} problems, the most of a plan")
        self.check_distinct(groups)
        return in_order(group for _, group in groups)

    def expanded(self, number: int, table: _ProblemsTable) -> Iterator[tuple[Sequence[Kernel], Problem, str | None]]:
        """Yield kernels, problem and dataset of each problem of one table."""
        try:
            yield from self.recorded(table) if table.datasets else self.measured(table)
        except ValidationError as error:
            problems = problems_of(error, table.model_extra, within=("problems", number - 1))
            raise _refused(f"{self.where}: {problems}.") from error
        except MltuneError as error:
            raise self.error(f"problems {number}", error) from error

    def recorded(self, table: _ProblemsTable) -> Iterator[tuple[Sequence[Kernel], Problem, str | None]]:
        if table.model_extra:
            raise PlanError(f"{', '.join(table.model_extra)} beside `datasets`: recorded timings know their problem")
        if isinstance(table.kernel, list) or table.accuracy is not None:
            raise PlanError("`accuracy` or several kernels beside `datasets`: recorded timings know their kernel")
        for name in table.datasets or ():
            manifest = self.manifests[name] = self.manifests.get(name) or load_manifest(name)
            kernel = self.kernel(table.kernel or manifest.kernel)
            if kernel.name != manifest.kernel:
                raise PlanError(f"{name} is of {manifest.kernel}; a dataset is replayed for its own kernel")
            yield [kernel], manifest.problem, name

    def measured(self, table: _ProblemsTable) -> Iterator[tuple[Sequence[Kernel], Problem, str | None]]:
        names = [table.kernel] if isinstance(table.kernel, str) else table.kernel or []
        named = [self.kernel(name) for name in dict.fromkeys(names)]
        kernel = named[0] if named else self.kernel(DEFAULT_KERNEL)
        extra = table.model_extra or {}
        if expand := KINDS[kernel.problem].expand:
            problems = expand(extra)
        else:
            problems = map(kernel.own_problem, _SizesTable.model_validate(extra).sizes)
        check_accuracies(named, table.accuracy)
        chosen: dict[str, list[Kernel]] = {}
        for problem in problems:
            if problem.name not in chosen:
                chosen[problem.name] = named or candidates(problem, table.accuracy, self.built_in)
            for candidate in chosen[problem.name]:
                candidate.check_problem(problem)
            yield chosen[problem.name], problem, None

    @cached_property
    def built_in(self) -> list[Kernel]:
        """All built-in kernels, read once for all tables."""
        return [self.kernels.get(name) or load_kernel(name) for name in built_in()]

    def kernel(self, name: str) -> Kernel:
        if name not in self.kernels:
            if len(self.kernels) == MAX_KERNELS:
                raise PlanError(f"there are more than {MAX_KERNELS} kernels, the most of a plan")
            self.kernels[name] = load_kernel(name)
        return self.kernels[name]

    def task(self, key: str, table: _ProblemsTable, kernel: Kernel, problem: Problem, dataset: str | None) -> Task:
        plan = self.document.plan
        minimum = self.bound(f"{key}.minimum" if table.minimum else "plan.minimum", table.minimum or plan.minimum)
        most = table.maximum or plan.maximum
        maximum = None if most is None else self.bound(f"{key}.maximum" if table.maximum else "plan.maximum", most)
        if maximum is not None and maximum < minimum:
            raise self.error(key, f"the minimum {table.minimum or plan.minimum!r} is above the maximum {most!r}")
        return Task("", kernel, problem, dataset, float(table.priority), minimum, maximum)

    def check_distinct(self, groups: Sequence[tuple[str, Sequence[Task]]]) -> None:
        seen: dict[tuple[object, ...], str] = {}
        for key, task in ((key, task) for key, group in groups for task in group):
            identity = task.bundle, repr(task.problem), task.dataset
            if identity in seen:
                raise self.error(
                    key, f"{task.problem.label} is in {seen[identity]} too, but a plan has each problem once"
                )
            seen[identity] = key
