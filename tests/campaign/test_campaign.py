"""Campaigns in replay: shares of the budget, interruptions, and resumption with the same result."""

import json
import os
import signal
import subprocess
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from mltune.campaign.campaign import run_plan
from mltune.campaign.device_worker import Outcome, SliceResult, make_device_worker
from mltune.errors import RunDirectoryError
from mltune.records.directory import runs_in
from mltune.show.follow import Watch
from tests.campaign.conftest import (
    PLAN,
    Here,
    carry_out,
    declarations_of,
    events_of,
    kill,
    placed,
    records_of,
    start,
    start_slowly,
    stored_trials,
    wait_until,
)
from tests.campaign.device_workers import UNRESPONSIVE
from tests.cli.program import answer


def names(directory: Path) -> list[str]:
    return [str(event["event"]) for event in events_of(directory)]


def test_every_problem_has_its_minimum_and_a_winner_and_the_budget_is_spent(uninterrupted):
    records = records_of(uninterrupted.directory)

    assert len(records) == 3
    assert all(len(one) >= 24 for one in records.values())
    assert sum(map(len, records.values())) == 96
    assert all(declarations_of(uninterrupted.directory).values())
    assert {"report.html", "report.md", "winners.json", "plan.toml"} <= set(os.listdir(uninterrupted.directory))
    assert (uninterrupted.directory / "plan.toml").read_text() == PLAN


def test_the_event_log_holds_beginning_end_and_every_time_slice(uninterrupted):
    logged = names(uninterrupted.directory)

    assert logged[0] == "plan_started"
    assert logged[-2:] == ["plan_ended", "report_written"]
    assert logged.count("slice_started") == logged.count("slice_ended") >= 3
    assert not {"worker_died", "gpu_lost", "disk_full", "interrupted"} & set(logged)


@pytest.mark.parametrize("produce", [[], ["winners"]])
def test_runs_end_with_finals_where_something_is_produced(tmp_path, produce):
    asked = []

    class Asked(Here):
        def call(self, request, *_):
            asked.append(request.request.finals)
            return SliceResult(Outcome.FAILED, "asked")

    plan = placed(PLAN.replace('produce = ["report", "winners"]', f"produce = {json.dumps(produce)}"))
    run_plan(plan, tmp_path, worker=Asked)
    assert {*asked} == {bool(produce)}


@pytest.mark.slow
def test_it_is_followed_and_shown_by_the_share_of_its_budget(tmp_path):
    """The minimum of all problems is two thirds of the budget, and everything is counted when it has ended."""
    seen = []
    carry_out(PLAN.replace("24", "21"), tmp_path, progress=seen.append)

    shares = [progress.share_done for progress in seen]
    assert shares == sorted(shares)
    assert (seen[-1].trials, seen[-1].trials_limit, seen[-1].share_done) == (96, 96, 1.0)
    followed = Watch(tmp_path).look()
    assert (followed.done, followed.problems, followed.trials, followed.trials_limit) == (3, 3, 96, 96)


def test_a_campaign_that_has_ended_is_not_repeated(uninterrupted):
    before = records_of(uninterrupted.directory)

    carry_out(PLAN, uninterrupted.directory)

    assert records_of(uninterrupted.directory) == before


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_a_signal_ends_it_with_a_report_and_it_can_be_resumed(number, uninterrupted, tmp_path):
    directory = tmp_path / "campaign"
    process = start_slowly(directory)
    assert wait_until(lambda: stored_trials(directory) >= 20)

    process.send_signal(number)

    assert process.wait(timeout=300) == 0
    assert "interrupted" in names(directory)
    assert (directory / "report.html").is_file()
    winners = json.loads((directory / "winners.json").read_text())
    assert winners
    carry_out(PLAN, directory)
    assert records_of(directory) == records_of(uninterrupted.directory)
    assert declarations_of(directory) == declarations_of(uninterrupted.directory)


def test_a_second_signal_ends_it_at_once(tmp_path):
    """The first one waits for the worker, which does not hear it."""
    process = start(tmp_path, PLAN, worker="tests.campaign.device_workers:unresponsive_worker", patience_s=3600)
    assert wait_until((tmp_path / UNRESPONSIVE).is_file)

    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    while process.poll() is None:  # of two that arrive at once, the process hears one
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)

    assert process.wait() == 128 + signal.SIGINT


@pytest.mark.system
def test_an_unresponsive_worker_does_not_keep_it_from_ending(tmp_path):
    """The worker would end after an hour."""
    process = start(tmp_path, PLAN, worker="tests.campaign.device_workers:unresponsive_worker")
    assert wait_until((tmp_path / UNRESPONSIVE).is_file)

    process.send_signal(signal.SIGTERM)

    assert process.wait(timeout=300) == 0


@pytest.mark.system
def test_a_second_run_in_the_directory_is_refused_and_a_dead_one_holds_no_lock(tmp_path):
    directory = tmp_path / "campaign"
    plan = PLAN.replace('"report", ', "")
    process = start_slowly(directory, plan)
    assert wait_until(lambda: stored_trials(directory) > 0)
    with pytest.raises(RunDirectoryError, match=f"in use by process {process.pid}"):
        carry_out(plan, directory)

    kill(process)

    carry_out(plan, directory)
    assert stored_trials(directory) == 96


@pytest.mark.slow
def test_another_plan_is_refused_and_a_larger_budget_is_not(tmp_path):
    small = PLAN.replace("96 trials", "72 trials")
    carry_out(small, tmp_path)
    with pytest.raises(RunDirectoryError, match="of another"):
        carry_out(small.replace(', "xgemm_rtx_2080_ti"', ""), tmp_path)
    with pytest.raises(RunDirectoryError, match="of another"):
        carry_out(small.replace("budget", "seed = 5\nbudget"), tmp_path)

    carry_out(PLAN, tmp_path)

    assert stored_trials(tmp_path) == 96


def test_the_directory_of_a_single_run_is_refused(uninterrupted):
    with pytest.raises(RunDirectoryError, match="the directory of a single run"):
        carry_out(PLAN, runs_in(uninterrupted.directory)[0])


@pytest.mark.system
def test_the_command_runs_a_plan_and_resumes_its_directory(tmp_path):
    plan, directory = tmp_path / "three.toml", tmp_path / "run"
    plan.write_text(PLAN)
    one = answer("run", plan, "--run", directory)
    other = answer("run", directory)

    assert [problem["trials"] for problem in one["problems"]] == [problem["trials"] for problem in other["problems"]]
    assert all(problem["best"] for problem in one["problems"])


def test_what_passed_before_a_campaign_began_is_part_of_its_budget(tmp_path):
    plan = PLAN.replace("96 trials", "60s").replace("24 trials", "10s")

    result = carry_out(plan, tmp_path / "run", begun=time.perf_counter() - 60.0)

    assert not any(standing.trials for standing in result.standings.values())
    (ended,) = [event for event in events_of(tmp_path / "run") if event["event"] == "plan_ended"]
    assert ended["elapsed_s"] >= 60.0


def test_the_worker_of_a_gpu_starts_with_its_device_worker(monkeypatch):
    started = []
    monkeypatch.setattr("mltune.measure.runner.start_worker", lambda pool, index: started.append(index))
    monkeypatch.setattr("mltune.campaign.device_worker.Interrupt", lambda *_, **__: nullcontext(bool))
    for device in ("cuda:3", "replay:convolution_w6600", ""):
        make_device_worker(device)
    assert started == [3]
