"""The pipeline from candidates to records: parallel builds, the gate after compiling, measurements one by one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from mltune.errors import RunError
from mltune.measure.protocols import Builder, Runner
from mltune.records.seconds import Seconds
from mltune.records.trial import Build, Measurement, Skip, TrialRecord, TrialState

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration that is to be measured; the attributes are those of :class:`TrialRecord`."""

    number: int
    batch: int
    index: int
    configuration: dict[str, int]
    proposed_by: str
    predicted: float | None = None
    skip: Skip | None = None
    audited: bool = False

    def record(
        self,
        state: TrialState,
        detail: str = "",
        *,
        build: Build | None = None,
        measurement: Measurement | None = None,
    ) -> TrialRecord:
        """Return the record of the candidate in its final state."""
        return TrialRecord(
            number=self.number,
            batch=self.batch,
            index=self.index,
            configuration=self.configuration,
            state=state,
            detail=detail,
            proposed_by=self.proposed_by,
            skip=self.skip,
            audited=self.audited,
            predicted=self.predicted,
            build=None if build is None else replace(build, cubin=b""),
            measurement=measurement,
            finished_at=time.time(),
        )


Gate = Callable[[Sequence[tuple[Candidate, Build]]], Iterable[Candidate]]
"""The gate after compiling: from candidates with their builds to the same candidates with its decisions."""


class Pipeline:
    """Build and measure candidates, and return their records.

    Parameters
    ----------
    builder : Builder
    runner : Runner
    gate : callable, optional
        See :data:`Gate`.
    seconds : Seconds, optional
        Counts the seconds spent waiting for builder and runner.
    check : callable, optional
        Applied to every measurement, such as :func:`mltune.measure.timing_limits.within_limits`.

    Attributes
    ----------
    best_s : float or None
        Fastest median so far: a much slower kernel is not sampled further.
    """

    def __init__(
        self,
        builder: Builder,
        runner: Runner,
        gate: Gate | None = None,
        *,
        seconds: Seconds | None = None,
        check: Callable[[Measurement], Measurement] | None = None,
    ) -> None:
        self.best_s: float | None = None
        self._check = check
        self._error: RunError | None = None
        self._seconds = seconds or Seconds({})
        self._builder = builder
        self._runner = runner
        self._gate = gate or _keep_all
        self._building: dict[int, tuple[Candidate, Future[Build]]] = {}
        self._running: dict[int, tuple[Candidate, Build, Future[Measurement]]] = {}

    def __len__(self) -> int:
        """Return the number of unfinished candidates."""
        return len(self._building) + len(self._running)

    def submit(self, candidate: Candidate) -> None:
        """Start to build a candidate."""
        self._building[candidate.number] = (candidate, self._builder.submit(candidate.configuration))

    def abandon(self) -> None:
        """Cancel all candidates; builder and runner finish those that they have started."""
        for _, building in self._building.values():
            building.cancel()
        for *_, running in self._running.values():
            running.cancel()
        self._building.clear()
        self._running.clear()

    def advance(self, timeout_s: float | None = None) -> list[TrialRecord]:
        """Wait until a build or a measurement ends, and return the new records, by number.

        Parameters
        ----------
        timeout_s : float or None
            Most seconds to wait.

        Raises
        ------
        RunError
            Builder or runner cannot continue, for example because the GPU is lost. All earlier records have been
            returned before.
        """
        if self._error is not None:
            raise self._error
        futures: list[Future[Any]] = [future for _, future in self._building.values()]
        futures += [future for *_, future in self._running.values()]
        with self._seconds.spent_on("wait"):
            wait(futures, timeout=timeout_s, return_when=FIRST_COMPLETED)
        records = [*self._take_builds(), *self._take_measurements()]
        return sorted(records, key=lambda record: record.number)

    def _take_builds(self) -> list[TrialRecord]:
        """Record failed builds and skipped candidates; pass the others to the runner."""
        done = sorted(number for number, (_, future) in self._building.items() if future.done())
        ended = ((candidate, self._result(future)) for candidate, future in (self._building.pop(one) for one in done))
        built = [(candidate, build) for candidate, build in ended if build is not None]
        records = [one.record(build.state, build.detail, build=build) for one, build in built if build.state != "ok"]
        good = [(one, build) for one, build in built if build.state == "ok"]
        for candidate, (_, build) in zip(self._gate(good) if good else (), good, strict=True):
            if candidate.skip is not None and not candidate.audited:
                records.append(candidate.record(TrialState.SKIPPED, build=build))
            else:
                future = self._runner.submit(candidate.configuration, build, best_s=self.best_s)
                self._running[candidate.number] = (candidate, build, future)
        return records

    def _take_measurements(self) -> list[TrialRecord]:
        done = sorted(number for number, (*_, future) in self._running.items() if future.done())
        records = []
        for candidate, build, future in (self._running.pop(one) for one in done):
            measured = self._result(future)
            if measured is None:
                continue
            measured = self._check(measured) if self._check else measured
            if measured.state is TrialState.OK and measured.median_s is not None:
                self.best_s = min(measured.median_s, self.best_s or measured.median_s)
            records.append(candidate.record(measured.state, measured.detail, build=build, measurement=measured))
        return records

    def _result(self, future: Future[Result]) -> Result | None:
        """Return the result of a future; None, and an error at the next call, where builder or runner failed."""
        try:
            return future.result()
        except RunError as error:
            self._error = error
            return None


def _keep_all(built: Sequence[tuple[Candidate, Build]]) -> Iterable[Candidate]:
    """Skip nothing."""
    return (candidate for candidate, _ in built)
