"""Sweep: time many configurations of a kernel and write them as a dataset, failures included.

A pruned sweep (:func:`pruned_sweep`) leaves out configurations that are surely slow.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from mltune.cost.features import Features
from mltune.cost.model_file import AUTO, choose_model
from mltune.cost.regressors import one_thread
from mltune.dataset.dataset import Kind, check_own, dataset_from_records, write_dataset
from mltune.errors import MltuneWarning, UsageError
from mltune.kernel.coding import Indices, row
from mltune.kernel.space import SearchSpace
from mltune.records.directory import check_no_plan, new_directory
from mltune.records.distinct import DistinctCount
from mltune.records.store import Store
from mltune.records.trial import Candidate, TrialRecord, TrialState
from mltune.records.trials import Trials
from mltune.resolve.request import TuneRequest
from mltune.results.progress import Observer, Report
from mltune.search.pruning import Promise, Pruner, PruningAudit
from mltune.tuning.loop import Loop, Planner
from mltune.tuning.session import Session, open_session, run_header

MOST_ROWS = 200_000
"""Largest space for a complete sweep: a larger one takes hours."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """The result of a pruned sweep.

    It takes as long as the busier of compilers and GPU, in replay after planning. `compile_s` are seconds of all
    compilers together. `complete_s` estimates a complete sweep from the random sample: the mean seconds of a
    configuration, times the size of the space. In replay all seconds but those of planning were recorded earlier.
    """

    audit: PruningAudit
    compilers: int
    compile_s: float
    gpu_s: float
    planning_s: float
    total_s: float
    complete_s: float
    replayed: bool
    dataset: Path | None = None

    @property
    def saved_s(self) -> float:
        """Net seconds saved, planning included."""
        return self.complete_s - self.total_s

    def to_json(self) -> dict[str, int | float]:
        """Return the figures as plain JSON values, without the path and whether it was replayed."""
        figures = {name: value for name, value in asdict(self).items() if name not in ("audit", "replayed", "dataset")}
        return asdict(self.audit) | figures | {"saved_s": self.saved_s}


def judge(
    audit: PruningAudit, trials: Trials, seconds: Mapping[str, float], compilers: int, *, replayed: bool
) -> Pruned:
    """Return the result of a pruned sweep from all its trials and its seconds by phase."""
    compile_s = np.nan_to_num(trials.column("compile_s"))
    gpu_s = np.nan_to_num(trials.column("verify_s")) + np.nan_to_num(trials.column("time_s"))
    sample = np.isin(trials.column("proposed_by"), ("random", "audit"))
    planning_s = seconds.get("search", 0.0)
    busier = max(float(compile_s.sum()) / compilers, float(gpu_s.sum()))
    return Pruned(
        audit,
        compilers,
        float(compile_s.sum()),
        float(gpu_s.sum()),
        planning_s,
        planning_s + busier if replayed else seconds.get("total", busier),
        audit.valid * max(float(compile_s[sample].mean()) / compilers, float(gpu_s[sample].mean())),
        replayed,
    )


def sweep(
    request: TuneRequest,
    count: int | None,
    *,
    values: Mapping[str, Sequence[int]] | None = None,
    progress: Report | None = None,
) -> Path:
    """Time a random sample of `count` configurations, or all, and return the Parquet file in the directory of the run.

    The manifest is beside it. An existing run is resumed. A Ctrl-C raises a KeyboardInterrupt with the directory of the
    run. `values` of some parameters make a sub-space.
    """
    session = _open(request, values, replay=False)
    if count is None:
        _check_size(session)
    kind: Kind = "complete" if count is None else "random"
    with _begun(request, session, {"sweep": kind, "count": count}) as store:
        store.set_fact("scored", [])
        indices = choose_configurations(session, count, request.seed)
        observer = Observer(
            session.placed.problem, session.placed.device, "gpu", trials_limit=len(indices), report=progress
        )
        records = measure_all(session, store, Everything(session.placed.space, indices), observer)
        return _write(session, store, records, kind)


def pruned_sweep(
    request: TuneRequest,
    promise: Promise,
    *,
    values: Mapping[str, Sequence[int]] | None = None,
    progress: Report | None = None,
) -> Pruned:
    """Measure the configurations that may be fast, and write a dataset with a promise about the others.

    The device may be the replay of a complete dataset, and the pretrained model of the request is one more feature of
    the model that decides. Else as :func:`sweep`.
    """
    session = _open(request, values, replay=True)
    _check_size(session)
    model = choose_model(request.prior, session.placed.kernel, replay=session.gpu is None)
    pretrained = None if model is None else model.load(session.placed.problem, session.placed.device)
    is_said = pretrained is not None or request.prior != AUTO  # as in a run
    for notice in model.notices(session.placed.problem, session.placed.device) if model is not None and is_said else ():
        warnings.warn(notice, MltuneWarning, stacklevel=2)
    columns = session.placed.space.rows(np.arange(session.placed.space.count))
    expected = None if pretrained is None else pretrained.predict(columns)
    features = Features(session.placed).before(columns)
    settings = {
        "sweep": "pruned",
        "within": promise.within,
        "confidence": promise.confidence,
        "prior": "none" if model is None else model.card.sha256,
    }
    with _begun(request, session, settings) as store:
        pruner = Pruner(features, seed=request.seed, promise=promise, expected=expected, parameters=len(columns))
        observer = Observer(session.placed.problem, session.placed.device, "gpu", report=progress)
        scored = DistinctCount()
        scored.add(np.arange(session.placed.space.count))  # each round predicts all that are left
        store.set_fact("scored", scored.to_json())
        records = measure_all(session, store, Rounds(session.placed.space, pruner, observer), observer)
        compilers = 1 if math.isinf(session.compilers) else int(session.compilers)
        pruned = judge(pruner.audit(), records, store.seconds(), compilers, replayed=session.gpu is None)
        return replace(pruned, dataset=_write(session, store, records, "pruned", pruned.to_json()))


@contextlib.contextmanager
def _begun(request: TuneRequest, session: Session, settings: Mapping[str, Any]) -> Iterator[Store]:
    """Start a session and open the store of its sweep; a KeyboardInterrupt meanwhile holds the directory of the run."""
    header = run_header(session, request.seed, settings)
    with Store.open(request.run or new_directory(request.problem.label), header, request.store) as store, session:
        check_own(_name_of(session, settings["sweep"]), store.directory)
        try:
            yield store
        except KeyboardInterrupt:
            raise KeyboardInterrupt(store.directory) from None


def _write(
    session: Session, store: Store, records: Trials, kind: Kind, pruning: Mapping[str, int | float] | None = None
) -> Path:
    """Write the trials of a sweep as a dataset into the directory of its run; return the Parquet file."""
    dataset = dataset_from_records(
        records,
        store.header,
        name=_name_of(session, kind),
        kind=kind,
        reference_median_s=store.facts().reference_median_s,
        pruning=pruning,
    )
    check_own(dataset.manifest.name, store.directory)
    write_dataset(dataset, store.directory, overwrite=True)
    return store.directory / f"{dataset.manifest.name}.parquet"


def _name_of(session: Session, kind: Kind) -> str:
    words = f"{session.placed.device.name} {session.placed.problem.label} {kind}".lower().replace("nvidia", "")
    return re.sub(r"[^a-z0-9]+", "-", words).strip("-")[:100]


def _open(request: TuneRequest, values: Mapping[str, Sequence[int]] | None, *, replay: bool) -> Session:
    """Open the session of a sweep; a complete dataset may be replayed where ``replay`` says so."""
    if request.run is not None:
        check_no_plan(request.run)
    target = request.target
    if target.dataset is None:
        return open_session(replace(request, kernel=request.kernel.with_values(values or {})))
    if not replay:
        raise UsageError(f"{target} cannot be swept: a sweep times kernels on a GPU; give cuda:N or auto.")
    session = open_session(request)
    kind = "" if session.recorded is None else session.recorded.manifest.kind
    if kind != "complete" or values:
        raise UsageError(
            f"{target} is of kind {kind}{' and some values were chosen' if values else ''}, but a pruned sweep replays "
            "the whole of a complete dataset; see `mltune datasets`."
        )
    return session


def _check_size(session: Session) -> None:
    if (count := session.placed.space.count) > MOST_ROWS:
        raise UsageError(
            f"the sub-space has {count} configurations, too many for a complete sweep (at most {MOST_ROWS}); fix more "
            "parameters with --only NAME=VALUE"
        )


def choose_configurations(session: Session, count: int | None, seed: int) -> Indices:
    """Return the indices of configurations in random order: an early fast one cuts slower timings short."""
    rng = np.random.default_rng(seed)
    if count is None:
        return rng.permutation(session.placed.space.count)
    return session.placed.space.sample(count, rng)


@dataclass(slots=True)
class Everything:
    """The planner of a sweep that measures all that it has chosen."""

    space: SearchSpace
    indices: Indices

    def plan(self) -> Sequence[Candidate]:
        """Return all configurations, then none."""
        chosen, self.indices = self.indices, self.indices[:0]
        return _candidates(self.space, chosen, 0, 0, "random")

    def tell(self, record: TrialRecord) -> None:
        """Do nothing: no decision depends on a result."""


@dataclass(slots=True)
class Rounds:
    """The planner of a pruned sweep: a round as soon as its results are known."""

    space: SearchSpace
    pruner: Pruner
    observer: Observer
    _planned: int = field(default=0, init=False)

    def plan(self) -> Sequence[Candidate]:
        """Return the next round; see :meth:`mltune.tuning.loop.Planner.plan`."""
        while self.pruner.ready and (request := self.pruner.ask()) is not None:
            candidates: list[Candidate] = []
            for indices, source in ((request.chosen, request.proposed_by), (request.beside, "random")):
                candidates += _candidates(self.space, indices, self._planned, request.number, source)
                self._planned += len(indices)
            self.observer.trials_limit = self._planned
            if candidates:
                return candidates
        return ()

    def tell(self, record: TrialRecord) -> None:
        """Report a log speed, in runs per second; NaN for a failure."""
        failed = record.state is not TrialState.OK or record.median_s is None
        self.pruner.tell({record.index: math.nan if failed else -math.log(record.median_s or math.nan)})


def _candidates(space: SearchSpace, indices: Indices, first: int, batch: int, proposed_by: str) -> list[Candidate]:
    columns = space.rows(indices)
    return [
        Candidate(first + at, batch, index, row(columns, at), proposed_by) for at, index in enumerate(indices.tolist())
    ]


def measure_all(session: Session, store: Store, planner: Planner, observer: Observer) -> Trials:
    """Measure the candidates of a planner that are not in the store; return all trials by number."""
    ended = store.records()
    loop = Loop(session, store, planner, observer, ended, earlier=ended, ahead=4 * (os.cpu_count() or 1))
    with one_thread():
        loop.run()
    observer.tell(loop.seconds.elapsed, at_once=True)
    if loop.measured:
        store.set_seconds(loop.seconds.to_json())
    return store.records().by_number()


@dataclass(frozen=True)
class Swept:
    """A recorded dataset: the result of :func:`mltune.sweep`.

    Attributes
    ----------
    dataset : pathlib.Path
        The Parquet file; its manifest is beside it.
    pruned : Pruned or None
        Of a pruned sweep: its promise, its audit, and the seconds that it saved.
    """

    dataset: Path
    pruned: Pruned | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain JSON values: what ``mltune sweep --json`` prints."""
        document: dict[str, Any] = {"dataset": str(self.dataset)}
        if self.pruned is not None:
            document["pruning"] = self.pruned.to_json() | {"replayed": self.pruned.replayed}
        return document
