"""The reader of run directories, also of runs that still go on."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mltune.device.facts import Device
from mltune.device.peaks import peak_flops
from mltune.errors import DamagedRunError, DiskFullError, MltuneError, RunDirectoryError
from mltune.problem.kinds import problem_from_json
from mltune.records.declaration import FACT
from mltune.records.directory import FILE
from mltune.records.store import Store
from mltune.records.trial import TrialRecord
from mltune.results.checks import (
    check_header,
    checked_declaration,
    checked_limit,
    checked_record,
    is_sound,
    is_time,
    time_of,
)
from mltune.results.run import TuneResult

LONGEST_TEXT = 2_000
"""Characters of a stored text that are shown."""

_DAMAGED = (MltuneError, OSError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class RunReader:
    """A reader of one run that keeps what it has read: each call reads only the trials that are new.

    The run may still go on: nothing is written and nothing is locked. The parameters are those of :func:`read_run`.

    Attributes
    ----------
    ended : list of TrialRecord
        The trials that were read, in the order in which they ended.
    """

    def __init__(self, directory: Path, slug: str = "") -> None:
        self.ended: list[TrialRecord] = []
        self._directory = Path(directory)
        self._slug = slug
        self._stamp: tuple[Any, ...] = ()
        self._result: TuneResult | None = None

    def read(self) -> TuneResult:
        """Read what is new, and return the run as it is now; errors are those of :func:`read_run`."""
        stamp = tuple(_stamp(self._directory / f"{FILE}{suffix}") for suffix in ("", "-wal"))
        if self._result is None or stamp != self._stamp:
            with readable(self._directory), Store.read_only(self._directory) as store:
                self._result = self.read_from(store)
            self._stamp = stamp
        return self._result

    def read_from(self, store: Store) -> TuneResult:
        """Read what is new in an open store."""
        known = self._result
        if known is not None and (known.header.created_at != store.header.created_at or len(store) < len(self.ended)):
            self.ended = []  # another run was begun in the same directory
        check_header(store.header)
        self.ended += [checked_record(record, store.header) for record in store.records(after=len(self.ended))]
        return _result(store, self.ended, self._slug)


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


def result_of(store: Store, *, slug: str = "") -> TuneResult:
    """Return the result of the run in an open store; see :func:`read_run`."""
    with readable(store.directory):
        return RunReader(store.directory, slug).read_from(store)


def _result(store: Store, records: Sequence[TrialRecord], slug: str) -> TuneResult:
    """Return the result of a run whose header and records were checked."""
    header, stopping = store.header, store.fact("stopping")
    problem, device = problem_from_json(dict(header.problem)), Device.from_json(dict(header.device))
    if not 0.0 < peak_flops(device, problem.arithmetic) < math.inf:
        raise ValueError("a device has a peak above 0")
    return TuneResult(
        directory=store.directory,
        slug=slug or "-".join(re.findall(r"[a-z0-9]+", problem.label.lower())) or "problem",
        header=header,
        problem=problem,
        device=device,
        records=tuple(sorted(records, key=lambda record: record.number)),
        seconds={str(name): float(value) for name, value in store.seconds().items() if is_time(value, or_zero=True)},
        declaration=checked_declaration(store.fact(FACT), {record.number for record in records}),
        reference_s=time_of(store.fact("reference_median_s")),
        references=tuple(filter(is_sound, store.references())),
        limit=checked_limit(store.fact("limit")),
        stopped=str(stopping.get("reason") or "")[:LONGEST_TEXT] if isinstance(stopping, dict) else "",
    )


@contextlib.contextmanager
def readable(directory: Path) -> Iterator[None]:
    """Raise a RunDirectoryError for a store in the directory that turns out to be damaged."""
    try:
        yield
    except (RunDirectoryError, DiskFullError):
        raise
    except _DAMAGED as error:
        text = f"{type(error).__name__}: {error}"[:LONGEST_TEXT]
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
