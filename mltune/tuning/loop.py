"""The loop of a run: plan, build, measure and record, until nothing is left, the time is spent or a stop is requested.

A search and a sweep are this loop with another planner. Candidates are planned while earlier ones are built and
measured. A planner decides by the results that it was told, not by the order in which results arrive, so a resumed run
continues as if it had not been interrupted.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mltune.errors import RunError
from mltune.measure.pipeline import Decide, Pipeline
from mltune.records.candidate import Candidate
from mltune.records.reference import Reference, drifts
from mltune.records.seconds import Seconds
from mltune.records.trial import TrialRecord, TrialState

if TYPE_CHECKING:
    from mltune.records.store import Store
    from mltune.records.trial import Measurement
    from mltune.records.trials import Trials
    from mltune.results.progress import Observer
    from mltune.tuning.session import Session

PATIENCE_S = 0.5
"""Most seconds of waiting for a result before a stop request is looked for."""

_GPU_STATE = ("sm_clock_hz", "temperature_c", "power_w", "throttle_reasons")


class Planner(Protocol):
    """Plan what a run measures. The answers follow from the results told, in whatever order they are told."""

    def plan(self) -> Sequence[Candidate]:
        """Return the next candidates; none while results are missing that they follow from, and none at the end."""
        ...

    def tell(self, record: TrialRecord) -> None:
        """Report the result of a candidate: one that has just ended, or that was on record."""
        ...


class Loop:
    """The loop of one run.

    Parameters
    ----------
    session : Session
        Entered.
    store : Store
        Open for writing.
    ended : Trials
        All trials of the store.
    left : Trials
        Those of them that the planner will plan again.
    decide, check : callable, optional
        See :class:`mltune.measure.pipeline.Pipeline`.
    stop : callable
        Called at least once a second; true ends the loop.
    time_s : float, optional
        Elapsed seconds of the run at which it ends, once there is a result.
    ahead : int, optional
        Most candidates that are built ahead; by default all that are planned.
    reference_every_s : float
        Seconds between two timings of the reference kernel; infinite for one timing in the whole run.
    """

    def __init__(
        self,
        session: Session,
        store: Store,
        planner: Planner,
        observer: Observer,
        ended: Trials,
        left: Trials,
        *,
        decide: Decide | None = None,
        check: Callable[[Measurement], Measurement] | None = None,
        stop: Callable[[], bool] = bool,
        time_s: float | None = None,
        ahead: int | None = None,
        reference_every_s: float = math.inf,
    ) -> None:
        self._session = session
        self._store = store
        self._planner = planner
        self._observer = observer
        self._stop = stop
        self._time_s = time_s
        self._ahead = ahead
        self._todo: deque[Candidate] = deque()
        self._left = {record.number: record for record in left}
        self.ended = len(ended)
        self.seconds = seconds_so_far(store, ended)
        self._pipeline = Pipeline(session.builder, session.runner, decide, seconds=self.seconds, check=check)
        self._pipeline.best_s = min(ended.column("median_s")[ended.timed].tolist(), default=None)
        observer.recall(ended)
        observer.reference_s = store.fact("reference_median_s")
        self._reference_every_s = reference_every_s
        timed_again = reference_every_s < math.inf or observer.reference_s is None
        self._reference_due_s = -math.inf if timed_again and session.gpu is not None else math.inf
        self._know_reference(session.recorded_reference_s)

    def run(self) -> None:
        """Run the loop until its end."""
        try:
            self._plan()
            while (self._todo or len(self._pipeline)) and not self._stop():
                self._submit()
                if self.seconds.elapsed >= self._reference_due_s:  # the first time while the first builds are made
                    self._time_reference()
                self._keep(self._pipeline.advance(self._patience_s()))
                with self.seconds.spent_on("record"):
                    self._observer.tell(self.seconds.elapsed)
                if self._time_is_up():
                    break
                self._plan()
        finally:
            self._pipeline.abandon()
        if self._reference_due_s < math.inf and self._references_stale() and not self._stop():
            self._time_reference()

    def _plan(self) -> None:
        """Plan until results are missing; candidates on record and skipped ones have their results at once."""
        planned = 0
        while not self._time_is_up() and not self._stop():
            with self.seconds.spent_on("search"):
                candidates = self._planner.plan()
            if not candidates:
                break
            planned += len(candidates)
            self._begin(candidates)
        self._submit()
        if planned:
            with self.seconds.spent_on("record"):
                self._store.set_seconds(self.seconds.to_json())

    def _begin(self, candidates: Sequence[Candidate]) -> None:
        skipped = []
        for candidate in candidates:
            record = self._left.pop(candidate.number, None)
            if record is not None:
                self._check_same(record, candidate)
                self._planner.tell(record)
            elif candidate.is_skipped:
                skipped.append(candidate.record(TrialState.SKIPPED))
            else:
                self._todo.append(candidate)
        self._keep(skipped)

    def _check_same(self, record: TrialRecord, candidate: Candidate) -> None:
        if record.index != candidate.index:
            raise RunError(
                f"a resumed run makes the same choices, but trial {record.number} of {self._store.directory} is "
                f"configuration {record.index}, not {candidate.index}; start a new run."
            )

    def _submit(self) -> None:
        while self._todo and (self._ahead is None or len(self._pipeline) < self._ahead):
            self._pipeline.submit(self._todo.popleft())

    def _keep(self, records: Sequence[TrialRecord]) -> None:
        """Store new records, then report them."""
        if not records:
            return
        elapsed_s = self.seconds.elapsed
        records = [replace(record, elapsed_s=elapsed_s) for record in records]
        with self.seconds.spent_on("record"):
            self._store.append(*records)
            self._observer.see(records)
        self.ended += len(records)
        for record in records:
            if record.build is not None:
                self.seconds.add("compile", 0.0 if record.build.cached else record.build.compile_s)
            if record.measurement is not None:
                self.seconds.add("time", record.measurement.verify_s + record.measurement.time_s)
            self._planner.tell(record)

    def _time_reference(self) -> None:
        """Time the reference kernel; a change since its first timing shows a drift of the GPU."""
        with self.seconds.spent_on("reference"):
            measured = self._session.reference()
        elapsed_s = self.seconds.elapsed
        self._reference_due_s = elapsed_s + self._reference_every_s
        if measured is None or measured.median_s is None:
            self._reference_due_s = math.inf  # the problem has none
            return
        self._know_reference(measured.median_s)
        state = {name: getattr(measured, name) for name in ("median_s", "noise", *_GPU_STATE)}
        self._store.append_reference(Reference(self.ended, elapsed_s, **state))
        self._observer.events("reference", after=self.ended, elapsed_s=elapsed_s, **state)
        for drift in drifts(self._store.references())[-1:]:
            if drift.last >= self.ended:
                self._observer.events("drift", **asdict(drift))

    def _references_stale(self) -> bool:
        """Return whether trials were recorded since the reference kernel was timed."""
        references = self._store.references()
        return bool(references) and references[-1].after < self.ended

    def _know_reference(self, median_s: float | None) -> None:
        """Keep the first time of the reference kernel."""
        if self._observer.reference_s is None and median_s is not None:
            self._observer.reference_s = median_s
            self._store.set_fact("reference_median_s", median_s)

    def _patience_s(self) -> float:
        if self._time_s is None or not self.ended:
            return PATIENCE_S
        return min(PATIENCE_S, max(0.0, self._time_s - self.seconds.elapsed))

    def _time_is_up(self) -> bool:
        """Return whether the time is spent; a run without a single result goes on until its first."""
        return self._time_s is not None and self.ended > 0 and self.seconds.elapsed >= self._time_s


def seconds_so_far(store: Store, ended: Trials) -> Seconds:
    """Return the seconds of the earlier parts of a run, also of one that was killed."""
    before = store.seconds()
    compile_s, measure_s = ended.column("compile_s"), ended.column("verify_s") + ended.column("time_s")
    last_s = float(np.fmax.reduce(ended.column("elapsed_s"), initial=0.0))
    recomputed = {
        "compile": float(np.nansum(compile_s[ended.column("cached") == 0])),
        "time": float(np.nansum(measure_s)),
        "total": max(last_s, before.get("total", 0.0)),
    }
    return Seconds(before | recomputed)
