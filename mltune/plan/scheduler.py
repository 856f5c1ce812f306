"""The scheduler of a campaign: the standings of all tasks, their failures, and the choice of the next time slice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from mltune.errors import DiskFullError, MltuneError
from mltune.plan.device_worker import Outcome, SliceResult
from mltune.plan.plan import Plan, Standing, Task, TimeSlice, Unit
from mltune.plan.schedule import next_slice
from mltune.records.directory import FILE, PROBLEMS
from mltune.results.reader import read_run

MAX_FAILURES = 3
"""Failures without a new trial after which a task comes last, or is given up if its worker died."""


class Scheduler:
    """Chooses the time slices of a campaign.

    Attributes
    ----------
    standings : dict of str to Standing
        The standing of every task, by slug.
    """

    def __init__(self, plan: Plan, directory: Path) -> None:
        self._plan = plan
        self._directory = directory
        self.standings = {task.slug: read_standing(self.folder(task), task, plan.unit) for task in plan.tasks}
        self._failures: Counter[str] = Counter()
        self._undeclared = {slug for slug, standing in self.standings.items() if standing.spent}

    @property
    def trials(self) -> int:
        """Number of trials of all tasks."""
        return sum(standing.trials for standing in self.standings.values())

    @property
    def done(self) -> int:
        """Number of tasks that have had their minimum, or get nothing more."""
        pairs = ((task, self.standings[task.slug]) for task in self._plan.tasks)
        return sum(one.ended or (one.spent > 0 and one.spent >= task.minimum) for task, one in pairs)

    def folder(self, task: Task) -> Path:
        """Return the run directory of a task."""
        return self._directory / PROBLEMS / task.slug

    def next(self, running: Collection[str], left_s: float | None) -> TimeSlice | None:
        """Choose the time slice of a free device; None if there is nothing for it to do.

        ``running`` holds the slugs of the tasks that other devices work on. ``left_s`` are the seconds left of a budget
        in seconds.
        """
        running = set(running)
        put_last = {slug for slug, failures in self._failures.items() if failures >= MAX_FAILURES}
        standings = list(self.standings.values())
        for busy in (running | put_last, running) if put_last else (running,):
            time_slice = next_slice(self._plan, standings, busy, left_s)
            if time_slice is not None:
                return time_slice
        for slug in sorted(self._undeclared - running):  # killed between its last trial and its declaration
            standing = self.standings[slug]
            self._undeclared.discard(slug)
            if not standing.failed and not is_declared(self.folder(self._plan.task(slug))):
                return TimeSlice(slug, standing.spent, self._plan.unit, "resumed")
        return None

    def end(self, slug: str, result: SliceResult) -> Standing:
        """Record the result of a time slice; return the new standing of its task."""
        before, standing = self.standings[slug], self._read(self._plan.task(slug))
        without_fault = result.outcome in (Outcome.DONE, Outcome.INTERRUPTED) or standing.trials > before.trials
        self._failures[slug] = 0 if without_fault else self._failures[slug] + 1
        if result.outcome is Outcome.DONE:
            self._undeclared.discard(slug)
        else:
            self._undeclared.add(slug)
        given_up = result.outcome is Outcome.DIED and self._failures[slug] >= MAX_FAILURES
        if result.outcome is Outcome.FAILED or given_up:
            standing = replace(standing, failed=result.detail)
        self.standings[slug] = standing
        return standing

    def forget_failures(self) -> None:
        """Forget all failures: they were due to a device that did not work."""
        self._failures.clear()

    def refresh(self) -> None:
        """Read the standings of all tasks from their stores."""
        self.standings = {task.slug: self._read(task) for task in self._plan.tasks}

    def _read(self, task: Task) -> Standing:
        """Read the standing of a task; one that was given up stays so."""
        known = self.standings[task.slug]
        try:
            standing = read_standing(self.folder(task), task, self._plan.unit)
        except DiskFullError:
            return known
        return replace(standing, failed=standing.failed or known.failed)


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
    return read_run(directory).settled
