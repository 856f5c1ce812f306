"""The store of a run as one SQLite file in its directory."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sqlite3
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from mltune.errors import DiskFullError, RunDirectoryError, StoreError
from mltune.files.documents import parse_json
from mltune.files.reading import reason
from mltune.files.text import printable
from mltune.records.directory import FILE, lock_directory, not_writable
from mltune.records.header import RunHeader
from mltune.records.opening import connect, connected_for_reading, create_file, wal_is_missing
from mltune.records.rows import SINCE_FORMAT_2
from mltune.records.schema import (
    FORMAT,
    check_tables,
    check_trials,
    create_tables,
    read_rows,
    sealed,
    trial_columns,
)
from mltune.records.store import LONGEST, UNREADABLE, Store, damaged

_OLD_FACTS = {"cublas_median_s": "reference_median_s"}  # names in stores written before version 0.2
_CLOSED = "closed"  # a fact: whether the last process that wrote to the store closed it
_NO_ROOM = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_ERROR}
_AT_ONCE = 5_000  # rows read together


class FileStore(Store):
    """The records of a run in ``run.sqlite``.

    Stores of formats 1 and 2 can be read: what they lack is returned as unknown. They cannot be written.
    """

    def __init__(self, directory: Path, connection: sqlite3.Connection, lock: int | None = None) -> None:
        self.directory = directory
        self._connection = connection
        self._lock = lock
        self._undo = contextlib.ExitStack()
        with self._transaction("DEFERRED"):
            self._format = check_tables(connection)
            header = RunHeader.from_json(
                {name: parse_json(value) for name, value in read_rows(connection, "header", self._format)}
            )
            check_trials(connection, self._format, header.parameters)
        super().__init__(directory, header)
        self.notice = _LOST if wal_is_missing(directory) and self._was_left_open() else ""

    @classmethod
    def for_writing(cls, directory: Path, header: RunHeader | None) -> Self:
        """Open or create the file; see :meth:`Store.open`."""
        with contextlib.ExitStack() as undo:
            lock = lock_directory(directory)
            undo.callback(os.close, lock)
            if header is not None and not os.path.lexists(directory / FILE):
                _create(directory, header)
            with _on_file(directory):
                wal_was_missing = wal_is_missing(directory)
                connection = connect(directory)
                undo.callback(connection.close)
                store = cls(directory, connection, lock)  # checks the file before anything is written to it
                if store._format != FORMAT:
                    raise RunDirectoryError(
                        f"a run that is resumed has a store of format {FORMAT}, but {directory / FILE} is of format "
                        f"{store._format}, which can only be read; choose another directory."
                    )
                store._check_header(header)
                store.notice = _LOST if wal_was_missing and store._was_left_open() else ""
                store._mark(closed=False)
            undo.pop_all()
            return store

    @classmethod
    def for_reading(cls, directory: Path) -> Self:
        """Open the file; see :meth:`Store.read_only`."""
        with contextlib.ExitStack() as undo, _on_file(directory):
            connection = undo.enter_context(connected_for_reading(directory))
            store = cls(directory, connection)
            store._undo = undo.pop_all()
            return store

    def facts(self) -> dict[str, Any]:
        """Return all facts of the run."""
        facts = super().facts()
        facts.pop(_CLOSED, None)
        return {_OLD_FACTS[name]: facts[name] for name in _OLD_FACTS if name in facts} | facts

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Read everything as it was at one moment; or where the store is written, write everything or nothing."""
        with self._reading() if self._lock is None else self._writing():
            yield

    def close(self) -> None:
        """Close the file and release the run directory. Appended records are on file already."""
        if self._lock is not None:
            with contextlib.suppress(StoreError, sqlite3.Error):  # a reader may hold the file: nothing is lost
                self._connection.execute("PRAGMA busy_timeout = 100")
                self._mark(closed=True)
        self._undo.close()
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _was_left_open(self) -> bool:
        """Return whether the last process that wrote did not close the store."""
        return dict(read_rows(self._connection, "facts", self._format)).get(_CLOSED) == "false"

    def _mark(self, *, closed: bool) -> None:
        """Write to the main file, not to that beside it, whether the store was closed."""
        self.set_fact(_CLOSED, closed)
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _count(self) -> int:
        return int(self._connection.execute("SELECT COUNT(*) FROM trials").fetchone()[0])

    def _rows(self, after: int) -> Generator[Sequence[tuple[Any, ...]]]:
        lacking = {f'"{name}"' for name in SINCE_FORMAT_2} if self._format == 1 else frozenset()
        columns = ["NULL" if column in lacking else column for column in trial_columns(self._names)]
        columns = ["sequence", *columns, "checksum" if self._format == FORMAT else "NULL"]
        text = f"SELECT {', '.join(columns)} FROM trials WHERE sequence > ? ORDER BY sequence"  # noqa: S608
        cursor = self._connection.execute(text, (after,))
        while rows := cursor.fetchmany(_AT_ONCE):
            yield rows

    def _read(self, table: str) -> list[tuple[Any, ...]]:
        if table == "reference_timings" and self._format == 1:
            return []
        return read_rows(self._connection, table, self._format)

    def _insert(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            marks = ", ".join("?" * len(rows[0]))
            verb = "INSERT OR REPLACE"
            if table == "trials":
                verb, table = "INSERT", f"trials ({', '.join([*trial_columns(self._names), 'checksum'])})"
            self._connection.executemany(f"{verb} INTO {table} VALUES ({marks})", rows)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        with _on_file(self.directory), self._transaction("DEFERRED"):
            yield

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        with _on_file(self.directory), self._transaction("IMMEDIATE"):
            yield

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


_LOST = f"the process that wrote this run did not close it, and {FILE}-wal is missing: the trials that it held are lost"


@contextlib.contextmanager
def _on_file(directory: Path) -> Iterator[None]:
    """Convert what can go wrong with the file of a store to the exceptions of mltune."""
    path = directory / FILE
    try:
        yield
    except sqlite3.IntegrityError as error:
        raise StoreError(f"a trial's number must be new to its run, but {path} refused: {error}.") from error
    except (sqlite3.Error, OSError, OverflowError) as error:
        code, text = getattr(error, "sqlite_errorcode", 0) & 0xFF, printable(error, LONGEST)
        undecodable = isinstance(error, sqlite3.DatabaseError) and not code  # text that is not UTF-8
        if code in _DAMAGED or undecodable:
            raise damaged(path, text) from error
        if code in _NO_ROOM:
            raise DiskFullError(
                f"every trial must be recorded, but {path} cannot be used: {text}; the trials recorded before are "
                "safe: make room on the disk, then repeat the command to go on."
            ) from error
        raise StoreError(f"every trial must be recorded, but {path} cannot be used: {text}.") from error
    except UNREADABLE as error:
        raise damaged(path, error) from error


def _create(directory: Path, header: RunHeader) -> None:
    try:
        create_file(directory, lambda connection: _fill(connection, header))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            raise DiskFullError(f"a run needs room on the disk, but {directory} has none: {reason(error)}.") from error
        raise not_writable(directory, error) from error


def _fill(connection: sqlite3.Connection, header: RunHeader) -> None:
    """Create the tables and write the header."""
    document = header.to_json()
    rows = [sealed((name, json.dumps(value))) for name, value in document.items()]
    connection.execute("BEGIN IMMEDIATE")
    create_tables(connection, header.parameters)
    connection.executemany("INSERT INTO header VALUES (?, ?, ?)", rows)
    connection.execute("COMMIT")
