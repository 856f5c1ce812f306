"""Problems that can use no more of the budget: they end with a reason, and the others get their trials."""

import json

import pytest

from mltune.campaign.device_worker import Outcome, SliceResult
from mltune.campaign.scheduler import MAX_IDLE, Scheduler
from mltune.results.summary import summarise_campaign
from tests.campaign.conftest import SIMPLE, carry_out, events_of, placed, start, stored_trials
from tests.cli.program import command
from tests.conftest import few_rows

TWO = (
    """
[plan]
title = "A small space and a large one"
budget = "128 trials"
minimum = "16 trials"
produce = ["report"]
[[problems]]
datasets = ["{small}", "convolution_mi250x_gcd"]
"""
    + SIMPLE
)
LARGE = "convolution-mi250x-gcd"
REASON = "nothing is left to try: all 24 configurations are on record"


def test_an_exhausted_problem_ends_and_the_others_get_its_budget(tmp_path):
    plan = placed(TWO.format(small=few_rows(tmp_path)))
    messages = []
    result = carry_out(plan, tmp_path / "run", progress=lambda progress: messages.append(progress.message))

    assert {slug: standing.trials for slug, standing in result.standings.items()} == {"few": 24, LARGE: 104}
    assert result.standings["few"].stopped == REASON
    assert f"few: ended by itself: {REASON}" in messages
    slices = [event for event in events_of(tmp_path / "run") if event["event"] == "slice_ended"]
    assert len(slices) <= 8
    assert REASON in [event["detail"] for event in slices if event["slug"] == "few"]
    assert not result.failed
    (shown,) = [entry for entry in summarise_campaign(tmp_path / "run")["problems"] if entry["slug"] == "few"]
    assert (shown["state"], shown["detail"]) == ("finished", REASON)
    assert "nothing is left to try: all 24 configurations are on record" in result.report.html.read_text()


@pytest.mark.system
def test_a_campaign_of_exhausted_problems_ends_and_is_not_repeated(tmp_path):
    plan = tmp_path / "small.toml"
    text = (
        TWO.replace("report", "winners").format(small=few_rows(tmp_path)).replace(f', "{LARGE.replace("-", "_")}"', "")
    )
    plan.write_text(text)
    first = command("run", plan, "--run", tmp_path / "run")
    slices = [event["event"] for event in events_of(tmp_path / "run")].count("slice_started")
    again = command("run", tmp_path / "run", "--json")

    assert (first.returncode, again.returncode) == (0, 0), first.stderr
    assert REASON in first.stdout
    assert json.loads(again.stdout)["problems"][0]["trials"] == 24
    assert [event["event"] for event in events_of(tmp_path / "run")].count("slice_started") == slices


def test_a_problem_whose_time_slices_bring_nothing_comes_after_the_others_and_is_set_aside(tmp_path):
    plan = placed(TWO.format(small=few_rows(tmp_path)))
    scheduler, chosen = Scheduler(plan, tmp_path / "run"), []
    while (time_slice := scheduler.next((), None)) is not None:
        chosen.append(time_slice.slug)
        scheduler.end(time_slice, SliceResult(Outcome.DONE))

    assert chosen == ["few", LARGE] * MAX_IDLE
    assert {standing.failed for standing in scheduler.standings.values()} == {
        f"{MAX_IDLE} time slices in a row brought no trial"
    }


@pytest.mark.system
def test_a_campaign_whose_workers_do_nothing_ends(tmp_path):
    plan = TWO.format(small=few_rows(tmp_path))
    process = start(tmp_path / "run", plan, worker="tests.campaign.device_workers:idle_worker")

    assert process.wait(timeout=300) == 0
    assert stored_trials(tmp_path / "run") == 0
    names = [event["event"] for event in events_of(tmp_path / "run")]
    assert names.count("slice_ended") == 2 * MAX_IDLE
    assert names.count("set_aside") == 2
