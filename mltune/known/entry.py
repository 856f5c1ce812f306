"""Entries of a wisdom: configurations that won or failed, and where they were measured."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    model_validator,
)

from mltune.device.facts import Device
from mltune.errors import MltuneError
from mltune.files.validation import matching, one_line
from mltune.kernel.bundle import Kernel
from mltune.problem.kinds import problem_from_json
from mltune.problem.problem import ACCURACIES, STRICTEST, Problem

SHORTEST_S, LONGEST_S = 1e-15, 1e9
"""Bounds of times, seconds."""

LARGEST = 2**53
"""Largest integer, which JSON keeps exact."""

MOST_PARAMETERS = 200
LONGEST_TEXT = 200


def _value(value: Any) -> Any:
    """Check the value of a parameter, which pydantic's types would turn from a large integer into a float."""
    exact = type(value) is int and abs(value) <= LARGEST
    if exact or (type(value) is float and math.isfinite(value)):
        return value
    if type(value) is str and len(value) <= LONGEST_TEXT:
        return one_line(value)
    raise ValueError(f"must be a finite number or at most {LONGEST_TEXT} characters of text")


_Text = Annotated[StrictStr, Field(max_length=LONGEST_TEXT), AfterValidator(one_line)]
_Name = Annotated[StrictStr, matching(r"[A-Za-z_][A-Za-z0-9_]{0,63}", "be a name")]
_Value = Annotated[Any, AfterValidator(_value)]
_Seconds = Annotated[StrictFloat, Field(ge=SHORTEST_S, le=LONGEST_S)]
_Count = Annotated[StrictInt, Field(ge=0, le=LARGEST)]
_Date = r"\d{4}-(0\d|1[0-2])-([0-2]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?Z"


def canonical(value: Any) -> str:
    """Return a JSON value as text that is the same on every machine.

    >>> canonical({"b": 1, "a": [2.5, "x"]})
    '{"a":[2.5,"x"],"b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _complete(problem: dict[str, Any]) -> dict[str, Any]:
    """Return a problem with its defaults, which are part of the key."""
    try:
        document: dict[str, Any] = json.loads(canonical(problem_from_json(problem).to_json()))
        return document
    except (MltuneError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"must be a problem of mltune: {error}") from None


class Gpu(BaseModel):
    """The GPU of an entry: its name, and facts that distinguish variants of that name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: _Text
    architecture: _Text
    sm_count: _Count

    @classmethod
    def of(cls, device: Device) -> Self:
        """Return the GPU with the facts of a device."""
        return cls(name=device.name, architecture=device.architecture, sm_count=device.sm_count)


class Outcome(BaseModel):
    """The outcome of a configuration in a run: an :class:`Entry` or a :class:`Failure`.

    Attributes
    ----------
    kernel, source_hash : str
        Name of the kernel, and hash of its source (:class:`mltune.kernel.bundle.Kernel`).
    problem : mapping
        The problem as JSON values.
    device : Gpu
    driver : str
        The newest CUDA version that the driver supports, such as ``"13.0"``.
    accuracy : str
        Accuracy class of the kernel (:data:`mltune.problem.problem.ACCURACIES`). Files leave out the strictest one.
    configuration : mapping of str to int, float or str
        The value of every parameter.
    measured_at : str
        Time of the measurement, ISO 8601, UTC.
    versions : mapping of str to str
        Versions of the software that determines measurements.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kernel: _Text
    source_hash: Annotated[StrictStr, matching("([0-9a-f]{64})?", "be 64 hex digits or empty")]
    problem: Annotated[dict[str, Any], AfterValidator(_complete)]
    device: Gpu
    driver: _Text
    accuracy: Literal[ACCURACIES] = STRICTEST  # type: ignore[valid-type]
    configuration: Annotated[dict[_Name, _Value], Field(min_length=1, max_length=MOST_PARAMETERS)]
    measured_at: Annotated[StrictStr, matching(_Date, "be a date such as 2026-11-22T01:00:00Z")]
    versions: Annotated[dict[_Text, _Text], Field(max_length=100)] = {}

    @cached_property
    def key(self) -> str:
        """Kernel, problem, GPU and driver: outcomes that differ in their configurations only have the same key."""
        return canonical([self.kernel, self.source_hash, self.problem, self.device.model_dump(), self.driver])

    @cached_property
    def named(self) -> str:
        """The configuration as canonical text."""
        return canonical(self.configuration)

    @cached_property
    def text(self) -> str:
        """The whole outcome as canonical text."""
        return canonical(self.to_json())

    def to_problem(self) -> Problem:
        """Return the problem."""
        return problem_from_json(self.problem)

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as plain JSON values."""
        return self.model_dump(exclude={"accuracy"} if self.accuracy == STRICTEST else None)


class Failure(Outcome):
    """A configuration of a wisdom that has failed: it is not proposed again for this problem.

    Attributes
    ----------
    failed : str
        The reason.
    """

    failed: Annotated[_Text, Field(min_length=1)]


class Entry(Outcome):
    """A configuration that won a run, or tied with the winner.

    Attributes
    ----------
    median_s, low_s, high_s : float
        Median time in seconds, and its 95 % interval.
    default_s, reference_s : float or None
        Time of the kernel's default configuration and of the reference kernel in the same run; None where unknown.
    verified : bool
        Whether the configuration passed the last verification; false for recorded times.
    trials : int
        Trials of the run.
    """

    median_s: _Seconds
    low_s: _Seconds
    high_s: _Seconds
    default_s: _Seconds | None = None
    reference_s: _Seconds | None = None
    verified: StrictBool = False
    trials: _Count = 0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.low_s <= self.median_s <= self.high_s:
            raise ValueError(
                f"{self.low_s:g}, {self.median_s:g} and {self.high_s:g} do not satisfy low_s <= median_s <= high_s"
            )
        return self

    @cached_property
    def order(self) -> tuple[Any, ...]:
        """Sort key of configurations: the values of the parameters, sorted by name."""
        values = sorted(self.configuration.items())
        return tuple((name, isinstance(value, str), value) for name, value in values), self.named

    def codes(self, kernel: Kernel) -> dict[str, int] | None:
        """Return the configuration with labels as positions; None where the kernel has no such configuration."""
        coded, labels = dict[str, int](), kernel.recorded_with(self.configuration).space.labels
        for name, value in self.configuration.items():
            if name in labels and value in labels[name]:
                value = labels[name].index(value)
            elif name in labels or not isinstance(value, int):
                return None
            coded[name] = value
        return kernel.compiler.completed(coded)


def choose(entries: Iterable[Entry]) -> Entry:
    """Choose one of several entries with the same key: the same one for every order of the entries.

    Verified entries come before others. Of these, an entry can win if its median is below the upper ends of all
    intervals. The fastest of them ties with the others whose intervals contain its median; the first of the ties in the
    canonical order of configurations is chosen.
    """
    ranked = list(entries)
    ranked = [entry for entry in ranked if entry.verified] or ranked
    bound_s = min(entry.high_s for entry in ranked)
    fast = [entry for entry in ranked if entry.median_s <= bound_s]
    fastest_s = min(entry.median_s for entry in fast)
    return min((entry for entry in fast if entry.low_s <= fastest_s), key=lambda entry: entry.order)
