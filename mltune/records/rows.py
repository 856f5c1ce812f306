"""Conversion between trial records and flat rows of plain values, as the store keeps them in SQL."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mltune.errors import StoreError
from mltune.records.header import LARGEST
from mltune.records.trial import GATES, Build, Measurement, Skip, TrialRecord, TrialState

Value = int | float | str | None
"""The value of a cell: the plain types of SQLite."""


def _text(value: Any) -> Value:
    """Return text that UTF-8 can encode, whatever a compiler has printed."""
    return str(value).encode("utf-8", "backslashreplace").decode()


def _samples(value: Any) -> Value:
    return json.dumps([float(sample) for sample in value])


@dataclass(frozen=True, slots=True)
class Kind:
    """The kind of a cell.

    Attributes
    ----------
    sql : str
        Type in SQL.
    encode, decode : callable
        Conversions to and from the value of the cell.
    law : mapping of str to Any, or tuple of str
        Bounds of the value, as keywords of a field in pydantic; the names that it may have; None for any text.
    missing : Any
        Value that NULL stands for.
    needed : bool
        Whether NULL is not allowed.
    """

    sql: str
    encode: Callable[[Any], Value]
    decode: Callable[[Any], Any]
    law: Mapping[str, Any] | tuple[str, ...] | None = None
    missing: Any = None
    needed: bool = False


_NOT_NEGATIVE = {"ge": 0, "le": LARGEST}
_FINITE = {"allow_inf_nan": False}
_SECONDS = {"ge": 0.0, "le": 1e12}
_STATES = tuple(str(state) for state in TrialState)

_NUMBER = Kind("INTEGER", int, int, _NOT_NEGATIVE, needed=True)
_INT = Kind("INTEGER", int, int, {"ge": -LARGEST, "le": LARGEST})
_COUNT = Kind("INTEGER", int, int, _NOT_NEGATIVE, missing=0)
_BOOL = Kind("INTEGER", int, bool, {"ge": 0, "le": 1})
_FLOAT = Kind("REAL", float, float, {})
_PREDICTED = Kind("REAL", float, float, _FINITE)
_LOG_SHARE = Kind("REAL", float, float, _FINITE, missing=math.nan)
_MEDIAN = Kind("REAL", float, float, {"ge": 1e-12, "le": 1e12})
_DURATION = Kind("REAL", float, float, _SECONDS, missing=math.nan)
_MOMENT = Kind("REAL", float, float, _FINITE, missing=math.nan)
_ELAPSED = Kind("REAL", float, float, _SECONDS, missing=0.0)
_TEXT = Kind("TEXT", _text, str)
_GATE = Kind("TEXT", _text, str, GATES)
_STATE = Kind("TEXT", str, TrialState, _STATES)
_SAMPLES = Kind("TEXT", _samples, lambda raw: tuple(array("d", raw)), _SECONDS, missing=())

_Part = Mapping[str, tuple[str, Kind]]
"""For each column, the attribute of the dataclass and its kind."""

_TRIAL: _Part = {
    "number": ("number", _NUMBER),
    "batch": ("batch", _NUMBER),
    "index": ("index", _NUMBER),
    "state": ("state", replace(_STATE, needed=True)),
    "detail": ("detail", replace(_TEXT, needed=True)),
    "proposed_by": ("proposed_by", replace(_TEXT, needed=True)),
    "audited": ("audited", replace(_BOOL, needed=True)),
    "expected": ("predicted", _PREDICTED),
    "finished_at": ("finished_at", _MOMENT),
    "elapsed_s": ("elapsed_s", _ELAPSED),
}
_SKIP: _Part = {
    "gate": ("gate", _GATE),
    "predicted": ("predicted", _LOG_SHARE),
    "optimistic": ("optimistic", _LOG_SHARE),
}
_BUILD: _Part = {
    "build_state": ("state", _STATE),
    "build_detail": ("detail", _TEXT),
    "registers": ("registers", _INT),
    "spill_bytes": ("spill_bytes", _INT),
    "stack_bytes": ("stack_bytes", _INT),
    "shared_bytes": ("shared_bytes", _INT),
    "code_bytes": ("code_bytes", _INT),
    "compile_s": ("compile_s", _DURATION),
    "cached": ("cached", _BOOL),
}
_MEASUREMENT: _Part = {
    "measurement_state": ("state", _STATE),
    "measurement_detail": ("detail", _TEXT),
    "samples_s": ("samples_s", _SAMPLES),
    "median_s": ("median_s", _MEDIAN),
    "noise": ("noise", _FLOAT),
    "stopped_early": ("stopped_early", _BOOL),
    "error": ("error", _FLOAT),
    "verify_s": ("verify_s", _DURATION),
    "time_s": ("time_s", _DURATION),
    "sm_clock_hz": ("sm_clock_hz", _FLOAT),
    "temperature_c": ("temperature_c", _FLOAT),
    "power_w": ("power_w", _FLOAT),
    "throttle_reasons": ("throttle_reasons", _INT),
    "discarded": ("discarded", _COUNT),
}
_PARTS: tuple[_Part, ...] = (_TRIAL, _SKIP, _BUILD, _MEASUREMENT)

KINDS: Mapping[str, Kind] = {name: kind for part in _PARTS for name, (_, kind) in part.items()}
"""The columns of a trial, without its parameters."""

SINCE_FORMAT_2 = frozenset({"expected", "elapsed_s", "discarded"})
"""The columns that stores of format 1 do not have."""

PARAMETER_PREFIX = "p_"
"""Prefix of parameter columns: SQL column names ignore case, and a parameter may be called STATE."""


def _encode(part: _Part, value: object | None) -> list[Value]:
    if value is None:
        return [None] * len(part)
    cells = ((kind, getattr(value, attribute)) for attribute, kind in part.values())
    return [None if cell is None else kind.encode(cell) for kind, cell in cells]


def _decode(part: _Part, cells: Sequence[Any]) -> dict[str, Any]:
    return {
        attribute: kind.missing if cell is None else kind.decode(cell)
        for (attribute, kind), cell in zip(part.values(), cells, strict=True)
    }


def to_row(record: TrialRecord, parameters: Sequence[str]) -> tuple[Value, ...]:
    """Return the cells of :data:`KINDS`, then the values of all parameters. The cubin is not stored.

    A configuration with other parameters raises a StoreError.
    """
    if set(record.configuration) != set(parameters):
        raise StoreError(
            f"a configuration must hold exactly the run's parameters {list(parameters)}, "
            f"got {list(record.configuration)}."
        )
    cells: list[Value] = []
    for part, value in zip(_PARTS, (record, record.skip, record.build, record.measurement), strict=True):
        cells += _encode(part, value)
    return (*cells, *(int(record.configuration[name]) for name in parameters))


def from_row(row: Sequence[Any], parameters: Sequence[str]) -> TrialRecord:
    """Rebuild a record from :func:`to_row`.

    The records are equal with two exceptions: the cubin is empty, and a NaN is read as None where the attribute may be
    None, because SQL has no NaN.
    """
    pieces: list[dict[str, Any] | None] = []
    start = 0
    for part in _PARTS:
        cells = row[start : start + len(part)]
        start += len(part)
        pieces.append(None if cells[0] is None else _decode(part, cells))
    trial, skip, build, measurement = pieces
    assert trial is not None  # noqa: S101 - the table declares the number NOT NULL
    return TrialRecord(
        **trial,
        configuration=dict(zip(parameters, row[start:], strict=True)),
        skip=None if skip is None else Skip(**skip),
        build=None if build is None else Build(**build),
        measurement=None if measurement is None else Measurement(**measurement),
    )
