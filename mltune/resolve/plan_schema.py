"""The schema of plan files: keys, types and bounds."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr, StringConstraints

from mltune.files.validation import matching
from mltune.problem.accuracy import ACCURACIES

MAX_BUDGET_S = 366 * 86_400.0
"""Longest budget, seconds."""

MAX_BUDGET_TRIALS = 10_000_000
"""Largest budget of trials."""

MAX_TASKS = 1000
"""Most tasks of a plan."""

MAX_RIVALS = 20
"""Most kernels that compete for a problem."""

Text = Annotated[StrictStr, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)]
NameOrPath = Annotated[StrictStr, StringConstraints(min_length=1, max_length=1000)]
Amount = Annotated[StrictStr, StringConstraints(min_length=1, max_length=40)]
DeviceName = Annotated[StrictStr, matching(r"auto|all|replay|cuda:\d{1,3}", "be auto, all, replay or cuda:N")]
Priority = Annotated[StrictFloat | StrictInt, Field(ge=0.001, le=1000)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class PlanTable(_Table):
    """``[plan]``: the budget, the devices and the defaults of all problems."""

    title: Text
    budget: Amount
    minimum: Amount
    maximum: Amount | None = None
    devices: Annotated[list[DeviceName], Field(min_length=1, max_length=64)] = ["auto"]
    seed: Annotated[StrictInt, Field(ge=0, lt=2**31)] = 0
    produce: Annotated[list[Literal["report", "winners", "datasets"]], Field(max_length=3)] = ["report", "winners"]


class OptionsTable(_Table):
    """``[options]``: options of every run, as of ``mltune tune``."""

    search: StrictStr = "model"
    skip: StrictBool = True
    stop: StrictBool = True
    enough: StrictFloat | StrictInt | None = None
    compilers: StrictInt | None = None
    prior: NameOrPath = "auto"
    wisdom: NameOrPath | None = None


class ProblemsTable(_Table):
    """``[[problems]]``: problems of one kernel, or of several that compete, or recorded timings.

    Other keys belong to the kind of problem of the kernel (:attr:`mltune.problem.kinds.ProblemKind.expand`).
    """

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    kernel: NameOrPath | Annotated[list[NameOrPath], Field(min_length=1, max_length=MAX_RIVALS)] | None = None
    accuracy: Literal[ACCURACIES] | None = None  # type: ignore[valid-type]
    datasets: Annotated[list[NameOrPath], Field(min_length=1, max_length=MAX_TASKS)] | None = None
    priority: Priority = 1.0
    minimum: Amount | None = None
    maximum: Amount | None = None


class SizesTable(_Table):
    """The keys of ``[[problems]]`` that only kernels of kind arrays have: sizes that differ from the defaults."""

    sizes: Annotated[list[dict[StrictStr, StrictInt]], Field(min_length=1, max_length=MAX_TASKS)] = [{}]


class Document(_Table):
    """A plan file."""

    plan: PlanTable
    options: OptionsTable = OptionsTable()
    problems: Annotated[list[ProblemsTable], Field(min_length=1, max_length=MAX_TASKS)]
