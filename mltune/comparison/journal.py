"""The journal of a comparison: an SQLite file of finished runs, with which it is split and resumed."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mltune.comparison.simulation import Trace
from mltune.errors import RunDirectoryError, StoreError
from mltune.files.opening import kind_of
from mltune.files.reading import reason

_TABLES = """
create table if not exists facts (name text primary key, value text not null) strict;
create table if not exists runs (
    strategy text, dataset text, seed integer, error text, indices blob, own_s blob, recorded_s blob,
    repeats integer, invalid integer, skipped_before integer, skipped_after integer,
    primary key (strategy, dataset, seed)
) strict;
"""

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


class Journal:
    """The runs of a comparison.

    Each share of a comparison writes its own file, ``runs-PARTofPARTS.sqlite``, and reads the files of all shares: to
    join shares from several machines, copy their files into one directory. Each run is written atomically.

    Parameters
    ----------
    directory : pathlib.Path
        Created if missing.
    facts : mapping of str to str
        Facts that all runs share; those of an existing journal must be equal.
    share : tuple of (int, int)
        Part, and number of parts.

    Raises
    ------
    RunDirectoryError
        The directory has the journal of another comparison, or a link in place of a file of its own.
    StoreError
        The journal cannot be written.
    """

    def __init__(self, directory: Path, facts: Mapping[str, Any], share: tuple[int, int] = (1, 1)) -> None:
        self.directory = directory
        self._file = directory / "runs-{}of{}.sqlite".format(*share)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            _check_own(directory)
            self._database = sqlite3.connect(self._file, timeout=60, isolation_level=None)
            self._database.execute("pragma journal_mode = wal")
            self._database.executescript(_TABLES)
        except (OSError, sqlite3.Error) as error:
            raise StoreError(
                f"a comparison writes a journal, but {self._file} cannot be written: {reason(error)}."
            ) from error
        self._agree({name: json.dumps(value, sort_keys=True) for name, value in facts.items()})

    def _agree(self, facts: Mapping[str, str]) -> None:
        self._database.executemany("insert or ignore into facts values (?, ?)", facts.items())
        for path in self._files():
            with closing(sqlite3.connect(path, timeout=60)) as database:
                there = dict(database.execute("select name, value from facts"))
            differing = [name for name, value in facts.items() if there.get(name, value) != value]
            if differing:
                name = differing[0]
                raise RunDirectoryError(
                    f"all runs of a comparison must have the same {name}, but in {path} it is {there[name]} and "
                    f"now it is {facts[name]}; choose another --output."
                )

    def _files(self) -> list[Path]:
        return sorted(self.directory.glob("runs-*of*.sqlite"))

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def add(self, outcome: Outcome) -> None:
        """Write the outcome of a job.

        Raises
        ------
        StoreError
            The journal cannot be written.
        """
        trace = outcome.trace
        values: tuple[Any, ...] = (None,) * 7
        if trace is not None:
            columns = (trace.indices, trace.own_s, trace.recorded_s)
            counts = (trace.repeats, trace.invalid, trace.skipped_before, trace.skipped_after)
            values = (*(column.tobytes() for column in columns), *counts)
        try:
            self._database.execute(
                f"insert or replace into runs values ({', '.join('?' * 11)})",  # noqa: S608
                (*outcome.job, outcome.error, *values),
            )
        except sqlite3.Error as error:
            raise StoreError(
                f"a run is written when it ends, but {self._file} cannot be written: {reason(error)}."
            ) from error

    def outcomes(self) -> Iterator[Outcome]:
        """Yield the outcome of every job in the journals of the directory; a trace takes precedence over an error."""
        known: dict[Job, Outcome] = {}
        for path in self._files():
            with closing(sqlite3.connect(path, timeout=60)) as database:
                for row in database.execute("select * from runs"):
                    one = _outcome(row)
                    if one.job not in known or known[one.job].trace is None:
                        known[one.job] = one
        yield from known.values()

    def done(self) -> set[Job]:
        """Return the jobs that have a trace, which need not be repeated."""
        return {one.job for one in self.outcomes() if one.trace is not None}


def _check_own(directory: Path) -> None:
    """Check that the files of a comparison are its own: through a link it would overwrite something elsewhere."""
    for path in directory.iterdir():
        if path.name.startswith(_OWN) and kind_of(path) != "a regular file":
            raise RunDirectoryError(
                f"the directory of a comparison holds its own files, but {path} is {kind_of(path)}; "
                "remove it, or choose another --output."
            )


def _outcome(row: tuple[Any, ...]) -> Outcome:
    strategy, dataset, seed, error, indices, own_s, recorded_s, *counts = row
    job = Job(strategy, dataset, seed)
    if indices is None:
        return Outcome(job, None, error)
    trace = Trace(
        np.frombuffer(indices, dtype=np.int32),
        np.frombuffer(own_s, dtype=np.float32),
        np.frombuffer(recorded_s, dtype=np.float32),
        *counts,
    )
    return Outcome(job, trace)
