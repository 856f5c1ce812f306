"""The summary of a campaign: the state and the best of each problem."""

import os

import pytest

from mltune.errors import RunDirectoryError
from mltune.records.declaration import Declaration, Finalist
from mltune.records.directory import PLAN_FILE, lock_directory
from mltune.records.events import FILE, EventLog
from mltune.records.trial import TrialState
from mltune.results.summary import summarise_campaign


@pytest.fixture
def plan(tmp_path, make_run, make_trial):
    (tmp_path / PLAN_FILE).write_text("")
    problems = tmp_path / "problems"
    make_run(problems / "begun", make_trial(0), make_trial(1, median_s=2e-3))
    make_run(problems / "failed", make_trial(0, TrialState.CRASHED))
    ties = (Finalist(0, 2.5e-3, 2.4e-3, 2.6e-3), Finalist(1, 2.5e-3, 2.4e-3, 2.6e-3, 1.0, 0.9, 1.1))
    declared = Declaration(0, ties, as_of=2).to_json()
    make_run(problems / "declared", make_trial(0), make_trial(1), declaration=declared)
    make_run(problems / "going-on", make_trial(0), make_trial(1), make_trial(2), declaration=declared)
    stopping = {"reason": "nothing better is expected"}
    make_run(problems / "finished", make_trial(0), make_trial(1), declaration=declared, stopping=stopping)
    EventLog(tmp_path).write(
        "plan_started", problems=["finished", "waiting", "begun", "failed", "declared", "going-on"]
    )
    return tmp_path


def test_every_problem_in_the_order_of_the_plan(plan):
    held = lock_directory(plan / "problems/going-on")
    document = summarise_campaign(plan)
    os.close(held)
    assert [(entry["slug"], entry["state"]) for entry in document["problems"]] == [
        ("finished", "finished"),
        ("waiting", "waiting"),
        ("begun", "begun"),
        ("failed", "failed"),
        ("declared", "declared"),
        ("going-on", "running"),
    ]
    assert not document["running"]


def test_the_best_is_the_declared_one_or_the_fastest_so_far(plan):
    best = {entry["slug"]: entry["best"] for entry in summarise_campaign(plan)["problems"]}
    assert best["waiting"] is best["failed"] is None
    assert best["begun"]["median_s"] == 2e-3
    assert best["begun"]["share_of_reference"] == pytest.approx(2.65 / 2)
    assert (best["declared"]["median_s"], best["declared"]["ties"]) == (2.5e-3, [1])


def test_without_an_event_log_the_stores_suffice(plan):
    (plan / FILE).unlink()
    assert [entry["slug"] for entry in summarise_campaign(plan)["problems"]] == [
        "begun",
        "declared",
        "failed",
        "finished",
        "going-on",
    ]


def test_what_is_no_plan_is_refused(tmp_path):
    with pytest.raises(RunDirectoryError):
        summarise_campaign(tmp_path)


def test_a_store_that_cannot_be_read_is_set_aside_with_its_reason(plan, make_run):
    others = [entry for entry in summarise_campaign(plan)["problems"] if entry["slug"] != "begun"]
    make_run(plan / "problems/begun", declaration={"number": 3})

    found = {entry["slug"]: entry for entry in summarise_campaign(plan)["problems"]}

    unreadable = found.pop("begun")
    assert unreadable["state"] == "unreadable"
    assert unreadable["detail"].startswith("not readable: ")
    assert "problems/begun" in unreadable["detail"]
    assert unreadable.keys() == others[0].keys()
    assert list(found.values()) == others
