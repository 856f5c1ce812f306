"""Knowledge from other runs: the configurations of a wisdom, and models of runs on the same GPU."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mltune.cost.model_file import SUFFIXES, ChosenModel, load_model, save_model
from mltune.cost.pretrained import PretrainedModel, Sweep, are_near, distance, fit_member
from mltune.cost.regressors import one_thread
from mltune.errors import MltuneWarning, ModelError, WisdomError
from mltune.files.text import printable
from mltune.known.entry import LONGEST_TEXT, Entry, Failure, Gpu
from mltune.known.wisdom import Wisdom
from mltune.problem.problem import Problem
from mltune.records.declaration import Finalist
from mltune.records.directory import FILE, POINTER, PROBLEMS
from mltune.records.events import EventWriter
from mltune.records.facts import MOST_KNOWN
from mltune.records.store import Store
from mltune.records.trial import TrialRecord, TrialState
from mltune.results.reader import RunReader, Unread, read_or_set_aside
from mltune.results.run import TuneResult
from mltune.tuning.finals import rank_records
from mltune.tuning.session import Session

STEM = "siblings"
"""Stem of the model's files in the directory of a run: a resumed run starts from the same model."""

RUN_FILES = tuple(f"{STEM}{suffix}" for suffix in SUFFIXES)
"""The files of a run besides its store and the folder of its winner."""

MOST_SIBLINGS = 4
"""Most siblings that a model is trained on: each takes .2 s."""

FEWEST = 32
"""Fewest timings of a sibling that a regressor is fitted to."""

LATEST = 24
"""Most earlier runs that are read."""

MOST_TRIALS = 15_000
"""Most trials of an earlier run that is read: a run should begin soon."""


@dataclass(frozen=True, slots=True)
class Siblings:
    """Knowledge from the other problems of a campaign: entries to measure first, and sweeps to train a model on."""

    entries: tuple[Entry, ...] = ()
    sweeps: tuple[Sweep, ...] = ()


@dataclass(frozen=True, slots=True)
class NearRun:
    """A run whose times help with another problem, and its distance from that problem; smaller is nearer."""

    distance: tuple[bool, bool, float, str]
    run: TuneResult


def near_run(problem: Problem, run: TuneResult) -> NearRun | None:
    """Return a run with its distance from a problem; None where its times do not help.

    They help if the run is of the problem's class, and of its case or of a similar number of operations, which is
    nearer.
    """
    other = run.problem
    is_far, of_another_case = not are_near(other.flops, problem.flops), other.cost_case != problem.cost_case
    if other.cost_class != problem.cost_class or (is_far and of_another_case):
        return None
    return NearRun((is_far, of_another_case, distance(other.flops, problem.flops), run.slug), run)


def nearest(runs_near: Iterable[NearRun | None]) -> tuple[Sweep, ...]:
    """Return the sweeps of the nearest runs, at most :data:`MOST_SIBLINGS`, without those that have hardly begun."""
    runs = (near.run for near in sorted(filter(None, runs_near), key=lambda near: near.distance))
    measured = (run for run in runs if run.records.succeeded.sum() >= FEWEST)
    return tuple(_sweep(run) for run in itertools.islice(measured, MOST_SIBLINGS))


def _sweep(run: TuneResult) -> Sweep:
    trials = run.records
    ran = ~trials.in_state(TrialState.SKIPPED)
    columns = {name: trials.parameter(name)[ran].astype(np.int64) for name in trials.parameters}
    median_s = np.where(trials.succeeded, trials.column("median_s"), np.nan)[ran]
    return Sweep.of(run.slug, run.slug, run.problem, run.device, columns, median_s)


def earlier_sweeps(session: Session, directory: Path) -> tuple[Sweep, ...]:
    """Return the sweeps of the nearest of the latest small runs in a folder, of the same kernel and model of GPU."""
    return nearest(near_run(session.placed.problem, run) for run in _earlier_runs(session, directory.resolve()))


def _earlier_runs(session: Session, directory: Path) -> Iterator[TuneResult]:
    patterns, runs = [f"{at}/{name}" for at in ("*", f"*/{PROBLEMS}/*") for name in (FILE, POINTER)], []
    for path in itertools.chain.from_iterable(map(directory.parent.glob, patterns)):
        with contextlib.suppress(OSError):
            if path.parent != directory:
                runs.append((path.stat().st_mtime, path.parent))
    for _, folder in sorted(runs, reverse=True)[:LATEST]:
        run = read_or_set_aside(folder.name, partial(_of_this_kernel, session, folder))
        if run is not None and not isinstance(run, Unread):
            yield run


def _of_this_kernel(session: Session, folder: Path) -> TuneResult | None:
    """Read a run, unless it is of another kernel or GPU, or large."""
    with Store.read_only(folder) as store:
        header, kernel = store.header, session.placed.kernel
        if header.device.get("name") != session.placed.device.name or not kernel.source.is_version(header.source_hash):
            return None
        if not kernel.has_parameters(header.parameters) or len(store) > MOST_TRIALS:
            return None
        return RunReader(folder).read_from(store)


def sibling_model(
    session: Session, directory: Path, sweeps: Sequence[Sweep], chosen: ChosenModel | None, *, begins: bool
) -> PretrainedModel | None:
    """Return the model of other runs' sweeps, with the chosen model's closest regressors; None without one.

    It is trained only where the run begins; later the one in the directory of the run is loaded.
    """
    path, parameters = directory / STEM, session.placed.space.names
    if begins:
        if not sweeps:
            return None
        trained = None if chosen is None else chosen.load(session.placed.problem, session.placed.device)
        if trained is not None:
            parameters = trained.parameters
        with one_thread():  # the compilers have the other cores
            completed = (
                replace(sweep, columns=session.placed.kernel.compiler.with_defaults(sweep.columns)) for sweep in sweeps
            )
            members = tuple(fit_member(sweep, parameters) for sweep in completed)
        model = PretrainedModel(session.placed.kernel.name, parameters, members + (trained.members if trained else ()))
        save_model(model, path)
    elif path.with_suffix(".json").is_file():
        try:
            model = load_model(path)
            if not session.placed.kernel.has_parameters(model.parameters):
                raise ModelError(f"the model {path.with_suffix('.json')} is of other parameters.")
        except ModelError as error:
            warnings.warn(f"{error} This run goes on without it.", MltuneWarning, stacklevel=2)
            return None
    else:
        return None
    return model.closest(session.placed.problem, session.placed.device)


_FAILED = frozenset(TrialState) - {TrialState.OK, TrialState.SKIPPED, TrialState.UNSTABLE}


def known_configurations(
    store: Store,
    session: Session,
    file: Path | None,
    events: EventWriter,
    *,
    required: bool,
    siblings: Sequence[Entry] = (),
) -> list[dict[str, int]]:
    """Return the configurations that a run measures first: those of its first start, also where it is resumed.

    They come from the file, which must be readable where it is `required`, and from other problems of a campaign.
    """
    recorded = store.facts().wisdom
    if recorded is None and (file is not None or siblings) and len(store) == 0:
        wisdom = Wisdom(siblings) if file is None else load_wisdom(file, required=required).merge(Wisdom(siblings))
        recorded = _look_up(session, wisdom, events)
        store.set_fact("wisdom", recorded)
    return recorded or []


def add_outcomes(file: Path, session: Session, result: TuneResult) -> None:
    """Add the winner of a run to a wisdom, with its ties and the outcomes of known configurations.

    Nothing is added before it is declared, or on a GPU verified. A file that cannot be written is a warning.
    """
    if not result.settled or result.interrupted:
        return
    try:
        entries = outcomes(result, driver_of(session.versions))
        if len(entries):
            entries.add_to(file)
    except (WisdomError, ValueError) as error:  # such as a name that is longer than a wisdom takes
        warnings.warn(f"the winner was not added to the wisdom: {error}", MltuneWarning, stacklevel=3)


def outcomes(result: TuneResult, driver: str) -> Wisdom:
    """Return what a run that has ended adds to a wisdom."""
    return Wisdom([*_entries(result, driver), *_failures(result, driver)])


def found_so_far(result: TuneResult) -> list[Entry]:
    """Return the entries of a run for its siblings: the winner with its ties, or else the fastest trial so far."""
    best, driver = result.best_record, driver_of(result.header.versions)
    if result.declaration is not None or best is None or best.measurement is None:
        return _entries(result, driver)
    (fastest,) = rank_records({best.number: best.measurement})
    return [_entry(result, driver, fastest, verified=False)]


def driver_of(versions: Mapping[str, str]) -> str:
    """Return the version of the driver, in replay that of the recording; empty where it is not known."""
    return versions.get("driver", versions.get("recorded_driver", ""))


def load_wisdom(file: Path, *, required: bool) -> Wisdom:
    """Read a wisdom; one that cannot be read is an error only if it is required, else a warning."""
    try:
        return Wisdom.load(file)
    except WisdomError as error:
        if required:
            raise
        warnings.warn(f"{error} It is not used.", MltuneWarning, stacklevel=4)
        return Wisdom()


def _look_up(session: Session, wisdom: Wisdom, events: EventWriter) -> list[dict[str, int]]:
    driver, placed = driver_of(session.versions), session.placed
    matches = wisdom.lookup(placed.kernel, placed.problem, placed.device, driver, most=MOST_KNOWN, space=placed.space)
    if matches:
        events("wisdom", detail="; ".join(map(str, matches)))
    coded = (match.entry.codes(session.placed.kernel) for match in matches)
    return [configuration for configuration in coded if configuration is not None]


def _entries(result: TuneResult, driver: str) -> list[Entry]:
    """Return the winner, its ties, and the trials that the wisdom proposed."""
    declaration = result.declaration
    if declaration is None:
        return []
    best = {declaration.number, *declaration.ties}
    finalists = {
        record.number: rank_records({record.number: record.measurement})[0]
        for record in result.measured
        if record.measurement and record.proposed_by == "wisdom" and record.number not in declaration.rejected
    }
    finalists |= {
        finalist.number: finalist for finalist in declaration.finalists if finalist.number in best | finalists.keys()
    }
    winners = best if declaration.verified else set()
    return [_entry(result, driver, finalist, verified=at in winners) for at, finalist in finalists.items()]


def _failures(result: TuneResult, driver: str) -> list[Failure]:
    """Return the configurations of the wisdom that failed, also in the last verification."""
    rejected = {} if result.declaration is None else result.declaration.rejected
    proposed = result.records.take(result.records.column("proposed_by") == "wisdom")
    return [
        Failure.model_validate(_facts(result, driver, record) | {"failed": printable(reason, LONGEST_TEXT)})
        for record in proposed
        if (reason := rejected.get(record.number) or _failure(record))
    ]


def _failure(record: TrialRecord) -> str:
    return f"{record.state}: {record.detail}" if record.state in _FAILED else ""


def _entry(result: TuneResult, driver: str, finalist: Finalist, *, verified: bool) -> Entry:
    record = result.trial(finalist.number)
    assert record is not None  # noqa: S101 - a finalist is on record
    default = (record.median_s for record in result.measured if record.proposed_by == "default")
    return Entry.model_validate(
        {
            **_facts(result, driver, record),
            "median_s": finalist.median_s,
            "low_s": min(finalist.low_s, finalist.median_s),
            "high_s": max(finalist.high_s, finalist.median_s),
            "default_s": next(default, None),
            "reference_s": None if result.leader is None else result.leader.reference_s,
            "verified": verified,
            "trials": len(result.records),
        }
    )


def _facts(result: TuneResult, driver: str, record: TrialRecord) -> dict[str, Any]:
    """Return the fields that entries and failures have in common."""
    header = result.header
    return {
        "kernel": header.kernel,
        "source_hash": header.source_hash,
        "accuracy": result.accuracy,
        "problem": result.problem.to_json(),
        "device": Gpu.of(result.device),
        "driver": driver,
        "configuration": header.labelled(record.configuration),
        "measured_at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}Z",
        "versions": dict(header.versions),
    }
