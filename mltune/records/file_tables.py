"""Tables of a run in an SQLite file in its directory: ``run.sqlite``."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sqlite3
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Self

from mltune.errors import DiskFullError, RunDirectoryError, StoreError
from mltune.files.documents import parse_json
from mltune.files.reading import reason
from mltune.records.directory import FILE, not_writable
from mltune.records.failures import UNREADABLE, Kind, store_failure
from mltune.records.header import RunHeader
from mltune.records.rows import KINDS, SINCE_FORMAT_2
from mltune.records.schema import (
    AT_ONCE,
    FORMAT,
    MOST_ROWS,
    Row,
    check_tables,
    create_tables,
    sealed,
    trial_columns,
    trials_statement,
    unsealed,
)
from mltune.records.sqlite_file import connect, connected_for_reading, create_file, wal_is_missing

CLOSED = "closed"
"""The fact that says whether the last process that wrote to the file closed it."""

_LOST = f"the process that wrote this run did not close it, and {FILE}-wal is missing: the trials that it held are lost"
_KINDS: dict[int, Kind] = {
    **dict.fromkeys((sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR), "full"),
    **dict.fromkeys(
        (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_ERROR), "damaged"
    ),
}


class FileTables:
    """Tables of a run in its file. The attributes are those of :class:`mltune.records.store.Tables`.

    Files of formats 1 and 2 can be read: what they lack is returned as unknown. They cannot be written.
    """

    def __init__(self, directory: Path, connection: sqlite3.Connection, *, writable: bool = False) -> None:
        self.writable = writable
        self._directory = directory
        self._connection = connection
        self._undo = contextlib.ExitStack()
        with self._transaction("DEFERRED"):
            self._format, trials = check_tables(connection)
            rows = unsealed("header", self.rows("header"))
            self.header = RunHeader.from_json({name: parse_json(value) for name, value in rows})
            if trials != trials_statement(self._format, self.header.parameters):
                raise ValueError("its trials do not have the parameters of its header")
        self.notice = ""

    @classmethod
    def for_writing(cls, directory: Path, header: RunHeader | None) -> Self:
        """Open the file in a directory that is locked; with a header it is created if it is missing."""
        if header is not None and not os.path.lexists(directory / FILE):
            _create(directory, header)
        with contextlib.ExitStack() as undo, _errors(directory):
            wal_was_missing = wal_is_missing(directory)
            connection = connect(directory)
            undo.callback(connection.close)
            tables = cls(directory, connection, writable=True)  # checks the file before anything is written to it
            if tables._format != FORMAT:
                raise RunDirectoryError(
                    f"a run that is resumed has a store of format {FORMAT}, but {directory / FILE} is of format "
                    f"{tables._format}, which can only be read; choose another directory."
                )
            tables.header.check_continued(header, directory)
            tables._notice_loss(wal_was_missing)
            tables._mark(closed=False)
            undo.pop_all()
            return tables

    @classmethod
    def for_reading(cls, directory: Path) -> Self:
        """Open the file in a directory."""
        with contextlib.ExitStack() as undo, _errors(directory):
            connection = undo.enter_context(connected_for_reading(directory))
            tables = cls(directory, connection)
            tables._notice_loss(wal_is_missing(directory))
            tables._undo = undo.pop_all()
            return tables

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Read in one transaction."""
        with _errors(self._directory), self._transaction("DEFERRED"):
            yield

    def count(self) -> int:
        """Return the number of trials."""
        return int(self._connection.execute("SELECT COUNT(*) FROM trials").fetchone()[0])

    def trials(self, after: int) -> Generator[Sequence[Row]]:
        """Yield rows of trials."""
        lacking = SINCE_FORMAT_2 if self._format == 1 else frozenset()
        names = list(trial_columns(self.header.parameters))
        columns = [*("NULL" if name in lacking else f'"{name}"' for name in KINDS), *names[len(KINDS) :]]
        seal = "checksum" if self._format == FORMAT else "NULL"
        statement = f"SELECT sequence, {', '.join(columns)}, {seal} FROM trials WHERE sequence > ? ORDER BY sequence"  # noqa: S608
        cursor = self._connection.execute(statement, (after,))
        while rows := cursor.fetchmany(AT_ONCE):
            yield rows

    def rows(self, table: str) -> list[Row]:
        """Return the rows of another table."""
        if table == "reference_timings" and self._format == 1:
            return []
        seal = "" if self._format == FORMAT else ", NULL"
        statement = f"SELECT *{seal} FROM {table} ORDER BY rowid LIMIT {MOST_ROWS}"  # noqa: S608
        return self._connection.execute(statement).fetchall()

    def write(self, changes: Sequence[tuple[str, Sequence[Row]]]) -> None:
        """Write rows in one transaction."""
        with _errors(self._directory), self._transaction("IMMEDIATE"):
            for table, rows in changes:
                target, verb = table, "INSERT OR REPLACE"
                if table == "trials":
                    target, verb = (
                        f"trials ({', '.join([*trial_columns(self.header.parameters), 'checksum'])})",
                        "INSERT",
                    )
                marks = ", ".join("?" * len(rows[0]))
                self._connection.executemany(f"{verb} INTO {target} VALUES ({marks})", rows)

    def close(self) -> None:
        """Close the file."""
        if self.writable:
            with contextlib.suppress(StoreError, sqlite3.Error):  # a reader may hold the file: nothing is lost
                self._connection.execute("PRAGMA busy_timeout = 100")
                self._mark(closed=True)
        self._undo.close()
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()

    def _notice_loss(self, wal_was_missing: bool) -> None:
        """Notice that records were beside the file when its last writer died, and are not there any more."""
        if wal_was_missing and (CLOSED, "false") in unsealed("facts", self.rows("facts")):
            self.notice = _LOST

    def _mark(self, *, closed: bool) -> None:
        """Write to the main file, not to the log beside it, whether the store was closed."""
        self.write([("facts", [sealed((CLOSED, json.dumps(closed)))])])
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    @contextlib.contextmanager
    def _transaction(self, kind: str) -> Iterator[None]:
        if self._connection.in_transaction:
            yield
            return
        try:
            self._connection.execute(f"BEGIN {kind}")
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise


@contextlib.contextmanager
def _errors(directory: Path) -> Iterator[None]:
    """Convert errors of SQLite and of the disk to the exceptions of mltune."""
    try:
        yield
    except (sqlite3.Error, OSError, OverflowError) as error:
        raise store_failure(_kind(error), directory / FILE, error) from error
    except UNREADABLE as error:
        raise store_failure("damaged", directory / FILE, error) from error


def _kind(error: Exception) -> Kind:
    if isinstance(error, sqlite3.IntegrityError):
        return "duplicate"
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if isinstance(error, sqlite3.DatabaseError) and not code:  # text that is not UTF-8
        return "damaged"
    return _KINDS.get(code, "unusable")


def _create(directory: Path, header: RunHeader) -> None:
    """Create the file with its tables and the header."""

    def fill(connection: sqlite3.Connection) -> None:
        rows = [sealed((name, json.dumps(value))) for name, value in header.to_json().items()]
        connection.execute("BEGIN IMMEDIATE")
        create_tables(connection, header.parameters)
        connection.executemany("INSERT INTO header VALUES (?, ?, ?)", rows)
        connection.execute("COMMIT")

    try:
        create_file(directory, fill)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            raise DiskFullError(f"a run needs room on the disk, but {directory} has none: {reason(error)}.") from error
        raise not_writable(directory, error) from error
