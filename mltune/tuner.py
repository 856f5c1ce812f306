"""THE LOOP: propose, gate, build, gate, run, record, learn; budgets and resuming.

On a GPU several batches are under way at a time: one is planned while those before it are built and run, from what was
known before all of them. What is planned so depends on the seed and on results alone, never on which result came first,
and a run that was killed goes on as if it had not been.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from mltune.errors import RunDirectoryError
from mltune.pipeline import Candidate, Pipeline
from mltune.records.store import Store
from mltune.records.trial import Build, Skip, TrialRecord, TrialState
from mltune.run import Report, TuneRequest, TuneResult, new_run_directory, progress_of, run_header
from mltune.summary import best
from mltune.target import choose, parse_device
from mltune.workbench import Workbench, open_workbench

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from optuna.trial import Trial

    from mltune.kernel.table import Columns
    from mltune.learn.judgement import Judgement

BATCH = 16
"""Proposals of a batch: enough to keep a compile pool busy, few enough to learn often."""

REPORT_EVERY_S = 0.5
"""Seconds between two reports of progress."""

LOOKED_AT = 20_000
"""Most untried configurations that are looked at before a run ends by itself."""

ELITES = 3
"""Best configurations whose neighbours are looked at too."""

FINALISTS = 5
"""Candidates for winner that are verified, the fastest first, until one passes."""


def tune(request: TuneRequest, *, progress: Report | None = None) -> TuneResult:
    """Search for the fastest configuration until the budget is spent, everything is tried, or Ctrl-C.

    Parameters
    ----------
    request : TuneRequest
    progress : callable, optional
        Told now and then how far the run is.

    Raises
    ------
    UsageError
        What is asked for cannot be met.
    RunError
        The run failed; everything recorded before is kept.
    """
    target = parse_device(request.device) or choose(request.kernel, request.problem)
    bench = open_workbench(request.kernel, request.problem, target)
    directory = request.run or new_run_directory(request.problem)
    header = run_header(
        bench,
        request.seed,
        {
            "target": str(target),
            "batch": BATCH,
            "batches": bench.batches,
            "space": str(bench.space.count),
            "search": request.search,
            "skip": request.skip,
        },
    )
    with Store.open(directory, header) as store, bench:
        return Tuner(bench, store, request, progress).run()


@dataclass(slots=True)
class _Batch:
    """A batch under way: its trials as Optuna knows them, what judges them, and the records of those that ended."""

    number: int
    trials: list[Trial]
    judgement: Judgement
    awaits_gpu: bool
    records: dict[int, TrialRecord] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return len(self.records) == len(self.trials)


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


@dataclass(slots=True)
class _Pace:
    """What the trials that the study was told of took: seconds and number of builds, and of measurements."""

    compile_s: float = 0.0
    builds: int = 0
    ran_s: float = 0.0
    measurements: int = 0

    def add(self, record: TrialRecord) -> None:
        if record.build is not None:
            self.compile_s += record.build.compile_s
            self.builds += 1
        if record.measurement is not None:
            self.ran_s += record.measurement.verify_s + record.measurement.time_s
            self.measurements += 1

    def awaits_gpu(self, compilers: float) -> bool:
        """Return whether timing is what the run waits for.

        Where compilers are what is short, the GPU has time for whatever they bring: skipping that saves nothing.
        """
        return self.measurements > 0 and self.ran_s / self.measurements > self.compile_s / self.builds / compilers


class Tuner:
    """One run of the loop.

    Parameters
    ----------
    bench : Workbench
        Entered.
    store : Store
        Open for writing; what it holds is resumed.
    request : TuneRequest
    progress : callable, optional
    """

    def __init__(self, bench: Workbench, store: Store, request: TuneRequest, progress: Report | None = None) -> None:
        import optuna

        from mltune.device.peaks import peak_flops
        from mltune.learn.features import Features
        from mltune.learn.search import make_sampler
        from mltune.learn.stopping import StoppingRule

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._bench = bench
        self._store = store
        self._request = request
        self._progress = progress
        self._peak = peak_flops(bench.device, bench.problem.arithmetic)
        self._features = Features(bench.kernel, bench.problem, bench.device)
        self._sampler = make_sampler(request.search, bench.space, self._features, request.seed)
        self._stopping = StoppingRule()
        self._study = optuna.create_study(direction="maximize", sampler=self._sampler)
        self._pipeline = Pipeline(bench.builder, bench.runner, self._judge)
        self._records: dict[int, TrialRecord] = {}
        self._builds: dict[int, Build] = {}
        self._compile_s = self._ran_s = 0.0
        self._remember(store.records())
        self._before = store.seconds()
        self._search_s = 0.0
        self._started = time.perf_counter()
        self._reported = 0.0
        self._open: deque[_Batch] = deque()
        self._pace = _Pace()
        self._judgement: Judgement | None = None
        self._verdict = _Verdict(**(store.fact("stopping") or {})) if request.stop else _Verdict()
        self._stopping.held = self._verdict.held
        self._next = 0
        self._cublas_s: float | None = store.fact("cublas_median_s")

    def run(self) -> TuneResult:
        """Run until the end; see :func:`tune`."""
        from threadpoolctl import threadpool_limits

        # The matrices of the search are small, and every other core compiles: threads would only be in the way.
        with threadpool_limits(limits=1):
            return self._run()

    def _run(self) -> TuneResult:
        message = None
        try:
            self._resume()
            under_way = self._open_batches()
            if self._cublas_s is None:  # timed while the first builds are made
                self._time_cublas()
            while under_way:
                self._collect()
                self._report()
                under_way = self._open_batches()
        except KeyboardInterrupt:
            message = "interrupted: this is the best so far"
        message = message or self._verdict.reason or None
        self._pipeline.abandon()
        winner, rejected = self._winner()
        seconds = self._seconds()
        self._store.set_seconds(seconds)
        self._report(message, final=True)
        return TuneResult(
            problem=self._bench.problem,
            device=self._bench.device,
            kernel=self._bench.kernel.name,
            records=[self._records[number] for number in sorted(self._records)],
            best=winner,
            cublas_s=self._cublas_s,
            seconds=seconds,
            run=self._store.directory,
            rejected=rejected,
            stopped=self._verdict.reason,
        )

    def _resume(self) -> None:
        """Tell the study of every batch that the next one was, or will be, planned from."""
        from mltune.learn.study import frozen_trial

        medians = [self._median(record) for record in self._records.values()]
        self._pipeline.best_s = min((median for median in medians if median is not None), default=None)
        complete = next(at for at in itertools.count() if not self._batch_numbers(at) <= self._records.keys())
        self._next = max(0, complete - self._bench.batches + 1)
        for number in range(self._next * BATCH):
            record = self._records[number]
            self._study.add_trial(frozen_trial(record, self._sampler.distributions, self._score(record)))
            self._pace.add(record)

    def _open_batches(self) -> bool:
        """Plan batches as long as some are wanted; return whether any is under way."""
        while len(self._open) < self._bench.batches and not self._time_is_up() and self._verdict.allows(self._next):
            limit = self._request.trials
            room = BATCH if limit is None else limit - self._next * BATCH
            if room < 1 or not self._open_batch(room):
                break
        return bool(self._open) and not self._time_is_up()

    def _open_batch(self, room: int) -> bool:
        """Plan one batch, judge it, and begin with as much as there is room for; return whether there was anything."""
        from mltune.learn.judgement import Judgement
        from mltune.learn.sampling import Proposal

        started = time.perf_counter()
        ended = [self._records[number] for number in sorted(self._batch_numbers(self._next) & self._records.keys())]
        if len(ended) == BATCH:  # it is on record: nothing is left to decide
            proposals = [Proposal(record.index, record.proposed_by, record.predicted) for record in ended]
        else:
            proposals = self._sampler.plan(self._study, self._next, BATCH)[:room]
        if not proposals:
            return False
        self._sampler.enqueue(proposals)
        trials = [self._study.ask(self._sampler.distributions) for _ in proposals]
        judgement = Judgement(
            self._features,
            self._sampler.history if len(ended) < BATCH and (self._request.skip or self._request.stop) else None,
            self._builds,
            self._bench.space,
            self._request.seed,
            self._judgement,
        )
        self._judgement = judgement
        if self._request.stop and judgement.fitted_to > self._verdict.fitted_to:
            self._consider_stopping(judgement)
        batch = _Batch(self._next, trials, judgement, self._pace.awaits_gpu(self._bench.compilers))
        candidates = [
            Candidate(
                trial.number,
                batch.number,
                proposal.index,
                dict(trial.params),
                proposal.proposed_by,
                proposal.predicted,
            )
            for trial, proposal in zip(trials, proposals, strict=True)
        ]
        self._next += 1
        self._open.append(batch)
        self._begin(batch, candidates)
        self._search_s += time.perf_counter() - started
        return True

    def _consider_stopping(self, judgement: Judgement) -> None:
        """Plan no further batch if nothing untried can be expected to be faster."""
        history, space = self._sampler.history, self._bench.space
        if history is None:
            return
        rng = np.random.default_rng((self._request.seed, len(history.indices)))
        untried = space.sample(LOOKED_AT, rng, history.tried)
        around = [untried[:0], *(space.neighbours(index) for index in history.best(ELITES).tolist())]
        near = np.setdiff1d(np.concatenate(around), np.fromiter(history.tried, dtype=np.int64))
        reason = self._stopping.judge(
            judgement.optimistic(space.rows(untried)),
            float(np.nanmax(history.scores)) if history.measured else -math.inf,
            measured=history.measured,
            untried=space.count - len(history.tried),
            near=judgement.optimistic(space.rows(near)) if len(near) else None,
        )
        self._verdict = _Verdict(judgement.fitted_to, self._stopping.held, str(reason or ""), self._next)
        self._store.set_fact("stopping", asdict(self._verdict))

    def _batch_numbers(self, batch: int) -> set[int]:
        """Return the trial numbers of a whole batch."""
        return set(range(batch * BATCH, (batch + 1) * BATCH))

    def _begin(self, batch: _Batch, candidates: list[Candidate]) -> None:
        from mltune.learn.study import GATES

        skipped = []
        numbers = [candidate.number for candidate in candidates]
        verdicts = batch.judgement.before(_columns(candidates), numbers, self._exempt(batch, candidates, GATES[0]))
        for candidate in _judged(candidates, *verdicts):
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

    def _collect(self) -> None:
        """Take what has ended; when the oldest batch is complete, tell the study of it.

        One batch a call: the next one is planned before another is told of, however fast the results came.
        """
        from mltune.learn.study import tell

        oldest = self._open[0]
        if not oldest.complete:
            limit = self._request.time_s
            left = 0.5 if limit is None else min(0.5, max(0.0, limit - self._elapsed()))
            self._keep(self._pipeline.advance(left))
        if oldest.complete:
            started = time.perf_counter()
            self._open.popleft()
            for trial in oldest.trials:
                record = oldest.records[trial.number]
                tell(self._study, trial, record, self._score(record))
                self._pace.add(record)
            self._store.set_seconds(self._seconds())
            self._search_s += time.perf_counter() - started

    def _keep(self, records: Sequence[TrialRecord]) -> None:
        """Write records, then remember them."""
        if not records:
            return
        self._store.append(*records)
        self._remember(records)
        for record in records:
            next(batch for batch in self._open if batch.number == record.batch).records[record.number] = record

    def _remember(self, records: Iterable[TrialRecord]) -> None:
        for record in records:
            self._records[record.number] = record
            if record.build is not None:
                self._builds[record.index] = record.build
                self._compile_s += 0.0 if record.build.cached else record.build.compile_s
            if record.measurement is not None:
                self._ran_s += record.measurement.verify_s + record.measurement.time_s

    def _judge(self, built: Sequence[tuple[Candidate, Build]]) -> list[Candidate]:
        """Judge after compiling: each candidate by what its batch was planned from."""
        from mltune.learn.study import GATES

        started = time.perf_counter()
        judged: dict[int, Candidate] = {}
        for batch in self._open:
            mine = [(candidate, build) for candidate, build in built if candidate.batch == batch.number]
            if mine:
                candidates = [candidate for candidate, _ in mine]
                verdicts = batch.judgement.after(
                    _columns(candidates),
                    [build for _, build in mine],
                    [candidate.number for candidate in candidates],
                    self._exempt(batch, candidates, GATES[1]),
                )
                judged |= {candidate.number: candidate for candidate in _judged(candidates, *verdicts)}
        self._search_s += time.perf_counter() - started
        return [judged[candidate.number] for candidate, _ in built]

    def _exempt(self, batch: _Batch, candidates: Sequence[Candidate], gate: str) -> NDArray[np.bool_]:
        """Return which candidates a gate does not skip, those among them that the gate before sent to the audit."""
        from mltune.learn.judgement import spared
        from mltune.learn.study import GATES

        if not self._request.skip or (gate == GATES[1] and not batch.awaits_gpu):
            return np.ones(len(candidates), dtype=bool)
        audited = np.array([one.audited for one in candidates], dtype=bool)
        exempt: NDArray[np.bool_] = audited | spared([one.proposed_by for one in candidates], gate)
        return exempt

    def _winner(self) -> tuple[TrialRecord | None, dict[int, str]]:
        rejected: dict[int, str] = {}
        for record in best(self._records.values(), FINALISTS):
            reason = self._bench.verified(record)
            if not reason:
                self._store.set_fact("winner", record.number)
                return record, rejected
            rejected[record.number] = reason
            self._store.set_fact("rejected", {str(number): text for number, text in rejected.items()})
        return None, rejected

    def _time_cublas(self) -> None:
        self._cublas_s = self._bench.cublas_s()
        if self._cublas_s is not None:
            self._store.set_fact("cublas_median_s", self._cublas_s)

    def _median(self, record: TrialRecord) -> float | None:
        """Return the median time of a trial whose result was right."""
        return record.median_s if record.state in (TrialState.OK, TrialState.UNSTABLE) else None

    def _score(self, record: TrialRecord) -> float | None:
        from mltune.learn.cost_model import log_share

        median_s = self._median(record)
        return None if median_s is None else log_share(self._bench.problem.flops, median_s, self._peak)

    def _elapsed(self) -> float:
        return self._before.get("total", 0.0) + time.perf_counter() - self._started

    def _time_is_up(self) -> bool:
        return self._request.time_s is not None and self._elapsed() >= self._request.time_s

    def _seconds(self) -> dict[str, float]:
        """Say where the seconds went; those of compilers and of the GPU run side by side with the others."""
        return {
            "search": self._before.get("search", 0.0) + self._search_s,
            "compile": self._compile_s,
            "time": self._ran_s,
            "wait": self._before.get("wait", 0.0) + self._pipeline.wait_s,
            "total": self._elapsed(),
        }

    def _report(self, message: str | None = None, *, final: bool = False) -> None:
        now = time.perf_counter()
        if self._progress is None or (now - self._reported < REPORT_EVERY_S and not final):
            return
        self._reported = now
        told = progress_of(self._bench, self._records.values(), self._elapsed(), self._cublas_s)
        asked = self._request
        self._progress(replace(told, trials_limit=asked.trials, time_limit_s=asked.time_s, message=message))


def _columns(candidates: Sequence[Candidate]) -> Columns:
    """Return candidates as a table."""
    names = candidates[0].configuration
    return {name: np.array([one.configuration[name] for one in candidates], dtype=np.int64) for name in names}


def _judged(
    candidates: Sequence[Candidate], skips: Sequence[Skip | None], audited: NDArray[np.bool_]
) -> list[Candidate]:
    """Return candidates with the verdict of a gate; one that the audit drew before keeps the first."""
    return [
        replace(one, skip=skip, audited=bool(drawn)) if skip is not None else one
        for one, skip, drawn in zip(candidates, skips, audited, strict=True)
    ]
