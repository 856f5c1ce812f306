"""The store of a run: one SQLite file with every trial, written before the search receives the result."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from mltune.errors import DamagedRunError, DiskFullError, RunDirectoryError, StoreError
from mltune.files.documents import parse_json
from mltune.files.reading import reason
from mltune.files.text import printable
from mltune.records.directory import FILE, lock_directory, store_file
from mltune.records.header import RunHeader
from mltune.records.opening import connect, connected_for_reading, create_file, wal_is_missing
from mltune.records.reference import Reference
from mltune.records.rows import SINCE_FORMAT_2, to_row
from mltune.records.schema import (
    FORMAT,
    check_tables,
    check_trials,
    checksum,
    create_tables,
    read_rows,
    sealed,
    trial_columns,
)
from mltune.records.trial import TrialRecord

if TYPE_CHECKING:
    from mltune.records.trials import Trials

MOST_TRIALS = 1_000_000
"""Trials of a run."""

_OLD_FACTS = {"reference_median_s": "cublas_median_s"}  # names in stores written before version 0.2
_CLOSED = "closed"  # a fact: whether the last process that wrote to the store closed it
_NO_ROOM = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_ERROR}
_AT_ONCE = 5_000  # rows read together
_LONGEST = 500  # characters of an error of SQLite, which may quote the file


class Store:
    """The records of one run, in its directory.

    A context manager, created by :meth:`open` or :meth:`read_only`. Records survive the death of the process once
    :meth:`append` has returned. One process at a time writes; others may read at the same time.

    Stores of formats 1 and 2 can be read: what they lack is returned as unknown. They cannot be written.

    Attributes
    ----------
    directory : pathlib.Path
        The directory of the run.
    header : RunHeader
        The header on file: that of the first :meth:`open`.
    notice : str
        What may be missing from the store although all of it can be read; empty if nothing is.
    """

    def __init__(self, directory: Path, connection: sqlite3.Connection, lock: int | None = None) -> None:
        self.directory = directory
        self._connection = connection
        self._lock = lock
        self._undo = contextlib.ExitStack()
        with self._transaction("DEFERRED"):
            self._format = check_tables(connection)
            self.header = RunHeader.from_json(
                {name: parse_json(value) for name, value in read_rows(connection, "header", self._format)}
            )
            check_trials(connection, self._format, self.header.parameters)
        self._names = tuple(self.header.parameters)
        self.notice = _LOST if self.fact(_CLOSED) is False and wal_is_missing(directory) else ""

    @classmethod
    def open(cls, directory: Path, header: RunHeader | None = None) -> Self:
        """Open the store of a run for writing; what a killed process left beside it is recovered.

        Parameters
        ----------
        directory : pathlib.Path
        header : RunHeader, optional
            The header of the run; its store is created if the directory holds none. Without a header the directory
            must hold a run, which is resumed.

        Raises
        ------
        RunDirectoryError
            The directory is in use, belongs to a run with another header, or cannot be written.
        DamagedRunError
            The store is damaged. It is not changed.
        StoreError
            The store cannot be created on a full disk.
        """
        directory = Path(directory)
        if header is None:
            _must_exist(directory)
        with contextlib.ExitStack() as undo:
            lock = lock_directory(directory)
            undo.callback(os.close, lock)
            if header is not None and not os.path.lexists(directory / FILE):
                _create(directory, header)
            with _on_file(directory):
                notice = _LOST if wal_is_missing(directory) else ""
                connection = connect(directory)
                undo.callback(connection.close)
                store = cls(directory, connection, lock)  # checks the file before anything is written to it
                store._check_can_be_written(header)
                store.notice = notice if store.fact(_CLOSED) is False else ""
                store._mark(closed=False)
            undo.pop_all()
            return store

    @classmethod
    def read_only(cls, directory: Path) -> Self:
        """Open the store of a run for reading, also while the run goes on or after its process was killed.

        Raises
        ------
        RunDirectoryError
            The directory holds no run.
        DamagedRunError
            The store is damaged.
        """
        directory = Path(directory)
        _must_exist(directory)
        with contextlib.ExitStack() as undo, _on_file(directory):
            connection = undo.enter_context(connected_for_reading(directory))
            store = cls(directory, connection)
            store._undo = undo.pop_all()
            return store

    def append(self, *records: TrialRecord) -> None:
        """Write records in one transaction: all of them or, if that fails, none.

        Raises
        ------
        StoreError
            The disk is full or broken, or the number of a record exists already. Earlier records are unchanged.
        """
        rows = [sealed(to_row(record, self._names)) for record in records]
        columns = [*trial_columns(self._names), "checksum"]
        with _on_file(self.directory), self._transaction():
            self._insert(f"trials ({', '.join(columns)})", rows)

    def records(self, after: int = 0) -> Trials:
        """Return all trials in order of appending, without the first ``after``.

        Raises
        ------
        DamagedRunError
            A record has changed since it was written, is missing, or is no record of this run.
        """
        from mltune.records.trials import Trials

        with _on_file(self.directory), self._transaction("DEFERRED"):
            count = len(self)
            if count > MOST_TRIALS:
                raise ValueError(f"a run has at most {MOST_TRIALS} trials, but it has {count}")
            parts = [
                Trials.from_rows(rows, self._names, self.header.parameters) for rows in self._rows(after, count - after)
            ]
        return Trials.concatenate(parts or [Trials.from_rows([], self._names)])

    def __len__(self) -> int:
        with _on_file(self.directory):
            return int(self._connection.execute("SELECT COUNT(*) FROM trials").fetchone()[0])

    def seconds(self) -> dict[str, float]:
        """Return the seconds spent in every phase of the run; see :mod:`mltune.records.seconds`."""
        return dict(self._read("seconds"))

    def set_seconds(self, seconds: Mapping[str, float]) -> None:
        """Replace the seconds spent in some phases."""
        with _on_file(self.directory), self._transaction():
            self._insert("seconds", [sealed((name, float(value))) for name, value in seconds.items()])

    def fact(self, name: str) -> Any:
        """Return a fact of the run, or None if it is unknown."""
        facts = dict(self._read("facts"))
        text = facts.get(name, facts.get(_OLD_FACTS.get(name, "")))
        with _on_file(self.directory):
            return None if text is None else parse_json(text)

    def facts(self) -> dict[str, Any]:
        """Return all facts of the run."""
        names = [name for name, _ in self._read("facts") if name != _CLOSED]
        return {name: self.fact(name) for name in names}

    def set_fact(self, name: str, value: Any) -> None:
        """Write or replace a fact of the run, such as ``"reference_median_s"``: a plain JSON value."""
        with _on_file(self.directory), self._transaction():
            self._insert("facts", [sealed((name, json.dumps(value)))])

    def append_reference(self, reference: Reference) -> None:
        """Append a timing of the reference kernel."""
        with _on_file(self.directory), self._transaction():
            self._insert("reference_timings", [sealed(dataclasses.astuple(reference))])

    def references(self) -> list[Reference]:
        """Return the timings of the reference kernel in order of measurement."""
        return [] if self._format == 1 else [Reference(*row) for row in self._read("reference_timings")]

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Read everything as it was at one moment; or where the store is written, write everything or nothing."""
        with _on_file(self.directory), self._transaction("DEFERRED" if self._lock is None else "IMMEDIATE"):
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_can_be_written(self, header: RunHeader | None) -> None:
        if self._format != FORMAT:
            raise RunDirectoryError(
                f"a run that is resumed has a store of format {FORMAT}, but {self.directory / FILE} is of format "
                f"{self._format}, which can only be read; choose another directory."
            )
        difference = "" if header is None else self.header.difference(header)
        if difference:
            raise RunDirectoryError(
                f"a run directory belongs to one run, but in {self.directory} {difference}; "
                "choose another directory, or repeat the command that began the run."
            )

    def _mark(self, *, closed: bool) -> None:
        """Write to the main file, not to that beside it, whether the store was closed."""
        self.set_fact(_CLOSED, closed)
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _rows(self, after: int, count: int) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows of the trials, some at a time, and check them."""
        lacking = {f'"{name}"' for name in SINCE_FORMAT_2} if self._format == 1 else frozenset()
        columns = ["NULL" if column in lacking else column for column in trial_columns(self._names)]
        columns = ["sequence", *columns, "checksum" if self._format == FORMAT else "NULL"]
        text = f"SELECT {', '.join(columns)} FROM trials WHERE sequence > ? ORDER BY sequence"  # noqa: S608
        cursor, found = self._connection.execute(text, (after,)), 0
        while rows := cursor.fetchmany(_AT_ONCE):
            for position, row in enumerate(rows, after + found + 1):
                if row[0] != position or found >= count:
                    raise ValueError(f"trial {position} in the order of recording is missing")
                if self._format == FORMAT and checksum(row[1:-1]) != row[-1]:
                    raise ValueError(f"trial {row[1]!r:.30} has changed since it was recorded")
            found += len(rows)
            yield [row[1:-1] for row in rows]
        if found != count:
            raise ValueError(f"it has {count + after} trials, but {found + after} can be read")

    def _insert(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            marks = ", ".join("?" * len(rows[0]))
            verb = "INSERT" if table.startswith("trials") else "INSERT OR REPLACE"
            self._connection.executemany(f"{verb} INTO {table} VALUES ({marks})", rows)

    def _read(self, table: str) -> list[tuple[Any, ...]]:
        with _on_file(self.directory):
            return read_rows(self._connection, table, self._format)

    @contextlib.contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Iterator[None]:
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
        code, text = getattr(error, "sqlite_errorcode", 0) & 0xFF, printable(error, _LONGEST)
        undecodable = isinstance(error, sqlite3.DatabaseError) and not code  # text that is not UTF-8
        if code in _DAMAGED or undecodable:
            raise _damaged(path, text) from error
        if code in _NO_ROOM:
            raise DiskFullError(
                f"every trial must be recorded, but {path} cannot be used: {text}; the trials recorded before are "
                "safe: make room on the disk, then repeat the command to go on."
            ) from error
        raise StoreError(f"every trial must be recorded, but {path} cannot be used: {text}.") from error
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise _damaged(path, printable(error, _LONGEST)) from error


def _damaged(path: Path, reason: str) -> DamagedRunError:
    return DamagedRunError(
        f"{path} must be an undamaged store of mltune, but {reason}; restore a copy, or choose another directory."
    )


def _must_exist(directory: Path) -> None:
    if not store_file(directory).exists():
        raise RunDirectoryError(f"a run directory holds a file {FILE}, but there is none in {directory}.")


def _create(directory: Path, header: RunHeader) -> None:
    try:
        create_file(directory, lambda connection: _fill(connection, header))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            raise DiskFullError(f"a run needs room on the disk, but {directory} has none: {reason(error)}.") from error
        raise RunDirectoryError(
            f"a run directory must be writable, but {directory} is not: {reason(error)}."
        ) from error


def _fill(connection: sqlite3.Connection, header: RunHeader) -> None:
    """Create the tables and write the header."""
    document = header.to_json()
    rows = [sealed((name, json.dumps(value))) for name, value in document.items()]
    connection.execute("BEGIN IMMEDIATE")
    create_tables(connection, header.parameters)
    connection.executemany("INSERT INTO header VALUES (?, ?, ?)", rows)
    connection.execute("COMMIT")
