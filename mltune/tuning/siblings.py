"""Models that are trained on other runs on this GPU: those of the same campaign, or earlier ones beside the run."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from mltune.cost.cost_model import one_thread
from mltune.cost.model_choice import ChosenModel
from mltune.cost.model_file import load_model, save_model
from mltune.cost.pretrained import PretrainedModel, Sweep, are_near, distance, fit_member
from mltune.errors import MltuneWarning, ModelError
from mltune.known.entry import Entry
from mltune.problem.problem import Problem
from mltune.records.directory import FILE, POINTER, PROBLEMS
from mltune.records.store import Store
from mltune.records.trial import TrialState
from mltune.results.reader import RunReader, Unread, read_or_set_aside
from mltune.results.run import TuneResult
from mltune.tuning.session import Session

STEM = "siblings"
"""Stem of the model's files in the directory of a run: a resumed run starts from the same model."""

MOST = 4
"""Most siblings that a model is trained on: each takes .2 s."""

FEWEST = 32
"""Fewest timings of a sibling that a regressor is fitted to: two batches."""

LATEST = 24
"""Most earlier runs that are read."""

MOST_TRIALS = 15_000
"""Most trials of an earlier run that is read: a run should begin soon."""


@dataclass(frozen=True, slots=True)
class Siblings:
    """Knowledge from the other problems of a campaign.

    Attributes
    ----------
    entries : tuple of Entry
        Their best configurations so far, which are measured first.
    sweeps : tuple of Sweep
        Measurements of the most similar ones: a model that is trained on them takes the place of the shipped one.
    """

    entries: tuple[Entry, ...] = ()
    sweeps: tuple[Sweep, ...] = ()


@dataclass(frozen=True, slots=True)
class NearRun:
    """A run whose times help with another problem, and its distance from that problem; smaller is nearer."""

    distance: tuple[bool, bool, float, str]
    run: TuneResult


def near_run(problem: Problem, run: TuneResult) -> NearRun | None:
    """Return a run with its distance from a problem; None where its times do not help.

    They help if the run is of the problem's class, and of its case or of a similar number of operations. Runs of a
    similar number are nearer than others, and among these those of its case.
    """
    other = run.problem
    is_far, of_another_case = not are_near(other.flops, problem.flops), other.case != problem.case
    if other.cost_class != problem.cost_class or (is_far and of_another_case):
        return None
    return NearRun((is_far, of_another_case, distance(other.flops, problem.flops), run.slug), run)


def nearest(found: Iterable[NearRun | None]) -> tuple[Sweep, ...]:
    """Return the sweeps of the nearest runs, at most :data:`MOST`, without those that have hardly begun."""
    runs = (one.run for one in sorted(filter(None, found), key=lambda one: one.distance))
    known = (run for run in runs if run.records.succeeded.sum() >= FEWEST)
    return tuple(_sweep(run) for run in itertools.islice(known, MOST))


def _sweep(run: TuneResult) -> Sweep:
    trials = run.records
    ran = ~trials.in_state(TrialState.SKIPPED)
    return Sweep(
        run.slug,
        run.slug,
        run.device.architecture,
        run.problem.case,
        run.problem.cost_class,
        float(run.problem.flops),
        {name: trials.parameter(name)[ran].astype(np.int64) for name in trials.parameters},
        np.where(trials.succeeded, trials.column("median_s"), np.nan)[ran],
    )


def earlier_sweeps(session: Session, directory: Path) -> tuple[Sweep, ...]:
    """Return the sweeps of the nearest of the latest runs in the same folder, of the same kernel and model of GPU.

    Runs that cannot be read, and large ones, are left out.
    """
    return nearest(near_run(session.problem, run) for run in _earlier_runs(session, directory.resolve()))


def _earlier_runs(session: Session, directory: Path) -> Iterator[TuneResult]:
    patterns, found = [f"{at}/{name}" for at in ("*", f"*/{PROBLEMS}/*") for name in (FILE, POINTER)], []
    for path in itertools.chain.from_iterable(map(directory.parent.glob, patterns)):
        with contextlib.suppress(OSError):
            if path.parent != directory:
                found.append((path.stat().st_mtime, path.parent))
    for _, folder in sorted(found, reverse=True)[:LATEST]:
        run = read_or_set_aside(folder.name, partial(_of_this_kernel, session, folder))
        if run is not None and not isinstance(run, Unread):
            yield run


def _of_this_kernel(session: Session, folder: Path) -> TuneResult | None:
    """Read a run, unless it is of another kernel or GPU, or large."""
    with Store.read_only(folder) as store:
        header = store.header
        if header.device.get("name") != session.device.name or not session.kernel.is_version(header.source_hash):
            return None
        if set(header.parameters) != set(session.space.names) or len(store) > MOST_TRIALS:
            return None
        return RunReader(folder).read_from(store)


def sibling_model(
    session: Session, directory: Path, sweeps: Sequence[Sweep], chosen: ChosenModel | None, *, begins: bool
) -> PretrainedModel | None:
    """Return the model of other runs' sweeps that a run starts from; None without one.

    Parameters
    ----------
    directory : pathlib.Path
        That of the run.
    chosen : ChosenModel, optional
        A model whose closest regressors are added.
    begins : bool
        Whether the run has no trials: only then is a model trained. Later the one in the directory is loaded.
    """
    path, parameters = directory / STEM, session.space.names
    if begins:
        if not sweeps:
            return None
        trained = None if chosen is None else chosen.load(session.problem, session.device)
        if trained is not None:
            parameters = trained.parameters
        with one_thread():  # the compilers have the other cores
            members = tuple(fit_member(sweep, parameters) for sweep in sweeps)
        model = PretrainedModel(session.kernel.name, parameters, members + (trained.members if trained else ()))
        save_model(model, path)
    elif path.with_suffix(".json").is_file():
        try:
            model = load_model(path)
            if set(model.parameters) != set(parameters):
                raise ModelError(f"the model {path.with_suffix('.json')} is of other parameters.")
        except ModelError as error:
            warnings.warn(f"{error} This run goes on without it.", MltuneWarning, stacklevel=2)
            return None
    else:
        return None
    return model.closest(session.problem, session.device)
