"""The columns of a trial: the one declaration behind every table of trials, in files, databases and memory."""

from __future__ import annotations

import json
import math
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from mltune.errors import StoreError
from mltune.records.header import LARGEST
from mltune.records.trial import GATES, Build, Measurement, Skip, TrialRecord, TrialState

Value = int | float | str | None
"""The value of a cell: the plain types of SQLite."""

LONGEST_S = 1e12
"""Most seconds of anything on record."""

SHORTEST_S = 1e-12
"""Least time of a kernel, seconds."""


def _text(value: Any) -> str:
    """Return text that UTF-8 can encode, whatever a compiler has printed."""
    return str(value).encode("utf-8", "backslashreplace").decode()


def _list(samples: Any) -> str:
    return json.dumps([*map(float, samples)])


class Cells(NamedTuple):
    """The cells of a kind of attribute: their type, that in SQL and in words, and how they are made and read."""

    type: type
    sql: str
    words: str
    encode: Callable[[Any], Value]
    decode: Callable[[Any], Any]


_CELLS = {
    int: Cells(int, "INTEGER", "a whole number", int, int),
    bool: Cells(int, "INTEGER", "a whole number", int, bool),
    float: Cells(float, "REAL", "a number", float, float),
    str: Cells(str, "TEXT", "text", _text, str),
    TrialState: Cells(str, "TEXT", "text", str, TrialState),
    tuple: Cells(str, "TEXT", "a JSON list of numbers", _list, lambda raw: tuple(array("d", raw))),
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column: the type of its attribute, bounds or choices, what NULL stands for, and whether NULL is refused.

    The attribute is empty where it has the name of the column.
    """

    kind: type
    lowest: float = -math.inf
    highest: float = math.inf
    choices: tuple[Value, ...] = ()
    missing: Any = None
    needed: bool = False
    attribute: str = ""

    @property
    def cells(self) -> Cells:
        """The form of its cells."""
        return _CELLS[self.kind]

    @property
    def law(self) -> str:
        """What its cells must be, in words."""
        if self.choices:
            return f"be one of {', '.join(map(str, self.choices[:50]))}"
        bounds = "" if self.kind is str else f" from {self.lowest:g} to {self.highest:g}"
        return f"be {self.cells.words}{bounds}"


_ANY = Column(float)
_INT = Column(int, -LARGEST, LARGEST)
_COUNT = Column(int, 0, LARGEST)
_BOOL = Column(bool, 0, 1)
_FINITE = Column(float, -sys.float_info.max, sys.float_info.max)
_UNKNOWN = replace(_FINITE, missing=math.nan)
_SECONDS = Column(float, 0.0, LONGEST_S, missing=math.nan)
_TEXT = Column(str)
_STATE = Column(TrialState, choices=tuple(map(str, TrialState)))

PARAMETER = replace(_INT, needed=True)
"""The column of a parameter."""

_TRIAL = {
    **dict.fromkeys(("number", "batch", "index"), replace(_COUNT, needed=True)),
    "state": replace(_STATE, needed=True),
    **dict.fromkeys(("detail", "proposed_by"), replace(_TEXT, needed=True)),
    "audited": replace(_BOOL, needed=True),
    "expected": replace(_FINITE, attribute="predicted"),
    "finished_at": _UNKNOWN,
    "elapsed_s": replace(_SECONDS, missing=0.0),
}
_SKIP = {
    "gate": replace(_TEXT, choices=GATES),
    **dict.fromkeys(("predicted", "optimistic"), _UNKNOWN),
}
_BUILD = {
    "build_state": replace(_STATE, attribute="state"),
    "build_detail": replace(_TEXT, attribute="detail"),
    **dict.fromkeys(("registers", "spill_bytes", "stack_bytes", "shared_bytes", "code_bytes"), _INT),
    "compile_s": _SECONDS,
    "cached": _BOOL,
}
_MEASUREMENT = {
    "measurement_state": replace(_STATE, attribute="state"),
    "measurement_detail": replace(_TEXT, attribute="detail"),
    "samples_s": replace(_SECONDS, kind=tuple, missing=()),
    "median_s": Column(float, SHORTEST_S, LONGEST_S),
    "noise": _ANY,
    "stopped_early": _BOOL,
    "error": _ANY,
    **dict.fromkeys(("verify_s", "time_s"), _SECONDS),
    **dict.fromkeys(("sm_clock_hz", "temperature_c", "power_w"), _ANY),
    "throttle_reasons": _INT,
    "discarded": replace(_COUNT, missing=0),
}
_PARTS = tuple(
    [
        (column.attribute or name, column.cells.encode, column.cells.decode, column.missing)
        for name, column in part.items()
    ]
    for part in (_TRIAL, _SKIP, _BUILD, _MEASUREMENT)
)
"""For each part of a record its attributes, the functions that encode and decode them, and their values for NULL."""

COLUMNS: Mapping[str, Column] = _TRIAL | _SKIP | _BUILD | _MEASUREMENT
"""The columns of a trial, without its parameters."""


def to_row(record: TrialRecord, parameters: Sequence[str]) -> tuple[Value, ...]:
    """Return the cells of :data:`COLUMNS`, then the values of all parameters; the cubin is not stored."""
    if set(record.configuration) != set(parameters):
        raise StoreError(
            f"the configuration has the parameters {list(record.configuration)}; those of the run are "
            f"{list(parameters)}."
        )
    cells: list[Value] = []
    for attributes, part in zip(_PARTS, (record, record.skip, record.build, record.measurement), strict=True):
        for attribute, encode, _, _ in attributes:
            value = None if part is None else getattr(part, attribute)
            cells.append(None if value is None else encode(value))
    return (*cells, *(int(record.configuration[name]) for name in parameters))


def from_row(row: Sequence[Any], parameters: Sequence[str]) -> TrialRecord:
    """Rebuild a record from :func:`to_row`, without a cubin, with None for NaN where allowed, as SQL has no NaN."""
    parts: list[Any] = []
    start = 0
    for kind, attributes in zip((dict, Skip, Build, Measurement), _PARTS, strict=True):
        cells = row[start : start + len(attributes)]
        start += len(attributes)
        piece = {
            attribute: missing if cell is None else decode(cell)
            for (attribute, _, decode, missing), cell in zip(attributes, cells, strict=True)
        }
        parts.append(None if cells[0] is None else kind(**piece))
    trial, skip, build, measurement = parts
    configuration = dict(zip(parameters, row[start:], strict=True))
    return TrialRecord(**trial, configuration=configuration, skip=skip, build=build, measurement=measurement)
