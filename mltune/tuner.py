"""THE LOOP: propose, gate, build, gate, run, record, learn; budgets and resuming.

On a GPU several batches are under way at a time: one is planned while those before it are built and run, from what was
known before all of them. What is planned so depends on the seed and on results alone, never on which result came first,
and a run that was killed goes on as if it had not been.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
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
        {"target": str(target), "batch": BATCH, "batches": bench.batches, "space": str(bench.space.count)},
    )
    with Store.open(directory, header) as store, bench:
        return Tuner(bench, store, request, progress).run()


@dataclass(slots=True)
class _Batch:
    """A batch under way: its trials as Optuna knows them, and the records of those that have ended."""

    number: int
    trials: list[Trial]
    judgement: Judgement
    records: dict[int, TrialRecord] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return len(self.records) == len(self.trials)


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
        from mltune.learn.sampling import BatchSampler

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._bench = bench
        self._store = store
        self._request = request
        self._progress = progress
        self._peak = peak_flops(bench.device, bench.problem.arithmetic)
        self._features = Features(bench.kernel, bench.problem, bench.device)
        prior = self._features.prior if self._features.has_prior else None
        self._sampler = BatchSampler(bench.space, self._features.before, prior, seed=request.seed)
        self._study = optuna.create_study(direction="maximize", sampler=self._sampler)
        self._pipeline = Pipeline(bench.builder, bench.runner, self._judge)
        self._records = {record.number: record for record in store.records()}
        self._before = store.seconds()
        self._search_s = 0.0
        self._started = time.perf_counter()
        self._reported = 0.0
        self._open: deque[_Batch] = deque()
        self._next = 0
        self._cublas_s: float | None = store.fact("cublas_median_s")

    def run(self) -> TuneResult:
        """Run until the end; see :func:`tune`."""
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

    def _open_batches(self) -> bool:
        """Plan batches as long as some are wanted; return whether any is under way."""
        while len(self._open) < self._bench.batches and not self._time_is_up():
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
            proposals = [Proposal(record.index, record.proposed_by) for record in ended]
        else:
            proposals = self._sampler.plan(self._study, self._next, BATCH)[:room]
        if not proposals:
            return False
        self._sampler.enqueue(proposals)
        trials = [self._study.ask(self._sampler.distributions) for _ in proposals]
        judgement = Judgement(
            self._features,
            None if len(ended) == BATCH else self._sampler.model,
            self._sampler.history,
            {record.index: record.build for record in self._records.values() if record.build is not None},
            self._bench.space,
            self._request.seed,
        )
        batch = _Batch(self._next, trials, judgement)
        candidates = [
            Candidate(trial.number, batch.number, proposal.index, dict(trial.params), proposal.proposed_by)
            for trial, proposal in zip(trials, proposals, strict=True)
        ]
        self._next += 1
        self._open.append(batch)
        self._begin(batch, candidates)
        self._search_s += time.perf_counter() - started
        return True

    def _batch_numbers(self, batch: int) -> set[int]:
        """Return the trial numbers of a whole batch."""
        return set(range(batch * BATCH, (batch + 1) * BATCH))

    def _begin(self, batch: _Batch, candidates: list[Candidate]) -> None:
        skipped = []
        numbers = [candidate.number for candidate in candidates]
        verdicts = batch.judgement.before(_columns(candidates), numbers, _exempt(candidates))
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
            self._store.set_seconds(self._seconds())
            self._search_s += time.perf_counter() - started

    def _keep(self, records: Sequence[TrialRecord]) -> None:
        """Write records, then remember them."""
        if not records:
            return
        self._store.append(*records)
        for record in records:
            self._records[record.number] = record
            next(batch for batch in self._open if batch.number == record.batch).records[record.number] = record

    def _judge(self, built: Sequence[tuple[Candidate, Build]]) -> list[Candidate]:
        """Judge after compiling: each candidate by what its batch was planned from."""
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
                    _exempt(candidates),
                )
                judged |= {candidate.number: candidate for candidate in _judged(candidates, *verdicts)}
        self._search_s += time.perf_counter() - started
        return [judged[candidate.number] for candidate, _ in built]

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
        compiled = [record.build for record in self._records.values() if record.build is not None]
        ran = [record.measurement for record in self._records.values() if record.measurement is not None]
        return {
            "search": self._before.get("search", 0.0) + self._search_s,
            "compile": sum(build.compile_s for build in compiled if not build.cached),
            "time": sum(measured.verify_s + measured.time_s for measured in ran),
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


def _exempt(candidates: Sequence[Candidate]) -> NDArray[np.bool_]:
    """Return which candidates no gate skips: what explores, and what the gate before compiling sent to the audit."""
    return np.array([one.proposed_by in ("random", "start") or one.audited for one in candidates])


def _judged(
    candidates: Sequence[Candidate], skips: Sequence[Skip | None], audited: NDArray[np.bool_]
) -> list[Candidate]:
    """Return candidates with the verdict of a gate; one that the audit drew before keeps the first."""
    return [
        replace(one, skip=skip, audited=bool(drawn)) if skip is not None else one
        for one, skip, drawn in zip(candidates, skips, audited, strict=True)
    ]
