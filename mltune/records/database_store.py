"""The store of a run in a PostgreSQL database, which the runs of many people and hosts share.

One process writes a run. It holds an advisory lock for its connection, and every transaction checks that no other
process has opened the run since: a process whose connection was lost cannot overtake the one that followed it.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import socket
import time
import uuid
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from mltune.errors import RunDirectoryError, StoreError
from mltune.files.documents import parse_json
from mltune.files.text import printable
from mltune.records import database
from mltune.records.database_schema import others, runs, trials
from mltune.records.directory import POINTER, lock_directory
from mltune.records.header import RunHeader
from mltune.records.pointer import Pointer
from mltune.records.rows import KINDS
from mltune.records.schema import checksum, sealed
from mltune.records.store import UNREADABLE, Store, damaged, elsewhere

_AT_ONCE = 5_000  # rows read together
_MOST_ROWS = 100_000  # of any table but the trials
_RELEASE_S = 5.0  # until the server has noticed that a killed process is gone
_NUL, _ESCAPE = "\0", "\ue000"  # PostgreSQL has no text with NUL

_Statement = tuple[sa.Executable, Sequence[dict[str, Any]]]


class DatabaseStore(Store):
    """The records of a run in the database that ``run.json`` names.

    A writer that loses its connection waits for the database (:data:`mltune.records.database.PATIENCE_S`) and
    repeats what was not committed.
    """

    def __init__(self, directory: Path, pointer: Pointer, header: RunHeader, writer: _Writer | None = None) -> None:
        super().__init__(directory, header)
        self._pointer = pointer
        self._writer = writer
        self._connection: sa.Connection | None = None  # of the transaction that reads
        self._pending: list[_Statement] | None = None  # of the transaction that writes
        self._written = 0  # trials, as far as this writer knows
        self._undo = contextlib.ExitStack()

    @classmethod
    def for_writing(cls, directory: Path, header: RunHeader | None, url: str = "") -> Self:
        """Open or create the run; see :meth:`Store.open`."""
        url = database.parse_url(url) if url else ""
        with contextlib.ExitStack() as undo:
            lock = lock_directory(directory)
            undo.callback(os.close, lock)
            pointer = _pointer(directory, url)
            with database.database_errors(pointer.database):
                begins = not (directory / POINTER).exists()
                database.prepare(pointer.database, patience_s=0.0 if begins else None)
                if url:
                    database.remember(url)
                writer = _Writer(directory, pointer, header)
                undo.callback(writer.close)
                if begins:  # last: a kill before it leaves an empty run in the database, not a directory without one
                    pointer.write(directory)
                store = cls(directory, pointer, _header(writer.connection, pointer), writer)
                store._check_header(header)
                store._written = len(store)
            store._undo = undo.pop_all()
            return store

    @classmethod
    def for_reading(cls, directory: Path) -> Self:
        """Open the run; see :meth:`Store.read_only`."""
        pointer = Pointer.read(directory)
        database.check_known(pointer.database, directory)
        with database.database_errors(pointer.database):
            database.prepare(pointer.database, patience_s=database.READER_PATIENCE_S)
            with database.connect(pointer.database, patience_s=database.READER_PATIENCE_S) as connection:
                return cls(directory, pointer, _header(connection, pointer))

    def close(self) -> None:
        """Let go of the run and its directory."""
        if self._writer is not None:
            self._writer = None
            self._undo.close()

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Read everything as it was at one moment; or where the store is written, write everything or nothing.

        What is written is sent at the end: until then it is not read.
        """
        with self._reading() if self._writer is None else self._writing():
            yield

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        with self._errors():
            if self._connection is not None:
                yield
                return
            with contextlib.ExitStack() as undo:
                if self._writer is None:
                    patience_s = database.READER_PATIENCE_S
                    connection = undo.enter_context(database.connect(self._pointer.database, patience_s=patience_s))
                else:
                    connection = self._writer.alive()
                undo.enter_context(connection.begin())
                self._connection = connection
                undo.callback(setattr, self, "_connection", None)
                yield

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        with self._errors():
            if self._pending is not None:
                yield
                return
            if self._writer is None:
                raise StoreError(f"a store is written once it is open for writing, but {self.directory} is not.")
            written, self._pending = self._written, []
            try:
                yield
                self._writer.write(self._pending)
            except BaseException:
                self._written = written
                raise
            finally:
                self._pending = None

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert what can go wrong to the exceptions of mltune."""
        with database.database_errors(self._pointer.database):
            try:
                yield
            except UNREADABLE as error:
                raise damaged(f"run {self._pointer.run} in {self._pointer.database}", error) from error

    def _select(self, statement: sa.Select[Any]) -> sa.CursorResult[Any]:
        assert self._connection is not None  # noqa: S101 - only called while reading
        return self._connection.execute(statement)

    def _count(self) -> int:
        mine = trials.c.run == self._pointer.run
        return int(self._select(sa.select(sa.func.count()).select_from(trials).where(mine)).scalar_one())

    def _rows(self, after: int) -> Generator[Sequence[tuple[Any, ...]]]:
        columns = [trials.c.sequence, *(trials.c[name] for name in KINDS), trials.c.checksum, trials.c.configuration]
        statement = (
            sa.select(*columns)
            .where(trials.c.run == self._pointer.run, trials.c.sequence > after)
            .order_by(trials.c.sequence)
        )
        with self._select(statement.execution_options(yield_per=_AT_ONCE)) as found:
            for rows in found.partitions():
                yield [self._cells(row) for row in rows]

    def _cells(self, row: Any) -> tuple[Any, ...]:
        """Return the cells of a row of :attr:`trials`, with the values of the parameters before the checksum."""
        *cells, seal, configuration = row
        if len(configuration) != len(self._names):
            raise ValueError("its trials do not have the parameters of its header")
        return (*map(_from_text, cells), *(configuration[name] for name in self._names), seal)

    def _read(self, table: str) -> list[tuple[Any, ...]]:
        source = others[table]
        mine = sa.select(*_content(source)).where(source.c.run == self._pointer.run).order_by(source.c.position)
        found = self._select(mine.limit(_MOST_ROWS)).all()
        for at, row in enumerate(found):
            if checksum(tuple(row[:-1])) != row[-1]:
                raise ValueError(f"row {at + 1} of {table} has changed since it was written")
        return [tuple(row[:-1]) for row in found]

    def _insert(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        assert self._pending is not None  # noqa: S101 - only called while writing
        if not rows:
            return
        run = self._pointer.run
        if table == "trials":
            names = [*KINDS, "configuration", "checksum"]
            documents = []
            for sequence, row in enumerate(rows, self._written + 1):
                values = dict(zip(self._names, row[len(KINDS) : -1], strict=True))
                cells = (*map(_to_text, row[: len(KINDS)]), values, row[-1])
                documents.append({"run": run, "sequence": sequence, **dict(zip(names, cells, strict=True))})
            self._written += len(rows)
            self._pending.append((sa.insert(trials), documents))
            return
        target = others[table]
        names = [column.name for column in _content(target)]
        if "name" in names:
            replaced = target.c.name.in_([row[0] for row in rows])
            self._pending.append((sa.delete(target).where(target.c.run == run, replaced), ()))
        documents = [{"run": run, **dict(zip(names, row, strict=True))} for row in rows]
        self._pending.append((sa.insert(target), documents))


class _Writer:
    """The connection of the process that writes a run, replaced when it is lost."""

    def __init__(self, directory: Path, pointer: Pointer, header: RunHeader | None) -> None:
        self._directory = directory
        self._pointer = pointer
        self._token = uuid.uuid4()
        self.connection = self._connected()
        try:
            self._lock()
            with self.connection.begin():
                self._sign(header)
        except BaseException:
            self.close()
            raise

    def alive(self) -> sa.Connection:
        """Return the connection, made again if it was lost."""
        try:
            with self.connection.begin():
                self.connection.execute(sa.text("SELECT 1"))
        except DBAPIError as error:
            if not database.is_lost(error):
                raise
            self._connect_again()
        return self.connection

    def write(self, statements: Sequence[_Statement]) -> None:
        """Write in one transaction; after a lost connection again, unless it was committed."""
        token, deadline = uuid.uuid4(), time.monotonic() + database.PATIENCE_S
        mine, lost = (runs.c.id == self._pointer.run) & (runs.c.writer == self._token), False
        while statements:
            try:
                if lost:
                    self._connect_again()  # it has the lock of the run: whatever the lost one began has ended
                    with self.connection.begin():
                        if self.connection.scalar(sa.select(runs.c.last_write).where(mine)) == token:
                            return  # the answer to the commit was lost, not the commit
                with self.connection.begin():
                    found = self.connection.execute(sa.update(runs).where(mine).values(last_write=token))
                    if found.rowcount != 1:
                        raise self._overtaken()
                    for statement, rows in statements:
                        self.connection.execute(statement, rows or None)
                return
            except DBAPIError as error:
                if not database.is_lost(error) or time.monotonic() > deadline:
                    raise
                lost = True

    def close(self) -> None:
        """Close the connection, which lets go of the run."""
        with contextlib.suppress(SQLAlchemyError):
            self.connection.invalidate()
            self.connection.close()

    def _connect_again(self) -> None:
        self.close()
        self.connection = self._connected()
        self._lock()

    def _connected(self) -> sa.Connection:
        """Return a new connection; who writes waits for the end of another's transaction."""
        return database.connect(self._pointer.database).execution_options(isolation_level="READ COMMITTED")

    def _lock(self) -> None:
        """Take the lock of the run, with patience for the connection of a process that was killed."""
        lock, deadline = sa.select(sa.func.pg_try_advisory_lock(_key(self._pointer.run))), time.monotonic() + _RELEASE_S
        while True:
            with self.connection.begin():
                if self.connection.scalar(lock):
                    return
                row = self.connection.execute(
                    sa.select(runs.c.owner, runs.c.host).where(runs.c.id == self._pointer.run)
                ).first()
            if time.monotonic() > deadline:
                holder = "another process" if row is None else f"{row.owner} on {row.host}"
                raise RunDirectoryError(
                    f"a run is written by one process at a time, but that of {self._directory} is in use by "
                    f"{printable(holder, 100)}; wait for it to end, or choose another directory."
                )
            time.sleep(0.05)

    def _sign(self, header: RunHeader | None) -> None:
        """Make this process the writer of the run; a run that was only begun gets its row."""
        writer = {
            "owner": _user(),
            "host": socket.gethostname(),
            "directory": _to_text(str(self._directory.absolute()).encode(errors="replace").decode()),
            "writer": self._token,
        }
        mine = runs.c.id == self._pointer.run
        if self.connection.execute(sa.update(runs).where(mine).values(**writer)).rowcount:
            return
        if header is None:
            raise _missing(self._pointer)
        text, seal = sealed((json.dumps(header.to_json()),))
        self.connection.execute(sa.insert(runs).values(id=self._pointer.run, header=text, checksum=seal, **writer))

    def _overtaken(self) -> StoreError:
        return StoreError(
            f"a run is written by one process at a time, but another has opened that of {self._directory} since; "
            "what it had before is safe."
        )


def is_locked(directory: Path) -> bool:
    """Return whether a process on any host writes to the run; False where the database does not answer."""
    with contextlib.suppress(StoreError, RunDirectoryError):
        pointer = Pointer.read(directory)
        database.check_known(pointer.database, directory)
        with database.database_errors(pointer.database), database.connect(pointer.database, patience_s=0.0) as found:
            return pointer.run in locked_runs(found, [pointer.run])
    return False


def locked_runs(connection: sa.Connection, among: Sequence[uuid.UUID]) -> set[uuid.UUID]:
    """Return which runs of a database are being written."""
    statement = sa.text(
        "SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 "
        "AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    held = set(connection.scalars(statement))
    return {run for run in among if _key(run) in held}


def _pointer(directory: Path, url: str) -> Pointer:
    """Return the pointer of a directory, or that of a new run."""
    if not (directory / POINTER).exists():
        return Pointer(url, uuid.uuid4())
    pointer = Pointer.read(directory)
    if url and url != pointer.database:
        raise elsewhere(directory, pointer.database)
    if not url:
        database.check_known(pointer.database, directory)
    return pointer


def _header(connection: sa.Connection, pointer: Pointer) -> RunHeader:
    with connection.begin():
        row = connection.execute(sa.select(runs.c.header, runs.c.checksum).where(runs.c.id == pointer.run)).first()
    if row is None:
        raise _missing(pointer)
    try:
        return header_of(row.header, row.checksum)
    except UNREADABLE as error:
        raise damaged(f"run {pointer.run} in {pointer.database}", error) from error


def header_of(text: str, seal: int) -> RunHeader:
    """Return the header of a run.

    Raises
    ------
    UNREADABLE
        It has changed since it was written, or is none.
    """
    if checksum((text,)) != seal:
        raise ValueError("its header has changed since it was written")
    return RunHeader.from_json(parse_json(text))


def _content(table: sa.Table) -> list[sa.Column[Any]]:
    """Return the columns of any table but the trials that hold what was written, with its checksum."""
    return [column for column in table.columns if column.name not in ("position", "run")]


def _missing(pointer: Pointer) -> RunDirectoryError:
    return RunDirectoryError(
        f"a run directory names a run of its database, but {pointer.database} has no run {pointer.run}; choose "
        "another directory."
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
