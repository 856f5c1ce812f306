"""The reader of run directories, also of runs that still go on.

A directory may come from a third party, so what a store holds is checked. Devices and declarations that do not make
sense are errors; optional facts of another type are dropped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

from mltune.device.facts import Device
from mltune.device.peaks import peak_flops
from mltune.errors import DamagedRunError, MltuneError, RunDirectoryError, RunError
from mltune.files.text import printable
from mltune.problem.kinds import problem_from_json
from mltune.problem.problem import ACCURACIES, STRICTEST
from mltune.records.declaration import FACT, Declaration, Reference
from mltune.records.directory import FILE
from mltune.records.distinct import DistinctCount
from mltune.records.store import Store
from mltune.records.trials import Trials
from mltune.results.run import TuneResult

LONGEST_TEXT = 2_000
"""Characters of a stored text, or of the reason why a run cannot be read, that are shown."""

LEAST, MOST = 1e-12, 1e12
"""Bounds of times in seconds and of ratios of times, as in the trials of a store."""

_ATTEMPTS = 5

_DAMAGED = (MltuneError, OSError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


Answer = TypeVar("Answer")


class RunReader:
    """A reader of one run, which may still go on: it keeps the trials in ``ended``, and reads those that are new."""

    def __init__(self, directory: Path, slug: str = "") -> None:
        self.ended: Trials
        self._directory = Path(directory)
        self._slug = slug
        self._stamp: tuple[Any, ...] = ()
        self._result: TuneResult | None = None

    def read(self) -> TuneResult:
        """Read what is new, and return the run as it is now; errors are those of :func:`read_run`."""
        for attempt in range(_ATTEMPTS):
            stamp = self._stamp_now()
            if self._result is not None and stamp == self._stamp:
                break
            try:
                with Store.read_only(self._directory) as store:
                    self.read_from(store)
            except DamagedRunError:
                if attempt + 1 == _ATTEMPTS or stamp == self._stamp_now():
                    raise
                continue  # a process began to write while the file was read
            self._stamp = stamp
            break
        assert self._result is not None  # noqa: S101
        return self._result

    def read_from(self, store: Store) -> TuneResult:
        """Read what is new in an open store."""
        with readable(self._directory), store.at_once():
            self._result = self._read_from(store)
        return self._result

    def _read_from(self, store: Store) -> TuneResult:
        result = self._result
        if result is None or result.header != store.header or len(store) < len(self.ended):  # another run was begun
            self.ended = store.records()
        elif len(store) > len(self.ended):
            self.ended = Trials.concatenate([self.ended, store.records(after=len(self.ended))])
        return _result(store, self.ended, self._slug)

    def _stamp_now(self) -> tuple[Any, ...]:
        """Return values that change whenever the file of the store does; a database counts as always changed."""
        files = tuple(_stamp(self._directory / f"{FILE}{suffix}") for suffix in ("", "-wal"))
        return files if files[0] is not None else (time.monotonic_ns(),)


def read_run(directory: Path | str, slug: str = "") -> TuneResult:
    """Read the run in a directory, which may still go on; without a sound one raise a RunDirectoryError."""
    return RunReader(Path(directory), slug).read()


def _result(store: Store, records: Trials, slug: str) -> TuneResult:
    """Return the result of a run whose device and records were checked."""
    header, facts = store.header, store.facts()
    stopping, stages = facts.get("stopping"), facts.get("stages")
    stages = stages if isinstance(stages, dict) else {}
    scored, skipped = (DistinctCount.from_json(facts.get(name)) for name in ("scored", "skipped"))
    problem, device = problem_from_json(dict(header.problem)), Device.from_json(dict(header.device))
    if not 0.0 < peak_flops(device, problem.arithmetic) < math.inf:
        raise ValueError("a device has a peak above 0")
    return TuneResult(
        directory=store.directory,
        slug=slug or "-".join(re.findall(r"[a-z0-9]+", problem.label.lower())) or "problem",
        header=header,
        problem=problem,
        device=device,
        records=records.by_number(),
        seconds={str(name): float(value) for name, value in store.seconds().items() if is_time(value, or_zero=True)},
        declaration=checked_declaration(
            facts.get(FACT), set(records.column("number").tolist()), replayed=header.replayed
        ),
        reference_s=time_of(facts.get("reference_median_s")),
        references=tuple(filter(is_sound, store.references())),
        limit=checked_limit(facts.get("limit")),
        stopped=str(stopping.get("reason") or "")[:LONGEST_TEXT] if isinstance(stopping, dict) else "",
        notice=store.notice,
        model=str(facts.get("model") or "")[:LONGEST_TEXT],
        accuracy=accuracy if (accuracy := facts.get("accuracy")) in ACCURACIES else STRICTEST,
        choice=str(facts.get("choice") or "")[:LONGEST_TEXT],
        valid=checked_count(stages.get("valid", header.settings.get("space"))),
        scored=None if scored is None else scored.estimate,
        never_compiled=0 if skipped is None else skipped.without(records.column("index")),
        compilers=max(1.0, time_of(stages.get("compilers")) or 1.0),
    )


@contextlib.contextmanager
def readable(directory: Path) -> Iterator[None]:
    """Raise a RunDirectoryError for a store in the directory that turns out to be damaged."""
    try:
        yield
    except (RunDirectoryError, RunError):
        raise
    except _DAMAGED as error:
        text = printable(error, LONGEST_TEXT)
        raise DamagedRunError(
            f"a store holds the records of a run, but that in {directory} does not: {text}."
        ) from error


def _stamp(path: Path) -> tuple[int, int] | None:
    """Return values that change whenever a file does; None where there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


@dataclass(frozen=True, slots=True)
class Unread:
    """A run that cannot be read, by its slug, and why."""

    slug: str
    reason: str


def read_or_set_aside(slug: str, read: Callable[[], Answer]) -> Answer | Unread:
    """Return what a function reads from one run, or the reason why the run cannot be read.

    A store may hold anything, so every exception is a fact about this run, on which no other run of the plan depends.
    """
    try:
        return read()
    except Exception as error:
        reason = str(error) if isinstance(error, MltuneError) else f"{type(error).__name__}: {error}"
        return Unread(slug, reason[:LONGEST_TEXT])


def checked_declaration(fact: Any, numbers: Collection[int], *, replayed: bool) -> Declaration | None:
    """Return the stored declaration; a ValueError where a time, the winner or a finalist cannot be right.

    A replay verifies nothing, although older declarations say so.
    """
    if fact is None:
        return None
    declaration = Declaration.from_json(fact)
    finalists = {finalist.number for finalist in declaration.finalists}
    timed = [*declaration.finalists, *([declaration.reference] if declaration.reference else [])]
    times = [
        (finalist.median_s, finalist.low_s, finalist.high_s, finalist.ratio, finalist.ratio_low, finalist.ratio_high)
        for finalist in timed
    ]
    if not all(is_time(value) for values in times for value in values) or declaration.number not in finalists:
        raise ValueError("a declaration holds times from 1e-12 to 1e12 s, and its winner among the finalists")
    if not finalists <= set(numbers):
        raise ValueError("a declaration names trials that are on record")
    return dataclasses.replace(declaration, verified=declaration.verified and not replayed)


def is_sound(reference: Reference) -> bool:
    """Return whether a timing of the reference kernel holds finite times."""
    return (
        is_time(reference.median_s)
        and is_time(reference.elapsed_s, or_zero=True)
        and (reference.noise is None or _is_number(reference.noise))
        and type(reference.after) is int
    )


def checked_limit(fact: Any) -> Mapping[str, float | None] | None:
    """Return the stored budget, ``trials`` and ``time_s``: None for each that is not limited."""
    if not isinstance(fact, Mapping):
        return None
    trials = fact.get("trials")
    return {"trials": trials if type(trials) is int and trials > 0 else None, "time_s": time_of(fact.get("time_s"))}


def checked_count(text: Any) -> int | None:
    """Return a count that is stored as text, which may be larger than a float can hold; None for anything else."""
    return int(text) if isinstance(text, str) and re.fullmatch("[0-9]{1,30}", text) else None


def time_of(value: Any) -> float | None:
    """Return a time above 0; None for anything else."""
    return float(value) if is_time(value) else None


def is_time(value: Any, *, or_zero: bool = False) -> bool:
    """Return whether a value can be a time in seconds or a ratio of times, or is 0 where that is allowed.

    Sums, ratios and rates of such values are finite.
    """
    return _is_number(value) and (0.0 if or_zero else LEAST) <= value <= MOST


def _is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a finite number, not below 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
