"""A signal ends a campaign within ten seconds, with a report or with the message that there is none."""

import dataclasses
import math
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mltune.campaign.scheduler import Scheduler
from mltune.records.directory import HTML
from mltune.records.store import Store
from tests.campaign.conftest import ROOT, SIMPLE, carry_out, events_of, placed, stored_trials, wait_until
from tests.conftest import few_rows

TRIALS = 34_546
PLAN = (
    """
[plan]
title = "A long campaign"
budget = "{budget} trials"
minimum = "16 trials"
[[problems]]
datasets = ["{few}"]
maximum = "16 trials"
[[problems]]
datasets = ["xgemm_rtx_a4000"]
"""
    + SIMPLE
)


def campaign(folder: Path, trials: int) -> tuple[Path, str]:
    """Return the directory and the plan of a campaign with many trials on record, which has a problem left."""
    few = few_rows(folder)
    carry_out(PLAN.format(budget=32, few=few), folder / "run")
    with Store.open(folder / "run/problems/few") as store:
        records = list(store.records())
        for start in range(16, trials, 5000):
            numbers = range(start, min(start + 5000, trials))
            store.append(*(dataclasses.replace(records[number % 16], number=number) for number in numbers))
    return folder / "run", PLAN.format(budget=2 * trials, few=few)


@pytest.fixture(scope="module")
def long(tmp_path_factory) -> tuple[Path, str]:
    return campaign(tmp_path_factory.mktemp("long"), TRIALS)


@pytest.fixture(scope="module")
def short(tmp_path_factory) -> tuple[Path, str]:
    return campaign(tmp_path_factory.mktemp("short"), 400)


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGINT])
@pytest.mark.slow
def test_a_campaign_of_many_trials_ends_in_time_with_a_report(number, long, tmp_path):
    directory, text = long
    written = (directory / HTML).stat().st_mtime_ns
    (tmp_path / "long.toml").write_text(text)
    command = [sys.executable, "-m", "mltune", "run", tmp_path / "long.toml", "--run", directory]
    before = stored_trials(directory)
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert wait_until(lambda: stored_trials(directory) > before + 32)

    process.send_signal(number)
    out, err = process.communicate(timeout=300)

    assert process.returncode == 130, err  # one that ends later than the command's patience has another code
    assert f"{TRIALS}" in out
    assert "Traceback" not in err
    assert ((directory / HTML).stat().st_mtime_ns > written) != ("no time was left for the report" in err)


class Interrupted:
    """A stop with a deadline, as a signal sets it."""

    signal = "SIGTERM"

    def __init__(self, deadline: float, after: int = 0) -> None:
        self.deadline = deadline
        self.calls_left = after

    def __call__(self) -> bool:
        self.calls_left -= 1
        return self.calls_left < 0


@pytest.mark.slow
def test_a_report_that_would_be_late_is_left_out_with_a_message(long):
    directory, text = long
    report = (directory / HTML).read_bytes()
    messages = []

    stop = Interrupted(time.monotonic(), after=20)
    result = carry_out(text, directory, progress=lambda one: messages.append(one.message), stop=stop)

    assert result.interrupted
    assert result.report is None
    assert f"no time was left for the report: `mltune report {directory}` writes it" in messages
    assert (directory / HTML).read_bytes() == report
    assert "report_written" not in [event["event"] for event in events_of(directory)[-2:]]


def test_a_campaign_that_is_interrupted_before_it_has_read_its_records_ends_at_once(short):
    directory, text = short
    report = (directory / HTML).read_bytes()
    messages = []

    result = carry_out(text, directory, progress=lambda one: messages.append(one.message), stop=Interrupted(math.inf))

    assert any("no time was left" in message for message in messages if message)
    assert (directory / HTML).read_bytes() == report
    assert result.failed.keys() == {"few", "xgemm-rtx-a4000"}
    assert all("interrupted before its records were read" in reason for reason in result.failed.values())
    assert {problem["state"] for problem in result.to_json()["problems"]} == {"unreadable"}


def test_the_scheduler_reads_each_trial_once(short, monkeypatch):
    directory, text = short
    scheduler = Scheduler(placed(text), directory)
    folder = directory / "problems/few"
    known = scheduler.read(folder, "few").records

    read, records = [], Store.records
    monkeypatch.setattr(Store, "records", lambda store, after=0: read.append(found := records(store, after)) or found)
    for _ in range(3):
        scheduler.refresh()
    assert sum(map(len, read)) == 0
    assert scheduler.read(folder, "few").records is known
