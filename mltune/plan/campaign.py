"""A campaign: carries out a plan, slice by slice, on all its devices, whatever happens in between.

This process shares out the time and waits. Slices are done by workers (:mod:`mltune.plan.device_worker`), one child
process a device: a worker that dies, hangs or loses its GPU is replaced, and the slice continues.
Everything that must outlive this process is in the stores of the problems, so that the same command resumes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from mltune import __version__
from mltune.errors import DiskFullError, MltuneError, RunDirectoryError
from mltune.plan.device_worker import DEVICE_WORKER, SILENCE_S, Answer, DeviceWorker, Order, Outcome
from mltune.plan.plan import Plan, Slice, Standing, Task
from mltune.plan.schedule import next_slice
from mltune.plan.standing import is_declared, read_standing
from mltune.process.child import Child
from mltune.records.atomic import write_file_atomically
from mltune.records.directory import PLAN_FILE, PROBLEMS, lock_directory
from mltune.records.events import EventLog
from mltune.results.progress import CampaignProgress, CampaignReport
from mltune.tune.request import TuneRequest

if TYPE_CHECKING:
    from mltune.report.writing import ReportPaths

ENDING_S = 4.5
"""Seconds that workers have to end in when the campaign is told to."""

TRIES = 3
"""Times that a slice may fail without a new trial before its problem is put last, or given up if the worker died."""

LOOK_EVERY_S = 0.5
"""Seconds between two looks at what the workers do."""

REPORT_SHARE = 0.01
"""Share of the budget kept for the report, at most a minute."""


@dataclass(frozen=True, slots=True)
class CampaignResult:
    """What came of a campaign.

    Attributes
    ----------
    directory : pathlib.Path
    standings : dict of str to Standing
        How every task stands, by slug.
    interrupted : bool
    report : ReportPaths or None
    """

    directory: Path
    standings: dict[str, Standing]
    interrupted: bool
    report: ReportPaths | None

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain JSON values: what ``mltune run --json`` prints."""
        from mltune.results.overview import overview

        return overview(self.directory) | {
            "interrupted": self.interrupted,
            "failed": {slug: standing.failed for slug, standing in self.standings.items() if standing.failed},
            "report": None if self.report is None else str(self.report.html),
        }


def run_plan(
    plan: Plan,
    directory: Path,
    *,
    progress: CampaignReport | None = None,
    stop: Callable[[], bool] = bool,
    worker: str = DEVICE_WORKER,
    silence_s: float = SILENCE_S,
) -> CampaignResult:
    """Carry out a plan, or go on with it.

    Parameters
    ----------
    plan : Plan
        Placed (:func:`mltune.plan.placement.place`).
    directory : pathlib.Path
        Of the campaign: made, or resumed if it is of the same plan.
    progress : callable, optional
        Told now and then how far the campaign is.
    stop : callable
        Asked twice a second; true ends the campaign within seconds, with a report on what there is.
    worker : str
        What workers are made with (:class:`mltune.process.child.Child`).
    silence_s : float
        Seconds without a sign of life after which a worker is taken to hang.

    Raises
    ------
    RunDirectoryError
        The directory is in use, is of another plan, or cannot be written.
    """
    directory = Path(directory)
    lock = lock_directory(directory)
    try:
        _keep_plan(plan, directory)
        with Campaign(plan, directory, progress, stop, worker, silence_s) as campaign:
            campaign.run()
        return campaign.close()
    finally:
        os.close(lock)


def _keep_plan(plan: Plan, directory: Path) -> None:
    """Write the plan into its directory, or check that it is the one that lies there; its budget may have changed."""
    from mltune.plan.reader import load_plan

    path = directory / PLAN_FILE
    if path.is_file():
        before = load_plan(path)
        ours, theirs = ({task.slug: (task.kernel, task.problem) for task in one.tasks} for one in (plan, before))
        if ours != theirs or plan.seed != before.seed:
            raise RunDirectoryError(
                f"a directory belongs to one plan, but {directory} is of another: its problems or its seed differ; "
                "choose another directory."
            )
    elif any(directory.glob("*.sqlite")):
        raise RunDirectoryError(f"a directory belongs to one plan, but {directory} is that of a single run.")
    try:
        write_file_atomically(path, plan.text.encode())
    except OSError as error:
        raise RunDirectoryError(f"a run directory must be writable, but {directory} is not: {error}.") from error


class Campaign:
    """One run of a plan, in this process. A context manager: leaving it ends the workers.

    Parameters
    ----------
    plan : Plan
    directory : pathlib.Path
        Locked, and holding the plan.
    progress, stop, worker, silence_s
        See :func:`run_plan`.
    """

    def __init__(
        self,
        plan: Plan,
        directory: Path,
        progress: CampaignReport | None,
        stop: Callable[[], bool],
        worker: str,
        silence_s: float,
    ) -> None:
        self._plan = plan
        self._directory = directory
        self._progress = progress
        self._stop = stop
        self._log = EventLog(directory)
        self._workers = [DeviceWorker(device, Child(worker), silence_s) for device in plan.devices]
        self._standings = {task.slug: read_standing(self._folder(task), task, plan.unit) for task in plan.tasks}
        self._tries: Counter[str] = Counter()
        self._undeclared = {slug for slug, standing in self._standings.items() if standing.spent}
        self._elapsed_before_s = sum(one.total_s for one in self._standings.values()) / len(plan.devices)
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Tell workers to end, and kill those that do not."""
        for worker in self._workers:
            worker.child.interrupt(signal.SIGTERM)
        deadline = time.monotonic() + ENDING_S
        for worker in self._workers:
            worker.close(max(0.0, deadline - time.monotonic()))

    def run(self) -> None:
        """Have slices done until there is nothing more to do, or no time, or it is told to stop."""
        self._begin()
        while not self._stop():
            for worker in self._workers:
                self._give_work(worker)
            under_way = [worker.future for worker in self._workers if worker.future is not None]
            if under_way:
                wait(under_way, timeout=LOOK_EVERY_S, return_when=FIRST_COMPLETED)
            elif any(worker.is_resting for worker in self._workers):
                time.sleep(LOOK_EVERY_S)
            else:
                break
            for worker in self._workers:
                if worker.slice is not None and worker.latest is not None:
                    self._welcome(worker, worker.latest.trials > self._standings[worker.slice.slug].trials)
                self._take(worker)
            self._tell()

    def close(self) -> CampaignResult:
        """Write what the plan is to produce, and say how the campaign ended."""
        self._standings = {task.slug: self._read(task) for task in self._plan.tasks}
        interrupted = self._stop()
        report = None
        if interrupted:
            self._log.write("interrupted", signal=getattr(self._stop, "signal", None), elapsed_s=self.elapsed_s)
        elif "datasets" in self._plan.produce:
            self._export()
        self._log.write(
            "plan_ended",
            outcome="interrupted" if interrupted else "ended",
            trials=self._trials,
            seconds={"elapsed": self.elapsed_s},
            elapsed_s=self.elapsed_s,
        )
        with self._kept_going("report"):
            if "report" in self._plan.produce:
                from mltune.report.writing import write_report

                report = write_report(self._directory, quick=interrupted)  # there are ten seconds for all of it
                self._log.write("report_written", path=str(report.html), elapsed_s=self.elapsed_s)
            elif "winners" in self._plan.produce:
                from mltune.report.writing import write_winners

                write_winners(self._directory)
        return CampaignResult(self._directory, self._standings, interrupted, report)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the plan began, interruptions not counted."""
        return self._elapsed_before_s + time.monotonic() - self._started

    @property
    def left_s(self) -> float | None:
        """Seconds until the budget is spent, less what the report takes; None where it is counted in trials."""
        if self._plan.unit == "trials":
            return None
        budget = self._plan.budget - min(60.0, REPORT_SHARE * self._plan.budget)
        return max(0.0, budget - self.elapsed_s)

    @property
    def _trials(self) -> int:
        """Trials of all problems."""
        return sum(standing.trials for standing in self._standings.values())

    def _begin(self) -> None:
        """Note that the campaign begins, or goes on."""
        plan = self._plan
        if self._trials:
            self._log.write("resumed", trials=self._trials, pid=os.getpid(), elapsed_s=self.elapsed_s)
            return
        self._log.write(
            "plan_started",
            plan=plan.name,
            problems=[task.slug for task in plan.tasks],
            devices=plan.devices,
            budget_s=plan.budget if plan.unit == "s" else None,
            budget_trials=plan.budget if plan.unit == "trials" else None,
            versions={"mltune": __version__},
            pid=os.getpid(),
        )

    def _give_work(self, worker: DeviceWorker) -> None:
        """Have a free worker begin what is to be done next, if there is anything."""
        one = self._next_slice() if worker.is_free else None
        if one is None:
            return
        task = self._plan.task(one.slug)
        request = TuneRequest(
            task.problem,
            task.kernel,
            task.device or worker.device,
            trials=one.trials,
            time_s=one.time_s,
            seed=self._plan.seed,
            run=self._folder(task),
            compilers=self._compilers(),
        )
        self._log.write(
            "slice_started",
            slug=task.slug,
            problem=task.problem.label,
            device=request.device,
            limit=one.limit,
            elapsed_s=self.elapsed_s,
        )
        worker.begin(one, Order(request, task.slug, self._directory))

    def _next_slice(self) -> Slice | None:
        """Return the slice whose turn it is. What failed several times in a row comes last."""
        under_way = {worker.slice.slug for worker in self._workers if worker.slice is not None}
        put_last = {slug for slug, tries in self._tries.items() if tries >= TRIES}
        standings = list(self._standings.values())
        for busy in (under_way | put_last, under_way) if put_last else (under_way,):
            one = next_slice(self._plan, standings, busy, self.left_s)
            if one is not None:
                return one
        for slug in sorted(self._undeclared - under_way):  # it was killed when all was measured: no more is
            standing = self._standings[slug]
            self._undeclared.discard(slug)
            if not standing.failed and not is_declared(self._folder(self._plan.task(slug))):
                return Slice(slug, standing.spent, self._plan.unit, "resumed")
        return None

    def _compilers(self) -> int | None:
        """Return the compile processes of a worker: the cores are shared by all."""
        if len(self._workers) == 1:
            return None
        from mltune.measure.build import available_cores

        return max(1, available_cores() // len(self._workers))

    def _welcome(self, worker: DeviceWorker, works: bool) -> None:
        """Note that a device works, if it was lost before, or had no room on the disk."""
        lacked = worker.lacked
        if lacked is not None and works:
            self._tries.clear()  # what was tried without success meanwhile had no fault in it
            self._log.write(
                "gpu_back" if lacked is Outcome.GPU_LOST else "disk_back",
                lost_s=worker.recovered(),
                device=worker.device,
                elapsed_s=self.elapsed_s,
            )

    def _take(self, worker: DeviceWorker) -> None:
        """Note how a slice has ended, if it has, and what that means for its device and its problem."""
        slug, answer = "" if worker.slice is None else worker.slice.slug, worker.end()
        if answer is None:
            return
        task = self._plan.task(slug)
        before, standing = self._standings[task.slug], self._read(task)
        self._standings[task.slug] = standing
        self._tries[task.slug] = 0 if standing.trials > before.trials else self._tries[task.slug] + 1
        if answer.outcome is Outcome.INTERRUPTED:  # by somebody else than this campaign: that is nobody's fault
            self._tries[task.slug] = 0
            worker.child.kill()
        where = {"slug": task.slug, "device": worker.device, "elapsed_s": self.elapsed_s}
        if answer.outcome is Outcome.DONE:
            self._tries[task.slug] = 0
            self._undeclared.discard(task.slug)
            self._welcome(worker, True)
        else:
            self._undeclared.add(task.slug)
            self._trouble(worker, task, answer, where)
        best_s = standing.curve[-1][1] if standing.curve else None
        self._log.write(
            "slice_ended",
            problem=task.problem.label,
            trials=standing.trials,
            best_s=best_s,
            outcome=str(answer.outcome),
            detail=answer.detail,
            **where,
        )

    def _trouble(self, worker: DeviceWorker, task: Task, answer: Answer, where: dict[str, Any]) -> None:
        """Do what a slice demands that did not end well."""
        given_up = answer.outcome is Outcome.DIED and self._tries[task.slug] >= TRIES
        if answer.outcome is Outcome.FAILED or given_up:
            self._standings[task.slug] = replace(self._standings[task.slug], failed=answer.detail)
        if answer.outcome is Outcome.DIED:
            self._log.write("worker_died", detail=answer.detail, **where)
        elif answer.outcome is Outcome.GPU_LOST and worker.rest(answer.outcome):
            self._log.write("gpu_lost", detail=answer.detail, **where)
        elif answer.outcome is Outcome.DISK_FULL and worker.rest(answer.outcome):
            self._log.write("disk_full", detail=answer.detail, **where)
        if answer.outcome is not Outcome.INTERRUPTED:
            self._tell(f"{task.slug}: {answer.outcome.replace('_', ' ')}: {answer.detail}")

    def _tell(self, message: str | None = None) -> None:
        """Tell how far the campaign is."""
        runs = tuple(
            worker.latest for worker in self._workers if worker.latest is not None and worker.slice is not None
        )
        standings = ((task, self._standings[task.slug]) for task in self._plan.tasks)
        done = sum(one.ended or (one.spent > 0 and one.spent >= task.minimum) for task, one in standings)
        told = CampaignProgress(runs, done, len(self._plan.tasks), self.elapsed_s, self.left_s, message)
        self._log.snapshot(
            [run.to_json() for run in runs],
            at_once=message is not None,
            done=done,
            problems=told.problems,
            left_s=told.left_s,
            message=message,
            elapsed_s=told.elapsed_s,
        )
        if self._progress is not None:
            self._progress(told)

    def _folder(self, task: Task) -> Path:
        return self._directory / PROBLEMS / task.slug

    def _read(self, task: Task) -> Standing:
        """Read how a task stands now; one that was given up stays so."""
        known = self._standings[task.slug]
        try:
            standing = read_standing(self._folder(task), task, self._plan.unit)
        except DiskFullError:
            return known
        return replace(standing, failed=standing.failed or known.failed)

    def _export(self) -> None:
        """Write the trials of every problem as a dataset."""
        from mltune.dataset.dataset import export_run

        for task in self._plan.tasks:
            if self._standings[task.slug].spent:
                with self._kept_going(f"dataset of {task.slug}"):
                    export_run(self._folder(task), self._directory / "datasets")

    @contextlib.contextmanager
    def _kept_going(self, what: str) -> Iterator[None]:
        """Let the campaign end well although something that can be made again, from the records, was not made."""
        try:
            yield
        except (MltuneError, OSError) as error:
            self._tell(f"{what}: {error}")
