"""Tuning of one problem with several competing kernels: a campaign whose result is that of the fastest."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltune.campaign.campaign import run_plan
from mltune.errors import MltuneWarning, RunDirectoryError, RunError
from mltune.records.directory import WINNER, new_directory, runs_in
from mltune.resolve.device import find_gpus
from mltune.resolve.placement import notices, place
from mltune.results.reader import Unread, read_or_set_aside, read_run
from mltune.results.summary import by_problem
from mltune.show.report.writing import copy_winner

if TYPE_CHECKING:
    from mltune.resolve.plan import Plan
    from mltune.results.run import TuneResult


def tune_choice(plan: Plan, *, run: Path | None = None, **options: Any) -> TuneResult:
    """Tune one problem with several kernels by an unplaced plan, and return the result of the fastest."""
    gpus, reason = find_gpus()
    placed = place(plan, gpus, reason)
    missing = [f"no GPU found ({reason}): replaying recorded timings"] if placed.replayed and not gpus else []
    for notice in (*missing, *notices(placed)):
        warnings.warn(notice, MltuneWarning, stacklevel=3)
    directory = run or new_directory(placed.tasks[0].problem.label)
    campaign = run_plan(placed, directory, **options)
    if not runs_in(directory):
        reasons = "; ".join(f"{slug}: {failure}" for slug, failure in campaign.failed.items())
        raise RunError(
            f"none of the competing kernels has begun in {directory}: "
            f"{reasons or 'the time was over, or the run was interrupted'}."
        )
    result = fastest(directory)
    if (result.directory / WINNER).is_dir():
        copy_winner(result.directory / WINNER, directory / WINNER, directory)
    return replace(result, interrupted=campaign.interrupted)


def fastest(directory: Path) -> TuneResult:
    """Return the result of the fastest kernel in the directory of a campaign for one problem, with all its rivals."""
    outcomes = [read_or_set_aside(at.name, partial(read_run, at, at.name)) for at in runs_in(directory)]
    groups = by_problem(run for run in outcomes if not isinstance(run, Unread))
    if len(groups) != 1:
        facts = "; ".join([f"{len(groups)}", *(run.reason for run in outcomes if isinstance(run, Unread))])
        raise RunDirectoryError(
            f"{directory} holds {facts}, and a result is that of one problem; name the folder of one of its problems."
        )
    (runs,) = groups
    return replace(runs[0], rivals=tuple(runs))
