"""A campaign: carry out a plan in time slices on all its devices, across interruptions and failures of workers.

This process shares out the time. Workers (:mod:`mltune.campaign.device_worker`), one child process per device, run the
time slices. A worker that dies, hangs or loses its GPU is replaced, and its time slice is resumed. The stores of the
problems hold all state, so the same command resumes a campaign.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mltune.campaign.cluster.gpu_workers import Cluster
from mltune.campaign.device_worker import (
    BACK,
    DEVICE_WORKER,
    HEARTBEAT_TIMEOUT_S,
    DeviceWorker,
    Outcome,
    Process,
    SliceRequest,
)
from mltune.campaign.products import CampaignResult, claim_directory, write_datasets, write_report
from mltune.campaign.scheduler import Scheduler
from mltune.device.facts import Device
from mltune.errors import MltuneWarning, RunError
from mltune.measure.compile_farm import address_of
from mltune.process.child import Child
from mltune.records.database import database_of
from mltune.records.directory import WINNER, lock_directory, new_directory, runs_in
from mltune.records.events import EventLog
from mltune.records.versions import __version__
from mltune.resolve.device import Target, find_gpus
from mltune.resolve.placement import notices, place
from mltune.resolve.plan import Plan
from mltune.resolve.request import TuneRequest
from mltune.results.progress import CampaignProgress, CampaignReport
from mltune.results.run import TuneResult
from mltune.results.summary import fastest

STOP_TIMEOUT_S = 4.5
"""Seconds that workers have to end when the campaign is interrupted."""

POLL_EVERY_S = 0.5
"""Seconds between two checks of the workers."""

REPORT_SHARE = 0.01
"""Share of the budget reserved for the report, at most a minute."""

LAST_S = 1.0
"""Seconds before the deadline of an interruption that are reserved for the last output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignSettings:
    """Settings of a campaign besides its plan.

    ``store`` is the URL of a PostgreSQL database for the records of new problems; by default they go to the database of
    the other problems, or to files. Without ``siblings`` a new problem does not first measure the best configurations
    of the kernel's other problems. ``compile_on`` is a cluster whose compile workers help
    (:func:`mltune.measure.compile_farm.connect`). With ``overwrite`` the report replaces files that mltune did not
    write.
    """

    heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S
    siblings: bool = True
    store: str = ""
    compile_on: str = ""
    overwrite: bool = False


def run_plan(
    plan: Plan,
    directory: Path,
    *,
    progress: CampaignReport | None = None,
    stop: Callable[[], bool] = bool,
    worker: str | Callable[[], Process] = DEVICE_WORKER,
    cluster: Cluster | None = None,
    settings: CampaignSettings = CampaignSettings(),
    begun: float | None = None,
) -> CampaignResult:
    """Carry out a placed plan (:func:`mltune.resolve.placement.place`), or resume it in its directory.

    ``progress`` and ``stop`` are called about twice a second; a true ``stop`` ends the campaign within seconds, with a
    report on the trials so far. ``worker`` is the target of the worker processes, or, without a cluster, a function
    that returns one for each device. The workers of a ``cluster`` are the devices of a plan that was placed on them.
    The budget starts at ``begun`` on the clock of :func:`time.perf_counter`, by default now.
    """
    begun = time.perf_counter() if begun is None else begun
    directory = Path(directory)
    lock = lock_directory(directory)
    try:
        claim_directory(plan, directory)
        if cluster is None:
            timeout_s = settings.heartbeat_timeout_s
            workers = [DeviceWorker(device, _process(worker, device), timeout_s) for device in plan.devices]
            gpus: dict[str, Device] = {}
        else:
            from mltune.campaign.cluster.remote_process import remote_workers

            assert isinstance(worker, str)  # noqa: S101
            workers, gpus = remote_workers(cluster, plan, worker, settings.heartbeat_timeout_s)
        settings = replace(settings, store=database_of(runs_in(directory), settings.store))
        campaign = Campaign(plan, directory, progress, stop, workers, gpus, settings, begun)
        with contextlib.closing(campaign):
            campaign.run()
        return campaign.finish()
    finally:
        os.close(lock)


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
        from mltune.show.report.writing import copy_winner

        copy_winner(result.directory / WINNER, directory / WINNER, directory)
    return replace(result, interrupted=campaign.interrupted)


def _process(worker: str | Callable[[], Process], device: str) -> Process:
    """Return the process of a device; only mltune's own worker is told its device."""
    if not isinstance(worker, str):
        return worker()
    return Child(worker, (device,) if worker == DEVICE_WORKER else ())


@dataclass
class Campaign:
    """A plan that this process carries out in a locked directory; :meth:`close` ends the workers.

    Most attributes are the parameters of :func:`run_plan`; ``gpus`` are the facts of GPUs on other hosts.
    """

    plan: Plan
    directory: Path
    progress: CampaignReport | None
    stop: Callable[[], bool]
    workers: Sequence[DeviceWorker]
    gpus: Mapping[str, Device]
    settings: CampaignSettings
    begun: float

    def __post_init__(self) -> None:
        cluster = self.settings.compile_on  # other hosts may lack the file
        self.compile_on = address_of(cluster) if cluster else ""
        self.log = EventLog(self.directory)
        self.outdone: set[str] = set()
        self.scheduler = Scheduler(self.plan, self.directory, self.stop, self.gpus)
        total_s = sum(standing.total_s for standing in self.scheduler.standings.values())
        self.elapsed_before_s = total_s / len(self.plan.devices)

    def close(self) -> None:
        """Interrupt the workers, and kill those that do not end in time."""
        for worker in self.workers:
            worker.child.interrupt(signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for worker in self.workers:
            worker.close(max(0.0, deadline - time.monotonic()))

    def run(self) -> None:
        """Run time slices until nothing is left to do, the budget is spent, or the campaign is interrupted."""
        self._begin()
        if any(task.choice for task in self.plan.tasks) and not self.scheduler.trials:
            for worker in self.workers:  # while the bounds of the first kernels are computed
                worker.prepare()
        while not self.stop():
            for worker in self.workers:
                if worker.future is None and not worker.is_paused:
                    self._start_slice(worker)
            self.scheduler.find_bound()
            under_way = [worker.future for worker in self.workers if worker.future is not None]
            if under_way:
                wait(under_way, timeout=POLL_EVERY_S, return_when=FIRST_COMPLETED)
            elif any(worker.is_paused for worker in self.workers):
                time.sleep(POLL_EVERY_S)
            else:
                break
            for worker in self.workers:
                self._check_recovery(worker)
                self._end_slice(worker)
            self._report()

    def finish(self) -> CampaignResult:
        """Write the products of the plan and return the result."""
        self.scheduler.refresh()
        produced = self.plan, self.scheduler, self.directory, self._report
        interrupted = self.stop()
        if interrupted:
            self._write("interrupted", signal=getattr(self.stop, "signal", None))
        else:
            write_datasets(*produced)
        outcome, seconds = "interrupted" if interrupted else "ended", {"elapsed": self.elapsed_s}
        self._write("plan_ended", outcome=outcome, trials=self.scheduler.trials, seconds=seconds)
        report = write_report(*produced, self._deadline, overwrite=self.settings.overwrite, quick=interrupted)
        if report is not None:
            self._write("report_written", path=str(report.html))
        return CampaignResult(self.directory, self.scheduler.standings, interrupted, report, self.scheduler.read)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the campaign began, without interruptions."""
        return self.elapsed_before_s + time.perf_counter() - self.begun

    @property
    def left_s(self) -> float | None:
        """Seconds until the budget is spent, without those for the report; None for a budget in trials."""
        if self.plan.unit == "trials":
            return None
        budget = self.plan.budget - min(60.0, REPORT_SHARE * self.plan.budget)
        return max(0.0, budget - self.elapsed_s)

    def _begin(self) -> None:
        """Log the beginning of the campaign, or its resumption."""
        plan = self.plan
        facts = {
            "budget_s": plan.budget if plan.unit == "s" else None,
            "budget_trials": int(plan.budget) if plan.unit == "trials" else None,
            "pid": os.getpid(),
        }
        if self.scheduler.trials:
            self._write("resumed", trials=self.scheduler.trials, **facts)
            for slug, standing in self.scheduler.standings.items():
                if standing.notice:
                    self._report(f"{slug}: {standing.notice}")
            return
        self.log.write(
            "plan_started",
            plan=plan.name,
            problems=[task.slug for task in plan.tasks],
            devices=plan.devices,
            versions={"mltune": __version__},
            **facts,
        )

    def _start_slice(self, worker: DeviceWorker) -> None:
        """Start the next time slice on a free worker, if there is one."""
        running = [worker.time_slice.slug for worker in self.workers if worker.time_slice is not None]
        time_slice = self.scheduler.next([*running, *self._of_other_models(worker)], self.left_s)
        self._note_outdone()
        if time_slice is None:
            return
        task = self.plan.task(time_slice.slug)
        defaults = {"store": self.settings.store, "compilers": self._compilers(), "compile_on": self.compile_on}
        request = TuneRequest(
            task.problem,
            task.kernel,
            task.target or Target(cuda=0 if worker.device in self.gpus else int(worker.device.removeprefix("cuda:"))),
            trials=time_slice.trials,
            time_s=time_slice.time_s,
            seed=self.plan.seed,
            run=self.scheduler.folder(task),
            slug=task.slug,
            choice=task.choice,
            finals=bool(self.plan.produce),
            **{**defaults, **self.plan.options},
        )
        repair = time_slice.reason == "repair"
        if not repair:
            facts = {"slug": task.slug, "problem": task.problem.label, "device": str(request.target)}
            self._write("slice_started", limit=time_slice.limit, **facts)
        siblings = self.scheduler.siblings(task) if self.settings.siblings else None
        worker.start(time_slice, SliceRequest(request, self.directory, repair, siblings))

    def _of_other_models(self, worker: DeviceWorker) -> list[str]:
        """Return the slugs of tasks for GPU models other than the worker's."""
        gpu = self.gpus.get(worker.device)
        return [] if gpu is None else [task.slug for task in self.plan.tasks if task.model not in ("", gpu.name)]

    def _note_outdone(self) -> None:
        """Log the tasks that end without a trial, because another kernel is faster than theirs can be."""
        for slug, standing in self.scheduler.standings.items():
            if standing.stopped and not standing.trials and slug not in self.outdone:
                self.outdone.add(slug)
                facts = {"problem": self.plan.task(slug).problem.label, "detail": standing.stopped, "slug": slug}
                self._write("left_out", **facts)
                self._report(f"{slug}: left out: {standing.stopped}")

    def _compilers(self) -> int | None:
        """Return the number of compile processes per worker; None for all cores, where there is one worker."""
        if len(self.workers) == 1:
            return None
        from mltune.measure.build import available_cores

        return max(1, available_cores() // len(self.workers))

    def _check_recovery(self, worker: DeviceWorker, *, works: bool = False) -> None:
        """Log that a worker has its GPU, disk or database again: its time slice has new trials, or ``works``."""
        if worker.missing is None:
            return
        if worker.time_slice is not None and worker.progress is not None:
            works = works or worker.progress.trials > self.scheduler.standings[worker.time_slice.slug].trials
        if works:
            event = BACK[worker.missing]
            self.scheduler.forget_failures()
            self._write(event, lost_s=worker.recover(), device=worker.device)

    def _end_slice(self, worker: DeviceWorker) -> None:
        """Log the end of a time slice that has ended, and react to a failure."""
        time_slice, result = worker.time_slice, worker.take_result()
        if time_slice is None or result is None:
            return
        slug, outcome, detail = time_slice.slug, result.outcome, result.detail
        standing = self.scheduler.end(time_slice, result)
        where = {"slug": slug, "device": worker.device}
        if outcome is Outcome.DONE:
            self._check_recovery(worker, works=True)
        elif outcome is Outcome.INTERRUPTED:  # by another process: the next time slice needs a new worker
            worker.child.kill()
        else:
            if outcome is Outcome.DIED:
                self._write("worker_died", detail=detail, **where)
            elif outcome in BACK and worker.pause(outcome):
                self._write(str(outcome), detail=detail, **where)
            if not standing.failed:
                self._report(f"{slug}: {outcome.replace('_', ' ')}: {detail}")
        label = self.plan.task(slug).problem.label
        if time_slice.reason != "repair":
            figures = {"trials": standing.trials, "best_s": standing.best_s, "outcome": str(outcome)}
            facts = {"detail": detail or standing.stopped, "done": self.scheduler.done}
            self._write("slice_ended", problem=label, **figures, **facts, **where)
        if standing.stopped:
            self._report(f"{slug}: ended by itself: {standing.stopped}")
        if standing.failed:
            self._write("set_aside", problem=label, detail=standing.failed, **where)
            self._report(f"{slug}: set aside: {standing.failed}")

    def _write(self, event: str, **facts: Any) -> None:
        """Write an event, with the seconds of the campaign."""
        self.log.write(event, **facts, elapsed_s=self.elapsed_s)

    def _report(self, message: str | None = None) -> None:
        """Report the progress, and log it once a minute or with a message."""
        running = (worker.progress for worker in self.workers if worker.time_slice is not None)
        runs = tuple(progress for progress in running if progress is not None)
        new = (run.trials - self.scheduler.standings[run.slug].trials for run in runs)
        progress = CampaignProgress(
            runs,
            self.scheduler.done,
            len(self.plan.tasks),
            trials=self.scheduler.trials + sum(max(0, count) for count in new),
            trials_limit=int(self.plan.budget) if self.plan.unit == "trials" else None,
            elapsed_s=self.elapsed_s,
            left_s=self.left_s,
            message=message,
        )
        facts = {name: getattr(progress, name) for name in ("done", "problems", "left_s", "message", "elapsed_s")}
        self.log.snapshot([run.to_json() for run in runs], at_once=message is not None, **facts)
        if self.progress is not None:
            self.progress(progress)

    def _deadline(self) -> float:
        """Return the deadline of the report, on the clock of :func:`time.monotonic`."""
        return float(getattr(self.stop, "deadline", math.inf)) - LAST_S
