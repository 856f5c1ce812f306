"""The scheduler of a campaign: the standings of all tasks, their failures, and the choice of the next time slice."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from mltune.campaign.device_worker import Outcome, SliceResult
from mltune.campaign.schedule import Standing, TimeSlice, best_of_choices, next_slice, standing_of
from mltune.device.facts import Device
from mltune.errors import MltuneError, RunError
from mltune.kernel.placed import PlacedKernel
from mltune.known.entry import Entry
from mltune.records.directory import PROBLEMS, is_begun
from mltune.resolve.plan import Plan, Task
from mltune.results.reader import RunReader, Unread, read_or_set_aside
from mltune.results.run import TuneResult
from mltune.results.wording import milliseconds
from mltune.tuning.bound import find_bound, hardware_time
from mltune.tuning.wisdom import Siblings, found_so_far, near_run, nearest

MAX_FAILURES = 3
"""Failures without a new trial after which a task comes last, or is set aside if its worker died."""

MAX_IDLE = 5
"""Time slices without a failure, a new trial or a reason to stop after which a task is set aside."""

FAR_BEHIND, CERTAIN_S = 1.5, 1e-4
"""Ratio of least times of which the larger is far behind, and a least time below which they say little."""

FRESH_S = 20.0
"""Seconds during which a run is passed to new problems without reading it again: 64 devices always have new trials."""


class Scheduler:
    """Choose the time slices of a campaign from the standings of its tasks, by slug.

    Once ``stop`` is true, no further run is read at the start, and the tasks are ``left_out``: an interrupted campaign
    has only seconds. ``gpus`` are the facts of devices on other hosts.
    """

    def __init__(
        self, plan: Plan, directory: Path, stop: Callable[[], bool] = bool, gpus: Mapping[str, Device] | None = None
    ) -> None:
        self._plan = plan
        self._gpus = gpus or {}
        self._directory = directory
        self._readers = {task.slug: RunReader(self.folder(task), task.slug) for task in plan.tasks}
        self._runs: dict[str, TuneResult] = {}  # the standings are of these
        self._seen: dict[str, tuple[float, TuneResult | None]] = {}  # the runs for siblings, and when they were read
        self._entries: dict[str, tuple[TuneResult, list[Entry]]] = {}
        self.standings = {task.slug: Standing(task.slug) for task in plan.tasks}
        self.left_out: set[str] = set()
        for task in plan.tasks:
            if stop():
                self.left_out.add(task.slug)
            self.standings[task.slug] = self._read(task)
        self._least_s: dict[str, float] = {}  # those of the hardware, until those of the kernels are known
        self._bounded = set[str]()
        self._has_choices = any(task.choice for task in plan.tasks)
        self._failures: Counter[str] = Counter()
        self._idle = ""  # the last time slice was of this task and brought no trial: another one comes first
        self._undeclared = {slug for slug, standing in self.standings.items() if standing.spent}

    @property
    def trials(self) -> int:
        """Number of trials of all tasks."""
        return sum(standing.trials for standing in self.standings.values())

    @property
    def done(self) -> int:
        """Number of tasks that have had their minimum, or have ended."""
        pairs = ((task, self.standings[task.slug]) for task in self._plan.tasks)
        return sum(
            standing.ended or (standing.spent > 0 and standing.spent >= task.minimum) for task, standing in pairs
        )

    def folder(self, task: Task) -> Path:
        """Return the run directory of a task."""
        return self._directory / PROBLEMS / task.slug

    def read(self, directory: Path, slug: str) -> TuneResult:
        """Read the run of a task as :func:`mltune.results.reader.read_run` does, but only its new trials."""
        if slug not in self._readers:  # a folder that the plan does not name
            return RunReader(directory, slug).read()
        if slug in self.left_out:
            raise RunError("the campaign was interrupted before its records were read.")
        return self._readers[slug].read()

    def siblings(self, task: Task) -> Siblings:
        """Return the results so far of the other problems of a task's kernel; none once the task has trials."""
        siblings = self._others(task)
        entries = tuple(entry for run in siblings for entry in self._found(run))
        return Siblings(entries, nearest(near_run(task.problem, run) for run in siblings))

    def next(self, running: Collection[str], left_s: float | None) -> TimeSlice | None:
        """Return the time slice of a free device, or None; ``running`` are slugs, ``left_s`` the seconds left."""
        running, begun = set(running), time.monotonic()
        unread = [slug for slug, standing in self.standings.items() if standing.unread and not standing.ended]
        if unread:  # the shares of the others depend on what these have spent
            free = [slug for slug in unread if slug not in running]
            return TimeSlice(free[0], 0.0, self._plan.unit, "repair") if free else None
        self._end_outdone()
        failing = {slug for slug, failures in self._failures.items() if failures >= MAX_FAILURES}
        standings = list(self.standings.values())
        for put_last in ({*failing, self._idle}, {self._idle}, set[str]()):
            time_slice = next_slice(self._ordered(), standings, running | put_last, left_s)
            if time_slice is None:
                continue
            choice = self._plan.task(time_slice.slug).choice if time_slice.reason == "minimum" else ""
            if not choice:
                return time_slice
            if self._is_alone(time_slice.slug):
                return self._whole(time_slice, left_s)
            if not self.find_bound(choice):
                return time_slice
            return self.next(running, None if left_s is None else left_s - (time.monotonic() - begun))
        if not self._plan.produce:  # no run declares a winner
            return None
        for slug in sorted(self._undeclared - running):  # killed between its last trial and its declaration
            standing = self.standings[slug]
            self._undeclared.discard(slug)
            if not standing.failed and not standing.declared:
                return TimeSlice(slug, standing.spent, self._plan.unit, "resumed")
        return None

    def end(self, time_slice: TimeSlice, result: SliceResult) -> Standing:
        """Record the result of a time slice; return the new standing of its task."""
        slug, outcome = time_slice.slug, result.outcome
        before = self.standings[slug]
        standing = self._read(self._plan.task(slug))
        ran = time_slice.limit > before.spent and time_slice.reason != "repair"
        moved = standing.trials > before.trials or standing.ended or (outcome is Outcome.DONE and not ran)
        self._failures[slug] = 0 if moved else self._failures[slug] + 1
        self._idle = slug if outcome is Outcome.DONE and not moved else ""
        if outcome is Outcome.DONE and time_slice.reason != "repair":
            self._undeclared.discard(slug)
        else:
            self._undeclared.add(slug)
        standing = replace(standing, failed=standing.failed or self._failure(time_slice, standing, result))
        self.standings[slug] = standing
        return standing

    def find_bound(self, choice: str = "") -> bool:
        """Compute the least time of one more competing kernel without trials; return whether there was one.

        With ``choice`` it is a kernel of that choice, the one for which the hardware needs least. It takes a second or
        more, so it is done while the devices are busy.
        """
        untried = [task for task in self._plan.tasks if task.choice and not self.standings[task.slug].trials]
        unbounded = [task for task in untried if task.slug not in self._bounded]
        unbounded = [task for task in unbounded if task.choice == (choice or unbounded[0].choice)]
        for task in unbounded:
            if task.slug not in self._least_s:
                self._least_s[task.slug] = least_time(task, self._devices_of(task), of_hardware=True)
        if unbounded:
            task = min(unbounded, key=lambda task: self._least_s[task.slug])
            self._least_s[task.slug] = least_time(task, self._devices_of(task), of_hardware=False)
            self._bounded.add(task.slug)
        return bool(unbounded)

    def _devices_of(self, task: Task) -> list[str | Device]:
        devices = [self._gpus.get(device, device) for device in dict.fromkeys(self._plan.devices)]
        return [device for device in devices if isinstance(device, str) or task.model in ("", device.name)]

    def _is_alone(self, slug: str) -> bool:
        """Return whether no other kernel can be nearly as fast, so that the task gets all of the budget at once.

        Each time slice has a start and finals of its own, which take seconds. That needs one device, one problem, and
        least times above :data:`CERTAIN_S`: in microseconds launches decide. The hardware's least times of the other
        kernels suffice.
        """
        is_single = len(self._plan.devices) == 1 and len({task.choice for task in self._plan.tasks}) == 1
        others_s = [self._least_s.get(task.slug, 0.0) for task in self._plan.tasks if task.slug != slug]
        least_s = self._least_s[slug] if slug in self._bounded else 0.0
        return is_single and least_s >= CERTAIN_S and min(others_s, default=0.0) >= FAR_BEHIND * least_s

    def _whole(self, time_slice: TimeSlice, left_s: float | None) -> TimeSlice:
        """Return a first time slice with all of the budget."""
        remaining = self._plan.budget - sum(standing.spent for standing in self.standings.values())
        remaining = remaining if left_s is None else min(remaining, left_s)
        return replace(time_slice, limit=max(time_slice.limit, self.standings[time_slice.slug].spent + remaining))

    def _end_outdone(self) -> None:
        """End the tasks without trials whose kernel cannot be as fast as another one of its choice already is."""
        if not self._has_choices:
            return
        best_s = best_of_choices(self._plan.tasks, self.standings)
        for task in self._plan.tasks:
            standing, least_s = self.standings[task.slug], self._least_s.get(task.slug, 0.0)
            if not standing.trials and not standing.ended and best_s.get(task.choice, math.inf) < least_s:
                reason = (
                    f"it needs at least {milliseconds(least_s)}, and another kernel takes "
                    f"{milliseconds(best_s[task.choice])}"
                )
                self.standings[task.slug] = replace(standing, stopped=reason)

    def _ordered(self) -> Plan:
        """Return the plan with the kernels of each choice in the order of their least times."""
        if not self._has_choices:
            return self._plan
        first = {task.choice or task.slug: at for at, task in reversed(list(enumerate(self._plan.tasks)))}
        tasks = sorted(
            self._plan.tasks, key=lambda task: (first[task.choice or task.slug], self._least_s.get(task.slug, 0.0))
        )
        return replace(self._plan, tasks=tuple(tasks))

    def forget_failures(self) -> None:
        """Forget all failures: they were due to a device that did not work."""
        self._failures.clear()

    def refresh(self) -> None:
        """Read what is new in the stores of all tasks."""
        for task in self._plan.tasks:
            self.standings[task.slug] = self._read(task)

    def _others(self, task: Task) -> list[TuneResult]:
        """Return the readable runs of the other problems of a task's kernel; none once the task has trials."""
        tasks = [] if self.standings[task.slug].trials else self._plan.tasks
        siblings = [other for other in tasks if other.bundle == task.bundle and other.slug != task.slug]
        return [run for run in map(self._recent, siblings) if run is not None]

    def _recent(self, task: Task) -> TuneResult | None:
        """Return the run of a task as it was within :data:`FRESH_S`, if it can be read."""
        read_s, run = self._seen.get(task.slug, (-math.inf, None))
        if time.monotonic() - read_s > FRESH_S and is_begun(self.folder(task)):
            outcome = read_or_set_aside(task.slug, partial(self.read, self.folder(task), task.slug))
            run = None if isinstance(outcome, Unread) else outcome
            self._seen[task.slug] = time.monotonic(), run
        return run

    def _found(self, run: TuneResult) -> list[Entry]:
        """Return the best configurations of a run, computed once for each state of the run."""
        before, entries = self._entries.get(run.slug, (None, []))
        if before is not run:
            progress = read_or_set_aside(run.slug, partial(found_so_far, run))
            entries = [] if isinstance(progress, Unread) else progress
            self._entries[run.slug] = run, entries
        return entries

    def _failure(self, time_slice: TimeSlice, standing: Standing, result: SliceResult) -> str:
        """Return why a task is set aside, for an unreadable one only after an attempt at repair; empty if it is not."""
        outcome, failures = result.outcome, self._failures[standing.slug]
        repaired = outcome is Outcome.DONE and time_slice.reason == "repair"
        if standing.unread and (repaired or outcome is Outcome.FAILED):
            return f"not readable: {result.detail or standing.unread}"
        if outcome is Outcome.FAILED or (outcome is Outcome.DIED and failures >= MAX_FAILURES):
            return result.detail
        if outcome in (Outcome.DONE, Outcome.INTERRUPTED) and failures >= MAX_IDLE:
            return f"{failures} time slices in a row brought no trial"
        return ""

    def _read(self, task: Task) -> Standing:
        """Read the standing of a task; one that was set aside or cannot be read keeps its last standing."""
        last = self.standings[task.slug]
        if last.failed or not is_begun(self.folder(task)):
            return last

        def read() -> Standing:
            run = self.read(self.folder(task), task.slug)
            self._seen[task.slug] = time.monotonic(), run
            if run is self._runs.get(task.slug):
                return replace(last, unread="")
            standing = standing_of(run, self._plan.unit)
            self._runs[task.slug] = run
            return standing

        outcome = read_or_set_aside(task.slug, read)
        return replace(last, unread=outcome.reason) if isinstance(outcome, Unread) else outcome


def least_time(task: Task, devices: Sequence[str | Device], *, of_hardware: bool) -> float:
    """Return the least seconds that the kernel of a task needs on any device of a placed plan; 0 if unknown.

    Those of the hardware are quick to compute, and never more.
    """
    try:
        rates = [_device(task, spec) for spec in devices]
        distinct = [device for at, device in enumerate(rates) if device not in rates[:at]]
        kernels = [PlacedKernel(task.kernel, task.problem, device) for device in distinct]
        if of_hardware:
            return min(map(hardware_time, kernels))
        return min(find_bound(kernel).best.time_s for kernel in kernels)
    except (MltuneError, ArithmeticError, LookupError, ValueError):  # such as a kernel without resources
        return 0.0


def _device(task: Task, spec: str | Device) -> Device:
    if task.dataset is not None:
        from mltune.dataset.dataset import load_manifest

        return load_manifest(task.dataset).device
    from mltune.device.query import query_device

    return query_device(int(spec.removeprefix("cuda:"))) if isinstance(spec, str) else spec
