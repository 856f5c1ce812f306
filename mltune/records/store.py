"""The store of a run: one SQLite file with every trial, written before the search receives the result."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from mltune.errors import DamagedRunError, DiskFullError, RunDirectoryError, StoreError
from mltune.records.directory import FILE, lock_directory, store_file
from mltune.records.header import RunHeader
from mltune.records.reference import Reference
from mltune.records.rows import COLUMNS, PARAMETER_PREFIX, SINCE_FORMAT_2, from_row, to_row
from mltune.records.trial import TrialRecord

_APPLICATION = 0x6D6C7475  # "mltu" distinguishes our files from other SQLite files
_FORMAT = 2
_OLD_FACTS = {"reference_median_s": "cublas_median_s"}  # names in stores written before version 0.2
_NO_ROOM = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}


class Store:
    """The records of one run, in its directory.

    A context manager, created by :meth:`open` or :meth:`read_only`. Records survive the death of the process once
    :meth:`append` has returned. One process at a time writes; others may read at the same time.

    Stores of format 1, the first, can be read: what they lack is returned as unknown. They cannot be written.

    Attributes
    ----------
    directory : pathlib.Path
        The directory of the run.
    header : RunHeader
        The header on file: that of the first :meth:`open`.
    """

    def __init__(self, directory: Path, connection: sqlite3.Connection, lock: int | None = None) -> None:
        self.directory = directory
        self._format, self.header = _read_header(connection, directory)
        self._connection = connection
        self._lock = lock
        self._names = tuple(self.header.parameters)

    @classmethod
    def open(cls, directory: Path, header: RunHeader | None = None) -> Self:
        """Open the store of a run for writing.

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
        StoreError
            The store cannot be created on a full disk.
        """
        directory = Path(directory)
        path = directory / FILE
        if header is None:
            _must_exist(directory)
        with contextlib.ExitStack() as undo:
            lock = lock_directory(directory)
            undo.callback(os.close, lock)
            if header is not None and not (path.exists() and path.stat().st_size):
                _create(directory, header)
            connection = _connect(f"file:{quote(str(path.absolute()))}?mode=rwc", directory)
            undo.callback(connection.close)
            store = cls(directory, connection, lock)  # checks the file before anything is written to it
            if store._format != _FORMAT:
                raise RunDirectoryError(
                    f"a run that is resumed has a store of format {_FORMAT}, but {path} is of format "
                    f"{store._format}, which can only be read; choose another directory."
                )
            difference = "" if header is None else store.header.difference(header)
            if difference:
                raise RunDirectoryError(
                    f"a run directory belongs to one run, but in {directory} {difference}; "
                    "choose another directory, or repeat the command that began the run."
                )
            with _on_file(directory):
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
            undo.pop_all()
            return store

    @classmethod
    def read_only(cls, directory: Path) -> Self:
        """Open the store of a run for reading, also while the run goes on.

        Raises
        ------
        RunDirectoryError
            The directory holds no run.
        """
        directory = Path(directory)
        path = _must_exist(directory)
        alone = not os.access(directory, os.W_OK) and not Path(f"{path}-wal").exists()
        location = f"file:{quote(str(path.absolute()))}?mode=ro{'&immutable=1' if alone else ''}"
        with contextlib.ExitStack() as undo:
            connection = _connect(location, directory)
            undo.callback(connection.close)
            store = cls(directory, connection)
            undo.pop_all()
            return store

    def append(self, *records: TrialRecord) -> None:
        """Write records in one transaction: all of them or, if that fails, none.

        Raises
        ------
        StoreError
            The disk is full or broken, or the number of a record exists already. Earlier records are unchanged.
        """
        rows = [to_row(record, self._names) for record in records]
        columns = _columns(self._names)
        marks = ", ".join("?" * len(columns))
        with self._transaction():
            self._connection.executemany(f"INSERT INTO trials ({', '.join(columns)}) VALUES ({marks})", rows)  # noqa: S608

    def records(self, after: int = 0) -> list[TrialRecord]:
        """Return all records in order of appending, without the first ``after``."""
        return [from_row(row, self._names) for row in self._rows(after)]

    def __len__(self) -> int:
        return int(self._query("SELECT COUNT(*) FROM trials")[0][0])

    def seconds(self) -> dict[str, float]:
        """Return the seconds spent in every phase of the run; see :mod:`mltune.records.seconds`."""
        return dict(self._query("SELECT name, value FROM seconds ORDER BY rowid"))

    def set_seconds(self, seconds: Mapping[str, float]) -> None:
        """Replace the seconds spent in some phases."""
        rows = [(name, float(value)) for name, value in seconds.items()]
        with self._transaction():
            self._connection.executemany("INSERT OR REPLACE INTO seconds VALUES (?, ?)", rows)

    def fact(self, name: str) -> Any:
        """Return a fact of the run, or None if it is unknown."""
        found = self._query("SELECT value FROM facts WHERE name = ?", name)
        if not found and name in _OLD_FACTS:
            return self.fact(_OLD_FACTS[name])
        return json.loads(found[0][0]) if found else None

    def set_fact(self, name: str, value: Any) -> None:
        """Write or replace a fact of the run, such as ``"reference_median_s"``: a plain JSON value."""
        with self._transaction():
            self._connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, json.dumps(value)))

    def append_reference(self, reference: Reference) -> None:
        """Append a timing of the reference kernel."""
        values = dataclasses.astuple(reference)
        with self._transaction():
            marks = ", ".join("?" * len(values))
            self._connection.execute(f"INSERT INTO reference_timings VALUES ({marks})", values)  # noqa: S608

    def references(self) -> list[Reference]:
        """Return the timings of the reference kernel in order of measurement."""
        if self._format == 1:
            return []
        return [Reference(*row) for row in self._query("SELECT * FROM reference_timings ORDER BY rowid")]

    def close(self) -> None:
        """Close the file and release the run directory. Appended records are on file already."""
        if self._lock is not None:
            # Back to one plain file, which can be read from a read-only medium. A reader may prevent that.
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("PRAGMA busy_timeout = 100")
                self._connection.execute("PRAGMA journal_mode = DELETE")
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

    def _rows(self, after: int = 0) -> list[tuple[Any, ...]]:
        lacking = {f'"{name}"' for name in SINCE_FORMAT_2} if self._format == 1 else frozenset()
        columns = ", ".join("NULL" if column in lacking else column for column in _columns(self._names))
        return self._query(f"SELECT {columns} FROM trials WHERE sequence > ? ORDER BY sequence", after)  # noqa: S608

    def _query(self, text: str, *values: str | int) -> list[tuple[Any, ...]]:
        with _on_file(self.directory):
            return self._connection.execute(text, values).fetchall()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with _on_file(self.directory):
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise


@contextlib.contextmanager
def _on_file(directory: Path) -> Iterator[None]:
    """Convert exceptions of SQLite to StoreError."""
    try:
        yield
    except sqlite3.IntegrityError as error:
        raise StoreError(
            f"a trial's number must be new to its run, but {directory / FILE} refused: {error}."
        ) from error
    except (sqlite3.Error, OverflowError) as error:
        raise (DiskFullError if _lacks_room(error) else StoreError)(
            f"every trial must be recorded, but {directory / FILE} cannot be used: {error}; the trials recorded before "
            "are safe: make room on the disk, then repeat the command to go on."
        ) from error


def _lacks_room(error: Exception) -> bool:
    """Return whether an operation failed because the disk is full or broken."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _NO_ROOM  # the other bytes hold details


def _must_exist(directory: Path) -> Path:
    path = store_file(directory)
    if not path.is_file():
        raise RunDirectoryError(f"a run directory holds a file {FILE}, but there is none in {directory}.")
    return path


def _connect(location: str, directory: Path) -> sqlite3.Connection:
    with _readable(directory):
        return sqlite3.connect(location, uri=True, timeout=30.0, isolation_level=None)


def _columns(parameters: Iterable[str]) -> dict[str, str]:
    """Return the columns of the trials, quoted, and their SQL types."""
    columns = {f'"{name}"': kind for name, kind in COLUMNS.items()}
    quoted = ((PARAMETER_PREFIX + name).replace('"', '""') for name in parameters)
    return columns | {f'"{name}"': "INTEGER NOT NULL" for name in quoted}


def _create(directory: Path, header: RunHeader) -> None:
    """Create the store under another name and rename it: a crash or a full disk leaves all of it or nothing."""
    new = (directory / FILE).with_suffix(".new")
    with _on_file(directory):
        try:
            new.unlink(missing_ok=True)
            with contextlib.closing(sqlite3.connect(new, isolation_level=None)) as connection:
                connection.execute("PRAGMA journal_mode = MEMORY")  # no second file to leave behind
                _fill(connection, header)
            new.replace(directory / FILE)
        except OSError as error:
            raise RunDirectoryError(f"a run directory must be writable, but {directory} is not: {error}.") from error


def _fill(connection: sqlite3.Connection, header: RunHeader) -> None:
    """Create the tables and write the header."""
    columns = [f"{name} {kind}" for name, kind in _columns(header.parameters).items()]
    for statement in (
        "BEGIN IMMEDIATE",
        f"PRAGMA application_id = {_APPLICATION}",
        f"PRAGMA user_version = {_FORMAT}",
        "CREATE TABLE header (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
        "CREATE TABLE seconds (name TEXT PRIMARY KEY, value REAL NOT NULL)",
        f"CREATE TABLE reference_timings ({', '.join(field.name for field in dataclasses.fields(Reference))})",
        "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
        f"CREATE TABLE trials (sequence INTEGER PRIMARY KEY, {', '.join(columns)}, UNIQUE (number))",
    ):
        connection.execute(statement)
    document = header.to_json()
    connection.executemany("INSERT INTO header VALUES (?, ?)", [(key, json.dumps(document[key])) for key in document])
    connection.execute("COMMIT")


def _read_header(connection: sqlite3.Connection, directory: Path) -> tuple[int, RunHeader]:
    """Return the format of a store and its header."""
    with _readable(directory):
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if application != _APPLICATION or not 1 <= version <= _FORMAT:
            raise RunDirectoryError(
                f"a run directory holds a store of format 1 to {_FORMAT}, but {directory / FILE} is "
                + (f"of format {version}" if application == _APPLICATION else "no store of mltune")
                + "; choose another directory."
            )
        rows = connection.execute("SELECT name, value FROM header ORDER BY rowid").fetchall()
        return version, RunHeader.from_json({name: json.loads(value) for name, value in rows})


@contextlib.contextmanager
def _readable(directory: Path) -> Iterator[None]:
    """Convert the exceptions of a file that is not a store to RunDirectoryError."""
    try:
        yield
    except (sqlite3.Error, ValueError, TypeError, KeyError, AttributeError) as error:
        path = directory / FILE
        if _lacks_room(error):
            raise DiskFullError(f"a store needs room on the disk, but {path} has none: {error}.") from error
        raise DamagedRunError(
            f"a run directory holds a store of mltune, but {path} cannot be read: {error}."
        ) from error
