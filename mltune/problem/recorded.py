"""The recorded problem: name, size and work of a computation whose timings are only replayed."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mltune.errors import ProblemError
from mltune.problem.problem import ARITHMETICS

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_MOST_FLOPS = 2**80
_MOST_VARIABLES = 100
_LONGEST_SIZE = 100


@dataclass(frozen=True, slots=True)
class RecordedProblem:
    """A problem that is replayed and never run: it has neither operands nor a correct result.

    Attributes
    ----------
    name : str
        The computation: lower-case letters, digits, ``_`` and ``-``.
    size : str
        Its size for display; may be empty.
    flops : int
        Floating-point operations; 1 where they are unknown, and then a share of a peak has no meaning.
    arithmetic : {"fp32", "fp64"}
        The arithmetic whose peak bounds the problem.
    values : mapping of str to int
        Values that the expressions of a bundle may use.

    Raises
    ------
    ProblemError
        A field is out of its bounds.
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
    cost_class: ClassVar[str] = ""
    work_class: ClassVar[None] = None
    size_names: ClassVar[tuple[str, ...]] = ()
    reference: ClassVar[str] = ""
    batch: ClassVar[int] = 1
    is_product: ClassVar[bool] = False
    follows_roofline: ClassVar[bool] = False

    def __post_init__(self) -> None:
        laws = (
            (_text(self.name) and _NAME.fullmatch(self.name), f"`name` must match {_NAME.pattern}, got {self.name!r}"),
            (
                _text(self.size) and len(self.size) <= _LONGEST_SIZE and self.size.isprintable(),
                f"`size` must be printable text of at most {_LONGEST_SIZE} characters, got {self.size!r:.200}",
            ),
            (_integer(self.flops) and 1 <= self.flops <= _MOST_FLOPS, f"1 <= flops <= 2**80, got {self.flops!r:.80}"),
            (self.arithmetic in ARITHMETICS, f"`arithmetic` must be one of {ARITHMETICS}, got {self.arithmetic!r:.80}"),
            (
                isinstance(self.values, Mapping)
                and len(self.values) <= _MOST_VARIABLES
                and all(
                    _text(name) and _VARIABLE.fullmatch(name) and _integer(value) and abs(value) < 2**62
                    for name, value in self.values.items()
                ),
                f"`values` must give integers to at most {_MOST_VARIABLES} names, got {self.values!r:.200}",
            ),
        )
        for holds, message in laws:
            if not holds:
                raise ProblemError(f"a recorded problem: {message}.")

    @property
    def label(self) -> str:
        """The name and the size."""
        return f"{self.name} {self.size}".strip()

    def variables(self) -> dict[str, int]:
        """Return the values of the problem that the expressions of a kernel bundle may use."""
        return dict(self.values)

    def to_json(self) -> dict[str, Any]:
        """Return the problem as plain JSON values, its ``kind`` among them."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {"kind": self.kind, **fields, "values": dict(self.values)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RecordedProblem:
        """Rebuild a problem from :meth:`to_json`; raise a ProblemError for any other document."""
        values = {name: value for name, value in document.items() if name != "kind"}
        known = {field.name for field in dataclasses.fields(cls)}
        if not set(values) <= known or "name" not in values:
            raise ProblemError(f"a recorded problem has the fields {', '.join(sorted(known))}, got {document!r:.500}.")
        return cls(**values)


def _text(value: object) -> bool:
    return isinstance(value, str)


def _integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
