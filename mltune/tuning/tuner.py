"""One tuning run: a search in the loop, with a budget, and the finals at its end.

On a GPU a batch is planned while earlier ones are built and measured. Proposals depend on the seed, on results, and on
the order in which trials ended.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mltune.cost.features import Features
from mltune.cost.model_file import AUTO, NONE, ChosenModel, choose_model
from mltune.cost.pretrained import PretrainedModel
from mltune.cost.regressors import Preloading
from mltune.device.peaks import peak_flops
from mltune.errors import DeviceLostError, MltuneWarning, RunDirectoryError
from mltune.kernel.bundle import Kernel
from mltune.kernel.space import SearchSpace
from mltune.known.wisdom_file import file_of_run
from mltune.measure.timing import finals_s, race_within, within_limits
from mltune.process.child import ChildPool
from mltune.records.declaration import Declaration
from mltune.records.directory import WINNER, check_no_plan, is_begun, new_directory
from mltune.records.distinct import DistinctCount
from mltune.records.events import EventWriter, no_events
from mltune.records.store import MOST_TRIALS, Store
from mltune.records.trial import Candidate, TrialRecord
from mltune.records.trials import Trials
from mltune.resolve.request import TuneRequest
from mltune.results.progress import Observer, Report
from mltune.results.reader import RunReader
from mltune.results.run import TuneResult
from mltune.tuning.bound import enough_share
from mltune.tuning.finals import Finals
from mltune.tuning.loop import Loop, RunEventLog
from mltune.tuning.session import Session, open_session, run_header
from mltune.tuning.wisdom import Siblings, add_outcomes, earlier_sweeps, known_configurations, sibling_model

if TYPE_CHECKING:
    from mltune.search.search import KernelSearch


REFERENCE_EVERY_S = 120.0
"""Seconds between two timings of the reference kernel."""


def tune(
    request: TuneRequest,
    *,
    progress: Report | None = None,
    stop: Callable[[], bool] = bool,
    events: EventWriter | None = None,
    pool: ChildPool | None = None,
    siblings: Siblings | None = None,
    begun: float | None = None,
    space: SearchSpace | None = None,
) -> TuneResult:
    """Search for the fastest configuration until the budget is spent, everything is tried, or a stop is requested.

    ``progress`` is called about twice a second, ``stop`` at least once a second. A campaign gives the writer of
    its events, the pool in which processes wait for the next run, and what it knows from other problems; a run by
    itself writes ``events.jsonl`` into its directory. Its time counts from ``begun``, on the clock of
    :func:`time.perf_counter`. ``space`` is that of the kernel on the GPU, where the caller has made it.
    """
    kernel = _kernel(request)
    siblings = siblings or Siblings()
    if events is None and request.run is not None:
        check_no_plan(request.run)
    target = request.target
    wisdom = file_of_run(request.wisdom, replayed=target.dataset is not None)
    with ExitStack() as stack:
        if pool is None:
            pool = stack.enter_context(closing(ChildPool()))
        if target.cuda is not None:
            from mltune.measure.runner import start_worker

            start_worker(pool, target.cuda)
        session = open_session(replace(request, kernel=kernel), space=space, pool=pool)
        if begun is not None:
            session.begun = begun
        prior = request.prior if request.search == "model" else NONE
        model = choose_model(prior, session.placed.kernel, replay=target.dataset is not None)
        directory = request.run or new_directory(request.problem.label)
        own = RunEventLog(directory, progress) if events is None else None
        stack.enter_context(session)  # its processes start while the space is counted
        if request.run is None or not is_begun(request.run):
            session.begin_builds(None if model is None else model.load(session.placed.problem, session.placed.device))
        settings = {
            "target": "gpu" if target.dataset is None else str(target),
            "batch": session.batch,
            "in_flight": "flow",
            "space": str(session.placed.space.count),
            "search": request.search,
            "skip": request.skip,
            "prior": "none" if model is None else model.card.sha256,
        }
        header = run_header(session, request.seed, settings)
        store = stack.enter_context(Store.open(directory, header, request.store))
        observer = Observer(
            session.placed.problem,
            session.placed.device,
            str(target),
            trials_limit=request.trials,
            time_limit_s=request.time_s,
            slug=request.slug,
            report=progress if own is None else own.tell,
            events=own.write if own is not None else events or no_events,
        )
        if own is not None:
            own.begin(store, request)
        store.set_fact("accuracy", session.placed.kernel.accuracy)
        if request.choice:
            store.set_fact("choice", request.choice)
        starts = known_configurations(
            store, session, wisdom, observer.events, required=request.wisdom != AUTO, siblings=siblings.entries
        )
        pretrained = _start_model(session, store, request, model, siblings, observer, alone=own is not None)
        result = Tuner(session, store, request, observer, stop, known=starts, pretrained=pretrained).run()
        if wisdom is not None:
            add_outcomes(wisdom, session, result)
        if own is not None:
            own.end(result)
        return result


def preload() -> None:
    """Import the packages that a search starts with."""
    import mltune.search.search  # noqa: F401


def _kernel(request: TuneRequest) -> Kernel:
    """Return the kernel with the compiler parameters that vary; a resumed run keeps those that it began with."""
    if request.run is not None and request.target.dataset is None and is_begun(request.run):
        with suppress(RunDirectoryError), Store.read_only(request.run) as store:  # else it is refused as it is opened
            return request.kernel.recorded_with(store.header.parameters)
    return request.kernel.with_variants() if request.variants else request.kernel


def _start_model(
    session: Session,
    store: Store,
    request: TuneRequest,
    chosen: ChosenModel | None,
    siblings: Siblings,
    observer: Observer,
    *,
    alone: bool,
) -> PretrainedModel | None:
    """Return the model that a run starts from, after noting its name and where it is far from its training.

    A model that is left out is a warning only where the user names it. A run `alone`, in no campaign, learns from the
    runs beside it.
    """
    begins, sweeps = len(store) == 0, siblings.sweeps
    if alone and begins and request.prior == AUTO and session.gpu is not None:
        sweeps = earlier_sweeps(session, store.directory)
    model, name, notices = None, "", tuple[str, ...]()
    if request.search == "model":  # while the runner and the compilers start
        model = sibling_model(session, store.directory, sweeps, chosen, begins=begins)
    if model is not None:
        name = ", ".join(member.sweep for member in model.members)
    elif chosen is not None:
        model = chosen.load(session.placed.problem, session.placed.device)
        name = "" if model is None else chosen.name
        notices = chosen.notices(session.placed.problem, session.placed.device)
    if name or notices:
        observer.events("model", detail="; ".join(filter(None, (name, *notices))))
        store.set_fact("model", name)
    for notice in notices if alone and (name or request.prior != AUTO) else ():
        warnings.warn(notice, MltuneWarning, stacklevel=3)
    return model


@dataclass
class Batches:
    """The planner of a search: batches are planned from all results so far, in the order in which trials ended.

    With a batch, the plans of those in flight are put on record: how many trials had ended when each was planned.
    """

    search: KernelSearch
    store: Store
    trials: int
    preloading: Preloading
    counts: Mapping[str, DistinctCount | None]
    _asked: int = 0
    _under_way: Sequence[Candidate] = ()
    _ended: list[TrialRecord] = field(default_factory=list)

    def resume(self, ended: Trials) -> None:
        """Learn the trials of an earlier part of the run, in the order of their ends, and plan what was under way."""
        facts = self.store.facts()
        if facts.plans:
            self.preloading.finish()
        under_way = self.search.resume(ended, facts.plans, facts.stopping, facts.whole)
        self._under_way = under_way[: max(0, self.trials - len(ended))]
        self._asked = len(ended) + len(self._under_way)

    def plan(self) -> Sequence[Candidate]:
        """Return a batch; see :meth:`mltune.tuning.loop.Planner.plan`."""
        candidates, self._under_way = self._under_way, ()
        if self._ended:
            self.search.tell(self._ended)
            self._ended = []
        return candidates or self._ask()

    def tell(self, record: TrialRecord) -> None:
        """Keep a result until the next plan."""
        self._ended.append(record)

    def _ask(self) -> Sequence[Candidate]:
        room = self.trials - self._asked
        if self.search.waits or room < 1:
            return ()
        if self.search.fits_processes:
            self.preloading.finish(trees=self.search.fits_trees)
        before = {name: getattr(self.search, name) for name in ("stopping", "whole")}
        candidates = self.search.ask(room)
        self._asked += len(candidates)
        with self.store.at_once():
            for name, state in before.items():
                if (now := getattr(self.search, name)) != state:
                    self.store.set_fact(name, now.model_dump())
            if candidates:
                self.store.set_fact("plans", [plan.model_dump() for plan in self.search.plans])
                for name, count in self.counts.items():
                    if count is not None:
                        self.store.set_fact(name, count.to_json())
        return candidates


@dataclass
class Tuner:
    """One run of an entered session: a search in the loop, then the finals. The records of the store are resumed."""

    session: Session
    store: Store
    request: TuneRequest
    observer: Observer
    stop: Callable[[], bool] = bool
    known: Sequence[Mapping[str, int]] = ()
    pretrained: PretrainedModel | None = None

    def __post_init__(self) -> None:
        from mltune.search.gates import MINIMUM
        from mltune.search.planning import PlannerOptions

        self._reader = RunReader(self.store.directory)
        # Of a run that began without a count the first part is not on record: then it has none.
        self._counts = {
            name: getattr(self.store.facts(), name) if len(self.store) else DistinctCount()
            for name in ("scored", "skipped")
        }
        self._search = self._new_search()
        trials = MOST_TRIALS if self.request.trials is None else self.request.trials
        self._preloading = Preloading(  # a run of few trials fits no models
            fits_models=self.request.fits_models and trials > PlannerOptions().start_trials,
            fits_trees=self.request.skip and trials > MINIMUM,
        )

    def _new_search(self) -> KernelSearch:
        from mltune.search.search import KernelSearch, SearchSettings, Start

        features, enough = Features(self.session.placed), math.inf
        if self.request.enough is not None:
            enough = enough_share(self.request.enough, features)
        settings = SearchSettings(
            search=self.request.search,
            seed=self.request.seed,
            batch=self.session.batch,
            adapts=True,
            skip=self.request.skip,
            stop=self.request.stop,
            enough=enough,
            compilers=self.session.compilers,
            trials=self.request.trials,
            time_s=search_s(self.request, self.session),
        )
        start = Start(self.session.default, self.known, self.pretrained)
        space = self.session.placed.space
        return KernelSearch(
            space, features, settings, start, scored=self._counts["scored"], skipped=self._counts["skipped"]
        )

    def run(self) -> TuneResult:
        """Run until the end; see :func:`tune`."""
        with self._preloading:
            return self._run()

    def _run(self) -> TuneResult:
        self.store.set_fact("limit", {"trials": self.request.trials, "time_s": self.request.time_s})
        interrupted, loop = False, self._loop()
        if self.session.gpu is not None and self.request.finals:
            self.session.gpu.expect_winner()
        try:
            loop.run()
        except KeyboardInterrupt:
            interrupted = True
        interrupted = interrupted or self.stop()
        self._preloading.finish(trees=False)
        with loop.seconds.spent_on("finals"):
            self._declare(loop, lambda: interrupted or not self.request.finals or self.stop())
        stopped = self._search.stopping.reason
        if not stopped and loop.ended >= MOST_TRIALS:
            stopped = f"it has {MOST_TRIALS:,} trials, the most that a run may have; a new run has room"
        with loop.seconds.spent_on("record"):
            if not interrupted:
                self.store.set_fact("limit", None)
            self.store.set_seconds(loop.seconds.to_json())
            message = "interrupted: this is the best so far" if interrupted else stopped or None
            self.observer.tell(loop.seconds.elapsed, message, at_once=True)
        return replace(self._reader.read_from(self.store), stopped=stopped, interrupted=interrupted)

    def _loop(self) -> Loop:
        """Return the loop, after the search has learned the trials on record."""
        session, request = self.session, self.request
        self._reader.read_from(self.store)
        trials = MOST_TRIALS if request.trials is None else min(request.trials, MOST_TRIALS)
        planner = Batches(self._search, self.store, trials, self._preloading, self._counts)
        planner.resume(self._reader.ended)
        problem = session.placed.problem
        peak = peak_flops(session.placed.device, problem.arithmetic)
        check = None if session.gpu is not None else partial(within_limits, flops=problem.flops, peak_flops=peak)
        return Loop(
            session,
            self.store,
            planner,
            self.observer,
            self._reader.ended,
            decide=self._search.decide,
            check=check,  # the runner of a GPU has done it
            stop=self.stop,
            meanwhile=self._preloading.begin,
            time_s=search_s(request, session),
            reference_every_s=REFERENCE_EVERY_S,
        )

    def _declare(self, loop: Loop, stop: Callable[[], bool]) -> None:
        """Declare a winner, unless that was done with the same trials, and write its folder."""
        run = self._reader.read_from(self.store)
        declared = run.declaration
        settled = run.settled or self.session.gpu is None
        if declared is not None and declared.as_of == loop.ended and (settled or stop()):
            return
        elapsed_s, time_s = loop.seconds.elapsed, self.request.time_s
        left_s = math.inf if time_s is None else time_s - elapsed_s
        race_s, until = race_within(left_s, elapsed_s), time.perf_counter() + left_s
        finals = partial(Finals, self.session, self._reader.ended, run.references, race_s, until)
        try:
            outcome = finals(stop=stop).declare()
        except DeviceLostError:  # until the next attempt the recorded times decide
            self._note_declared(loop, finals(stop=lambda: True).declare())
            raise
        if outcome is not None and outcome.verified and not stop():
            self._write_winner(self.store.directory / WINNER, outcome)
        self._note_declared(loop, outcome)  # after its folder: a declared winner has one

    def _note_declared(self, loop: Loop, declared: Declaration | None) -> None:
        if declared is not None:
            self.store.set_fact("declaration", declared.to_json())
            self.observer.declared(declared, loop.seconds.elapsed)

    def _write_winner(self, folder: Path, declared: Declaration) -> None:
        from mltune.results.winner import Winner
        from mltune.results.winner_folder import write_winner

        session, record = self.session, self._reader.read_from(self.store).trial(declared.number)
        assert record is not None  # noqa: S101 - a declared trial is on record
        build = session.builder.submit(record.configuration).result()
        write_winner(folder, Winner(session.placed, record, declared, build, session.versions))


def search_s(request: TuneRequest, session: Session) -> float | None:
    """Return the seconds of a run before its finals; None where they are not limited."""
    if request.time_s is None or session.gpu is None or not request.finals:
        return request.time_s
    return request.time_s - finals_s(request.time_s)
