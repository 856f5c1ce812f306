"""Tables of a run in an SQLite file in its directory: ``run.sqlite``.

A file is in WAL mode for its whole life: new records go to ``run.sqlite-wal`` first, and move to ``run.sqlite`` when
the run ends. A reader changes nothing in the directory of a run that does not go on. The directory was checked before
(:func:`mltune.records.directory.check_directory`): its files are regular ones.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Self
from urllib.parse import quote

from mltune.errors import StoreError
from mltune.files.atomic import write_file_atomically
from mltune.files.reading import parse_json
from mltune.records.directory import FILE, in_use, written_in
from mltune.records.header import RunHeader
from mltune.records.rows import (
    AT_ONCE,
    MOST_ROWS,
    MOST_TRIALS_SIZE,
    UNREADABLE,
    FailureKind,
    Row,
    check_tables,
    create_tables,
    sealed,
    store_failure,
    trial_columns,
    trials_statement,
    unsealed,
)

CLOSED = "closed"
"""The fact that says whether the last process that wrote to the file closed it."""

_MAX_CELL_BYTES = 1 << 20
_BUSY_S = 30.0
_LOST = f"the process that wrote this run did not close it, and {FILE}-wal is missing: the trials that it held are lost"
_KINDS: dict[int, FailureKind] = {
    **dict.fromkeys((sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR), "full"),
    **dict.fromkeys(
        (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_ERROR), "damaged"
    ),
}


class FileTables:
    """Tables of a run in its file. The attributes are those of :class:`mltune.records.store.Tables`."""

    def __init__(self, directory: Path, connection: sqlite3.Connection, *, writable: bool = False) -> None:
        self.writable = writable
        self._directory = directory
        self._connection = connection
        self._undo = contextlib.ExitStack()
        with self._transaction("DEFERRED"):
            trials = check_tables(connection)
            rows = unsealed("header", self.rows("header"))
            self.header = RunHeader.from_json({name: parse_json(value) for name, value in rows})
            if trials != trials_statement(self.header.parameters):
                raise ValueError("its trials do not have the parameters of its header")
        self.notice = ""

    @classmethod
    def for_writing(cls, directory: Path, header: RunHeader | None) -> Self:
        """Open the file in a directory that is locked; with a header it is created if it is missing."""
        if header is not None and not os.path.lexists(directory / FILE):
            _create(directory, header)
        with contextlib.ExitStack() as undo, _errors(directory):
            wal_was_missing = _wal_is_missing(directory)
            _check_sizes(directory)
            connection = undo.enter_context(contextlib.closing(_connection(directory / FILE, "mode=rw")))
            connection.execute("PRAGMA synchronous = NORMAL")  # recovers what a kill left behind
            tables = cls(directory, connection, writable=True)  # checks the file before anything is written to it
            tables.header.check_continued(header, directory)
            tables._notice_loss(wal_was_missing)
            tables._mark(closed=False)
            undo.pop_all()
            return tables

    @classmethod
    def for_reading(cls, directory: Path) -> Self:
        """Open the file in a directory."""
        with contextlib.ExitStack() as undo, _errors(directory):
            connection = undo.enter_context(_connected_for_reading(directory))
            tables = cls(directory, connection)
            tables._notice_loss(_wal_is_missing(directory))
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
        columns = ", ".join(trial_columns(self.header.parameters))
        statement = f"SELECT sequence, {columns}, checksum FROM trials WHERE sequence > ? ORDER BY sequence"  # noqa: S608
        cursor = self._connection.execute(statement, (after,))
        while rows := cursor.fetchmany(AT_ONCE):
            yield rows

    def rows(self, table: str) -> list[Row]:
        """Return the rows of another table."""
        statement = f"SELECT * FROM {table} ORDER BY rowid LIMIT {MOST_ROWS}"  # noqa: S608
        return self._connection.execute(statement).fetchall()

    def write(self, changes: Sequence[tuple[str, Sequence[Row]]]) -> None:
        """Write rows in one transaction."""
        with _errors(self._directory), self._transaction("IMMEDIATE"):
            for table, rows in changes:
                target = f"OR REPLACE INTO {table}"
                if table == "trials":
                    target = f"INTO trials ({', '.join([*trial_columns(self.header.parameters), 'checksum'])})"
                marks = ", ".join("?" * len(rows[0]))
                self._connection.executemany(f"INSERT {target} VALUES ({marks})", rows)  # noqa: S608

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


def _kind(error: Exception) -> FailureKind:
    if isinstance(error, sqlite3.IntegrityError):
        return "duplicate"
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if isinstance(error, sqlite3.DatabaseError) and not code:  # text that is not UTF-8
        return "damaged"
    return _KINDS.get(code, "unusable")


def _create(directory: Path, header: RunHeader) -> None:
    """Create the file with its tables and the header, complete or not at all."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        rows = [sealed((name, json.dumps(value))) for name, value in header.to_json().items()]
        connection.execute("BEGIN IMMEDIATE")
        create_tables(connection, header.parameters)
        connection.executemany("INSERT INTO header VALUES (?, ?, ?)", rows)
        connection.execute("COMMIT")
        image = bytearray(connection.serialize())
    # Both version numbers of SQLite's file format: the file is in WAL mode from the start (sqlite.org/fileformat2.html,
    # 1.3.3). To switch to it later would take a rollback journal, and a kill could leave that behind.
    image[18:20] = bytes([2, 2])
    with written_in(directory):
        write_file_atomically(directory / FILE, bytes(image))


@contextlib.contextmanager
def _connected_for_reading(directory: Path) -> Iterator[sqlite3.Connection]:
    """Connect to the store of a run for reading, together with a process that writes to it.

    Otherwise the file is read as it is, or where a killed process left records beside it, a recovered private copy.
    """
    _check_sizes(directory)
    if in_use(directory):
        with contextlib.closing(_connection(directory / FILE, "mode=ro")) as connection:
            try:
                connection.execute("SELECT 1 FROM sqlite_master").fetchone()
            except sqlite3.OperationalError:  # the directory cannot be written: SQLite coordinates through a file in it
                pass
            else:
                yield connection
                return
    elif not _size(directory / f"{FILE}-wal"):
        with contextlib.closing(_connection(directory / FILE, "mode=ro&immutable=1")) as connection:
            yield connection
        return
    with tempfile.TemporaryDirectory(prefix="mltune-") as folder:
        for suffix in ("", "-wal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(directory / f"{FILE}{suffix}", Path(folder) / f"{FILE}{suffix}")
        with contextlib.closing(_connection(Path(folder) / FILE, "mode=rw")) as connection:
            yield connection


def _wal_is_missing(directory: Path) -> bool:
    """Return whether there is no write-ahead log, which SQLite keeps beside a store in use."""
    return not os.path.lexists(directory / f"{FILE}-wal")


def _connection(path: Path, options: str) -> sqlite3.Connection:
    location = f"file:{quote(os.fsencode(path.absolute()))}?{options}"
    connection = sqlite3.connect(location, uri=True, timeout=_BUSY_S, isolation_level=None)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_CELL_BYTES)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    return connection


def _check_sizes(directory: Path) -> None:
    """Check that the files that SQLite would open are within the limit, and that none is a rollback journal.

    A journal may name another file, which SQLite would open and delete.
    """
    if _size(directory / f"{FILE}-journal"):
        raise ValueError(f"{FILE}-journal lies beside it, which mltune does not write")
    for suffix in ("", "-wal", "-shm"):
        size = _size(directory / f"{FILE}{suffix}")
        if size > MOST_TRIALS_SIZE:
            raise ValueError(f"{FILE}{suffix} has {size} bytes; it may have {MOST_TRIALS_SIZE}")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
