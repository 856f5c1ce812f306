"""Tables of a run in a PostgreSQL database, which the runs of many people and hosts share.

One process writes a run. It holds an advisory lock for its connection, and every transaction checks that no other
process has opened the run since: a process whose connection was lost cannot overtake the one that followed it.
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import json
import operator
import os
import socket
import time
import uuid
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from mltune.errors import RunDirectoryError, StoreError
from mltune.files.reading import parse_json
from mltune.files.text import printable
from mltune.records import database
from mltune.records.columns import COLUMNS
from mltune.records.database import Pointer
from mltune.records.database_schema import runs, small_tables, trials
from mltune.records.directory import POINTER
from mltune.records.header import RunHeader
from mltune.records.rows import (
    AT_ONCE,
    MOST_ROWS,
    UNREADABLE,
    Row,
    check_size,
    checksum,
    elsewhere,
    sealed,
    store_failure,
)

_RELEASE_S = 5.0  # until the server has noticed that a killed process is gone
_NUL, _ESCAPE = "\0", "\ue000"  # PostgreSQL has no text with NUL

_Statement = tuple[sa.Executable, Sequence[dict[str, Any]]]


class DatabaseTables:
    """Tables of a run in its database, as :class:`mltune.records.store.Tables`.

    A writer that loses its connection waits for :data:`mltune.records.database.PATIENCE_S` and repeats what was not
    committed.
    """

    def __init__(self, pointer: Pointer, writer: _Writer | None = None) -> None:
        self.notice = ""
        self.writable = writer is not None
        self._pointer = pointer
        self._writer = writer
        self._connection: sa.Connection | None = None  # of the transaction that reads
        with self.reading():
            of_run = runs.c.id == pointer.run
            self._check_size(runs, of_run)
            row = self._select(sa.select(runs.c.header, runs.c.checksum).where(of_run)).first()
            if row is None:
                raise _missing(pointer)
            self.header = header_of(row.header, row.checksum)
            self._written = self.count() if self.writable else 0  # trials, as far as this writer knows
        self._names = tuple(self.header.parameters)

    @classmethod
    def for_writing(cls, directory: Path, header: RunHeader | None, url: str) -> Self:
        """Open the run of a directory that is locked; with a header it is created if the directory names none."""
        url = database.parse_url(url) if url else ""
        begins = not (directory / POINTER).exists()
        pointer = Pointer(url, uuid.uuid4()) if begins else Pointer.read(directory)
        if url and url != pointer.database:
            raise elsewhere(directory, pointer.database)
        if not url:
            database.check_known(pointer.database, directory)
        with contextlib.ExitStack() as undo, database.database_errors(pointer.database):
            database.prepare(pointer.database, patience_s=0.0 if begins else None)
            if url:
                database.remember(url)
            writer = _Writer(directory, pointer, header)
            undo.callback(writer.close)
            if begins:  # last: a kill before it leaves an empty run in the database, not a directory without one
                pointer.write(directory)
            tables = cls(pointer, writer)
            tables.header.check_continued(header, directory)
            undo.pop_all()
            return tables

    @classmethod
    def for_reading(cls, directory: Path) -> Self:
        """Open the run that a directory names."""
        pointer = Pointer.read(directory)
        database.check_known(pointer.database, directory)
        with database.database_errors(pointer.database):
            database.prepare(pointer.database, patience_s=database.READER_PATIENCE_S)
            return cls(pointer)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Read in one transaction."""
        with self._errors(), contextlib.ExitStack() as undo:
            if self._connection is None:
                patience_s = None if self.writable else database.READER_PATIENCE_S
                connection = undo.enter_context(database.connect(self._pointer.database, patience_s=patience_s))
                undo.enter_context(connection.begin())
                self._connection = connection
                undo.callback(setattr, self, "_connection", None)
            yield

    def count(self) -> int:
        """Return the number of trials."""
        of_run = trials.c.run == self._pointer.run
        return int(self._select(sa.select(sa.func.count()).select_from(trials).where(of_run)).scalar_one())

    def trials(self, after: int) -> Generator[Sequence[Row]]:
        """Yield rows of trials."""
        newer = (trials.c.run == self._pointer.run) & (trials.c.sequence > after)
        self._check_size(trials, newer)
        columns = [trials.c.sequence, *(trials.c[name] for name in COLUMNS), trials.c.checksum, trials.c.configuration]
        statement = sa.select(*columns).where(newer).order_by(trials.c.sequence)
        with self._select(statement.execution_options(yield_per=AT_ONCE)) as result:
            for rows in result.partitions():
                yield [self._cells(row) for row in rows]

    def rows(self, table: str) -> list[Row]:
        """Return the rows of another table."""
        source = small_tables[table]
        of_run = source.c.run == self._pointer.run
        self._check_size(source, of_run)
        query = sa.select(*_content(source)).where(of_run).order_by(source.c.position).limit(MOST_ROWS)
        return [tuple(row) for row in self._select(query)]

    def write(self, changes: Sequence[tuple[str, Sequence[Row]]]) -> None:
        """Write rows in one transaction."""
        assert self._writer is not None  # noqa: S101 - it is writable
        statements: list[_Statement] = []
        written = self._written
        for table, rows in changes:
            if table == "trials":
                statements.append((sa.insert(trials), self._documents(rows, written)))
                written += len(rows)
            else:
                statements += self._replacements(small_tables[table], rows)
        with self._errors():
            self._writer.write(statements)
        self._written = written

    def close(self) -> None:
        """Release the run."""
        if self._writer is not None:
            self._writer.close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert errors of the database to the exceptions of mltune."""
        with database.database_errors(self._pointer.database):
            try:
                yield
            except UNREADABLE as error:
                place = f"run {self._pointer.run} in {self._pointer.database}"
                raise store_failure("damaged", place, error) from error

    def _select(self, statement: sa.Select[Any]) -> sa.CursorResult[Any]:
        assert self._connection is not None  # noqa: S101 - only called while reading
        return self._connection.execute(statement)

    def _check_size(self, table: sa.Table, of_run: sa.ColumnElement[bool]) -> None:
        """Check the size of texts before they are fetched."""
        check_size(table.name, int(self._select(sa.select(sa.func.sum(size_of(table))).where(of_run)).scalar() or 0))

    def _cells(self, row: Any) -> Row:
        """Return the cells of a row of :attr:`trials`, with the values of the parameters before the checksum."""
        *cells, seal, configuration = row
        if len(configuration) != len(self._names):
            raise ValueError("its trials do not have the parameters of its header")
        return (*map(_from_text, cells), *(configuration[name] for name in self._names), seal)

    def _documents(self, rows: Sequence[Row], written: int) -> list[dict[str, Any]]:
        """Return rows of trials by column; the first one follows ``written`` trials."""
        return [
            {
                "run": self._pointer.run,
                "sequence": sequence,
                **dict(zip(COLUMNS, map(_to_text, row), strict=False)),
                "configuration": dict(zip(self._names, row[len(COLUMNS) : -1], strict=True)),
                "checksum": row[-1],
            }
            for sequence, row in enumerate(rows, written + 1)
        ]

    def _replacements(self, table: sa.Table, rows: Sequence[Row]) -> Iterator[_Statement]:
        """Yield the statements that write rows of another table in place of those of the same names."""
        run, names = self._pointer.run, [column.name for column in _content(table)]
        if "name" in names:
            yield sa.delete(table).where(table.c.run == run, table.c.name.in_([row[0] for row in rows])), ()
        yield sa.insert(table), [{"run": run, **dict(zip(names, row, strict=True))} for row in rows]


class _Writer:
    """The connection of the process that writes a run, replaced when it is lost."""

    def __init__(self, directory: Path, pointer: Pointer, header: RunHeader | None) -> None:
        self._directory = directory
        self._pointer = pointer
        self._token = uuid.uuid4()
        self._mine = runs.c.id == pointer.run
        self._connection = self._connected()
        try:
            self._lock()
            with self._connection.begin():
                self._sign(header)
        except BaseException:
            self.close()
            raise

    def write(self, statements: Sequence[_Statement]) -> None:
        """Write in one transaction; if the connection is lost, repeat it unless it was committed."""
        token, deadline, lost = uuid.uuid4(), time.monotonic() + database.PATIENCE_S, False
        of_writer = self._mine & (runs.c.writer == self._token)
        while True:
            try:
                if lost:
                    self._connect_again()  # it has the lock of the run: whatever the lost one began has ended
                    with self._connection.begin():
                        if self._connection.scalar(sa.select(runs.c.last_write).where(of_writer)) == token:
                            return  # the answer to the commit was lost, not the commit
                with self._connection.begin():
                    result = self._connection.execute(sa.update(runs).where(of_writer).values(last_write=token))
                    if result.rowcount != 1:
                        raise StoreError(
                            f"another process has opened the run of {self._directory} since, and one at a time writes "
                            "it; what it had before is safe."
                        )
                    for statement, rows in statements:
                        self._connection.execute(statement, rows or None)
                return
            except DBAPIError as error:
                if not database.is_lost(error) or time.monotonic() > deadline:
                    raise
                lost = True

    def close(self) -> None:
        """Close the connection, which releases the run."""
        with contextlib.suppress(SQLAlchemyError):
            self._connection.invalidate()
            self._connection.close()

    def _connect_again(self) -> None:
        self.close()
        self._connection = self._connected()
        self._lock()

    def _connected(self) -> sa.Connection:
        """Return a new connection, on which a write waits for the end of another's transaction."""
        return database.connect(self._pointer.database).execution_options(isolation_level="READ COMMITTED")

    def _lock(self) -> None:
        """Take the lock of the run; if its writer was killed, wait until the server has noticed that."""
        lock, deadline = sa.select(sa.func.pg_try_advisory_lock(_key(self._pointer.run))), time.monotonic() + _RELEASE_S
        while True:
            with self._connection.begin():
                if self._connection.scalar(lock):
                    return
                row = self._connection.execute(sa.select(runs.c.owner, runs.c.host).where(self._mine)).first()
            if time.monotonic() > deadline:
                holder = "another process" if row is None else f"{row.owner} on {row.host}"
                raise RunDirectoryError(
                    f"the run of {self._directory} is in use by {printable(holder, 100)}, and one process at a time "
                    "writes it; wait for it to end, or choose another directory."
                )
            time.sleep(0.05)

    def _sign(self, header: RunHeader | None) -> None:
        """Make this process the writer of the run; a new run gets its row."""
        writer = {
            "owner": _user(),
            "host": socket.gethostname(),
            "directory": _to_text(str(self._directory.absolute()).encode(errors="replace").decode()),
            "writer": self._token,
        }
        if self._connection.execute(sa.update(runs).where(self._mine).values(**writer)).rowcount:
            return
        if header is None:
            raise _missing(self._pointer)
        text, seal = sealed((json.dumps(header.to_json()),))
        self._connection.execute(sa.insert(runs).values(id=self._pointer.run, header=text, checksum=seal, **writer))


def is_locked(directory: Path) -> bool:
    """Return whether a process on any host writes to the run; False where the database does not answer."""
    with contextlib.suppress(StoreError, RunDirectoryError):
        pointer = Pointer.read(directory)
        database.check_known(pointer.database, directory)
        with (
            database.database_errors(pointer.database),
            database.connect(pointer.database, patience_s=0.0) as connection,
        ):
            return pointer.run in locked_runs(connection, [pointer.run])
    return False


def locked_runs(connection: sa.Connection, among: Sequence[uuid.UUID]) -> set[uuid.UUID]:
    """Return those runs of a database that a process writes."""
    statement = sa.text(
        "SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 "
        "AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    held = set(connection.scalars(statement))
    return {run for run in among if _key(run) in held}


def size_of(table: sa.Table) -> sa.ColumnElement[int]:
    """Return the size of the texts in a row, bytes."""
    texts = (column for column in table.columns if isinstance(column.type, sa.Text | JSONB))
    sizes = (sa.func.coalesce(sa.func.octet_length(sa.cast(column, sa.Text)), 0) for column in texts)
    return functools.reduce(operator.add, sizes, sa.literal(0))


def header_of(text: str, seal: int) -> RunHeader:
    """Return the header of a run; one that has changed since it was written raises one of :data:`UNREADABLE`."""
    if checksum((text,)) != seal:
        raise ValueError("its header has changed since it was written")
    return RunHeader.from_json(parse_json(text))


def _content(table: sa.Table) -> list[sa.Column[Any]]:
    """Return the columns of any table but the trials that hold its content and the checksum."""
    return [column for column in table.columns if column.name not in ("position", "run")]


def _missing(pointer: Pointer) -> RunDirectoryError:
    return RunDirectoryError(
        f"{pointer.database} has no run {pointer.run}, which its directory names; choose another directory."
    )


def _key(run: uuid.UUID) -> int:
    """Return the number of a run's advisory lock: 64 bits with a sign."""
    return int.from_bytes(run.bytes[:8], "big", signed=True)


def _to_text(cell: Any) -> Any:
    if isinstance(cell, str) and (_NUL in cell or _ESCAPE in cell):
        return cell.replace(_ESCAPE, _ESCAPE + "1").replace(_NUL, _ESCAPE + "0")
    return cell


def _from_text(cell: Any) -> Any:
    if isinstance(cell, str) and _ESCAPE in cell:
        return cell.replace(_ESCAPE + "0", _NUL).replace(_ESCAPE + "1", _ESCAPE)
    return cell


def _user() -> str:
    """Return the name of the user; in a container there may be none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())
