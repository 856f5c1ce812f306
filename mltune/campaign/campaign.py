"""A campaign: carries out a plan in time slices on all its devices, and survives interruptions and dead workers.

This process shares out the time and waits. Time slices are run by workers (:mod:`mltune.campaign.device_worker`), one
child process per device: a worker that dies, hangs or loses its GPU is replaced, and its time slice is resumed. All
state is in the stores of the problems, so the same command resumes a campaign.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from pathlib import Path
from typing import TYPE_CHECKING

from mltune.campaign.cluster.remote_worker import remote_workers
from mltune.campaign.device_worker import BACK, DEVICE_WORKER, HEARTBEAT_TIMEOUT_S, DeviceWorker, Outcome, SliceRequest
from mltune.campaign.identity import claim_directory
from mltune.campaign.products import Products
from mltune.campaign.result import CampaignResult
from mltune.campaign.scheduler import Scheduler
from mltune.measure.cluster_connection import address_of
from mltune.process.child import Child
from mltune.records.database import database_of
from mltune.records.directory import lock_directory, runs_in
from mltune.records.events import EventLog
from mltune.records.versions import __version__
from mltune.resolve.device import Target
from mltune.resolve.plan import Plan
from mltune.resolve.request import TuneRequest
from mltune.results.progress import CampaignProgress, CampaignReport

if TYPE_CHECKING:
    from mltune.campaign.cluster.gpu_workers import Cluster
    from mltune.device.facts import Device

STOP_TIMEOUT_S = 4.5
"""Seconds that workers have to end when the campaign is interrupted."""

POLL_EVERY_S = 0.5
"""Seconds between two checks of the workers."""

REPORT_SHARE = 0.01
"""Share of the budget reserved for the report, at most a minute."""

LAST_S = 1.0
"""Seconds before the deadline of an interruption that are kept for the last output."""


def run_plan(
    plan: Plan,
    directory: Path,
    *,
    progress: CampaignReport | None = None,
    stop: Callable[[], bool] = bool,
    worker: str = DEVICE_WORKER,
    heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S,
    siblings: bool = True,
    store: str = "",
    compile_on: str = "",
    cluster: Cluster | None = None,
) -> CampaignResult:
    """Carry out a plan, or resume it.

    Parameters
    ----------
    plan : Plan
        Placed (:func:`mltune.resolve.placement.place`).
    directory : pathlib.Path
        Directory of the campaign: created, or resumed if it holds the same plan.
    progress : callable, optional
        Receives the progress about twice a second.
    stop : callable
        Called about twice a second; True ends the campaign within seconds, with a report on the trials so far.
    worker : str
        Target of the worker processes (:class:`mltune.process.child.Child`).
    heartbeat_timeout_s : float
        Seconds without a message after which a worker is killed and replaced.
    siblings : bool
        Whether a problem that begins measures first what other problems of its kernel have found so far.
    store : str
        URL of the PostgreSQL database for the records of problems that begin. By default it is that of the others, or
        they are in files.
    compile_on : str
        Cluster whose compile workers help (:func:`mltune.measure.cluster_connection.connect`); empty for none.
    cluster : Cluster, optional
        The cluster whose workers are the devices of the plan (:func:`mltune.resolve.placement.place_on_workers`).

    Raises
    ------
    RunDirectoryError
        The directory is in use, holds another plan, or cannot be written.

    Examples
    --------
    >>> from mltune.resolve.placement import place
    >>> from mltune.resolve.plan_file import load_plan
    >>> result = run_plan(place(load_plan("rehearsal"), ()), Path("runs/rehearsal"))  # doctest: +SKIP
    """
    directory = Path(directory)
    lock = lock_directory(directory)
    try:
        claim_directory(plan, directory)
        if cluster is None:
            workers = [DeviceWorker(device, Child(worker), heartbeat_timeout_s) for device in plan.devices]
            gpus: dict[str, Device] = {}
        else:
            workers, gpus = remote_workers(cluster, plan, worker, heartbeat_timeout_s)
        campaign = Campaign(
            plan,
            directory,
            progress,
            stop,
            workers,
            gpus,
            siblings=siblings,
            store=database_of(runs_in(directory), store),
            compile_on=compile_on,
        )
        with contextlib.closing(campaign):
            campaign.run()
        return campaign.finish()
    finally:
        os.close(lock)


class Campaign:
    """A plan that is carried out by this process; :meth:`close` ends the workers.

    The parameters are those of :func:`run_plan`, and the workers with the facts of their GPUs, where they are on other
    hosts; the directory is locked and holds the plan.
    """

    def __init__(
        self,
        plan: Plan,
        directory: Path,
        progress: CampaignReport | None,
        stop: Callable[[], bool],
        workers: Sequence[DeviceWorker],
        gpus: Mapping[str, Device],
        *,
        siblings: bool,
        store: str,
        compile_on: str,
    ) -> None:
        self._plan = plan
        self._directory = directory
        self._progress = progress
        self._stop = stop
        self._siblings = siblings
        self._store = store
        self._compile_on = address_of(compile_on) if compile_on else ""  # a file may not be there on other hosts
        self._log = EventLog(directory)
        self._outdone: set[str] = set()
        self._workers = list(workers)
        self._gpus = gpus
        self._scheduler = Scheduler(plan, directory, stop, gpus)
        self._elapsed_before_s = sum(one.total_s for one in self._scheduler.standings.values()) / len(plan.devices)
        self._started = time.monotonic()

    def close(self) -> None:
        """Interrupt the workers, and kill those that do not end in time."""
        for worker in self._workers:
            worker.child.interrupt(signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for worker in self._workers:
            worker.close(max(0.0, deadline - time.monotonic()))

    def run(self) -> None:
        """Run time slices until nothing is left to do, the budget is spent, or the campaign is interrupted."""
        self._begin()
        if any(task.choice for task in self._plan.tasks) and not self._scheduler.trials:
            for worker in self._workers:  # while the bounds of the first kernels are computed
                worker.prepare()
        while not self._stop():
            for worker in self._workers:
                if worker.is_free:
                    self._start_slice(worker)
            self._scheduler.find_bound()
            under_way = [worker.future for worker in self._workers if worker.future is not None]
            if under_way:
                wait(under_way, timeout=POLL_EVERY_S, return_when=FIRST_COMPLETED)
            elif any(worker.is_paused for worker in self._workers):
                time.sleep(POLL_EVERY_S)
            else:
                break
            for worker in self._workers:
                self._check_recovery(worker)
                self._end_slice(worker)
            self._report()

    def finish(self) -> CampaignResult:
        """Write the products of the plan and return the result."""
        self._scheduler.refresh()
        products = Products(self._plan, self._directory, self._scheduler, self._report)
        interrupted = self._stop()
        if interrupted:
            self._log.write("interrupted", signal=getattr(self._stop, "signal", None), elapsed_s=self.elapsed_s)
        else:
            products.write_datasets()
        self._log.write(
            "plan_ended",
            outcome="interrupted" if interrupted else "ended",
            trials=self._scheduler.trials,
            seconds={"elapsed": self.elapsed_s},
            elapsed_s=self.elapsed_s,
        )
        report = products.write_report(self._deadline, quick=interrupted)
        if report is not None:
            self._log.write("report_written", path=str(report.html), elapsed_s=self.elapsed_s)
        return CampaignResult(self._directory, self._scheduler.standings, interrupted, report, self._scheduler.read)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the campaign began, without interruptions."""
        return self._elapsed_before_s + time.monotonic() - self._started

    @property
    def left_s(self) -> float | None:
        """Seconds until the budget is spent, without those for the report; None where it is counted in trials."""
        if self._plan.unit == "trials":
            return None
        budget = self._plan.budget - min(60.0, REPORT_SHARE * self._plan.budget)
        return max(0.0, budget - self.elapsed_s)

    def _begin(self) -> None:
        """Log the beginning of the campaign, or its resumption."""
        plan = self._plan
        facts = {
            "budget_s": plan.budget if plan.unit == "s" else None,
            "budget_trials": int(plan.budget) if plan.unit == "trials" else None,
            "pid": os.getpid(),
        }
        if self._scheduler.trials:
            self._log.write("resumed", trials=self._scheduler.trials, elapsed_s=self.elapsed_s, **facts)
            for slug, standing in self._scheduler.standings.items():
                if standing.notice:
                    self._report(f"{slug}: {standing.notice}")
            return
        self._log.write(
            "plan_started",
            plan=plan.name,
            problems=[task.slug for task in plan.tasks],
            devices=plan.devices,
            versions={"mltune": __version__},
            **facts,
        )

    def _start_slice(self, worker: DeviceWorker) -> None:
        """Start the next time slice on a free worker, if there is one."""
        running = [worker.time_slice.slug for worker in self._workers if worker.time_slice is not None]
        time_slice = self._scheduler.next([*running, *self._of_other_models(worker)], self.left_s)
        self._note_outdone()
        if time_slice is None:
            return
        task = self._plan.task(time_slice.slug)
        request = TuneRequest(
            task.problem,
            task.kernel,
            task.target or Target(cuda=0 if worker.device in self._gpus else int(worker.device.removeprefix("cuda:"))),
            trials=time_slice.trials,
            time_s=time_slice.time_s,
            seed=self._plan.seed,
            run=self._scheduler.folder(task),
            choice=task.choice,
            **{
                "store": self._store,
                "compilers": self._compilers(),
                "compile_on": self._compile_on,
                **self._plan.options,
            },
        )
        repair = time_slice.reason == "repair"
        if not repair:
            self._log.write(
                "slice_started",
                slug=task.slug,
                problem=task.problem.label,
                device=str(request.target),
                limit=time_slice.limit,
                elapsed_s=self.elapsed_s,
            )
        siblings = self._scheduler.siblings(task) if self._siblings else None
        worker.start(time_slice, SliceRequest(request, task.slug, self._directory, repair, siblings))

    def _of_other_models(self, worker: DeviceWorker) -> list[str]:
        """Return the tasks that are for GPUs of other models."""
        gpu = self._gpus.get(worker.device)
        return [] if gpu is None else [task.slug for task in self._plan.tasks if task.model not in ("", gpu.name)]

    def _note_outdone(self) -> None:
        """Log the tasks that have ended before they began: another kernel is faster than theirs can be."""
        for slug, standing in self._scheduler.standings.items():
            if standing.stopped and not standing.trials and slug not in self._outdone:
                self._outdone.add(slug)
                facts = {"problem": self._plan.task(slug).problem.label, "detail": standing.stopped, "slug": slug}
                self._log.write("left_out", **facts, elapsed_s=self.elapsed_s)
                self._report(f"{slug}: left out: {standing.stopped}")

    def _compilers(self) -> int | None:
        """Return the number of compile processes per worker; None for all cores, where there is one worker."""
        if len(self._workers) == 1:
            return None
        from mltune.measure.build import available_cores

        return max(1, available_cores() // len(self._workers))

    def _check_recovery(self, worker: DeviceWorker, *, works: bool = False) -> None:
        """Log that what a worker missed is back: a time slice has new trials, or ``works``."""
        if worker.missing is None:
            return
        if worker.time_slice is not None and worker.progress is not None:
            works = works or worker.progress.trials > self._scheduler.standings[worker.time_slice.slug].trials
        if works:
            event = BACK[worker.missing]
            self._scheduler.forget_failures()
            self._log.write(event, lost_s=worker.recover(), device=worker.device, elapsed_s=self.elapsed_s)

    def _end_slice(self, worker: DeviceWorker) -> None:
        """Log the end of a time slice, if it has ended, and react to a failure."""
        time_slice, result = worker.time_slice, worker.take_result()
        if time_slice is None or result is None:
            return
        slug, outcome, detail = time_slice.slug, result.outcome, result.detail
        standing = self._scheduler.end(time_slice, result)
        where = {"slug": slug, "device": worker.device, "elapsed_s": self.elapsed_s}
        if outcome is Outcome.DONE:
            self._check_recovery(worker, works=True)
        elif outcome is Outcome.INTERRUPTED:  # by another process: the next time slice needs a new worker
            worker.child.kill()
        else:
            if outcome is Outcome.DIED:
                self._log.write("worker_died", detail=detail, **where)
            elif outcome in BACK and worker.pause(outcome):
                self._log.write(str(outcome), detail=detail, **where)
            if not standing.failed:
                self._report(f"{slug}: {outcome.replace('_', ' ')}: {detail}")
        label = self._plan.task(slug).problem.label
        if time_slice.reason != "repair":
            self._log.write(
                "slice_ended",
                problem=label,
                trials=standing.trials,
                best_s=standing.curve[-1][1] if standing.curve else None,
                outcome=str(outcome),
                detail=detail or standing.stopped,
                done=self._scheduler.done,
                **where,
            )
        if standing.stopped:
            self._report(f"{slug}: ended by itself: {standing.stopped}")
        if standing.failed:
            self._log.write("set_aside", problem=label, detail=standing.failed, **where)
            self._report(f"{slug}: set aside: {standing.failed}")

    def _report(self, message: str | None = None) -> None:
        """Report the progress, and log it once a minute or with a message."""
        running = (worker.progress for worker in self._workers if worker.time_slice is not None)
        runs = tuple(progress for progress in running if progress is not None)
        new = (run.trials - self._scheduler.standings[run.slug].trials for run in runs)
        progress = CampaignProgress(
            runs,
            self._scheduler.done,
            len(self._plan.tasks),
            trials=self._scheduler.trials + sum(max(0, count) for count in new),
            trials_limit=int(self._plan.budget) if self._plan.unit == "trials" else None,
            elapsed_s=self.elapsed_s,
            left_s=self.left_s,
            message=message,
        )
        self._log.snapshot(
            [run.to_json() for run in runs],
            at_once=message is not None,
            done=progress.done,
            problems=progress.problems,
            left_s=progress.left_s,
            message=message,
            elapsed_s=progress.elapsed_s,
        )
        if self._progress is not None:
            self._progress(progress)

    def _deadline(self) -> float:
        """Return when the report must be done, on the clock of :func:`time.monotonic`."""
        return float(getattr(self._stop, "deadline", math.inf)) - LAST_S
