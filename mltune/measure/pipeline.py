"""From candidates to records: builds run ahead on all cores, the gate after compiling, then the runner, one by one."""

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

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration on its way to a measurement; the attributes are those of :class:`TrialRecord`."""

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
        """Return the record of how it ended."""
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


Judge = Callable[[Sequence[tuple[Candidate, Build]]], Iterable[Candidate]]
"""The gate after compiling: candidates with their builds, to the same candidates with its verdicts filled in."""


class Pipeline:
    """Takes candidates, gives records. Nothing of it is random, and nothing waits for anything it need not wait for.

    Parameters
    ----------
    builder : Builder
    runner : Runner
    judge : callable, optional
        See :data:`Judge`.
    seconds : Seconds, optional
        Where those spent waiting for builder and runner are counted.
    check : callable, optional
        What every measurement goes through, such as :func:`mltune.measure.timing_limits.within_limits`.

    Attributes
    ----------
    best_s : float or None
        Fastest median so far: what is hopelessly slower is not sampled further.
    """

    def __init__(
        self,
        builder: Builder,
        runner: Runner,
        judge: Judge | None = None,
        *,
        seconds: Seconds | None = None,
        check: Callable[[Measurement], Measurement] | None = None,
    ) -> None:
        self.best_s: float | None = None
        self._check = check or _believe
        self._trouble: RunError | None = None
        self._seconds = seconds or Seconds({})
        self._builder = builder
        self._runner = runner
        self._judge = judge or _keep_all
        self._building: dict[int, tuple[Candidate, Future[Build]]] = {}
        self._running: dict[int, tuple[Candidate, Build, Future[Measurement]]] = {}

    def __len__(self) -> int:
        """Return the number of candidates under way."""
        return len(self._building) + len(self._running)

    def submit(self, candidate: Candidate) -> None:
        """Begin with a candidate."""
        self._building[candidate.number] = (candidate, self._builder.submit(candidate.configuration))

    def abandon(self) -> None:
        """Give up what has not begun; what has is left to builder and runner."""
        for _, building in self._building.values():
            building.cancel()
        for *_, running in self._running.values():
            running.cancel()
        self._building.clear()
        self._running.clear()

    def advance(self, timeout_s: float | None = None) -> list[TrialRecord]:
        """Wait until something happens, move everything on, and return the records that came of it, by number.

        Parameters
        ----------
        timeout_s : float or None
            Most seconds to wait.

        Raises
        ------
        RunError
            Builder or runner cannot go on (the GPU is lost, say). What had ended before was returned by then.
        """
        if self._trouble is not None:
            raise self._trouble
        futures: list[Future[Any]] = [future for _, future in self._building.values()]
        futures += [future for *_, future in self._running.values()]
        with self._seconds.spent_on("wait"):
            wait(futures, timeout=timeout_s, return_when=FIRST_COMPLETED)
        records = [*self._take_builds(), *self._take_measurements()]
        return sorted(records, key=lambda record: record.number)

    def _take_builds(self) -> list[TrialRecord]:
        """Record what did not compile and what the gate skips; hand the others to the runner."""
        done = sorted(number for number, (_, future) in self._building.items() if future.done())
        ended = ((candidate, self._result(future)) for candidate, future in (self._building.pop(one) for one in done))
        built = [(candidate, build) for candidate, build in ended if build is not None]
        records = [one.record(build.state, build.detail, build=build) for one, build in built if build.state != "ok"]
        good = [(one, build) for one, build in built if build.state == "ok"]
        for candidate, (_, build) in zip(self._judge(good) if good else (), good, strict=True):
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
            answer = self._result(future)
            if answer is None:
                continue
            measured = self._check(answer)
            if measured.state is TrialState.OK and measured.median_s is not None:
                self.best_s = min(measured.median_s, self.best_s or measured.median_s)
            records.append(candidate.record(measured.state, measured.detail, build=build, measurement=measured))
        return records

    def _result(self, future: Future[Answer]) -> Answer | None:
        """Return what a future holds; None, and trouble next time, where that is no answer."""
        try:
            return future.result()
        except RunError as error:
            self._trouble = error
            return None


def _believe(measured: Measurement) -> Measurement:
    """Take a measurement for what it says."""
    return measured


def _keep_all(built: Sequence[tuple[Candidate, Build]]) -> Iterable[Candidate]:
    """Judge without skipping anything."""
    return (candidate for candidate, _ in built)
