"""The recorded problem: name, size and work of a computation whose timings are only replayed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, Field, StrictInt, StrictStr

from mltune.errors import ProblemError
from mltune.files.reading import raising
from mltune.files.validation import matching, one_line, validated
from mltune.problem.problem import ARITHMETICS

_Variable = Annotated[StrictStr, matching("[A-Za-z][A-Za-z0-9_]{0,63}", "be a name")]
_Value = Annotated[StrictInt, Field(gt=-(2**62), lt=2**62)]


class _RecordedDocument(BaseModel, extra="forbid"):
    kind: Literal["recorded"] = "recorded"
    name: Annotated[StrictStr, matching("[a-z][a-z0-9_-]{0,63}", "be lower-case letters, digits, _ and -")]
    size: Annotated[StrictStr, Field(max_length=100), AfterValidator(one_line)] = ""
    flops: Annotated[StrictInt, Field(ge=1, le=2**80)] = 1
    arithmetic: Literal[ARITHMETICS] = "fp32"  # type: ignore[valid-type]
    values: Annotated[dict[_Variable, _Value], Field(max_length=100)] = {}


@dataclass(frozen=True, slots=True)
class RecordedProblem:
    """A problem that is replayed and never run: it has neither operands nor a correct result.

    `size` is for display; `flops` are 1 where they are unknown, and then a share of a peak has no meaning. The
    expressions of a bundle may use the `values`. A field out of its bounds raises a ProblemError.
    """

    name: str
    size: str = ""
    flops: int = 1
    arithmetic: str = "fp32"
    values: Mapping[str, int] = dataclasses.field(default_factory=dict)

    kind: ClassVar[str] = "recorded"
    precision: ClassVar[str] = ""
    bytes: ClassVar[int] = 0
    operand_bytes: ClassVar[int] = 0
    case: ClassVar[str] = ""
    cost_case: ClassVar[str] = ""
    cost_class: ClassVar[str] = ""
    work_class: ClassVar[None] = None
    size_names: ClassVar[tuple[str, ...]] = ()
    reference: ClassVar[str] = ""
    is_product: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check(self._fields())

    @property
    def label(self) -> str:
        """The name and the size."""
        return f"{self.name} {self.size}".strip()

    @property
    def variables(self) -> dict[str, int]:
        """The values of the problem that the expressions of a kernel bundle may use."""
        return dict(self.values)

    def to_json(self) -> dict[str, Any]:
        """Return the problem as plain JSON values, its ``kind`` among them."""
        return {"kind": self.kind, **self._fields(), "values": dict(self.values)}

    def _fields(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RecordedProblem:
        """Rebuild a problem from :meth:`to_json`; raise a ProblemError for any other document."""
        _check(document)
        return cls(**{name: value for name, value in document.items() if name != "kind"})


def _check(document: Mapping[str, Any]) -> None:
    with raising(ProblemError, "a recorded problem", ValueError):
        validated(_RecordedDocument, dict(document))
