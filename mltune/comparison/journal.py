"""The journal of a comparison: an SQLite file of finished runs, with which it is split and resumed.

Journals of other shares come from other machines, and any journal may be damaged: what is read is checked.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from mltune.comparison.simulation import Trace
from mltune.errors import DamagedRunError, MltuneError, RunDirectoryError, StoreError
from mltune.files.atomic import write_file_atomically
from mltune.files.reading import kind_of, reason
from mltune.files.text import printable

_TABLES = """
create table if not exists facts (name text primary key, value text not null) strict;
create table if not exists runs (
    strategy text, dataset text, seed integer, error text, indices blob, own_s blob, recorded_s blob,
    repeats integer, invalid integer, skipped_before integer, skipped_after integer,
    primary key (strategy, dataset, seed)
) strict;
"""
_MAX_BYTES = 1 << 32
_MAX_CELL_BYTES = 1 << 20
_LONGEST_ERROR = 2000
_LONGEST_S = 1e9
_BUSY_S = 60.0
_OF_THE_MACHINE = frozenset(
    {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}
    | {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
)
"""Codes of errors that are not the file's fault."""

DATASET, STRATEGY = "dataset ", "strategy "
"""Prefixes of the names of facts about a dataset, and about the source of a user's strategy."""

_OWN = ("runs-", "summary.json", "table.md", "evaluations.parquet", "curves")
"""Beginnings of the names of a comparison's files."""


class Job(NamedTuple):
    """One run: a strategy, a dataset and a seed."""

    strategy: str
    dataset: str
    seed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a job: a trace, or an error."""

    job: Job
    trace: Trace | None
    error: str = ""

    @property
    def reason(self) -> str:
        """The last line of the error, printable."""
        return printable((self.error.strip().splitlines() or ["it has no trace"])[-1], longest=300)


class Journal:
    """The runs of a comparison, in a directory that is created if it is missing.

    Each share of a comparison writes its own file, ``runs-PARTofPARTS.sqlite``, and reads the files of all shares: to
    join shares from several machines, copy their files into one directory. Each run is written atomically. All runs
    share some facts: those of an existing journal must be equal.
    """

    def __init__(self, directory: Path, facts: Mapping[str, Any], share: tuple[int, int] = (1, 1)) -> None:
        self.directory = directory
        self._file = directory / "runs-{}of{}.sqlite".format(*share)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            _check_own(directory)
            if not os.path.lexists(self._file):
                write_file_atomically(self._file, _empty())
        except OSError as error:
            raise StoreError(
                f"a comparison writes a journal, but {self._file} cannot be written: {reason(error)}."
            ) from error
        self._agree({name: json.dumps(value, sort_keys=True) for name, value in facts.items()})
        self._database = _connect(self._file)

    def _agree(self, facts: Mapping[str, str]) -> None:
        for path in self._files():
            with _opened(path) as database:
                if path == self._file:
                    database.executemany("insert or ignore into facts values (?, ?)", facts.items())
                there = dict(database.execute("select name, value from facts limit 1000"))
            differing = [name for name, value in facts.items() if there.get(name, value) != value]
            if differing:
                name = differing[0]
                what = f"content of {name}" if name.startswith((DATASET, STRATEGY)) else name
                before, now = (printable(found[name], longest=100) for found in (there, facts))
                raise RunDirectoryError(
                    f"all runs of a comparison have the same {what}, but in {path} it was {before}, and now it is "
                    f"{now}; choose another --output, or delete that file to begin anew."
                )

    def _files(self) -> list[Path]:
        return sorted(self.directory.glob("runs-*of*.sqlite"))

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def add(self, outcome: Outcome) -> None:
        """Write the outcome of a job."""
        trace = outcome.trace
        values: tuple[Any, ...] = (None,) * 7
        if trace is not None:
            columns = (trace.indices, trace.own_s, trace.recorded_s)
            counts = (trace.repeats, trace.invalid, trace.skipped_before, trace.skipped_after)
            values = (*(column.tobytes() for column in columns), *counts)
        try:
            self._database.execute(
                f"insert or replace into runs values ({', '.join('?' * 11)})",  # noqa: S608
                (*outcome.job, outcome.error.encode("utf-8", "backslashreplace").decode(), *values),
            )
        except sqlite3.Error as error:
            raise StoreError(
                f"a run is written when it ends, but {self._file} cannot be written: {reason(error)}."
            ) from error

    def outcomes(self, jobs: Iterable[Job], sizes: Mapping[str, int], evaluations: int) -> dict[Job, Outcome]:
        """Return the outcomes of jobs in the journals of the directory; a trace takes precedence over an error.

        A record that is damaged counts as an error: a run has at most ``evaluations`` configurations of a dataset of
        one of the ``sizes``.
        """
        wanted = list(jobs)
        known: dict[Job, Outcome] = {}
        for path in self._files():
            with _opened(path) as database:
                for job in wanted:
                    if job in known and known[job].trace is not None:
                        continue
                    row = database.execute(
                        "select * from runs where strategy = ? and dataset = ? and seed = ?", job
                    ).fetchone()
                    if row is not None:
                        known[job] = _outcome(job, row[3:], sizes[job.dataset], evaluations)
        return known


def _check_own(directory: Path) -> None:
    """Check that the files of a comparison are its own: through a link it would overwrite something elsewhere."""
    for path in directory.iterdir():
        if path.name.startswith(_OWN) and kind_of(path) != "a regular file":
            raise RunDirectoryError(
                f"the directory of a comparison holds its own files, but {path} is {kind_of(path)}; "
                "remove it, or choose another --output."
            )


def _empty() -> bytes:
    """Return a journal without runs, in WAL mode from the start: a kill at any moment leaves a file that opens."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        database.executescript(_TABLES)
        image = bytearray(database.serialize())
    image[18:20] = bytes([2, 2])  # sqlite.org/fileformat2.html, 1.3.3
    return bytes(image)


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a journal for a moment, with errors that name it."""
    with closing(_connect(path)) as database:
        try:
            yield database
        except sqlite3.Error as error:
            raise _unreadable(path, error) from error


def _connect(path: Path) -> sqlite3.Connection:
    """Connect to an existing journal, after checking that it has exactly the tables of one."""
    for suffix, most in (("", _MAX_BYTES), ("-wal", _MAX_BYTES), ("-journal", 0)):
        beside = path.with_name(path.name + suffix)
        if beside.exists() and beside.stat().st_size > most:
            raise _damaged(path, f"{beside.name} has {beside.stat().st_size} bytes")
    try:
        location = f"file:{quote(str(path.absolute()))}?mode=rw"
        database = sqlite3.connect(location, uri=True, timeout=_BUSY_S, isolation_level=None)
        try:
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_CELL_BYTES)
            database.execute("pragma trusted_schema = off")
            if _schema(database) != _expected_schema():
                raise _damaged(path, "its tables are not those of a journal")
            return database
        except BaseException:
            database.close()
            raise
    except sqlite3.Error as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: sqlite3.Error) -> MltuneError:
    if (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _OF_THE_MACHINE:
        return StoreError(f"a comparison reads and writes its journal, but {path} cannot be used: {reason(error)}.")
    return _damaged(path, error)


def _schema(database: sqlite3.Connection) -> set[tuple[str, ...]]:
    """Return all tables, indices, views and triggers."""
    return set(database.execute("select type, name, tbl_name, sql from sqlite_schema limit 20"))


def _expected_schema() -> set[tuple[str, ...]]:
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(_TABLES)
        return _schema(database)


def _damaged(path: Path, error: object) -> DamagedRunError:
    return DamagedRunError(
        f"{path} must be the journal of a comparison, but it is damaged or something else "
        f"({printable(error, longest=200)}); delete it, and its runs are repeated, or choose another --output."
    )


def _outcome(job: Job, row: tuple[Any, ...], size: int, evaluations: int) -> Outcome:
    """Return the outcome in a row of the journal; a trace that is impossible counts as an error."""
    error, *blobs, repeats, invalid, before, after = row
    counts = (repeats, invalid, before, after)
    if blobs == [None, None, None]:
        return Outcome(job, None, str(error)[:_LONGEST_ERROR])
    if all(type(blob) is bytes and len(blob) == len(blobs[0]) for blob in blobs) and len(blobs[0]) % 4 == 0:
        indices = np.frombuffer(blobs[0], dtype=np.int32)
        own_s, recorded_s = (np.frombuffer(blob, dtype=np.float32) for blob in blobs[1:])
        seconds = np.concatenate([own_s, recorded_s])
        distinct = np.unique(indices)
        if (
            len(distinct) == len(indices) <= evaluations
            and np.all((distinct >= 0) & (distinct < size))
            and np.all((seconds >= 0) & (seconds < _LONGEST_S))
            and all(type(count) is int and 0 <= count < _MAX_BYTES for count in counts)
        ):
            return Outcome(job, Trace(indices, own_s, recorded_s, *counts))
    return Outcome(job, None, "its record is damaged")
