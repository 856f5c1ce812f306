"""The store of a run: every trial, written before the search receives the result, and the seconds of each phase.

The records are in a file in the directory of the run (:mod:`mltune.records.file_tables`), or in a database that a file
in it names (:mod:`mltune.records.database_tables`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

from mltune.errors import DamagedRunError, RunDirectoryError, StoreError
from mltune.files.reading import parse_json
from mltune.records.columns import LONGEST_S, to_row
from mltune.records.declaration import Reference
from mltune.records.directory import FILE, POINTER, holds_run, in_use, lock_directory
from mltune.records.facts import Facts
from mltune.records.file_tables import CLOSED, FileTables
from mltune.records.header import RunHeader
from mltune.records.rows import Row, elsewhere, sealed, unsealed, unsealed_trials
from mltune.records.trial import TrialRecord
from mltune.records.trials import Trials

MOST_TRIALS = 1_000_000
"""Trials of a run."""

Changes = list[tuple[str, Sequence[Row]]]


class Tables(Protocol):
    """The tables of one run in one dialect of SQL: ``trials``, ``facts``, ``seconds`` and ``reference_timings``.

    Rows are written and read with a checksum as their last cell. Whatever goes wrong raises an exception of
    :mod:`mltune.records.rows`.
    """

    header: RunHeader
    notice: str
    writable: bool

    def reading(self) -> contextlib.AbstractContextManager[None]:
        """Read in one transaction; it may be nested."""

    def count(self) -> int:
        """Return the number of trials; while reading."""

    def trials(self, after: int) -> Generator[Sequence[Row]]:
        """Yield rows of trials, some at a time, each after its position from 1; while reading."""

    def rows(self, table: str) -> list[Row]:
        """Return the rows of another table in the order of writing, up to :data:`MOST_ROWS`; while reading."""

    def write(self, changes: Changes) -> None:
        """Write rows of some tables in one transaction; rows of facts and seconds replace those of the same name."""

    def close(self) -> None:
        """Close what was opened."""


class Store:
    """The records of one run. A context manager, created by :meth:`open` or :meth:`read_only`.

    Records survive the death of the process once :meth:`append` has returned. One process at a time writes; others may
    read meanwhile. `notice` says what may be missing although all of the store can be read.
    """

    def __init__(self, directory: Path, tables: Tables, lock: int | None = None) -> None:
        self.directory = directory
        self.header = tables.header
        self.notice = tables.notice
        self._tables = tables
        self._lock = lock
        self._pending: Changes | None = None
        self._names = tuple(self.header.parameters)

    @staticmethod
    def open(directory: Path, header: RunHeader | None = None, database: str = "") -> Store:
        """Open the store of a run for writing, or create it with a header, in a database if its URL is given.

        What a killed process left is recovered. A directory that is in use, of another header or in another database
        raises a RunDirectoryError, a damaged store, which is not changed, a DamagedRunError, and one that cannot be
        created a StoreError.
        """
        directory = Path(directory)
        kept = _kept_in(directory, required=header is None)
        if database and kept == FILE:
            raise elsewhere(directory, FILE)
        for name in () if header is None else header.parameters:
            if "\0" in name or name != name.encode(errors="ignore").decode():  # a part of SQL, as a column
                raise StoreError(f"{name!r:.100} cannot name a parameter: a name is text of UTF-8 without NUL.")
        lock = lock_directory(directory)
        try:
            if database or kept == POINTER:
                from mltune.records.database_tables import DatabaseTables

                return Store(directory, DatabaseTables.for_writing(directory, header, database), lock)
            return Store(directory, FileTables.for_writing(directory, header), lock)
        except BaseException:
            os.close(lock)
            raise

    @staticmethod
    def read_only(directory: Path) -> Store:
        """Open the store of a run for reading, also while the run goes on or after its process was killed."""
        directory = Path(directory)
        if _kept_in(directory, required=True) == POINTER:
            from mltune.records.database_tables import DatabaseTables

            return Store(directory, DatabaseTables.for_reading(directory))
        return Store(directory, FileTables.for_reading(directory))

    def append(self, *records: TrialRecord) -> None:
        """Write records in one transaction; if one cannot be written, raise a StoreError and write none."""
        self._write("trials", *(to_row(record, self._names) for record in records))

    def records(self, after: int = 0) -> Trials:
        """Return all trials in order, without the first `after`; a DamagedRunError where a record is not sound."""
        with self._tables.reading():
            count = self._tables.count()
            if count > MOST_TRIALS:
                raise ValueError(f"it has {count} trials; a run has at most {MOST_TRIALS}")
            with contextlib.closing(self._tables.trials(after)) as trials:
                parameters, blocks = self.header.parameters, unsealed_trials(trials, after, count)
                parts = [Trials.from_rows(rows, self._names, parameters) for rows in blocks]
        return Trials.concatenate(parts or [Trials.from_rows([], self._names)])

    def __len__(self) -> int:
        with self._tables.reading():
            return self._tables.count()

    def seconds(self) -> dict[str, float]:
        """Return the seconds spent in every phase of the run; see :mod:`mltune.records.store`."""
        with self._tables.reading():
            seconds: dict[str, float] = dict(self._read("seconds"))
            for name, value in seconds.items():
                if not isinstance(value, int | float) or not 0.0 <= value <= LONGEST_S:
                    raise ValueError(f"the seconds of {name!r:.60} are {value!r:.60}, and not from 0 to {LONGEST_S:g}")
        return seconds

    def set_seconds(self, seconds: Mapping[str, float]) -> None:
        """Replace the seconds spent in some phases."""
        self._write("seconds", *((name, float(value)) for name, value in seconds.items()))

    def facts(self) -> Facts:
        """Return the facts of the run, checked."""
        with self._tables.reading():
            return Facts.of(self.documents())

    def documents(self) -> dict[str, Any]:
        """Return all facts by name as they are on record, also those that are not known."""
        with self._tables.reading():
            return {name: parse_json(text) for name, text in self._read("facts") if name != CLOSED}

    def set_fact(self, name: str, value: Any) -> None:
        """Write or replace a fact of the run, one of :class:`mltune.records.facts.Facts`: a plain JSON value."""
        self._write("facts", (name, json.dumps(value)))

    def append_reference(self, reference: Reference) -> None:
        """Append a timing of the reference kernel."""
        self._write("reference_timings", dataclasses.astuple(reference))

    def references(self) -> list[Reference]:
        """Return the timings of the reference kernel in order of measurement."""
        with self._tables.reading():
            rows = self._read("reference_timings")
            references = [Reference(*row) for row in rows]
            for reference in references:
                if not reference.is_sound:
                    raise ValueError(f"{reference!r:.200} is no timing of the reference kernel: a time above 0")
        return references

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Read everything as it was at one moment; or where the store is written, write everything or nothing.

        What is written is sent at the end: until then it is not read.
        """
        if not self._tables.writable or self._pending is not None:
            with contextlib.nullcontext() if self._tables.writable else self._tables.reading():
                yield
            return
        changes = self._pending = []
        try:
            yield
        finally:
            self._pending = None
        if changes:
            self._tables.write(changes)

    def close(self) -> None:
        """Close the store and release the run directory. Appended records are on record already."""
        self._tables.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _read(self, table: str) -> list[Row]:
        """Return the checked rows of any table but the trials, without checksums."""
        with self._tables.reading():
            return unsealed(table, self._tables.rows(table))

    def _write(self, table: str, *rows: Row) -> None:
        """Write rows in a transaction of their own, or of :meth:`at_once`."""
        if not self._tables.writable:
            raise StoreError(f"the store in {self.directory} is not open for writing.")
        if not rows:
            return
        change = (table, [sealed(row) for row in rows])
        if self._pending is None:
            self._tables.write([change])
        else:
            self._pending.append(change)


def is_written(directory: Path) -> bool:
    """Return whether a process writes to the run in a directory, on any host that uses its database."""
    if in_use(directory):
        return True
    if not (directory / POINTER).exists():
        return False
    from mltune.records.database_tables import is_locked

    return is_locked(directory)


def _kept_in(directory: Path, *, required: bool) -> str:
    """Return which file of a directory holds its run, or names the database that does; empty without a run."""
    kept = holds_run(directory)
    if required and not kept:
        raise RunDirectoryError(f"{directory} is no run directory: it has no file {FILE}.")
    if len(kept) > 1:
        raise DamagedRunError(
            f"{directory} holds both {FILE} and {POINTER}, but a run has its records in a file or in a database; "
            "remove the one that does not belong to it."
        )
    return kept[0] if kept else ""


PHASES = ("start", "search", "compile", "time", "wait", "reference", "record", "finals", "total")
"""Phases: ``search`` also gates, ``time`` also verifies, ``total`` is elapsed; compilers and GPU work in parallel."""


class Seconds:
    """Seconds by phase on a monotonic clock, added to those of earlier parts of the run, `before`.

    This part `begun` on :func:`time.perf_counter`, by default now; what has passed since then was its start.
    """

    def __init__(self, before: Mapping[str, float], begun: float | None = None) -> None:
        now = time.perf_counter()
        begun = now if begun is None else begun
        self._spent = {phase: before.get(phase, 0.0) for phase in PHASES}
        self._spent["start"] += now - begun
        self._started = begun - self._spent["total"]

    @property
    def elapsed(self) -> float:
        """Seconds since the run began, interruptions not counted."""
        return time.perf_counter() - self._started

    def add(self, phase: str, seconds: float) -> None:
        """Add seconds that were measured elsewhere."""
        self._spent[phase] += seconds

    @contextlib.contextmanager
    def spent_on(self, phase: str) -> Iterator[None]:
        """Add the seconds of a ``with`` block."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._spent[phase] += time.perf_counter() - started

    def to_json(self) -> dict[str, float]:
        """Return the seconds of every phase until now."""
        return self._spent | {"total": self.elapsed}
