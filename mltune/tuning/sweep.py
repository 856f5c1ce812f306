"""Sweep: time many configurations of a kernel and write them as a dataset, failures included.

A pruned sweep (:func:`pruned_sweep`) leaves out what is surely slow; any other measures all that it has chosen.
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from mltune.cost.features import Features
from mltune.cost.model_choice import choose_model
from mltune.dataset.dataset import dataset_from_records, write_dataset
from mltune.errors import MltuneWarning, RunError, UsageError
from mltune.kernel.columns import row
from mltune.measure.pipeline import Pipeline
from mltune.records.candidate import Candidate
from mltune.records.directory import check_no_plan, new_directory
from mltune.records.seconds import Seconds
from mltune.records.store import Store
from mltune.records.trial import TrialState
from mltune.resolve.request import TuneRequest
from mltune.results.progress import Observer, Report
from mltune.search.pruning import Promise, Pruner, Round
from mltune.tuning.pruned import Pruned, judge
from mltune.tuning.session import open_session, run_header

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mltune.records.trial import TrialRecord
    from mltune.tuning.session import Session

MOST_ROWS = 200_000
"""Largest space for a complete sweep: a larger one takes hours."""


def sweep(
    request: TuneRequest,
    count: int | None,
    *,
    values: Mapping[str, Sequence[int]] | None = None,
    progress: Report | None = None,
) -> Path:
    """Time configurations and write a dataset into the directory of the run.

    Parameters
    ----------
    request : TuneRequest
        Kernel, problem, device, seed and run directory; an existing run is resumed.
    count : int or None
        Size of a uniform random sample of the space; None takes every configuration.
    values : mapping of str to sequence of int, optional
        Values of some parameters: a sub-space.
    progress : callable, optional

    Returns
    -------
    pathlib.Path
        The Parquet file; its manifest is in the same directory.

    Raises
    ------
    UsageError
        The request cannot be met.
    """
    session = _open(request, values, replay=False)
    if count is None:
        _check_size(session)
    directory = request.run or new_directory(request.problem.label)
    kind: Literal["complete", "random"] = "complete" if count is None else "random"
    header = run_header(session, request.seed, {"sweep": kind, "count": count})
    with Store.open(directory, header, request.store) as store, session:
        indices = choose_configurations(session, count, request.seed)
        records = measure_all(session, store, Everything(indices), progress)
        dataset = dataset_from_records(
            records,
            header,
            name=_dataset_name(session, kind),
            kind=kind,
            reference_median_s=store.fact("reference_median_s"),
        )
        write_dataset(dataset, directory, overwrite=True)
        return directory / f"{dataset.manifest.name}.parquet"


def pruned_sweep(
    request: TuneRequest,
    promise: Promise,
    *,
    values: Mapping[str, Sequence[int]] | None = None,
    progress: Report | None = None,
) -> Pruned:
    """Measure what may be fast of every configuration, and write a dataset with what that promises.

    Parameters
    ----------
    request : TuneRequest
        As in :func:`sweep`; the device may be the replay of a complete dataset. Its pretrained model is one more
        feature of the model that decides.
    promise : Promise
        What may be left out.
    values, progress
        As in :func:`sweep`.

    Returns
    -------
    Pruned
        The audit, the seconds, and the Parquet file.

    Raises
    ------
    UsageError
        The request cannot be met.
    """
    session = _open(request, values, replay=True)
    _check_size(session)
    model = choose_model(request.prior, session.kernel, replay=session.gpu is None)
    pretrained = None if model is None else model.load(session.problem, session.device)
    for notice in () if model is None else model.notices(session.problem, session.device):
        warnings.warn(notice, MltuneWarning, stacklevel=2)
    columns = session.space.rows(np.arange(session.space.count))
    expected = None if pretrained is None else pretrained.predict(columns)
    features = Features(session.kernel, session.problem, session.device).before(columns)
    directory = request.run or new_directory(request.problem.label)
    settings = {
        "sweep": "pruned",
        "within": promise.within,
        "confidence": promise.confidence,
        "prior": "none" if model is None else model.card.sha256,
    }
    header = run_header(session, request.seed, settings)
    with Store.open(directory, header, request.store) as store, session:
        pruner = Pruner(features, seed=request.seed, promise=promise, expected=expected)
        records = measure_all(session, store, pruner, progress)
        compilers = 1 if math.isinf(session.compilers) else int(session.compilers)
        pruned = judge(pruner.audit(), store.records(), store.seconds(), compilers, replayed=session.gpu is None)
        dataset = dataset_from_records(
            records,
            header,
            name=_dataset_name(session, "pruned"),
            kind="pruned",
            reference_median_s=store.fact("reference_median_s"),
            pruning=pruned.to_json(),
        )
        write_dataset(dataset, directory, overwrite=True)
        return replace(pruned, dataset=directory / f"{dataset.manifest.name}.parquet")


def _open(request: TuneRequest, values: Mapping[str, Sequence[int]] | None, *, replay: bool) -> Session:
    """Open the session of a sweep.

    Parameters
    ----------
    replay : bool
        Whether a complete dataset may be replayed.
    """
    if request.run is not None:
        check_no_plan(request.run)
    target = request.target
    if target.dataset is None:
        return open_session(request.kernel, request.problem, target, values=values)
    if not replay:
        raise UsageError(f"a sweep times kernels on a GPU and cannot replay, got {target}; give cuda:N or auto.")
    session = open_session(request.kernel, request.problem, target)
    kind = "" if session.recorded is None else session.recorded.manifest.kind
    if kind != "complete" or values:
        raise UsageError(
            f"a pruned sweep replays the whole of a complete dataset, but {target} is of kind {kind}"
            f"{' and some values were chosen' if values else ''}; see `mltune datasets`."
        )
    return session


def _check_size(session: Session) -> None:
    if session.space.count > MOST_ROWS:
        raise UsageError(
            f"a complete sweep has at most {MOST_ROWS} configurations, but the sub-space has {session.space.count}; "
            "fix more parameters with --only NAME=VALUE,..."
        )


def choose_configurations(session: Session, count: int | None, seed: int) -> NDArray[np.int64]:
    """Return the indices of the configurations, in random order.

    In this order a fast configuration is found early, and the timing of slower ones is then cut short.
    """
    rng = np.random.default_rng(seed)
    if count is None:
        return rng.permutation(session.space.count)
    return session.space.sample(count, rng)


def _dataset_name(session: Session, kind: str) -> str:
    words = f"{session.device.name} {session.problem.label} {kind}".lower().replace("nvidia", "")
    return re.sub(r"[^a-z0-9]+", "-", words).strip("-")[:100]


class Planner(Protocol):
    """A planner of rounds; :class:`mltune.search.pruning.Pruner` is one.

    Its answers follow from the results told, in whatever order they are told: a resumed sweep plans the same rounds.
    """

    @property
    def ready(self) -> bool:
        """Whether the results are known from which the next round is planned."""
        ...

    def ask(self) -> Round | None:
        """Return the next round; None at the end."""
        ...

    def tell(self, speeds: Mapping[int, float]) -> None:
        """Report log speeds by index of the configuration; NaN for one that failed."""
        ...


@dataclass(slots=True)
class Everything:
    """The planner of a sweep that measures all that it has chosen, in one round."""

    indices: NDArray[np.int64]
    ready: bool = field(default=True, init=False)

    def ask(self) -> Round | None:
        """Return all configurations, then None."""
        asked, self.indices = self.indices, self.indices[:0]
        return Round(0, asked, self.indices, "random") if len(asked) else None

    def tell(self, speeds: Mapping[int, float]) -> None:
        """Do nothing: no decision depends on a result."""


def measure_all(session: Session, store: Store, planner: Planner, progress: Report | None) -> list[TrialRecord]:
    """Measure what a planner asks for and is not in the store; return all records by number."""
    return _Measuring(session, store, planner, progress).run()


class _Measuring:
    """The loop of a sweep: rounds are planned as soon as they can be, while what was asked for before is built."""

    def __init__(self, session: Session, store: Store, planner: Planner, progress: Report | None) -> None:
        self._session = session
        self._store = store
        self._planner = planner
        self._known = {record.number: record for record in store.records()}
        self._records: dict[int, TrialRecord] = {}
        self._todo: deque[Candidate] = deque()
        self._asked = 0
        self._ended = False
        before = store.seconds()
        elapsed = max((record.elapsed_s for record in self._known.values()), default=0.0)
        self._seconds = Seconds({**before, "total": max(elapsed, before.get("total", 0.0))})
        self._pipeline = Pipeline(session.builder, session.runner, seconds=self._seconds)
        self._observer = Observer(session.problem, session.device, "gpu", report=progress)
        self._observer.recall(store.records())
        self._observer.reference_s = store.fact("reference_median_s")

    def run(self) -> list[TrialRecord]:
        """Measure until the planner has nothing more to ask; return all records by number."""
        from mltune.cost.cost_model import one_thread

        with one_thread():
            return self._run()

    def _run(self) -> list[TrialRecord]:
        ahead = 4 * (os.cpu_count() or 1)
        reference_known = self._observer.reference_s is not None
        self._plan()
        while self._todo or len(self._pipeline):
            while self._todo and len(self._pipeline) < ahead:
                self._pipeline.submit(self._todo.popleft())
            if not reference_known:  # once, during the first builds
                reference, reference_known = self._session.reference(), True
                self._observer.reference_s = None if reference is None else reference.median_s
                self._store.set_fact("reference_median_s", self._observer.reference_s)
            ended = [replace(record, elapsed_s=self._seconds.elapsed) for record in self._pipeline.advance()]
            self._store.append(*ended)
            self._observer.see(ended)
            self._tell(ended)
            self._plan()
            self._observer.tell(self._seconds.elapsed, at_once=self._ended and not self._todo)
        if len(self._records) > len(self._known):
            self._store.set_seconds(self._seconds.to_json())
        return [self._records[number] for number in sorted(self._records)]

    def _plan(self) -> None:
        """Ask for rounds until results are needed that are not known."""
        while not self._ended and self._planner.ready:
            with self._seconds.spent_on("search"):
                asked = self._planner.ask()
            if asked is None:
                self._ended = True
                return
            for indices, proposed_by in ((asked.chosen, asked.proposed_by), (asked.beside, "random")):
                self._add(asked.number, indices, proposed_by)

    def _add(self, batch: int, indices: NDArray[np.int64], proposed_by: str) -> None:
        """Add configurations to what is to be measured, or tell what is on record."""
        columns = self._session.space.rows(indices)
        for position, index in enumerate(indices.tolist()):
            record = self._known.get(self._asked)
            if record is None:
                configuration = row(columns, position)
                self._todo.append(Candidate(self._asked, batch, index, configuration, proposed_by))
            elif record.index != index:
                raise RunError(
                    f"a resumed sweep makes the same choices, but trial {self._asked} of {self._store.directory} is "
                    f"configuration {record.index}, not {index}; start a new run."
                )
            else:
                self._tell([record])
            self._asked += 1
        self._observer.trials_limit = self._asked

    def _tell(self, records: Sequence[TrialRecord]) -> None:
        self._records |= {record.number: record for record in records}
        self._planner.tell({record.index: _log_speed(record) for record in records})


def _log_speed(record: TrialRecord) -> float:
    """Return the log of a speed in runs per second; NaN for a failure."""
    failed = record.state is not TrialState.OK or record.median_s is None
    return math.nan if failed else -math.log(record.median_s or math.nan)
