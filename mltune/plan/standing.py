"""Standing of the problems of a plan, read from their stores, so that any process can resume a campaign."""

from __future__ import annotations

from pathlib import Path

from mltune.errors import DiskFullError, MltuneError
from mltune.plan.plan import Standing, Task, Unit
from mltune.records.directory import FILE
from mltune.results.reader import read_run


def read_standing(directory: Path, task: Task, unit: Unit) -> Standing:
    """Return the standing of a task; a task that has not begun has spent nothing.

    Parameters
    ----------
    directory : pathlib.Path
        The run directory of the task.
    task : Task
    unit : {"s", "trials"}
        The unit of the plan's budget.

    Raises
    ------
    DiskFullError
        A full disk keeps the store from being read; the task has not failed.
    """
    if not (directory / FILE).is_file():
        return Standing(task.slug)
    try:
        run = read_run(directory, task.slug)
    except DiskFullError:
        raise
    except MltuneError as error:
        return Standing(task.slug, failed=str(error))
    return Standing(
        task.slug,
        spent=float(len(run.records)) if unit == "trials" else run.elapsed_s,
        limit=None if run.limit is None else run.limit["trials" if unit == "trials" else "time_s"],
        curve=run.improvements(by_time=unit == "s"),
        stopped=bool(run.stopped),
        trials=len(run.records),
        total_s=run.elapsed_s,
    )


def is_declared(directory: Path) -> bool:
    """Return whether a winner was declared when all trials were known, or no trial succeeded."""
    if not (directory / FILE).is_file():
        return True
    run = read_run(directory)
    if run.declaration is None:
        return run.best is None
    return run.declaration.as_of == len(run.records) and run.declaration.verified
