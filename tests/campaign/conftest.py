"""Campaigns in replay: small plans, their processes, and readers of their records and events."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mltune.campaign.campaign import CampaignResult, run_plan
from mltune.campaign.device_worker import SliceRequest, SliceResult, run_slice
from mltune.errors import RunDirectoryError
from mltune.records.directory import runs_in
from mltune.records.events import read_events
from mltune.records.store import Store
from mltune.records.trial import TrialRecord
from mltune.resolve.placement import place
from mltune.resolve.plan import Plan
from mltune.resolve.plan_file import parse_plan
from mltune.tuning.tuner import tune
from tests.small_plans import gpu, make_plan, small_gpu, text

__all__ = ["gpu", "make_plan", "small_gpu", "text"]

FAULTY = "tests.campaign.device_workers:faulty_worker"
ROOT = Path(__file__).resolve().parents[2]

SIMPLE = """
[options]
search = "random"
skip = false
stop = false
"""
"""Options of a search without models, which starts at once: for campaigns whose subject is not what they propose."""

LEARNED = """
[plan]
title = "Three problems"
budget = "160 trials"
minimum = "32 trials"
produce = ["report", "winners"]

[[problems]]
datasets = ["h200-sgemm-nt-4096-random", "convolution_mi250x_gcd", "xgemm_rtx_2080_ti"]
"""
PLAN = LEARNED.replace("160", "96").replace("32", "24") + SIMPLE


class Here:
    """Runs time slices in this process, for campaigns whose subject is no process. Satisfies the Process protocol."""

    def __init__(self) -> None:
        self._interrupted = threading.Event()

    def start(self) -> None:
        """Do nothing: there is no process to start."""

    def call(self, request: SliceRequest, timeout_s: float, on_message: Callable[[Any], None]) -> SliceResult:
        """Run a time slice."""
        return run_slice(request, tune=tune, interrupt=self._interrupted.is_set, on_message=on_message)

    def interrupt(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End the time slice under way."""
        self._interrupted.set()

    def kill(self) -> None:
        """Do nothing: there is no process to kill."""


def carry_out(plan: Plan | str, directory: Path, **options: Any) -> CampaignResult:
    """Carry out a plan without further processes."""
    return run_plan(placed(plan) if isinstance(plan, str) else plan, directory, worker=Here, **options)


def placed(text: str = PLAN) -> Plan:
    """Return a plan of recorded timings."""
    return place(parse_plan(text, "test"), ())


def records_of(directory: Path, without: str = "") -> dict[str, list[TrialRecord]]:
    """Return the records of every problem but one by number, without their dates."""
    found = {}
    for folder in runs_in(directory):
        if folder.name == without:
            continue
        with Store.read_only(folder) as store:
            records = [dataclasses.replace(one, finished_at=0.0, elapsed_s=0.0) for one in store.records()]
        found[folder.name] = sorted(records, key=lambda record: record.number)
    return found


def stored_trials(directory: Path) -> int:
    """Return the number of trials on record, also while a store is being created."""
    count = 0
    for folder in directory.glob("problems/*"):
        try:
            with Store.read_only(folder) as store:
                count += len(store)
        except RunDirectoryError:
            continue
    return count


def declarations_of(directory: Path) -> dict[str, object]:
    found = {}
    for folder in runs_in(directory):
        with Store.read_only(folder) as store:
            found[folder.name] = store.documents().get("declaration")
    return found


def events_of(directory: Path) -> list[dict[str, object]]:
    return read_events(directory / "events.jsonl")[0]


def start(
    directory: Path,
    plan: str,
    *,
    worker: str = "mltune.campaign.device_worker:make_device_worker",
    patience_s: float = 120.0,
    **environment: str,
) -> subprocess.Popen:
    """Run a plan in its own process, as the command line does, but with time to end on a busy machine."""
    script = (
        "import sys; from pathlib import Path; from mltune.process.signals import Interrupt\n"
        "from mltune.campaign.campaign import CampaignSettings, run_plan; from tests.campaign.conftest import placed\n"
        "with Interrupt(float(sys.argv[4])) as interrupt:\n"
        "    run_plan(placed(sys.argv[2]), Path(sys.argv[1]), stop=interrupt, worker=sys.argv[3],\n"
        "             settings=CampaignSettings(heartbeat_timeout_s=60.0))\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", script, str(directory), plan, worker, str(patience_s)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        start_new_session=True,
    )


def wait_until(condition: Callable[[], bool], timeout_s: float = 300.0) -> bool:
    """Wait until a condition holds; return whether it does."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def kill(process: subprocess.Popen) -> None:
    """Kill a process and wait for its end."""
    process.send_signal(signal.SIGKILL)
    process.wait()


def faults(directory: Path, *faults: dict[str, Any]) -> dict[str, str]:
    """Return the environment variables of a campaign with faults (:mod:`tests.campaign.device_workers`)."""
    done = directory.with_name(f"{directory.name}-faults")
    done.mkdir()
    return {"FAULTS": json.dumps(faults), "FAULTS_DONE": str(done)}


def start_slowly(directory: Path, plan: str = PLAN) -> subprocess.Popen:
    """Run a plan in its own process: its trials take long from the twentieth on, so that it does not end by itself."""
    slow = {"fault": "be slow", "at": 20, "for_s": 3600.0, "by_s": 0.25}
    return start(directory, plan, worker=FAULTY, **faults(directory, slow))


@pytest.fixture(scope="session")
def learned(tmp_path_factory: pytest.TempPathFactory) -> CampaignResult:
    """Return the result of a campaign with the learned search without interruptions."""
    return carry_out(LEARNED, tmp_path_factory.mktemp("learned") / "uninterrupted")


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> CampaignResult:
    """Return the result of a campaign without interruptions."""
    return carry_out(PLAN, tmp_path_factory.mktemp("campaign") / "uninterrupted")
