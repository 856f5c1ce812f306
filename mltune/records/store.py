"""The store of a run: every trial, written before the search receives the result.

The records are in a file in the directory of the run (:mod:`mltune.records.file_store`), or in a database that a file
in it names (:mod:`mltune.records.database_store`).
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from mltune.errors import DamagedRunError, RunDirectoryError
from mltune.files.documents import parse_json
from mltune.files.text import printable
from mltune.records.directory import FILE, POINTER, holds_run, in_use
from mltune.records.header import RunHeader
from mltune.records.reference import Reference
from mltune.records.rows import to_row
from mltune.records.schema import checksum, sealed
from mltune.records.trial import TrialRecord

if TYPE_CHECKING:
    from mltune.records.trials import Trials

MOST_TRIALS = 1_000_000
"""Trials of a run."""

UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""What reading raises where a store holds what mltune never writes."""

LONGEST = 500
"""Characters that are shown of an error, which may quote a store."""


class Store(abc.ABC):
    """The records of one run.

    A context manager, created by :meth:`open` or :meth:`read_only`. Records survive the death of the process once
    :meth:`append` has returned. One process at a time writes; others may read at the same time.

    Attributes
    ----------
    directory : pathlib.Path
        The directory of the run.
    header : RunHeader
        The header on record: that of the first :meth:`open`.
    notice : str
        What may be missing from the store although all of it can be read; empty if nothing is.
    """

    def __init__(self, directory: Path, header: RunHeader) -> None:
        self.directory = directory
        self.header = header
        self.notice = ""
        self._names = tuple(header.parameters)

    @staticmethod
    def open(directory: Path, header: RunHeader | None = None, database: str = "") -> Store:
        """Open the store of a run for writing; what a killed process left is recovered.

        Parameters
        ----------
        directory : pathlib.Path
        header : RunHeader, optional
            The header of the run; its store is created if the directory holds none. Without a header the directory
            must hold a run, which is resumed.
        database : str
            URL of the PostgreSQL database of a new run, such as ``"postgresql://host/name"``. An existing run stays
            where it is.

        Raises
        ------
        RunDirectoryError
            The directory is in use, belongs to a run with another header or in another database, or cannot be written.
        DamagedRunError
            The store is damaged. It is not changed.
        StoreError
            The store cannot be created: the disk is full, or the database cannot be used.
        UsageError
            The URL is none of a PostgreSQL database.
        """
        directory = Path(directory)
        if _kept_in_database(directory, required=header is None) or (database and not (directory / FILE).exists()):
            from mltune.records.database_store import DatabaseStore

            return DatabaseStore.for_writing(directory, header, database)
        if database:
            raise elsewhere(directory, FILE)
        from mltune.records.file_store import FileStore

        return FileStore.for_writing(directory, header)

    @staticmethod
    def read_only(directory: Path) -> Store:
        """Open the store of a run for reading, also while the run goes on or after its process was killed.

        Raises
        ------
        RunDirectoryError
            The directory holds no run.
        DamagedRunError
            The store is damaged.
        StoreError
            The database cannot be used.
        """
        directory = Path(directory)
        if _kept_in_database(directory, required=True):
            from mltune.records.database_store import DatabaseStore

            return DatabaseStore.for_reading(directory)
        from mltune.records.file_store import FileStore

        return FileStore.for_reading(directory)

    def append(self, *records: TrialRecord) -> None:
        """Write records in one transaction: all of them or, if that fails, none.

        Raises
        ------
        StoreError
            The disk is full or broken, or the number of a record exists already. Earlier records are unchanged.
        """
        rows = [sealed(to_row(record, self._names)) for record in records]
        with self._writing():
            self._insert("trials", rows)

    def records(self, after: int = 0) -> Trials:
        """Return all trials in order of appending, without the first ``after``.

        Raises
        ------
        DamagedRunError
            A record has changed since it was written, is missing, or is no record of this run.
        """
        from mltune.records.trials import Trials

        with self._reading():
            count = self._count()
            if count > MOST_TRIALS:
                raise ValueError(f"a run has at most {MOST_TRIALS} trials, but it has {count}")
            parts = [
                Trials.from_rows(rows, self._names, self.header.parameters)
                for rows in self._checked_rows(after, count - after)
            ]
        return Trials.concatenate(parts or [Trials.from_rows([], self._names)])

    def __len__(self) -> int:
        with self._reading():
            return self._count()

    def seconds(self) -> dict[str, float]:
        """Return the seconds spent in every phase of the run; see :mod:`mltune.records.seconds`."""
        with self._reading():
            return dict(self._read("seconds"))

    def set_seconds(self, seconds: Mapping[str, float]) -> None:
        """Replace the seconds spent in some phases."""
        with self._writing():
            self._insert("seconds", [sealed((name, float(value))) for name, value in seconds.items()])

    def fact(self, name: str) -> Any:
        """Return a fact of the run, or None if it is unknown."""
        return self.facts().get(name)

    def facts(self) -> dict[str, Any]:
        """Return all facts of the run."""
        with self._reading():
            return {name: parse_json(text) for name, text in self._read("facts")}

    def set_fact(self, name: str, value: Any) -> None:
        """Write or replace a fact of the run, such as ``"reference_median_s"``: a plain JSON value."""
        with self._writing():
            self._insert("facts", [sealed((name, json.dumps(value)))])

    def append_reference(self, reference: Reference) -> None:
        """Append a timing of the reference kernel."""
        with self._writing():
            self._insert("reference_timings", [sealed(dataclasses.astuple(reference))])

    def references(self) -> list[Reference]:
        """Return the timings of the reference kernel in order of measurement."""
        with self._reading():
            return [Reference(*row) for row in self._read("reference_timings")]

    @abc.abstractmethod
    def at_once(self) -> contextlib.AbstractContextManager[None]:
        """Read everything as it was at one moment; or where the store is written, write everything or nothing."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close the store and release the run directory. Appended records are on record already."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abc.abstractmethod
    def _reading(self) -> contextlib.AbstractContextManager[None]:
        """Read in one transaction; errors become those of mltune."""

    @abc.abstractmethod
    def _writing(self) -> contextlib.AbstractContextManager[None]:
        """Write in one transaction; errors become those of mltune."""

    @abc.abstractmethod
    def _count(self) -> int:
        """Return the number of trials."""

    @abc.abstractmethod
    def _rows(self, after: int) -> Generator[Sequence[tuple[Any, ...]]]:
        """Yield rows of trials, some at a time: position, cells, and checksum or None."""

    @abc.abstractmethod
    def _read(self, table: str) -> list[tuple[Any, ...]]:
        """Return the checked rows of any table but the trials, in the order of writing, without checksums."""

    @abc.abstractmethod
    def _insert(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Write sealed rows; those of a name replace earlier ones."""

    def _check_header(self, header: RunHeader | None) -> None:
        """Check that a run is continued as it began."""
        difference = "" if header is None else self.header.difference(header)
        if difference:
            raise RunDirectoryError(
                f"a run directory belongs to one run, but in {self.directory} {difference}; "
                "choose another directory, or repeat the command that began the run."
            )

    def _checked_rows(self, after: int, count: int) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the cells of the trials, some at a time, and check them."""
        found = 0
        with contextlib.closing(self._rows(after)) as parts:
            for rows in parts:
                for position, row in enumerate(rows, after + found + 1):
                    if row[0] != position or found >= count:
                        raise ValueError(f"trial {position} in the order of recording is missing")
                    if row[-1] is not None and checksum(row[1:-1]) != row[-1]:
                        raise ValueError(f"trial {row[1]!r:.30} has changed since it was recorded")
                found += len(rows)
                yield [row[1:-1] for row in rows]
        if found != count:
            raise ValueError(f"it has {count + after} trials, but {found + after} can be read")


def is_written(directory: Path) -> bool:
    """Return whether a process writes to the run in a directory, on any host that uses its database."""
    if in_use(directory):
        return True
    if not (directory / POINTER).exists():
        return False
    from mltune.records.database_store import is_locked

    return is_locked(directory)


def damaged(store: object, error: object) -> DamagedRunError:
    """Return the error of a store that holds what mltune never writes."""
    return DamagedRunError(
        f"{store} must be an undamaged store of mltune, but {printable(error, LONGEST)}; restore a copy, or choose "
        "another directory."
    )


def elsewhere(directory: Path, place: str) -> RunDirectoryError:
    """Return the error of a run that is not in the database that was named."""
    return RunDirectoryError(
        f"a run stays where it was begun, but the records of {directory} are in {printable(place, 200)}; choose "
        "another directory, or leave out --store."
    )


def _kept_in_database(directory: Path, *, required: bool) -> bool:
    """Return whether a directory names a database that holds its run."""
    kept = holds_run(directory)
    if required and not kept:
        raise RunDirectoryError(f"a run directory holds a file {FILE}, but there is none in {directory}.")
    if len(kept) > 1:
        raise DamagedRunError(
            f"a run has its records in a file or in a database, but {directory} holds both {FILE} and {POINTER}; "
            "remove the one that does not belong to it."
        )
    return kept == [POINTER]
