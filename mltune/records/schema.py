"""The tables of a store, by format, and the checksums of their rows.

A file is a store only if its tables are exactly those that mltune creates: a view, a trigger or a computed column of a
stranger would run while the store is read.
"""

from __future__ import annotations

import dataclasses
import math
import sqlite3
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mltune.records.reference import Reference
from mltune.records.rows import KINDS, PARAMETER_PREFIX, SINCE_FORMAT_2

FORMAT = 3
"""The format that is written."""

_APPLICATION = 0x6D6C7475  # "mltu" distinguishes our files from other SQLite files
_REFERENCE = ", ".join(field.name for field in dataclasses.fields(Reference))
_MOST_ROWS = 100_000  # of every table but the trials


def trial_columns(parameters: Iterable[str], file_format: int = FORMAT) -> dict[str, str]:
    """Return the columns of the trials, quoted, without the checksum, and their SQL types."""
    lacking = SINCE_FORMAT_2 if file_format == 1 else ()
    columns = {f'"{name}"': kind.sql for name, kind in KINDS.items() if name not in lacking}
    quoted = ((PARAMETER_PREFIX + name).replace('"', '""') for name in parameters)
    return columns | {f'"{name}"': "INTEGER NOT NULL" for name in quoted}


def create_tables(connection: sqlite3.Connection, parameters: Iterable[str]) -> None:
    """Create the tables of an empty store."""
    connection.execute(f"PRAGMA application_id = {_APPLICATION}")
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    for statement in _tables(FORMAT).values():
        connection.execute(statement)
    connection.execute(_trials(FORMAT, parameters))


def check_tables(connection: sqlite3.Connection) -> int:
    """Check that a file is a store, without reading any content; return its format.

    Raises
    ------
    ValueError
        It is not, or has other tables than a store.
    """
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if application != _APPLICATION:
        raise ValueError("it is no store of mltune")
    if not 1 <= version <= FORMAT:
        raise ValueError(f"stores of format 1 to {FORMAT} can be read, but it is of format {version}")
    found = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL LIMIT 100").fetchall()
    fixed = {name: sql for name, sql in found if name != "trials"}
    if len(found) != len(fixed) + 1 or fixed != _tables(version):
        raise ValueError("its tables are not those of a store")
    return version


def check_trials(connection: sqlite3.Connection, file_format: int, parameters: Iterable[str]) -> None:
    """Check that the table of the trials has the columns of these parameters.

    Raises
    ------
    ValueError
        It has others.
    """
    found = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'trials'").fetchone()
    if found[0] != _trials(file_format, parameters):
        raise ValueError("its trials do not have the parameters of its header")


def sealed(row: Sequence[Any]) -> tuple[Any, ...]:
    """Return the cells of a row as SQLite returns them, without NaN and negative zeros, and a checksum of them."""
    cells = tuple(_number(cell) if isinstance(cell, float) else cell for cell in row)
    return (*cells, checksum(cells))


def checksum(cells: tuple[Any, ...]) -> int:
    """Return the checksum of the cells of a row."""
    return zlib.crc32(repr(cells).encode())


def _number(cell: float) -> float | None:
    return None if math.isnan(cell) else cell + 0.0


def read_rows(connection: sqlite3.Connection, table: str, file_format: int) -> list[tuple[Any, ...]]:
    """Return the rows of any table but the trials, in the order of writing, and check them.

    Raises
    ------
    ValueError
        A row has changed since it was written, or there are too many.
    """
    found = connection.execute(f"SELECT * FROM {table} ORDER BY rowid LIMIT {_MOST_ROWS}").fetchall()  # noqa: S608
    if len(found) == _MOST_ROWS:
        raise ValueError(f"a table of a store has less than {_MOST_ROWS} rows, but {table} has more")
    if file_format < FORMAT:
        return found
    for at, row in enumerate(found):
        if checksum(row[:-1]) != row[-1]:
            raise ValueError(f"row {at + 1} of {table} has changed since it was written")
    return [row[:-1] for row in found]


def _tables(file_format: int) -> Mapping[str, str]:
    """Return the statements that create all tables but the trials."""
    seal = ", checksum INTEGER NOT NULL" if file_format >= FORMAT else ""
    tables = {
        "header": f"CREATE TABLE header (name TEXT PRIMARY KEY, value TEXT NOT NULL{seal})",
        "seconds": f"CREATE TABLE seconds (name TEXT PRIMARY KEY, value REAL NOT NULL{seal})",
        "facts": f"CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL{seal})",
    }
    return tables | (
        {"reference_timings": f"CREATE TABLE reference_timings ({_REFERENCE}{seal})"} if file_format > 1 else {}
    )


def _trials(file_format: int, parameters: Iterable[str]) -> str:
    """Return the statement that creates the table of the trials."""
    columns = [f"{name} {kind}" for name, kind in trial_columns(parameters, file_format).items()]
    seal = ["checksum INTEGER NOT NULL"] if file_format >= FORMAT else []
    return f"CREATE TABLE trials ({', '.join(['sequence INTEGER PRIMARY KEY', *columns, *seal, 'UNIQUE (number)'])})"
