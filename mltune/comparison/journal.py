"""The journal of a comparison: finished runs in lines of JSON, checked because other machines write them, too."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import BaseModel, Field, StrictInt, StrictStr, TypeAdapter, ValidationError

from mltune.comparison.simulation import BUILD, COUNTS, Trace
from mltune.errors import DamagedRunError, RunDirectoryError, StoreError
from mltune.files.atomic import append_line
from mltune.files.reading import RefusedFileError, kind_of, opened_file, raising
from mltune.files.text import printable

_MAX_BYTES = 1 << 30
_LONGEST_LINE = 1 << 23
_LONGEST_ERROR = 2000
_MOST_DAMAGED = 10_000

DATASET, STRATEGY = "dataset ", "strategy "
"""Prefixes of the names of facts about a dataset, and about the source of a user's strategy."""

_OWN = ("runs-", "summary.json", "table.md", "scoreboard.html", "evaluations.parquet", "curves")
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


_Count = Annotated[int, Field(ge=0, lt=1 << 31)]
_Seconds = Annotated[float, Field(ge=0, lt=1e9)]


class _Facts(BaseModel, extra="forbid"):
    """A line of facts."""

    facts: dict[str, StrictInt | StrictStr]


class _Run(BaseModel, extra="forbid", strict=True):
    """A line of a run: the builds of a trace, each with its columns in their order, and in which they were told."""

    strategy: str
    dataset: str
    seed: int
    error: str = ""
    builds: list[tuple[_Count, bool, _Count, _Seconds, _Seconds]] | None = None
    repeats: _Count = 0
    invalid: _Count = 0
    skipped_before: _Count = 0
    skipped_after: _Count = 0
    told: list[_Count] | None = None

    @property
    def job(self) -> Job:
        return Job(self.strategy, self.dataset, self.seed)

    def outcome(self, size: int, evaluations: int) -> Outcome:
        """Return the outcome; a trace that is impossible counts as an error."""
        if self.builds is None:
            return Outcome(self.job, None, self.error)
        told = None if self.told is None else np.array(self.told, np.int32)
        trace = Trace(np.array(self.builds, BUILD), **{name: getattr(self, name) for name in COUNTS}, told=told)
        count = len(trace.indices)
        is_whole = count == len(np.unique(trace.indices)) <= evaluations and trace.builds["measured"][-1:].all()
        if not (is_whole and (trace.builds["index"] < size).all() and trace.is_possible):
            return Outcome(self.job, None, "its record is damaged")
        return Outcome(self.job, trace)


_LINE: TypeAdapter[_Facts | _Run] = TypeAdapter(_Facts | _Run)


def _lines(path: Path) -> Iterator[_Facts | _Run]:
    """Yield the lines of a journal, but not those that are damaged."""
    damaged = 0
    with opened_file(path, _MAX_BYTES, inside=path.parent) as file:
        for line in iter(partial(file.readline, _LONGEST_LINE), b""):
            try:
                yield _LINE.validate_json(line)
            except ValidationError:
                damaged += 1
                if damaged > _MOST_DAMAGED:
                    raise RefusedFileError(f"{path} has more than {_MOST_DAMAGED:,} damaged lines") from None


class Journal:
    """The runs of a comparison, in a directory that is created if it is missing.

    Each share appends whole lines to its own file, ``runs-PARTofPARTS.jsonl``, and reads the files of all shares: to
    join shares from several machines, copy their files into one directory. The facts that all runs share have a line of
    their own, which must be equal in all files.
    """

    def __init__(self, directory: Path, facts: Mapping[str, int | str], share: tuple[int, int] = (1, 1)) -> None:
        self._directory = directory
        self._facts = dict(facts)
        self._file = directory / "runs-{}of{}.jsonl".format(*share)
        self._fact = f"the journal of the comparison, {self._file}, cannot be read or written"

    def begin(self, jobs: Iterable[Job], sizes: Mapping[str, int], evaluations: int) -> dict[Job, Outcome]:
        """Return the outcomes of jobs in the files of the directory; a trace takes precedence over an error.

        A run has at most ``evaluations`` configurations of a dataset of one of the ``sizes``. A damaged line is
        ignored: its run is repeated.
        """
        planned = set(jobs)
        outcomes: dict[Job, Outcome] = {}
        there: dict[str, int | str] = {}
        with raising(StoreError, self._fact):
            self._directory.mkdir(parents=True, exist_ok=True)
            _check_own(self._directory)
            for path in sorted(self._directory.glob("runs-*of*.jsonl")):
                facts: dict[str, int | str] = {}
                for line in _lines(path):
                    if isinstance(line, _Facts):
                        facts = line.facts | facts
                    elif line.job in planned:
                        outcome = line.outcome(sizes[line.dataset], evaluations)
                        if outcome.trace is not None or outcomes.get(line.job, outcome).trace is None:
                            outcomes[line.job] = outcome
                self._agree(path, facts)
                there = facts if path == self._file else there
        if not self._facts.keys() <= there.keys():
            self._append({"facts": self._facts})
        return outcomes

    def add(self, outcome: Outcome) -> None:
        """Write the outcome of a job."""
        error = outcome.error.encode("utf-8", "backslashreplace").decode()[-_LONGEST_ERROR:]
        document: dict[str, Any] = {**outcome.job._asdict(), "error": error}
        if (trace := outcome.trace) is not None:
            document["builds"] = trace.builds.tolist()
            document |= {name: getattr(trace, name) for name in COUNTS}
            document |= {} if trace.told is None else {"told": trace.told.tolist()}
        self._append(document)

    def _append(self, document: Mapping[str, Any]) -> None:
        with raising(StoreError, self._fact):
            append_line(self._file, json.dumps(document).encode())

    def _agree(self, path: Path, facts: Mapping[str, int | str]) -> None:
        if not facts and path.stat().st_size:
            raise DamagedRunError(
                f"{path} is damaged, or no journal of a comparison; delete it, and its runs are repeated, or choose "
                "another --out."
            )
        name = next((name for name, value in self._facts.items() if facts.get(name, value) != value), None)
        if name is not None:
            what = f"content of {name}" if name.startswith((DATASET, STRATEGY)) else name
            before, now = (printable(facts_at[name], longest=100) for facts_at in (facts, self._facts))
            raise RunDirectoryError(
                f"the {what} in {path} was {before}, and now it is {now}, but it is the same in all runs of a "
                "comparison; choose another --out, or delete that file to begin anew."
            )


def _check_own(directory: Path) -> None:
    """Check that the files of a comparison are no links, through which it would overwrite other files."""
    for path in directory.iterdir():
        if path.name.startswith(_OWN) and kind_of(path) != "a regular file":
            raise RunDirectoryError(
                f"{path} is {kind_of(path)}, and no file of a comparison; remove it, or choose another --out."
            )
