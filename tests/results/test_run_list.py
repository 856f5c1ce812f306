"""The list of the runs and campaigns in a folder."""

import os
from pathlib import Path

import pytest

from mltune.records.declaration import Declaration, Finalist
from mltune.records.directory import FILE, PLAN_FILE, POINTER, lock_directory
from mltune.records.events import EventLog
from mltune.results import summary
from mltune.results.summary import list_runs
from mltune.show.table import console
from mltune.show.tables import local_runs
from tests.cli import program


@pytest.fixture
def make(tmp_path, make_run, make_trial):
    """Return a maker of runs in a folder, each written a second after the one before it."""
    at_s = iter(range(1_750_000_000, 1_760_000_000))

    def make(name, *outcomes, within="", trials=2, **facts):
        made = make_run(tmp_path / "runs" / within / name, *map(make_trial, range(trials)), **facts)
        whole = made.parents[1] if within else made
        for outcome in outcomes:
            EventLog(whole).write("plan_ended" if within else "run_ended", outcome=outcome, trials=trials)
        now_s = next(at_s)
        for file in (*whole.glob("*"), *made.glob("*")):
            os.utime(file, (now_s, now_s))
        return made

    return make


def listed(folder):
    return {Path(entry["run"]).name: entry for entry in list_runs(folder / "runs")}


def test_each_has_a_state_and_the_newest_is_the_first(make, tmp_path):
    make("killed")
    make("interrupted", "interrupted")
    make("ended", "interrupted", "ended")
    make("resumed", "ended")
    EventLog(tmp_path / "runs/resumed").write("resumed", trials=2)
    os.utime(tmp_path / "runs/resumed/events.jsonl", (1.9e9, 1.9e9))
    lock = lock_directory(make("at-work", "ended"))
    (tmp_path / "runs/notes").mkdir()
    found = listed(tmp_path)
    os.close(lock)
    assert {name: entry["state"] for name, entry in found.items()} == {
        "resumed": "resumable",
        "at-work": "running",
        "ended": "ended",
        "interrupted": "resumable",
        "killed": "resumable",
    }
    assert list(found)[:2] == ["resumed", "at-work"]
    ended = found["ended"]
    assert (ended["problems"], ended["trials"], ended["best"]["median_s"]) == (["sgemm NT 4096"], 2, 3e-3)
    assert ended["written"].startswith("2025-06-15T")


def test_a_sweep_has_ended_once_its_dataset_is_there(make, tmp_path):
    (make("sweep") / "h200-sgemm.parquet").touch()
    assert listed(tmp_path)["sweep"]["state"] == "ended"


def test_a_long_log_is_read_at_its_end(make, tmp_path):
    run = make("long")
    for _ in range(400):
        EventLog(run).write("model", detail="x" * 300)
    EventLog(run).write("run_ended", outcome="ended")
    assert listed(tmp_path)["long"]["state"] == "ended"


def test_a_campaign_is_one_entry_and_its_unreadable_problems_are_counted(make, tmp_path):
    for slug in ("sgemm-nt-64", "sgemm-nt-128"):
        make(slug, within="night/problems", trials=3)
    campaign = tmp_path / "runs/night"
    (campaign / PLAN_FILE).write_text("")
    EventLog(campaign).write("plan_started", problems=["sgemm-nt-64", "sgemm-nt-128", "waiting"])
    EventLog(campaign).write("plan_ended", outcome="ended")
    (campaign / "problems/sgemm-nt-64" / FILE).write_text("no database")
    night = listed(tmp_path)["night"]
    assert (night["state"], night["detail"], night["trials"]) == ("ended", "1 problem unreadable", 3)
    assert (night["problems"], night["best"]) == (["sgemm-nt-64", "sgemm NT 4096", "waiting"], None)


def test_problems_of_the_same_name_on_two_devices_are_two(make, tmp_path):
    for slug in ("sgemm-on-a", "sgemm-on-b"):
        make(slug, within="night/problems")
    (tmp_path / "runs/night" / PLAN_FILE).write_text("")
    assert listed(tmp_path)["night"]["problems"] == ["sgemm NT 4096", "sgemm NT 4096"]


def test_kernels_that_competed_are_one_problem_with_the_best_of_the_fastest(make, tmp_path):
    for kernel, median_s in (("slow", 3e-3), ("fast", 2e-3)):
        declared = Declaration(0, (Finalist(0, median_s, median_s, median_s),), as_of=2).to_json()
        make(f"sgemm-{kernel}", within="choice/problems", declaration=declared, choice="sgemm")
    (tmp_path / "runs/choice" / PLAN_FILE).write_text("")
    (choice,) = listed(tmp_path).values()
    assert (choice["problems"], choice["trials"], choice["best"]["median_s"]) == (["sgemm NT 4096"], 4, 2e-3)


def test_what_cannot_be_read_is_named_with_the_reason(make, tmp_path):
    make("sound", "ended")
    for name, file in (("damaged", FILE), ("elsewhere", POINTER), ("link", FILE)):
        (tmp_path / "runs" / name).mkdir()
        (tmp_path / "runs" / name / file).write_text("nothing of ours")
    (tmp_path / "runs/link" / FILE).unlink()
    (tmp_path / "runs/link" / FILE).symlink_to(tmp_path / "runs/sound" / FILE)
    os.utime(tmp_path / "runs/damaged" / FILE, (9e11, 9e11))  # a date that Python has not
    found = listed(tmp_path)
    assert next(iter(found)) == "damaged"
    for name in ("damaged", "elsewhere", "link"):
        assert (found[name]["state"], found[name]["best"]) == ("unreadable", None)
        assert name in found[name]["detail"]
    assert found["sound"]["state"] == "ended"
    with (out := console()).capture() as captured:
        out.print(local_runs([*found.values()]))
    assert all(name in captured.get() for name in found)


def test_only_the_newest_are_read(make, tmp_path, monkeypatch):
    monkeypatch.setattr(summary, "MOST_LISTED", 2)
    for name in "abc":
        make(name)
    assert list(listed(tmp_path)) == ["c", "b"]


def test_the_command(make, tmp_path):
    none = program.command("show", cwd=tmp_path)
    assert (none.returncode, none.stdout) == (0, "No runs in runs/ of this directory.\n")
    assert none.stderr == "next: mltune tune sgemm\n"
    assert program.answer("show", cwd=tmp_path) == []
    make("one", "ended")
    shown = program.command("show", cwd=tmp_path)
    assert shown.stdout.split("\n")[1].startswith("runs/one  sgemm NT 4096  ended       2  45.81 TFLOPS  2025-06-15")
    assert shown.stderr == "next: mltune show runs/one\n"
    assert [entry["run"] for entry in program.answer("show", cwd=tmp_path)] == ["runs/one"]
    program.assert_refused(program.command("show", "--follow", cwd=tmp_path), "no run is named", "--dataset need")
