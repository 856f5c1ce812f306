"""The tuning loop: propose, gate, build, gate, run, record and learn, with budgets and resuming.

On a GPU several batches are in flight: a batch is planned while earlier ones are built and measured, from the results
known before all of them. Proposals therefore depend only on the seed and on results, not on the order in which results
arrive, and a resumed run continues as if it had not been interrupted.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mltune.cost.model_choice import AUTO, NONE, choose_model
from mltune.errors import DeviceLostError, MltuneWarning
from mltune.known.wisdom_file import file_of_run
from mltune.measure.pipeline import Pipeline
from mltune.measure.race import budget_after
from mltune.measure.timing import within_limits
from mltune.records.candidate import Candidate
from mltune.records.declaration import FACT as DECLARATION
from mltune.records.declaration import Declaration
from mltune.records.directory import WINNER, check_no_plan, new_directory
from mltune.records.events import EventWriter, no_events
from mltune.records.reference import Reference, drifts
from mltune.records.seconds import Seconds
from mltune.records.store import Store
from mltune.records.trial import Build, TrialRecord, TrialState
from mltune.resolve.request import TuneRequest
from mltune.results.progress import Observer, Report
from mltune.results.reader import RunReader
from mltune.results.run import TuneResult
from mltune.tuning.bound import enough_share
from mltune.tuning.event_log import RunEventLog
from mltune.tuning.finals import declare
from mltune.tuning.session import open_session, run_header
from mltune.tuning.siblings import NO_SIBLINGS, Siblings, earlier_sweeps, sibling_model
from mltune.tuning.wisdom import add_outcomes, known_configurations

if TYPE_CHECKING:
    from mltune.cost.model_choice import ChosenModel
    from mltune.cost.pretrained import PretrainedModel, Sweep
    from mltune.process.child_pool import ChildPool
    from mltune.search.search import Batch
    from mltune.tuning.session import Session


REFERENCE_EVERY_S = 120.0
"""Seconds between two timings of the reference kernel."""

_GPU_STATE = ("sm_clock_hz", "temperature_c", "power_w", "throttle_reasons")


def tune(
    request: TuneRequest,
    *,
    progress: Report | None = None,
    stop: Callable[[], bool] = bool,
    slug: str = "",
    events: EventWriter | None = None,
    pool: ChildPool | None = None,
    siblings: Siblings = NO_SIBLINGS,
) -> TuneResult:
    """Search for the fastest configuration until the budget is spent, everything is tried, or a stop is requested.

    Parameters
    ----------
    request : TuneRequest
    progress : callable, optional
        Called with the progress about twice a second.
    stop : callable
        Called at least once a second while trials are under way; true ends the run with the best so far.
    slug : str
        Name of the problem in its plan.
    events : callable, optional
        Writes the events of a campaign; by default they go to ``events.jsonl`` in the directory of the run, which must
        not be that of a plan.
    pool : ChildPool, optional
        Where compile processes and the worker of the GPU wait for the next run; without one they end with this one.
    siblings : Siblings
        What the other problems of a campaign have found so far.

    Raises
    ------
    UsageError
        The request cannot be met.
    RunError
        The run failed; everything recorded before is kept.
    """
    directory = request.run or new_directory(request.problem.label)
    if events is None:
        check_no_plan(directory)
    target = request.target
    wisdom = file_of_run(request.wisdom, replayed=target.dataset is not None)
    session = open_session(
        request.kernel,
        request.problem,
        target,
        compilers=request.compilers,
        compile_on=request.compile_on,
        pool=pool,
    )
    prior = request.prior if request.search == "model" else NONE
    model = choose_model(prior, session.kernel, replay=target.dataset is not None)
    header = run_header(
        session,
        request.seed,
        {
            "target": "gpu" if target.dataset is None else str(target),
            "batch": session.batch,
            "in_flight": session.batches,
            "space": str(session.space.count),
            "search": request.search,
            "skip": request.skip,
            "prior": "none" if model is None else model.card.sha256,
        },
    )
    own = RunEventLog(directory, progress) if events is None else None
    with Store.open(directory, header, request.store) as store, session:
        observer = Observer(
            session.problem,
            session.device,
            str(target),
            trials_limit=request.trials,
            time_limit_s=request.time_s,
            slug=slug,
            report=progress if own is None else own.tell,
            events=own.write if own is not None else events or no_events,
        )
        if own is not None:
            if store.notice:
                warnings.warn(store.notice, MltuneWarning, stacklevel=2)
            own.begin(store, request)
        store.set_fact("accuracy", session.kernel.accuracy)
        if request.choice:
            store.set_fact("choice", request.choice)
        known = known_configurations(
            store,
            session,
            wisdom,
            observer.events,
            required=request.wisdom is not None,
            siblings=siblings.entries,
        )
        sweeps = siblings.sweeps
        if own is not None and len(store) == 0 and request.prior == AUTO and session.gpu is not None:
            sweeps = earlier_sweeps(session, directory)
        pretrained, name, notices = _start_model(session, directory, request, model, sweeps, begins=len(store) == 0)
        if name or notices:
            observer.events("model", detail="; ".join(filter(None, (name, *notices))))
            store.set_fact("model", name)
        for notice in notices if own is not None else ():
            warnings.warn(notice, MltuneWarning, stacklevel=2)
        result = Tuner(session, store, request, observer, stop, known=known, pretrained=pretrained).run()
        if wisdom is not None:
            add_outcomes(wisdom, session, result)
        if own is not None:
            own.end(result)
        return result


def preload() -> None:
    """Import the packages of the search, which takes seconds."""
    from mltune.cost import cost_model

    cost_model.preload()


def _start_model(
    session: Session,
    directory: Path,
    request: TuneRequest,
    chosen: ChosenModel | None,
    sweeps: Sequence[Sweep],
    *,
    begins: bool,
) -> tuple[PretrainedModel | None, str, tuple[str, ...]]:
    """Return the model that a run starts from, its name, and what is to be said of it."""
    if request.search == "model":  # while the runner and the compilers start
        found = sibling_model(session, directory, sweeps, chosen, begins=begins)
        if found is not None:
            return found, ", ".join(one.sweep for one in found.members), ()
    if chosen is None:
        return None, "", ()
    found = chosen.load(session.problem, session.device)
    return found, "" if found is None else chosen.name, chosen.notices(session.problem, session.device)


class Tuner:
    """One run of the loop: joins a search to a builder, a runner and a store.

    Parameters
    ----------
    session : Session
        Entered.
    store : Store
        Open for writing; its records are resumed.
    request : TuneRequest
    observer : Observer
    stop : callable
        See :func:`tune`.
    known : sequence of mapping of str to int
        Configurations of a wisdom: the first of them is measured first, the others after the default.
    pretrained : PretrainedModel, optional
        The model that the search starts from.
    """

    def __init__(
        self,
        session: Session,
        store: Store,
        request: TuneRequest,
        observer: Observer,
        stop: Callable[[], bool] = bool,
        known: Sequence[Mapping[str, int]] = (),
        pretrained: PretrainedModel | None = None,
    ) -> None:
        from mltune.cost.features import Features
        from mltune.device.peaks import peak_flops
        from mltune.search.search import Search, gradually

        self._session = session
        self._store = store
        self._request = request
        self._observer = observer
        self._stop = stop
        self._seconds = Seconds(store.seconds() | {"compile": 0.0, "time": 0.0})
        features, enough = Features(session.kernel, session.problem, session.device), math.inf
        if request.enough is not None:
            enough = enough_share(request.enough, session.problem, session.device, session.space, features)
        self._search = Search(
            session.space,
            features,
            search=request.search,
            seed=request.seed,
            batch=session.batch,
            skip=request.skip,
            stop=request.stop,
            enough=enough,
            compilers=session.compilers,
            stopping=store.fact("stopping"),
            in_flight=gradually(session.batches),
            default=session.default,
            known=known,
            pretrained=pretrained,
        )
        peak = peak_flops(session.device, session.problem.arithmetic)
        self._pipeline = Pipeline(
            session.builder,
            session.runner,
            self._decide,
            seconds=self._seconds,
            check=partial(within_limits, flops=session.problem.flops, peak_flops=peak),
        )
        self._reader = RunReader(store.directory)
        self._reader.read_from(store)
        ended = self._reader.ended
        self._seconds.add("compile", float(np.nansum(ended.column("compile_s")[ended.column("cached") == 0])))
        self._seconds.add("time", float(np.nansum(ended.column("verify_s") + ended.column("time_s"))))
        observer.recall(ended)
        self._ended = len(ended)
        self._in_flight: deque[Batch] = deque()
        self._records: dict[int, TrialRecord] = {}  # of batches in flight
        self._asked = 0
        observer.reference_s = store.fact("reference_median_s")
        self._reference_due_s = -math.inf if session.gpu is not None else math.inf

    def run(self) -> TuneResult:
        """Run until the end; see :func:`tune`."""
        from mltune.cost.cost_model import one_thread

        with one_thread():
            return self._run()

    def _run(self) -> TuneResult:
        interrupted = False
        try:
            self._loop()
        except KeyboardInterrupt:
            interrupted = True
        interrupted = interrupted or self._stop()
        self._pipeline.abandon()
        with self._seconds.spent_on("finals"):
            self._declare(lambda: interrupted or self._stop())
        stopped = self._search.stopping.reason
        with self._seconds.spent_on("record"):
            if not interrupted:
                self._store.set_fact("limit", None)
            self._store.set_seconds(self._seconds.to_json())
            message = "interrupted: this is the best so far" if interrupted else stopped or None
            self._observer.tell(self._seconds.elapsed, message, at_once=True)
        return replace(self._reader.read_from(self._store), stopped=stopped, interrupted=interrupted)

    def _loop(self) -> None:
        """Propose, measure and learn until the limit is reached or a stop is requested."""
        request = self._request
        self._store.set_fact("limit", {"trials": request.trials, "time_s": request.time_s})
        self._know_reference(self._session.recorded_reference_s)
        known = self._reader.ended
        self._pipeline.best_s = min(known.column("median_s")[known.timed].tolist(), default=None)
        self._asked = self._search.resume(known)
        self._records = {record.number: record for record in known.take(known.column("number") >= self._asked)}
        self._seconds.restart()  # loading, and learning what is on record, take none of the budget
        self._ask()
        while self._in_flight and not self._stop():
            if self._seconds.elapsed >= self._reference_due_s:  # the first time while the first builds are made
                self._time_reference()
            self._collect()
            with self._seconds.spent_on("record"):
                self._observer.tell(self._seconds.elapsed)
            if self._time_is_up():
                break
            self._ask()
        self._pipeline.abandon()
        if self._reference_due_s < math.inf and self._references_stale() and not self._stop():
            self._time_reference()

    def _ask(self) -> None:
        """Ask for batches until enough are in flight."""
        while not self._search.waits and not self._time_is_up():
            limit = self._request.trials
            room = None if limit is None else limit - self._asked
            if (room is not None and room < 1) or self._stop():
                break
            with self._seconds.spent_on("search"):
                stopping = self._search.stopping
                batch = self._search.ask(room)
            if self._search.stopping != stopping:
                self._store.set_fact("stopping", asdict(self._search.stopping))
            if not batch.candidates:
                break
            self._asked += len(batch.candidates)
            self._in_flight.append(batch)
            self._begin(batch.candidates)

    def _begin(self, candidates: Sequence[Candidate]) -> None:
        """Submit the candidates that are neither on record nor skipped."""
        skipped = []
        for candidate in candidates:
            if candidate.number in self._records:
                continue
            if candidate.is_skipped:
                skipped.append(candidate.record(TrialState.SKIPPED))
            else:
                self._pipeline.submit(candidate)
        self._keep(skipped)

    def _decide(self, built: Sequence[tuple[Candidate, Build]]) -> list[Candidate]:
        """Apply the gate after compiling."""
        with self._seconds.spent_on("search"):
            return self._search.decide(built)

    def _collect(self) -> None:
        """Take finished results, and report the oldest batch to the search when it is complete.

        At most one batch is reported for each call: the next batch is planned before another is reported, however fast
        the results arrive.
        """
        oldest = self._in_flight[0]
        if not self._is_complete(oldest):
            limit = self._request.time_s
            left = 0.5 if limit is None or not self._ended else min(0.5, max(0.0, limit - self._seconds.elapsed))
            self._keep(self._pipeline.advance(left))
        if self._is_complete(oldest):
            self._in_flight.popleft()
            with self._seconds.spent_on("search"):
                self._search.tell(oldest, [self._records.pop(one.number) for one in oldest.candidates])
            with self._seconds.spent_on("record"):
                self._store.set_seconds(self._seconds.to_json())

    def _is_complete(self, batch: Batch) -> bool:
        return all(candidate.number in self._records for candidate in batch.candidates)

    def _keep(self, records: Sequence[TrialRecord]) -> None:
        """Store new records, then report them."""
        if not records:
            return
        elapsed_s = self._seconds.elapsed
        records = [replace(record, elapsed_s=elapsed_s) for record in records]
        with self._seconds.spent_on("record"):
            self._store.append(*records)
            self._observer.see(records)
        self._ended += len(records)
        for record in records:
            self._records[record.number] = record
            if record.build is not None:
                self._seconds.add("compile", 0.0 if record.build.cached else record.build.compile_s)
            if record.measurement is not None:
                self._seconds.add("time", record.measurement.verify_s + record.measurement.time_s)

    def _time_reference(self) -> None:
        """Time the reference kernel; a change since its first timing shows a drift of the GPU."""
        with self._seconds.spent_on("reference"):
            measured = self._session.reference()
        self._reference_due_s = self._seconds.elapsed + REFERENCE_EVERY_S
        if measured is None or measured.median_s is None:
            self._reference_due_s = math.inf  # the problem has none
            return
        self._know_reference(measured.median_s)
        state = {name: getattr(measured, name) for name in ("median_s", "noise", *_GPU_STATE)}
        self._store.append_reference(Reference(self._ended, self._seconds.elapsed, **state))
        self._observer.events("reference", after=self._ended, elapsed_s=self._seconds.elapsed, **state)
        for drift in drifts(self._store.references())[-1:]:
            if drift.last >= self._ended:
                self._observer.events("drift", **asdict(drift))

    def _references_stale(self) -> bool:
        """Return whether trials were recorded since the reference kernel was timed."""
        references = self._store.references()
        return bool(references) and references[-1].after < self._ended

    def _know_reference(self, median_s: float | None) -> None:
        """Keep the first time of the reference kernel."""
        if self._observer.reference_s is None and median_s is not None:
            self._observer.reference_s = median_s
            self._store.set_fact("reference_median_s", median_s)

    def _declare(self, stop: Callable[[], bool]) -> Declaration | None:
        """Declare a winner, unless that was done with the same trials, and write its folder."""
        document = self._store.fact(DECLARATION)
        if document is not None:
            declared = Declaration.from_json(document)
            if declared.as_of == self._ended and (declared.verified or self._session.gpu is None or stop()):
                return declared
        run = self._reader.read_from(self._store)
        race_s = budget_after(self._seconds.elapsed)
        finals = partial(declare, self._session, self._reader.ended, references=run.references, race_s=race_s)
        try:
            declared_now = finals(stop=stop)
        except DeviceLostError:  # until the next attempt the recorded times decide
            self._note_declared(finals(stop=lambda: True))
            raise
        if declared_now is not None and declared_now.verified and not stop():
            self._write_winner(
                self._store.directory / WINNER, declared_now
            )  # before the declaration: a declared winner has a folder
        self._note_declared(declared_now)
        return declared_now

    def _note_declared(self, declared: Declaration | None) -> None:
        if declared is not None:
            self._store.set_fact(DECLARATION, declared.to_json())
            self._observer.declared(declared, self._seconds.elapsed)

    def _write_winner(self, folder: Path, declared: Declaration) -> None:
        from mltune.winner.folder import write_winner
        from mltune.winner.winner import Winner

        session, record = self._session, self._reader.read_from(self._store).trial(declared.number)
        assert record is not None  # noqa: S101 - a declared trial is on record
        build = session.builder.submit(record.configuration).result()
        winner = Winner(session.kernel, session.problem, session.device, record, declared, build, session.versions)
        write_winner(folder, winner)

    def _time_is_up(self) -> bool:
        """Return whether the time is spent; a run without a single result goes on until its first."""
        limit = self._request.time_s
        return limit is not None and self._ended > 0 and self._seconds.elapsed >= limit
