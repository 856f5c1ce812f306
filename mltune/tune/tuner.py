"""THE LOOP: propose, gate, build, gate, run, record, learn; budgets and resuming.

On a GPU several batches are under way at a time: one is planned while those before it are built and run, from what was
known before all of them. What is planned so depends on the seed and on results alone, never on which result came first,
and a run that was killed goes on as if it had not been.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mltune.errors import DeviceLostError, RunDirectoryError
from mltune.measure.pipeline import Candidate, Pipeline
from mltune.measure.timing_limits import within_limits
from mltune.records.declaration import FACT as DECLARATION
from mltune.records.declaration import Declaration
from mltune.records.directory import WINNER, new_directory
from mltune.records.events import EventWriter
from mltune.records.reference import Reference, drifts
from mltune.records.seconds import Seconds
from mltune.records.store import Store
from mltune.records.trial import GATES, Build, TrialRecord, TrialState
from mltune.results.observer import Observer
from mltune.results.progress import Report
from mltune.results.run import TuneResult
from mltune.tune.batch import BATCH, Batch, Pace, numbers_of
from mltune.tune.event_log import RunEventLog
from mltune.tune.finals import declare
from mltune.tune.request import TuneRequest
from mltune.tune.session import open_session, run_header
from mltune.tune.target import choose, parse_device

if TYPE_CHECKING:
    from mltune.learn.gates import Gates
    from mltune.tune.session import Session


LOOKED_AT = 20_000
"""Most untried configurations that are looked at before a run ends by itself."""

ELITES = 3
"""Best configurations whose neighbours are looked at too."""

REFERENCE_EVERY_S = 120.0
"""Seconds between two timings of the reference kernel."""

_GPU_STATE = ("sm_clock_hz", "temperature_c", "power_w", "throttle_reasons")


def tune(
    request: TuneRequest,
    *,
    progress: Report | None = None,
    stop: Callable[[], bool] = bool,
    slug: str = "",
    diary: EventWriter | None = None,
) -> TuneResult:
    """Search for the fastest configuration until the budget is spent, everything is tried, or it is told to stop.

    Parameters
    ----------
    request : TuneRequest
    progress : callable, optional
        Told now and then how far the run is.
    stop : callable
        Asked now and then, at least once a second while trials are under way; true ends the run with the best so far.
    slug : str
        Name of the problem in its plan.
    diary : callable, optional
        Where events are written; by default ``events.jsonl`` in the directory of the run.

    Raises
    ------
    UsageError
        What is asked for cannot be met.
    RunError
        The run failed; everything recorded before is kept.
    """
    target = parse_device(request.device) or choose(request.kernel, request.problem)
    session = open_session(request.kernel, request.problem, target, compilers=request.compilers)
    directory = request.run or new_directory(request.problem.label)
    header = run_header(
        session,
        request.seed,
        {
            "target": "gpu" if target.dataset is None else str(target),
            "batch": BATCH,
            "batches": session.batches,
            "space": str(session.space.count),
            "search": request.search,
            "skip": request.skip,
        },
    )
    own = RunEventLog(directory, progress) if diary is None else None
    with Store.open(directory, header) as store, session:
        observer = Observer(
            session,
            str(target),
            trials_limit=request.trials,
            time_limit_s=request.time_s,
            slug=slug,
            report=progress if own is None else own.tell,
            diary=diary if own is None else own.write,
        )
        if own is not None:
            own.begin(store, request)
        result = Tuner(session, store, request, observer, stop).run()
        if own is not None:
            own.end(result)
        return result


@dataclass(frozen=True, slots=True)
class _Verdict:
    """Whether the search goes on, as of the models that judged it last: on file, so that a resumed run stops there too.

    Attributes
    ----------
    fitted_to : int
        Trials that those models were fitted to; 0 before the first.
    held : int
        Verdicts on end that nothing is left (:class:`mltune.learn.stopping.StoppingRule`).
    reason : str
        Why no batch after ``batch`` is planned; empty when the search goes on.
    batch : int
        The batch that was planned at the time.
    """

    fitted_to: int = 0
    held: int = 0
    reason: str = ""
    batch: int = 0

    def allows(self, batch: int) -> bool:
        return not self.reason or batch <= self.batch


class Tuner:
    """One run of the loop.

    Parameters
    ----------
    session : Session
        Entered.
    store : Store
        Open for writing; what it holds is resumed.
    request : TuneRequest
    observer : Observer
    stop : callable
        See :func:`tune`.
    """

    def __init__(
        self, session: Session, store: Store, request: TuneRequest, observer: Observer, stop: Callable[[], bool] = bool
    ) -> None:
        import optuna

        from mltune.device.peaks import peak_flops
        from mltune.learn.features import Features
        from mltune.learn.search import make_sampler
        from mltune.learn.stopping import StoppingRule

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._session = session
        self._store = store
        self._request = request
        self._observer = observer
        self._stop = stop
        self._peak = peak_flops(session.device, session.problem.arithmetic)
        self._features = Features(session.kernel, session.problem, session.device)
        self._sampler = make_sampler(request.search, session.space, self._features, request.seed)
        self._stopping = StoppingRule()
        self._study = optuna.create_study(direction="maximize", sampler=self._sampler)
        self._records: dict[int, TrialRecord] = {}
        self._builds: dict[int, Build] = {}
        self._seconds = Seconds(store.seconds() | {"compile": 0.0, "time": 0.0})
        self._pipeline = Pipeline(
            session.builder,
            session.runner,
            self._judge,
            seconds=self._seconds,
            check=partial(within_limits, flops=session.problem.flops, peak_flops=self._peak),
        )
        known = store.records()
        self._remember(known)
        observer.recall(known)
        self._open: deque[Batch] = deque()
        self._pace = Pace()
        self._judgement: Gates | None = None
        self._verdict = _Verdict(**(store.fact("stopping") or {})) if request.stop else _Verdict()
        self._stopping.streak = self._verdict.held
        self._next = 0
        self._reference_s: float | None = store.fact("reference_median_s")
        self._reference_due_s = -math.inf if session.gpu is not None else math.inf

    def run(self) -> TuneResult:
        """Run until the end; see :func:`tune`."""
        from threadpoolctl import threadpool_limits

        from mltune.learn.search import preload

        # The matrices of the search are small, and every other core compiles: threads would only be in the way. And
        # sums depend on their number. The limit holds for libraries that are loaded already.
        preload()
        with threadpool_limits(limits=1):
            return self._run()

    def _run(self) -> TuneResult:
        interrupted = False
        try:
            self._search()
        except KeyboardInterrupt:
            interrupted = True
        interrupted = interrupted or self._stop()
        self._pipeline.abandon()
        with self._seconds.spent_on("finals"):
            declared = self._declare(lambda: interrupted or self._stop())
        with self._seconds.spent_on("record"):
            if not interrupted:
                self._store.set_fact("limit", None)
            self._store.set_seconds(self._seconds.to_json())
            message = "interrupted: this is the best so far" if interrupted else self._verdict.reason or None
            self._observer.tell(self._seconds.elapsed, message, at_once=True)
        return TuneResult(
            problem=self._session.problem,
            device=self._session.device,
            kernel=self._session.kernel.name,
            records=[self._records[number] for number in sorted(self._records)],
            best=None if declared is None else self._records[declared.number],
            reference_s=self._reference_s,
            seconds=self._seconds.to_json(),
            run=self._store.directory,
            declaration=declared,
            stopped=self._verdict.reason,
            interrupted=interrupted,
        )

    def _search(self) -> None:
        """Plan, measure and learn until the limit, or until told to stop."""
        request = self._request
        self._store.set_fact("limit", {"trials": request.trials, "time_s": request.time_s})
        self._know_reference(self._session.recorded_reference_s)
        self._resume()
        under_way = self._open_batches()
        while under_way and not self._stop():
            if self._seconds.elapsed >= self._reference_due_s:  # the first time while the first builds are made
                self._time_reference()
            self._collect()
            with self._seconds.spent_on("record"):
                self._observer.tell(self._seconds.elapsed)
            under_way = self._open_batches()
        self._pipeline.abandon()
        if self._reference_due_s < math.inf and self._references_stale() and not self._stop():
            self._time_reference()

    def _resume(self) -> None:
        """Tell the study of every batch that the next one was, or will be, planned from."""
        from mltune.learn.history import frozen_trial

        medians = [self._median(record) for record in self._records.values()]
        self._pipeline.best_s = min((median for median in medians if median is not None), default=None)
        complete = next(at for at in itertools.count() if not numbers_of(at) <= self._records.keys())
        self._next = max(0, complete - self._session.batches + 1)
        for number in range(self._next * BATCH):
            record = self._records[number]
            self._study.add_trial(frozen_trial(record, self._sampler.distributions, self._score(record)))
            self._pace.add(record)

    def _open_batches(self) -> bool:
        """Plan batches as long as some are wanted; return whether any is under way."""
        while len(self._open) < self._session.batches and not self._time_is_up() and self._verdict.allows(self._next):
            limit = self._request.trials
            room = BATCH if limit is None else limit - self._next * BATCH
            if room < 1 or self._stop():
                break
            with self._seconds.spent_on("search"):
                batch, candidates = self._plan(room)
            if batch is None:
                break
            self._open.append(batch)
            self._begin(batch, candidates)
        return bool(self._open) and not self._time_is_up()

    def _plan(self, room: int) -> tuple[Batch | None, list[Candidate]]:
        """Plan one batch and judge it before compiling; there is none when the space is exhausted."""
        from mltune.learn.gates import Gates
        from mltune.learn.sampling import Proposal

        ended = [self._records[number] for number in sorted(numbers_of(self._next) & self._records.keys())]
        if len(ended) == BATCH:  # it is on record: nothing is left to decide
            proposals = [Proposal(record.index, record.proposed_by, record.predicted) for record in ended]
        else:
            proposals = self._sampler.plan(self._study, self._next, BATCH)[:room]
        if not proposals:
            return None, []
        self._sampler.enqueue(proposals)
        trials = [self._study.ask(self._sampler.distributions) for _ in proposals]
        judgement = Gates(
            self._features,
            self._sampler.history if len(ended) < BATCH and (self._request.skip or self._request.stop) else None,
            self._builds,
            self._session.space,
            self._request.seed,
            self._judgement,
        )
        self._judgement = judgement
        if self._request.stop and judgement.fitted_to > self._verdict.fitted_to:
            self._consider_stopping(judgement)
        gates = GATES if self._pace.awaits_gpu(self._session.compilers) else GATES[:1]
        batch = Batch(self._next, trials, judgement, frozenset(gates if self._request.skip else ()))
        candidates = [
            Candidate(trial.number, batch.number, one.index, dict(trial.params), one.proposed_by, one.predicted)
            for trial, one in zip(trials, proposals, strict=True)
        ]
        self._next += 1
        return batch, batch.before(candidates)

    def _consider_stopping(self, judgement: Gates) -> None:
        """Plan no further batch if nothing untried can be expected to be faster."""
        history, space = self._sampler.history, self._session.space
        if history is None:
            return
        rng = np.random.default_rng((self._request.seed, len(history.indices)))
        untried = space.sample(LOOKED_AT, rng, history.tried)
        around = [untried[:0], *(space.neighbours(index) for index in history.best(ELITES).tolist())]
        near = np.setdiff1d(np.concatenate(around), np.fromiter(history.tried, dtype=np.int64))
        reason = self._stopping.check(
            judgement.optimistic(space.rows(untried)),
            float(np.nanmax(history.scores)) if history.measured else -math.inf,
            measured=history.measured,
            untried=space.count - len(history.tried),
            near=judgement.optimistic(space.rows(near)) if len(near) else None,
        )
        self._verdict = _Verdict(judgement.fitted_to, self._stopping.streak, str(reason or ""), self._next)
        self._store.set_fact("stopping", asdict(self._verdict))

    def _begin(self, batch: Batch, candidates: Sequence[Candidate]) -> None:
        """Begin with as much of a batch as is neither on record nor skipped."""
        skipped = []
        for candidate in candidates:
            known = self._records.get(candidate.number)
            if known is not None:
                self._check_same(known, candidate)
                batch.records[candidate.number] = known
            elif candidate.skip is not None and not candidate.audited:
                skipped.append(candidate.record(TrialState.SKIPPED))
            else:
                self._pipeline.submit(candidate)
        self._keep(skipped)

    def _check_same(self, record: TrialRecord, candidate: Candidate) -> None:
        if dict(record.configuration) != candidate.configuration:
            raise RunDirectoryError(
                f"a resumed run proposes what it proposed before, but trial {record.number} in {self._store.directory} "
                "has another configuration: it was recorded by another version; begin a new run."
            )

    def _judge(self, built: Sequence[tuple[Candidate, Build]]) -> list[Candidate]:
        """Judge after compiling: each candidate by what its batch was planned from."""
        judged: dict[int, Candidate] = {}
        with self._seconds.spent_on("search"):
            for batch in self._open:
                mine = [(candidate, build) for candidate, build in built if candidate.batch == batch.number]
                if mine:
                    judged |= {candidate.number: candidate for candidate in batch.after(mine)}
        return [judged[candidate.number] for candidate, _ in built]

    def _collect(self) -> None:
        """Take what has ended; when the oldest batch is complete, tell the study of it.

        One batch a call: the next one is planned before another is told of, however fast the results came.
        """
        from mltune.learn.history import tell

        oldest = self._open[0]
        if not oldest.complete:
            limit = self._request.time_s
            left = 0.5 if limit is None else min(0.5, max(0.0, limit - self._seconds.elapsed))
            self._keep(self._pipeline.advance(left))
        if oldest.complete:
            self._open.popleft()
            with self._seconds.spent_on("search"):
                for trial in oldest.trials:
                    record = oldest.records[trial.number]
                    tell(self._study, trial, record, self._score(record))
                    self._pace.add(record)
            with self._seconds.spent_on("record"):
                self._store.set_seconds(self._seconds.to_json())

    def _keep(self, records: Sequence[TrialRecord]) -> None:
        """Write records, then remember and tell of them."""
        if not records:
            return
        elapsed_s = self._seconds.elapsed
        records = [replace(record, elapsed_s=elapsed_s) for record in records]
        with self._seconds.spent_on("record"):
            self._store.append(*records)
            self._observer.see(records)
        self._remember(records)
        for record in records:
            next(batch for batch in self._open if batch.number == record.batch).records[record.number] = record

    def _remember(self, records: Iterable[TrialRecord]) -> None:
        for record in records:
            self._records[record.number] = record
            if record.build is not None:
                self._builds[record.index] = record.build
                self._seconds.add("compile", 0.0 if record.build.cached else record.build.compile_s)
            if record.measurement is not None:
                self._seconds.add("time", record.measurement.verify_s + record.measurement.time_s)

    def _time_reference(self) -> None:
        """Time the reference kernel: what it takes now, against the first time, says what to think of the records."""
        with self._seconds.spent_on("reference"):
            measured = self._session.reference()
        self._reference_due_s = self._seconds.elapsed + REFERENCE_EVERY_S
        if measured is None or measured.median_s is None:
            self._reference_due_s = math.inf  # there is none to be had
            return
        self._know_reference(measured.median_s)
        state = {name: getattr(measured, name) for name in ("median_s", "noise", *_GPU_STATE)}
        self._store.append_reference(Reference(len(self._records), self._seconds.elapsed, **state))
        self._observer.diary("reference", after=len(self._records), elapsed_s=self._seconds.elapsed, **state)
        for drift in drifts(self._store.references())[-1:]:
            if drift.last >= len(self._records):
                self._observer.diary("drift", **asdict(drift))

    def _references_stale(self) -> bool:
        """Return whether trials were recorded since the reference kernel was timed."""
        references = self._store.references()
        return bool(references) and references[-1].after < len(self._records)

    def _know_reference(self, median_s: float | None) -> None:
        """Keep the first time of cuBLAS."""
        if self._reference_s is None and median_s is not None:
            self._reference_s = median_s
            self._store.set_fact("reference_median_s", median_s)
        self._observer.reference_s = self._reference_s

    def _declare(self, stop: Callable[[], bool]) -> Declaration | None:
        """Declare a winner, unless that was done when no fewer trials were known, and lay it ready to be taken away."""
        document = self._store.fact(DECLARATION)
        if document is not None:
            declared = Declaration.from_json(document)
            if declared.as_of == len(self._records) and (declared.verified or stop()):
                return declared
        finals = partial(declare, self._session, self._records.values(), references=self._store.references())
        try:
            declared_now = finals(stop=stop)
        except DeviceLostError:  # it will be tried again; until then what is on record has to do
            self._note_declared(finals(stop=lambda: True))
            raise
        if declared_now is not None and self._session.gpu is not None and declared_now.verified and not stop():
            self._lay_ready(self._store.directory / WINNER, declared_now)  # first: who is declared can be taken away
        self._note_declared(declared_now)
        return declared_now

    def _note_declared(self, declared: Declaration | None) -> None:
        if declared is not None:
            self._store.set_fact(DECLARATION, declared.to_json())
            self._observer.declared(declared, self._seconds.elapsed)

    def _lay_ready(self, folder: Path, declared: Declaration) -> None:
        from mltune.winner.folder import write_winner
        from mltune.winner.winner import Winner

        session, record = self._session, self._records[declared.number]
        build = session.builder.submit(record.configuration).result()
        winner = Winner(session.kernel, session.problem, session.device, record, declared, build, session.versions)
        write_winner(folder, winner)

    def _median(self, record: TrialRecord) -> float | None:
        """Return the median time of a trial whose result was right."""
        return record.median_s if record.state in (TrialState.OK, TrialState.UNSTABLE) else None

    def _score(self, record: TrialRecord) -> float | None:
        from mltune.learn.cost_model import log_share

        median_s = self._median(record)
        return None if median_s is None else log_share(self._session.problem.flops, median_s, self._peak)

    def _time_is_up(self) -> bool:
        return self._request.time_s is not None and self._seconds.elapsed >= self._request.time_s
