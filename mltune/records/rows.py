"""Rows of a store: the columns of its tables, checked conversion from and to records, checksums, errors in words.

A file is a store only if its tables are exactly those that mltune creates: a view, a trigger or a computed column of a
stranger would run while the store is read.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sqlite3
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from mltune.errors import (
    DamagedRunError,
    DatabaseLostError,
    DiskFullError,
    MltuneError,
    RunDirectoryError,
    StoreError,
)
from mltune.files.text import printable
from mltune.records.declaration import Reference
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
    """The kind of a cell: its type in SQL, conversions, what NULL stands for, and whether NULL is refused.

    The law is the bounds of the value, as keywords of a field in pydantic, or the names that it may have; None for any
    text.
    """

    sql: str
    encode: Callable[[Any], Value]
    decode: Callable[[Any], Any]
    law: Mapping[str, Any] | tuple[str, ...] | None = None
    missing: Any = None
    needed: bool = False


LONGEST_S = 1e12
"""Most seconds of anything on record."""

SHORTEST_S = 1e-12
"""Least time of a kernel, seconds."""

_NOT_NEGATIVE = {"ge": 0, "le": LARGEST}
_FINITE = {"allow_inf_nan": False}
_SECONDS = {"ge": 0.0, "le": LONGEST_S}
_STATES = tuple(str(state) for state in TrialState)

_NUMBER = Kind("INTEGER", int, int, _NOT_NEGATIVE, needed=True)
_INT = Kind("INTEGER", int, int, {"ge": -LARGEST, "le": LARGEST})
_COUNT = Kind("INTEGER", int, int, _NOT_NEGATIVE, missing=0)
_BOOL = Kind("INTEGER", int, bool, {"ge": 0, "le": 1})
_FLOAT = Kind("REAL", float, float, {})
_PREDICTED = Kind("REAL", float, float, _FINITE)
_LOG_SHARE = Kind("REAL", float, float, _FINITE, missing=math.nan)
_MEDIAN = Kind("REAL", float, float, {"ge": SHORTEST_S, "le": LONGEST_S})
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


Row = tuple[Any, ...]

FORMAT = 3
"""The format that is written."""

AT_ONCE = 5_000
"""Trials that are read together."""

MOST_ROWS = 100_000
"""Rows of every table but the trials."""

MOST_SIZE = 1 << 24
"""Bytes of the texts in a table but the trials, or in a header."""

MOST_TRIALS_SIZE = 3 << 28
"""Bytes of the trials, room for about a million, and of a file."""

_APPLICATION = 0x6D6C7475  # "mltu" distinguishes our files from other SQLite files
_REFERENCE = ", ".join(field.name for field in dataclasses.fields(Reference))


def sealed(row: Sequence[Any]) -> Row:
    """Return the cells of a row as SQL returns them, without NaN and negative zeros, and a checksum of them."""
    cells = tuple(_number(cell) if isinstance(cell, float) else cell for cell in row)
    return (*cells, checksum(cells))


def checksum(cells: Row) -> int:
    """Return the checksum of the cells of a row."""
    return zlib.crc32(repr(cells).encode())


def _number(cell: float) -> float | None:
    return None if math.isnan(cell) else cell + 0.0


def unsealed(table: str, rows: Sequence[Row]) -> list[Row]:
    """Return the cells of rows of any table but the trials; a checksum of None is not known.

    A row that has changed since it was written, and a table that is too long, raises a ValueError.
    """
    check_size(table, sum(len(cell) for row in rows for cell in row if isinstance(cell, str)))
    if len(rows) >= MOST_ROWS:
        raise ValueError(f"a table of a store has less than {MOST_ROWS} rows, but {table} has more")
    for at, row in enumerate(rows):
        if row[-1] is not None and checksum(row[:-1]) != row[-1]:
            raise ValueError(f"row {at + 1} of {table} has changed since it was written")
    return [row[:-1] for row in rows]


def check_size(table: str, size: int) -> None:
    """Check the size of the texts in a table, bytes or characters: a parsed one takes fifty times as much memory."""
    most = MOST_TRIALS_SIZE if table == "trials" else MOST_SIZE
    if size > most:
        raise ValueError(f"the texts of {table} have at most {most} bytes, but they have {size}")


def unsealed_trials(parts: Iterable[Sequence[Row]], after: int, count: int) -> Iterator[list[Row]]:
    """Yield the cells of ``count`` trials without the first ``after``, some at a time.

    The rows have a position from 1, cells, and a checksum or None. A trial that has changed since it was written or is
    missing raises a ValueError.
    """
    last = after
    for rows in parts:
        for position, row in enumerate(rows, last + 1):
            if row[0] != position or position > count:
                raise ValueError(f"trial {position} in the order of recording is missing")
            if row[-1] is not None and checksum(row[1:-1]) != row[-1]:
                raise ValueError(f"trial {row[1]!r:.30} has changed since it was recorded")
        last += len(rows)
        yield [row[1:-1] for row in rows]
    if last != count:
        raise ValueError(f"it has {count} trials, but {last} can be read")


def trial_columns(parameters: Iterable[str], file_format: int = FORMAT) -> dict[str, str]:
    """Return the columns of the trials in a file, quoted, without the checksum, and their SQL types."""
    lacking = SINCE_FORMAT_2 if file_format == 1 else ()
    columns = {f'"{name}"': kind.sql for name, kind in KINDS.items() if name not in lacking}
    quoted = ((PARAMETER_PREFIX + name).replace('"', '""') for name in parameters)
    return columns | {f'"{name}"': "INTEGER NOT NULL" for name in quoted}


def create_tables(connection: sqlite3.Connection, parameters: Iterable[str]) -> None:
    """Create the tables of an empty file."""
    connection.execute(f"PRAGMA application_id = {_APPLICATION}")
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    for statement in (*_tables(FORMAT).values(), trials_statement(FORMAT, parameters)):
        connection.execute(statement)


def check_tables(connection: sqlite3.Connection) -> tuple[int, str]:
    """Check that a file is a store, without reading any content; if not, raise a ValueError.

    Returns its format, and the statement that has created its trials, to be compared with :func:`trials_statement`.
    """
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if application != _APPLICATION:
        raise ValueError("it is no store of mltune")
    if not 1 <= version <= FORMAT:
        raise ValueError(f"stores of format 1 to {FORMAT} can be read, but it is of format {version}")
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL LIMIT 100").fetchall()
    sources = dict(rows)
    trials = str(sources.pop("trials", ""))
    if len(rows) != len(sources) + 1 or sources != _tables(version):
        raise ValueError("its tables are not those of a store")
    return version, trials


def trials_statement(file_format: int, parameters: Iterable[str]) -> str:
    """Return the statement that creates the table of the trials."""
    columns = [f"{name} {kind}" for name, kind in trial_columns(parameters, file_format).items()]
    seal = ["checksum INTEGER NOT NULL"] if file_format >= FORMAT else []
    return f"CREATE TABLE trials ({', '.join(['sequence INTEGER PRIMARY KEY', *columns, *seal, 'UNIQUE (number)'])})"


def _tables(file_format: int) -> Mapping[str, str]:
    """Return the statements that create all tables but the trials."""
    seal = ", checksum INTEGER NOT NULL" if file_format >= FORMAT else ""
    kinds = {"header": "TEXT", "seconds": "REAL", "facts": "TEXT"}
    tables = {
        name: f"CREATE TABLE {name} (name TEXT PRIMARY KEY, value {kind} NOT NULL{seal})"
        for name, kind in kinds.items()
    }
    if file_format > 1:
        tables["reference_timings"] = f"CREATE TABLE reference_timings ({_REFERENCE}{seal})"
    return tables


UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""Exceptions of a reader whose store holds what mltune never writes."""

_LONGEST = 500  # an error may quote a store

FailureKind = Literal["damaged", "duplicate", "full", "lost", "unusable"]


def store_failure(kind: FailureKind, place: object, error: object) -> MltuneError:
    """Return the error of a store in a file or a database that cannot be read or written."""
    text = printable(error, _LONGEST).strip()
    if kind == "damaged":
        return DamagedRunError(
            f"{place} must be an undamaged store of mltune, but {text}; restore a copy, or choose another directory."
        )
    if kind == "duplicate":
        return StoreError(f"a trial's number must be new to its run, but {place} refused: {text}.")
    law = f"every trial must be recorded, but {place} cannot be used: {text}"
    if kind == "full":
        return DiskFullError(
            f"{law}; the trials recorded before are safe: make room on the disk, then repeat the command to go on."
        )
    return DatabaseLostError(f"{law}.") if kind == "lost" else StoreError(f"{law}.")


def elsewhere(directory: Path, place: str) -> RunDirectoryError:
    """Return the error of a run that is not in the database that was named."""
    return RunDirectoryError(
        f"a run stays where it was begun, but the records of {directory} are in {printable(place, 200)}; choose "
        "another directory, or leave out --store."
    )
