"""The model of a campaign's run, trained on what the other problems of the campaign have measured."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mltune.errors import MltuneWarning, ModelError
from mltune.learn.model_choice import FAR
from mltune.learn.pretrained import PretrainedModel, Sweep, fit_member
from mltune.records.trial import TrialState

if TYPE_CHECKING:
    from mltune.problem.problem import Problem
    from mltune.results.run import TuneResult
    from mltune.tuning.session import Session

FILE = "siblings"
"""Stem of the model's files in the directory of a run: a resumed run starts from the same model."""

MOST = 4
"""Most siblings that a model is trained on: each takes .2 s."""

FEWEST = 32
"""Fewest timings of a sibling that a regressor is fitted to: two batches."""


@dataclass(frozen=True, slots=True)
class NearSweep:
    """What a run has measured so far, with its distance from another problem; smaller is nearer."""

    distance: tuple[bool, float, str]
    sweep: Sweep


def sweep_for(problem: Problem, run: TuneResult) -> NearSweep | None:
    """Return what a run has measured so far, if that says something of a problem.

    It does if it is of the problem's class and of not many times more or fewer operations. Runs of its own case are
    nearer than others, and then those of a similar size.
    """
    other, trials = run.problem, run.records
    ratio = abs(math.log(max(other.flops, 1) / max(problem.flops, 1)))
    if other.cost_class != problem.cost_class or ratio > math.log(FAR) or trials.succeeded.sum() < FEWEST:
        return None
    ran = ~trials.in_state(TrialState.SKIPPED)
    sweep = Sweep(
        run.slug,
        run.slug,
        run.device.architecture,
        other.case,
        other.cost_class,
        {name: trials.parameter(name)[ran].astype(np.int64) for name in trials.parameters},
        np.where(trials.succeeded, trials.column("median_s"), np.nan)[ran],
    )
    return NearSweep((other.case != problem.case, ratio, run.slug), sweep)


def nearest(found: Iterable[NearSweep | None]) -> tuple[Sweep, ...]:
    """Return the nearest sweeps, at most :data:`MOST`."""
    return tuple(one.sweep for one in sorted(filter(None, found), key=lambda one: one.distance)[:MOST])


def sibling_model(
    session: Session, directory: Path, sweeps: Sequence[Sweep], *, begins: bool
) -> PretrainedModel | None:
    """Return the model that a run starts from because of its siblings, if there is one.

    Parameters
    ----------
    directory : pathlib.Path
        Of the run.
    begins : bool
        Whether the run has no trials: only then is a model trained. Later the one in the directory is loaded.
    """
    from mltune.learn.model_file import load_model, save_model
    from mltune.learn.search import one_thread

    path, parameters = directory / FILE, session.space.names
    if begins:
        if not sweeps:
            return None
        with one_thread():  # the compilers have the other cores
            members = tuple(fit_member(sweep, parameters) for sweep in sweeps)
        model = PretrainedModel(session.kernel.name, parameters, members)
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
