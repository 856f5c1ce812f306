"""The loop of a run: plan, build, measure, record and log, until nothing is left or the time is up.

A search and a sweep are this loop with another planner. Candidates are planned while earlier ones are built and
measured. A planner decides by the results that it was told, in the order in which trials ended. That order is on
record, so a resumed run continues as if it had not been interrupted.
"""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from mltune.errors import ExpressionError, MltuneWarning, RunError
from mltune.measure.pipeline import Decide, Pipeline
from mltune.records.declaration import Reference, drifts
from mltune.records.events import EventLog, EventWriter
from mltune.records.store import Seconds, Store
from mltune.records.trial import Build, Candidate, Measurement, TrialRecord
from mltune.records.trials import Trials
from mltune.resolve.request import TuneRequest
from mltune.results.progress import Observer, Progress, Report
from mltune.results.run import TuneResult
from mltune.tuning.session import Session


class RunEventLog:
    """Writer of ``events.jsonl`` in the directory of a run, which also passes each progress to ``report``."""

    def __init__(self, directory: Path, report: Report | None = None) -> None:
        self._log = EventLog(directory)
        self._report = report
        self.write: EventWriter = self._log.write

    def begin(self, store: Store, request: TuneRequest) -> None:
        """Write that a run starts, or resumes."""
        for notice in filter(None, (store.notice, store.facts().notice)):
            warnings.warn(notice, MltuneWarning, stacklevel=3)
        if len(store):
            self.write("resumed", trials=len(store), pid=os.getpid())
            return
        self.write(
            "run_started",
            problem=request.problem.label,
            kernel=store.header.kernel,
            seed=request.seed,
            trials=request.trials,
            time_s=request.time_s,
            versions=store.header.versions,
            pid=os.getpid(),
        )

    def tell(self, progress: Progress) -> None:
        """Write the progress, unless that was just done, and pass it on."""
        left_s, elapsed_s = progress.left_s, progress.elapsed_s
        self._log.snapshot([progress.to_json()], done=0, problems=1, left_s=left_s, elapsed_s=elapsed_s)
        if self._report is not None:
            self._report(progress)

    def end(self, result: TuneResult) -> None:
        """Write how the run ended."""
        self.write(
            "run_ended",
            outcome="interrupted" if result.interrupted else "ended",
            detail=result.stopped,
            trials=len(result.records),
            best_s=None if result.best is None else result.best.median_s,
            seconds=result.seconds,
            elapsed_s=result.seconds["total"],
        )


PATIENCE_S = 0.5
"""Most seconds of waiting for a result before a stop request is looked for."""

FRUITLESS_S = 1.0
"""Seconds after its time, or after the GPU was ready, that a run without a single success goes on."""

_GPU_STATE = ("sm_clock_hz", "temperature_c", "power_w", "throttle_reasons")


class Planner(Protocol):
    """Plan what a run measures. The answers follow from the results told, and from their order."""

    def plan(self) -> Sequence[Candidate]:
        """Return the next candidates; none while results are missing that they follow from, and none at the end."""

    def tell(self, record: TrialRecord) -> None:
        """Report the result of a candidate: one that has just ended, or that was on record."""


@dataclass(eq=False)
class Loop:
    """The loop of one run, of an entered session and a store that is open for writing.

    A planner that plans trials on record again has them from `earlier`: these are not measured anew. `stop` is asked at
    least once a second, `meanwhile` while builds are under way. At `time_s` elapsed seconds, once there is a result,
    what is under way is given up. At most `ahead` candidates are built ahead. Of the `ended` trials on record,
    `measured` ended in this loop.
    """

    session: Session
    store: Store
    planner: Planner
    observer: Observer
    trials: Trials
    _: KW_ONLY
    earlier: Trials | None = None
    decide: Decide | None = None
    check: Callable[[Measurement], Measurement] | None = None
    stop: Callable[[], bool] = bool
    meanwhile: Callable[[], object] = bool
    time_s: float | None = None
    ahead: int | None = None
    reference_every_s: float = math.inf
    _todo: deque[Candidate] = field(default_factory=deque, init=False)
    measured: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        trials = self.trials
        self.ended = len(trials)
        self.seconds = seconds_so_far(self.store, trials, self.session.begun)
        self._left = {record.number: record for record in self.earlier or ()}
        gate = None if self.decide is None else partial(self._decide, self.decide)
        stages = self.session.builder, self.session.runner, gate
        self._pipeline = Pipeline(*stages, seconds=self.seconds, check=self.check, identify=self._identify)
        self._pipeline.best_s = min(trials.column("median_s")[trials.timed].tolist(), default=None)
        compilers = None if math.isinf(self.session.compilers) else self.session.compilers
        self.store.set_fact("stages", {"valid": str(self.session.placed.space.count), "compilers": compilers})
        self.observer.recall(trials)
        self.observer.reference_s = self.store.facts().reference_median_s
        timed_again = self.reference_every_s < math.inf or self.observer.reference_s is None
        self._ready_s = self.seconds.elapsed
        self._reference_due_s = -math.inf if timed_again and self.session.gpu is not None else math.inf
        self._know_reference(self.session.recorded_reference_s)

    def run(self) -> None:
        """Run the loop until its end."""
        try:
            planned = self._plan()
            while (self._todo or len(self._pipeline)) and not self.stop():
                self._submit()
                if not planned:
                    self.meanwhile()
                    if self.seconds.elapsed >= self._reference_due_s:  # the first time while the first builds are made
                        self._time_reference()
                        if not self.measured:
                            self._ready_s = self.seconds.elapsed
                self._keep(self._pipeline.advance(0.0 if planned else self._patience_s()))
                with self.seconds.spent_on("record"):
                    self.observer.tell(self.seconds.elapsed)
                if self._time_is_up():
                    break
                planned = self._plan()
        finally:
            self._pipeline.abandon()
            if self.session.gpu is not None:
                self.session.gpu.abandon()
        if self._reference_due_s < math.inf and self._references_stale() and not self.stop():
            self._time_reference()

    def _plan(self) -> bool:
        """Begin the next candidates, after those on record; return whether there are any, so that there may be more."""
        begun = False
        while not begun and not self._time_is_up() and not self.stop():
            with self.seconds.spent_on("search"):
                candidates = self.planner.plan()
            if not candidates:
                break
            self._begin(candidates)
            begun = bool(self._todo)
            self._submit()
        if begun and self.measured:
            with self.seconds.spent_on("record"):
                self.store.set_seconds(self.seconds.to_json())
        return begun

    def _begin(self, candidates: Sequence[Candidate]) -> None:
        for candidate in candidates:
            record = self._left.pop(candidate.number, None)
            if record is not None:
                self._check_same(record, candidate)
                self.planner.tell(record)
            else:
                self._todo.append(candidate)

    def _check_same(self, record: TrialRecord, candidate: Candidate) -> None:
        if record.index != candidate.index:
            raise RunError(
                f"trial {record.number} of {self.store.directory} is configuration {record.index}, not "
                f"{candidate.index}, but a resumed run makes the same choices; start a new run."
            )

    def _decide(self, decide: Decide, built: Sequence[tuple[Candidate, Build]]) -> Iterable[Candidate]:
        with self.seconds.spent_on("search"):
            return decide(built)

    def _identify(self, candidate: Candidate, build: Build) -> Hashable:
        """Return machine code and launch, which a measurement follows from; None in replay."""
        if self.session.gpu is None:
            return None
        with suppress(ExpressionError):
            launch = self.session.placed.launch(candidate.configuration)
            return hashlib.sha256(build.cubin).digest(), build.entry, launch
        return None

    def _submit(self) -> None:
        while self._todo and (self.ahead is None or len(self._pipeline) < self.ahead):
            self._pipeline.submit(self._todo.popleft())

    def _keep(self, records: Sequence[TrialRecord]) -> None:
        """Store new records, then report them."""
        if not records:
            return
        elapsed_s = self.seconds.elapsed
        records = [replace(record, elapsed_s=elapsed_s) for record in records]
        with self.seconds.spent_on("record"):
            self.store.append(*records)
            self.observer.see(records)
        self.ended += len(records)
        self.measured += len(records)
        for record in records:
            if record.build is not None:
                self.seconds.add("compile", 0.0 if record.build.cached else record.build.compile_s)
            if record.measurement is not None:
                self.seconds.add("time", record.measurement.verify_s + record.measurement.time_s)
            self.planner.tell(record)

    def _time_reference(self) -> None:
        """Time the reference kernel; a change since its first timing shows a drift of the GPU."""
        with self.seconds.spent_on("reference"):
            measured = self.session.reference()
        elapsed_s = self.seconds.elapsed
        self._reference_due_s = elapsed_s + self.reference_every_s
        if measured is None or measured.median_s is None:
            self._reference_due_s = math.inf  # the problem has none
            return
        self._know_reference(measured.median_s)
        state = {name: getattr(measured, name) for name in ("median_s", "noise", *_GPU_STATE)}
        self.store.append_reference(Reference(self.ended, elapsed_s, **state))
        self.observer.events("reference", after=self.ended, elapsed_s=elapsed_s, **state)
        for drift in drifts(self.store.references())[-1:]:
            if drift.last >= self.ended:
                self.observer.events("drift", **asdict(drift))

    def _references_stale(self) -> bool:
        """Return whether trials were recorded since the reference kernel was timed."""
        references = self.store.references()
        return bool(references) and references[-1].after < self.ended

    def _know_reference(self, median_s: float | None) -> None:
        """Keep the first time of the reference kernel."""
        if self.observer.reference_s is None and median_s is not None:
            self.observer.reference_s = median_s
            self.store.set_fact("reference_median_s", median_s)

    def _patience_s(self) -> float:
        if self.time_s is None or not self.ended:
            return PATIENCE_S
        return min(PATIENCE_S, max(0.0, self.time_s - self.seconds.elapsed))

    def _time_is_up(self) -> bool:
        """Return whether the time is spent; a run goes on until its first result, and a little for a first success."""
        if self.time_s is None or not self.ended:
            return False
        ends_s = self.time_s if self._pipeline.best_s is not None else max(self.time_s, self._ready_s) + FRUITLESS_S
        return self.seconds.elapsed >= ends_s


def seconds_so_far(store: Store, ended: Trials, begun: float) -> Seconds:
    """Return the seconds of a run whose part began at some time, with earlier parts, also of one that was killed."""
    before = store.seconds()
    compile_s, measure_s = ended.column("compile_s"), ended.column("verify_s") + ended.column("time_s")
    last_s = float(np.fmax.reduce(ended.column("elapsed_s"), initial=0.0))
    recomputed = {
        "compile": float(np.nansum(compile_s[ended.column("cached") == 0])),
        "time": float(np.nansum(measure_s)),
        "total": max(last_s, before.get("total", 0.0)),
    }
    return Seconds(before | recomputed, begun)
