"""The journal of a comparison: every run that ended, in one SQLite file, so that it can be split and resumed."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from mltune.compare.simulation import Trace
from mltune.errors import RunDirectoryError, StoreError

_TABLES = """
create table if not exists facts (name text primary key, value text not null) strict;
create table if not exists runs (
    strategy text, dataset text, seed integer, error text, indices blob, own_s blob, recorded_s blob,
    repeats integer, invalid integer, skipped_before integer, skipped_after integer,
    primary key (strategy, dataset, seed)
) strict;
"""


class Job(NamedTuple):
    """One run: a strategy, a dataset and a seed."""

    strategy: str
    dataset: str
    seed: int


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended: with a trace, or with the error that it died of."""

    job: Job
    trace: Trace | None
    error: str = ""


class Journal:
    """The runs of a comparison. A context manager.

    Each share of a comparison writes a file of its own, ``runs-PARTofPARTS.sqlite``, and reads those of all: shares
    that ran on other machines are joined by copying their files into one directory. A run is written as a whole or not
    at all.

    Parameters
    ----------
    directory : pathlib.Path
        Made if missing.
    facts : mapping of str to str
        What all runs have in common: those of an existing journal must be the same.
    share : tuple of (int, int)
        Part, and number of parts.

    Raises
    ------
    RunDirectoryError
        The journal there is of another comparison.
    StoreError
        It cannot be written.
    """

    def __init__(self, directory: Path, facts: Mapping[str, Any], share: tuple[int, int] = (1, 1)) -> None:
        self.directory = directory
        self._file = directory / "runs-{}of{}.sqlite".format(*share)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(self._file, timeout=60, isolation_level=None)
            self._database.execute("pragma journal_mode = wal")
            self._database.executescript(_TABLES)
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"a comparison is written as it goes, but {self._file} cannot be: {error}.") from error
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
                    f"the runs of a comparison have the same {name}, but {path} has {there[name]} and now it is "
                    f"{facts[name]}; choose another --output."
                )

    def _files(self) -> list[Path]:
        return sorted(self.directory.glob("runs-*of*.sqlite"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.close()

    def add(self, ended: Ended) -> None:
        """Write how a job ended.

        Raises
        ------
        StoreError
            It cannot be written.
        """
        trace = ended.trace
        values = (
            (None,) * 7
            if trace is None
            else (
                trace.indices.tobytes(),
                trace.own_s.tobytes(),
                trace.recorded_s.tobytes(),
                trace.repeats,
                trace.invalid,
                trace.skipped_before,
                trace.skipped_after,
            )
        )
        try:
            self._database.execute(
                f"insert or replace into runs values ({', '.join('?' * 11)})",  # noqa: S608
                (*ended.job, ended.error, *values),
            )
        except sqlite3.Error as error:
            raise StoreError(f"a run is written when it ends, but {self._file} cannot be: {error}.") from error

    def ended(self) -> Iterator[Ended]:
        """Yield every run of every journal in the directory, the same job at most once, and one that failed last."""
        known: dict[Job, Ended] = {}
        for path in self._files():
            with closing(sqlite3.connect(path, timeout=60)) as database:
                for row in database.execute("select * from runs"):
                    one = _ended(row)
                    if one.job not in known or known[one.job].trace is None:
                        known[one.job] = one
        yield from known.values()

    def done(self) -> set[Job]:
        """Return the jobs that need not be done again: those that left a trace."""
        return {one.job for one in self.ended() if one.trace is not None}


def _ended(row: tuple[Any, ...]) -> Ended:
    strategy, dataset, seed, error, indices, own_s, recorded_s, *counts = row
    job = Job(strategy, dataset, seed)
    if indices is None:
        return Ended(job, None, error)
    trace = Trace(
        np.frombuffer(indices, dtype=np.int32),
        np.frombuffer(own_s, dtype=np.float32),
        np.frombuffer(recorded_s, dtype=np.float32),
        *counts,
    )
    return Ended(job, trace)
