"""The reader of run directories, also of runs that still go on."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mltune.device.facts import Device
from mltune.device.peaks import peak_flops
from mltune.errors import DamagedRunError, MltuneError, RunDirectoryError, RunError
from mltune.files.text import printable
from mltune.problem.accuracy import ACCURACIES, STRICTEST
from mltune.problem.kinds import problem_from_json
from mltune.records.declaration import FACT
from mltune.records.directory import FILE
from mltune.records.store import Store
from mltune.records.trials import Trials
from mltune.results.checks import (
    check_device,
    checked_declaration,
    checked_limit,
    is_sound,
    is_time,
    time_of,
)
from mltune.results.run import TuneResult

LONGEST_TEXT = 2_000
"""Characters of a stored text that are shown."""

_ATTEMPTS = 5

_DAMAGED = (MltuneError, OSError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class RunReader:
    """A reader of one run that keeps what it has read: each call reads only the trials that are new.

    The run may still go on: nothing is written and nothing is locked. The parameters are those of :func:`read_run`.

    Attributes
    ----------
    ended : Trials
        The trials that were read, in the order in which they ended; it exists after the first call.
    """

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
        check_device(store.header.device)
        known = self._result
        if known is None or known.header != store.header or len(store) < len(self.ended):  # another run was begun
            self.ended = store.records()
        elif len(store) > len(self.ended):
            self.ended = Trials.concatenate([self.ended, store.records(after=len(self.ended))])
        return _result(store, self.ended, self._slug)

    def _stamp_now(self) -> tuple[Any, ...]:
        """Return values that change whenever the file of the store does; of a database nothing is known."""
        files = tuple(_stamp(self._directory / f"{FILE}{suffix}") for suffix in ("", "-wal"))
        return files if files[0] is not None else (time.monotonic_ns(),)


def read_run(directory: Path | str, slug: str = "") -> TuneResult:
    """Read the run in a directory.

    Parameters
    ----------
    directory : path-like
        The run directory. The run may still go on.
    slug : str
        Name of the problem in its plan.

    Raises
    ------
    RunDirectoryError
        The directory holds no run, or its store is damaged.
    DiskFullError
        A full disk keeps the store from being read.

    Examples
    --------
    >>> read_run("/no/such/run")
    Traceback (most recent call last):
    mltune.errors.RunDirectoryError: a run directory holds a file run.sqlite, but there is none in /no/such/run.
    """
    return RunReader(Path(directory), slug).read()


def _result(store: Store, records: Trials, slug: str) -> TuneResult:
    """Return the result of a run whose device and records were checked."""
    header, facts = store.header, store.facts()
    stopping = facts.get("stopping")
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
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
