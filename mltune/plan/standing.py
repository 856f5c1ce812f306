"""How the problems of a plan stand, by their stores: nothing else need outlive the process that carries it out."""

from __future__ import annotations

from pathlib import Path

from mltune.errors import DiskFullError, MltuneError
from mltune.plan.plan import Standing, Task, Unit
from mltune.records.declaration import FACT as DECLARATION
from mltune.records.directory import FILE
from mltune.records.store import Store
from mltune.records.trial import TrialRecord, TrialState


def read_standing(directory: Path, task: Task, unit: Unit) -> Standing:
    """Return how a task stands by its store; one that has not begun stands at nothing.

    Parameters
    ----------
    directory : pathlib.Path
        That of the task's run.
    task : Task
    unit : {"s", "trials"}
        The plan's.

    Raises
    ------
    DiskFullError
        A full disk keeps the store from being read: that says nothing of the task.
    """
    if not (directory / FILE).is_file():
        return Standing(task.slug)
    try:
        with Store.read_only(directory) as store:
            records, seconds = store.records(), store.seconds()
            limit, stopping = store.fact("limit"), store.fact("stopping")
    except DiskFullError:
        raise
    except MltuneError as error:
        return Standing(task.slug, failed=str(error))
    # The clock is written now and then: a run that was killed has spent what its trials say.
    total_s = max(seconds.get("total", 0.0), max((record.elapsed_s for record in records), default=0.0))
    return Standing(
        task.slug,
        spent=float(len(records)) if unit == "trials" else total_s,
        limit=None if limit is None else limit["trials" if unit == "trials" else "time_s"],
        curve=_curve(records, unit),
        stopped=bool(stopping and stopping["reason"]),
        trials=len(records),
        total_s=total_s,
    )


def is_declared(directory: Path) -> bool:
    """Return whether the winner of a run was declared when all its trials were known, or there is none to declare."""
    if not (directory / FILE).is_file():
        return True
    with Store.read_only(directory) as store:
        declared = store.fact(DECLARATION)
        if declared is not None:
            return bool(declared["as_of"] == len(store) and declared["verified"])
        return not any(record.state is TrialState.OK for record in store.records())


def _curve(records: list[TrialRecord], unit: Unit) -> list[tuple[float, float]]:
    """Return the best time so far whenever it fell."""
    curve: list[tuple[float, float]] = []
    order = sorted(records, key=lambda record: (record.elapsed_s, record.number) if unit == "s" else (record.number,))
    for record in order:
        if record.state is TrialState.OK and record.median_s and (not curve or record.median_s < curve[-1][1]):
            curve.append((record.elapsed_s if unit == "s" else record.number + 1.0, record.median_s))
    return curve
