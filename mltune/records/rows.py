"""Conversion between trial records and flat rows of plain values, as the store keeps them in SQL."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mltune.errors import StoreError
from mltune.records.trial import Build, Measurement, Skip, TrialRecord, TrialState

Value = int | float | str | None
"""The value of a cell: the plain types of SQLite."""


def _text(value: Any) -> Value:
    """Return text that UTF-8 can encode, whatever a compiler has printed."""
    return str(value).encode("utf-8", "backslashreplace").decode()


def _samples(value: Any) -> Value:
    return json.dumps([float(sample) for sample in value])


@dataclass(frozen=True, slots=True)
class _Kind:
    """SQL type, conversions and the value that NULL stands for."""

    sql: str
    encode: Callable[[Any], Value]
    decode: Callable[[Any], Any]
    missing: Any = None


_INT = _Kind("INTEGER", int, int)
_COUNT = _Kind("INTEGER", int, int, missing=0)
_FLOAT = _Kind("REAL", float, float)
_NUMBER = _Kind("REAL", float, float, missing=math.nan)
_ELAPSED = _Kind("REAL", float, float, missing=0.0)
_BOOL = _Kind("INTEGER", int, bool)
_TEXT = _Kind("TEXT", _text, str)
_STATE = _Kind("TEXT", str, TrialState)
_SAMPLES = _Kind("TEXT", _samples, lambda text: tuple(json.loads(text)))

_Part = Mapping[str, tuple[str, _Kind]]
"""For each column, the attribute of the dataclass and its kind."""

_TRIAL: _Part = {
    "number": ("number", _INT),
    "batch": ("batch", _INT),
    "index": ("index", _INT),
    "state": ("state", _STATE),
    "detail": ("detail", _TEXT),
    "proposed_by": ("proposed_by", _TEXT),
    "audited": ("audited", _BOOL),
    "expected": ("predicted", _FLOAT),
    "finished_at": ("finished_at", _NUMBER),
    "elapsed_s": ("elapsed_s", _ELAPSED),
}
_SKIP: _Part = {
    "gate": ("gate", _TEXT),
    "predicted": ("predicted", _NUMBER),
    "optimistic": ("optimistic", _NUMBER),
}
_BUILD: _Part = {
    "build_state": ("state", _STATE),
    "build_detail": ("detail", _TEXT),
    "registers": ("registers", _INT),
    "spill_bytes": ("spill_bytes", _INT),
    "stack_bytes": ("stack_bytes", _INT),
    "shared_bytes": ("shared_bytes", _INT),
    "code_bytes": ("code_bytes", _INT),
    "compile_s": ("compile_s", _NUMBER),
    "cached": ("cached", _BOOL),
}
_MEASUREMENT: _Part = {
    "measurement_state": ("state", _STATE),
    "measurement_detail": ("detail", _TEXT),
    "samples_s": ("samples_s", _SAMPLES),
    "median_s": ("median_s", _FLOAT),
    "noise": ("noise", _FLOAT),
    "stopped_early": ("stopped_early", _BOOL),
    "error": ("error", _FLOAT),
    "verify_s": ("verify_s", _NUMBER),
    "time_s": ("time_s", _NUMBER),
    "sm_clock_hz": ("sm_clock_hz", _FLOAT),
    "temperature_c": ("temperature_c", _FLOAT),
    "power_w": ("power_w", _FLOAT),
    "throttle_reasons": ("throttle_reasons", _INT),
    "discarded": ("discarded", _COUNT),
}
_PARTS: tuple[_Part, ...] = (_TRIAL, _SKIP, _BUILD, _MEASUREMENT)

COLUMNS: Mapping[str, str] = {name: kind.sql for part in _PARTS for name, (_, kind) in part.items()}
"""The columns of a trial, without its parameters, and their SQL types."""

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
    """Return the cells of :data:`COLUMNS`, then the values of all parameters. The cubin is not stored.

    Raises
    ------
    StoreError
        The configuration has other parameters.
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
