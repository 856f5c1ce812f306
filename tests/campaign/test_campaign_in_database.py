"""A campaign whose records are in a database is that with files, also when it is killed, and others can read it."""

import signal
import subprocess
import sys
import threading

from mltune.campaign.campaign import CampaignSettings, run_plan
from mltune.records.directory import FILE, POINTER, runs_in
from tests.campaign.conftest import (
    LEARNED,
    ROOT,
    declarations_of,
    events_of,
    faults,
    placed,
    records_of,
    stored_trials,
    wait_until,
)
from tests.cli import program


def test_killed_and_resumed_it_has_the_records_of_files(learned, postgres, tmp_path):
    url, plan, directory = postgres.url("campaign"), tmp_path / "test.toml", tmp_path / "campaign"
    plan.write_text(LEARNED)
    command = [sys.executable, "-m", "mltune", "run", str(plan), "--run", str(directory)]
    for trials, store in ((40, ["--store", url]), (90, [])):  # the later problems are where the first is
        child = subprocess.Popen([*command, *store], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert wait_until(lambda enough=trials: stored_trials(directory) >= enough)
        child.send_signal(signal.SIGKILL)
        child.wait()
    document = program.answer("run", directory)
    assert document["failed"] == {}
    assert records_of(directory) == records_of(learned.directory)
    assert declarations_of(directory) == declarations_of(learned.directory)
    for run in runs_in(directory):
        assert (run / POINTER).exists()
        assert not (run / FILE).exists()

    listed = program.answer("show", url)
    assert {entry["run"] for entry in listed} == {_number(run) for run in runs_in(directory)}
    assert sum(entry["trials"] for entry in listed) == 160
    assert wait_until(lambda: not any(entry["running"] for entry in program.answer("show", url)))
    one, cache = listed[0], {"XDG_CACHE_HOME": str(tmp_path / "cache"), "XDG_DATA_HOME": str(tmp_path / "data")}
    shown = program.answer("show", f"{url}#{one['run'][:8]}", **cache)
    assert shown["best"][0]["median_s"] == one["best_s"]
    report = program.answer("report", f"{url}#{one['run']}", "--out", tmp_path / "report", **cache)
    assert [winner["state"] for winner in report["winners"]] == ["declared"]
    assert "sgemm" in program.command("show", url).stdout


def test_a_lost_database_changes_no_record(learned, postgres, tmp_path, monkeypatch):
    url, directory = postgres.url("lost"), tmp_path / "campaign"
    # However busy the machine is, trials are left when the server is stopped.
    for name, value in faults(directory, {"fault": "be slow", "at": 20, "for_s": 5.0, "by_s": 0.25}).items():
        monkeypatch.setenv(name, value)

    def crash():
        assert wait_until(lambda: stored_trials(directory) >= 20)
        postgres.stop(signal.SIGQUIT)
        assert wait_until(lambda: "database_lost" in names())
        postgres.start()

    def names():
        return {str(event["event"]) for event in events_of(directory)}

    crashing = threading.Thread(target=crash)
    crashing.start()
    settings = CampaignSettings(store=url)
    run_plan(placed(LEARNED), directory, settings=settings, worker="tests.campaign.device_workers:impatient_worker")
    crashing.join()
    assert records_of(directory) == records_of(learned.directory)
    assert declarations_of(directory) == declarations_of(learned.directory)
    assert {"database_lost", "database_back"} <= names()
    assert not {"worker_died", "set_aside"} & names()


def _number(run):
    import json

    return json.loads((run / POINTER).read_text())["run"]


def test_what_cannot_be_met_is_refused(database_url, tmp_path):
    run = tmp_path / "run"
    tune = ("tune", "--device", "replay:h200-sgemm-nt-4096-random", "--trials", 20, "--run", run)
    program.assert_refused(program.command(*tune, "--store", "mysql://host/name"), "not PostgreSQL", "mysql")
    program.assert_refused(program.command("report", database_url), "DATABASE#RUN", "mltune show DATABASE")
    program.assert_refused(program.command("show", f"{database_url}#ffff"), "names 0 runs of the database")
    assert program.command(*tune).returncode == 0
    program.assert_refused(program.command(*tune, "--store", database_url), "a run stays where it was begun", FILE)
    missing = program.command("show", f"postgresql://nobody@/name?host={tmp_path}")
    assert missing.returncode == 1
    assert len(missing.stderr.splitlines()) == 1
