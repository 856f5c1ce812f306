"""The model of a run that is trained on what other runs on this GPU have measured: of its campaign, or before it."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mltune.cost.pretrained import PretrainedModel, Sweep, are_near, distance, fit_member
from mltune.errors import MltuneWarning, ModelError
from mltune.records.directory import FILE, POINTER, PROBLEMS
from mltune.records.store import Store
from mltune.records.trial import TrialState
from mltune.results.reader import RunReader, Unread, read_or_set_aside

if TYPE_CHECKING:
    from mltune.cost.model_choice import ChosenModel
    from mltune.known.entry import Entry
    from mltune.problem.problem import Problem
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
    """What the other problems of a campaign have found so far.

    Attributes
    ----------
    entries : tuple of Entry
        Their best configurations, which a run measures first, as those of a wisdom.
    sweeps : tuple of Sweep
        The measurements of the most similar ones: a model trained on them replaces the prior of the run.
    """

    entries: tuple[Entry, ...] = ()
    sweeps: tuple[Sweep, ...] = ()


NO_SIBLINGS = Siblings()


@dataclass(frozen=True, slots=True)
class NearRun:
    """A run that says something of another problem, with its distance from it; smaller is nearer."""

    distance: tuple[bool, bool, float, str]
    run: TuneResult


def near_run(problem: Problem, run: TuneResult) -> NearRun | None:
    """Return a run with its distance from a problem, if it says something of that.

    It does if it is of the problem's class, and of its case or of not many times more or fewer operations. Runs of such
    a size are nearer than others, then those of its case.
    """
    other = run.problem
    is_far, of_another_case = not are_near(other.flops, problem.flops), other.case != problem.case
    if other.cost_class != problem.cost_class or (is_far and of_another_case):
        return None
    return NearRun((is_far, of_another_case, distance(other.flops, problem.flops), run.slug), run)


def nearest(found: Iterable[NearRun | None]) -> tuple[Sweep, ...]:
    """Return what the nearest runs have measured so far, at most :data:`MOST`; without those that have hardly begun."""
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
    """Return what the runs beside a new one have measured of its kernel, on such a GPU: of the latest the nearest.

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
    """Return the model that a run starts from because of what other runs have measured, if there is one.

    Parameters
    ----------
    directory : pathlib.Path
        Of the run.
    sweeps : sequence of Sweep
        What they have measured.
    chosen : ChosenModel, optional
        A model whose closest regressors are added.
    begins : bool
        Whether the run has no trials: only then is a model trained. Later the one in the directory is loaded.
    """
    from mltune.cost.cost_model import one_thread
    from mltune.cost.model_file import load_model, save_model

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
