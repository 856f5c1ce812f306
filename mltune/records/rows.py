"""Rows of a store: the statements that create its tables, checksums, errors in words.

A file is a store only if its tables are exactly those that mltune creates: a view, a trigger or a computed column of a
stranger would run while the store is read.
"""

from __future__ import annotations

import dataclasses
import math
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from mltune.errors import DamagedRunError, DatabaseLostError, DiskFullError, MltuneError, RunDirectoryError, StoreError
from mltune.files.text import printable
from mltune.records.columns import COLUMNS
from mltune.records.declaration import Reference

Row = tuple[Any, ...]

FORMAT = 3
"""The format of a store."""

PARAMETER_PREFIX = "p_"
"""Prefix of parameter columns: SQL column names ignore case, and a parameter may be called STATE."""

AT_ONCE = 5_000
"""Trials that are read together."""

MOST_ROWS = 100_000
"""Rows of every table but the trials."""

MOST_SIZE = 1 << 24
"""Bytes of the texts in a table but the trials, or in a header."""

MOST_TRIALS_SIZE = 3 << 28
"""Bytes of the trials, room for about a million, and of a file."""

_APPLICATION = 0x6D6C7475  # "mltu" distinguishes our files from other SQLite files
_SEAL = "checksum INTEGER NOT NULL"
_REFERENCE = ", ".join(field.name for field in dataclasses.fields(Reference))
_TABLES = {
    name: f"CREATE TABLE {name} (name TEXT PRIMARY KEY, value {kind} NOT NULL, {_SEAL})"
    for name, kind in {"header": "TEXT", "seconds": "REAL", "facts": "TEXT"}.items()
} | {"reference_timings": f"CREATE TABLE reference_timings ({_REFERENCE}, {_SEAL})"}


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
    """Return the cells of rows of any table but the trials.

    A row that has changed since it was written, and a table that is too long, raises a ValueError.
    """
    check_size(table, sum(len(cell) for row in rows for cell in row if isinstance(cell, str)))
    if len(rows) >= MOST_ROWS:
        raise ValueError(f"its table {table} has {MOST_ROWS} rows or more, too many")
    for at, row in enumerate(rows):
        if checksum(row[:-1]) != row[-1]:
            raise ValueError(f"row {at + 1} of {table} has changed since it was written")
    return [row[:-1] for row in rows]


def check_size(table: str, size: int) -> None:
    """Check the size of the texts in a table, bytes or characters: a parsed one takes fifty times as much memory."""
    most = MOST_TRIALS_SIZE if table == "trials" else MOST_SIZE
    if size > most:
        raise ValueError(f"the texts of its table {table} have {size} bytes; they may have {most}")


def unsealed_trials(parts: Iterable[Sequence[Row]], after: int, count: int) -> Iterator[list[Row]]:
    """Yield the cells of ``count`` trials without the first ``after``, some at a time.

    The rows have a position from 1, cells, and a checksum. A trial that has changed since it was written or is missing
    raises a ValueError.
    """
    last = after
    for rows in parts:
        cells = [row[1:-1] for row in rows]
        for position, (row, content) in enumerate(zip(rows, cells, strict=True), last + 1):
            if row[0] != position or position > count:
                raise ValueError(f"trial {position} in the order of recording is missing")
            if checksum(content) != row[-1]:
                raise ValueError(f"trial {row[1]!r:.30} has changed since it was recorded")
        last += len(rows)
        yield cells
    if last != count:
        raise ValueError(f"it has {count} trials, but {last} can be read")


def trial_columns(parameters: Iterable[str]) -> dict[str, str]:
    """Return the columns of the trials in a file, quoted, without the checksum, and their SQL types."""
    columns = {f'"{name}"': column.cells.sql for name, column in COLUMNS.items()}
    quoted = ((PARAMETER_PREFIX + name).replace('"', '""') for name in parameters)
    return columns | {f'"{name}"': "INTEGER NOT NULL" for name in quoted}


def create_tables(connection: sqlite3.Connection, parameters: Iterable[str]) -> None:
    """Create the tables of an empty file."""
    connection.execute(f"PRAGMA application_id = {_APPLICATION}")
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    for statement in (*_TABLES.values(), trials_statement(parameters)):
        connection.execute(statement)


def check_tables(connection: sqlite3.Connection) -> str:
    """Check that a file is a store, without reading any content; if not, raise a ValueError.

    Returns the statement that has created its trials, to be compared with :func:`trials_statement`.
    """
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if application != _APPLICATION:
        raise ValueError("it is no store of mltune")
    if version != FORMAT:
        raise ValueError(f"it is of format {version}, and only {FORMAT} can be read")
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL LIMIT 100").fetchall()
    sources = dict(rows)
    trials = str(sources.pop("trials", ""))
    if len(rows) != len(sources) + 1 or sources != _TABLES:
        raise ValueError("its tables are not those of a store")
    return trials


def trials_statement(parameters: Iterable[str]) -> str:
    """Return the statement that creates the table of the trials."""
    columns = [f"{name} {kind}" for name, kind in trial_columns(parameters).items()]
    return f"CREATE TABLE trials ({', '.join(['sequence INTEGER PRIMARY KEY', *columns, _SEAL, 'UNIQUE (number)'])})"


UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""Exceptions of a reader whose store holds what mltune never writes."""

_LONGEST = 500  # an error may quote a store

FailureKind = Literal["damaged", "duplicate", "full", "lost", "unusable"]


def store_failure(kind: FailureKind, place: object, error: object) -> MltuneError:
    """Return the error of a store in a file or a database that cannot be read or written."""
    text = printable(error, _LONGEST).strip()
    if kind == "damaged":
        return DamagedRunError(
            f"{place} is a damaged store of mltune: {text}; restore a copy, or choose another directory."
        )
    if kind == "duplicate":
        return StoreError(f"{place} has a trial of the same number: {text}.")
    fact = f"{place} cannot be used, and a trial is not recorded: {text}"
    if kind == "full":
        return DiskFullError(
            f"{fact}; the trials recorded before are safe: make room on the disk, then repeat the command to go on."
        )
    return DatabaseLostError(f"{fact}.") if kind == "lost" else StoreError(f"{fact}.")


def elsewhere(directory: Path, place: str) -> RunDirectoryError:
    """Return the error of a run that is not in the database that was named."""
    return RunDirectoryError(
        f"the records of {directory} are in {printable(place, 200)}, and a run stays where it was begun; choose "
        "another directory, or leave out --store."
    )
