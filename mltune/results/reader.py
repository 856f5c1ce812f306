"""The reader of run directories, also of runs that still go on.

A directory may come from a third party, so what a store holds is checked: its facts by
:class:`mltune.records.facts.Facts`, and here whether they fit the trials and the device.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mltune.device.facts import Device
from mltune.device.peaks import peak_flops
from mltune.errors import DamagedRunError, MltuneError, RunDirectoryError, RunError
from mltune.files.reading import stamp_of
from mltune.files.text import printable
from mltune.problem.kinds import problem_from_json
from mltune.problem.problem import STRICTEST
from mltune.records.directory import FILE
from mltune.records.facts import LONGEST_TEXT
from mltune.records.store import Store
from mltune.records.trials import Trials
from mltune.results.run import TuneResult

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
        files = tuple(stamp_of(self._directory / f"{FILE}{suffix}") for suffix in ("", "-wal"))
        return files if files[0] is not None else (time.monotonic_ns(),)


def read_run(directory: Path | str, slug: str = "") -> TuneResult:
    """Read the run in a directory, which may still go on; without a sound one raise a RunDirectoryError."""
    return RunReader(Path(directory), slug).read()


def _result(store: Store, records: Trials, slug: str) -> TuneResult:
    """Return the result of a run whose device and records were checked."""
    header, facts = store.header, store.facts()
    declaration, valid = facts.declaration, facts.stages.valid or header.settings.get("space")
    if declaration is not None:
        if not {finalist.number for finalist in declaration.finalists} <= set(records.column("number").tolist()):
            raise ValueError("its declaration names trials that are not on record")
        verified = declaration.verified and not header.replayed  # a replay verifies nothing
        declaration = dataclasses.replace(declaration, verified=verified)
    count = int(valid) if isinstance(valid, str) and re.fullmatch("[0-9]{1,30}", valid) else None
    scored = None if facts.scored is None else facts.scored.estimate
    problem, device = problem_from_json(dict(header.problem)), Device.from_json(dict(header.device))
    if not 0.0 < peak_flops(device, problem.arithmetic) < math.inf:
        raise ValueError("its device has no peak above 0")
    return TuneResult(
        directory=store.directory,
        slug=slug or "-".join(re.findall(r"[a-z0-9]+", problem.label.lower())) or "problem",
        header=header,
        problem=problem,
        device=device,
        records=records.by_number(),
        seconds=store.seconds(),
        declaration=declaration,
        reference_s=facts.reference_median_s,
        references=tuple(store.references()),
        limit=None if facts.limit is None else facts.limit.model_dump(),
        stopped=facts.stopping.reason,
        whole=facts.whole.detail,
        notice="; ".join(filter(None, (store.notice, facts.notice))),
        model=facts.model,
        accuracy=facts.accuracy or STRICTEST,
        choice=facts.choice,
        valid=count,
        scored=scored if count is None or scored is None else min(scored, count),
        never_compiled=0 if facts.skipped is None else facts.skipped.without(records.column("index")),
        compilers=max(1.0, facts.stages.compilers or 1.0),
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
        raise DamagedRunError(f"the store in {directory} does not hold the records of a run: {text}.") from error


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
