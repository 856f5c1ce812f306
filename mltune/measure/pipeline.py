"""The pipeline from candidates to records: builds run ahead on all cores, then the gate, then the runner."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, TypeVar

from mltune.errors import RunError
from mltune.measure.protocols import Builder, Runner
from mltune.records.candidate import Candidate
from mltune.records.seconds import Seconds
from mltune.records.trial import Build, Measurement, TrialRecord, TrialState

Answer = TypeVar("Answer")

Decide = Callable[[Sequence[tuple[Candidate, Build]]], Iterable[Candidate]]
"""The gate after compiling: from candidates with their builds to the same candidates with its decisions filled in."""


class Pipeline:
    """Turns candidates into records. It is deterministic, and no stage waits for another without need.

    Parameters
    ----------
    decide : callable, optional
        See :data:`Decide`.
    seconds : Seconds, optional
        Where the seconds of waiting for builder and runner are counted.
    check : callable, optional
        Applied to every measurement, such as :func:`mltune.measure.timing.within_limits`.

    Attributes
    ----------
    best_s : float or None
        Fastest median so far: the runner stops sampling kernels that are much slower.
    """

    def __init__(
        self,
        builder: Builder,
        runner: Runner,
        decide: Decide | None = None,
        *,
        seconds: Seconds | None = None,
        check: Callable[[Measurement], Measurement] | None = None,
    ) -> None:
        self.best_s: float | None = None
        self._check = check or (lambda measured: measured)
        self._error: RunError | None = None
        self._seconds = seconds or Seconds({})
        self._builder = builder
        self._runner = runner
        self._decide = decide or (lambda built: [candidate for candidate, _ in built])
        self._building: dict[int, tuple[Candidate, Future[Build]]] = {}
        self._running: dict[int, tuple[Candidate, Build, Future[Measurement]]] = {}

    def __len__(self) -> int:
        """Return the number of candidates under way."""
        return len(self._building) + len(self._running)

    def submit(self, candidate: Candidate) -> None:
        """Start to build a candidate."""
        self._building[candidate.number] = (candidate, self._builder.submit(candidate.configuration))

    def abandon(self) -> None:
        """Cancel everything that has not started; builder and runner finish the rest."""
        for _, building in self._building.values():
            building.cancel()
        for *_, running in self._running.values():
            running.cancel()
        self._building.clear()
        self._running.clear()

    def advance(self, timeout_s: float | None = None) -> list[TrialRecord]:
        """Wait until a build or a measurement ends, advance its candidate, and return the new records by number.

        Raises
        ------
        RunError
            Builder or runner cannot continue (the GPU is lost, for example). Earlier results have been returned.
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
        """Record failed builds and skipped candidates; submit the others to the runner."""
        done = sorted(number for number, (_, future) in self._building.items() if future.done())
        ended = ((candidate, self._result(future)) for candidate, future in (self._building.pop(one) for one in done))
        built = [(candidate, build) for candidate, build in ended if build is not None]
        records = [one.record(build.state, build.detail, build=build) for one, build in built if build.state != "ok"]
        good = [(one, build) for one, build in built if build.state == "ok"]
        for candidate, (_, build) in zip(self._decide(good) if good else (), good, strict=True):
            if candidate.is_skipped:
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
        """Return the result of a future; on a RunError return None and raise the error at the next call."""
        try:
            return future.result()
        except RunError as error:
            self._error = error
            return None
