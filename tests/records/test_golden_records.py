"""Files of earlier versions stay readable: stores, events and declarations."""

import json
import shutil
from pathlib import Path

import pytest

from mltune.errors import DamagedRunError
from mltune.records.declaration import Declaration, Finalist, Reference, drifts
from mltune.records.directory import EVENT_LOG, FILE, runs_in
from mltune.records.events import EVENTS, EVERYWHERE, read_events
from mltune.records.store import Store
from mltune.records.trial import TrialState
from tests.cli.program import command

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
NAME = "run-format-3"


@pytest.fixture
def copy_of(tmp_path):
    """Return a function that copies a golden folder, so that no test can change it."""

    def copy(name):
        return Path(shutil.copytree(GOLDEN / name, tmp_path / name))

    return copy


def output(*arguments, cwd=ROOT):
    done = command(*arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_records_header_and_facts_are_read(copy_of):
    with Store.read_only(copy_of(NAME)) as store:
        records, references, facts = store.records(), store.references(), store.facts()
        assert store.header.kernel == "gemm_simt"
        assert store.header.versions["mltune"] == "0.1.0"
        assert store.seconds()["search"] > 0
    assert [record.number for record in records[:48]] == list(range(48))
    assert records[35].median_s == pytest.approx(2.8713e-3, rel=1e-4)
    assert records[35].configuration["BLK_M"] == 128
    assert records[35].build.registers is not None
    assert min(record.measurement.discarded for record in records[:48]) == 0
    assert [record.state for record in records[48:]] == [TrialState.SKIPPED, TrialState.COMPILE_ERROR]
    assert records[48].skip.gate == "after_compile"
    assert records[49].detail == "ptxas: too many registers"
    assert references[0] == Reference(16, 0.32, 0.00265, 0.001, 1.98e9, 40.0, 600.0, 4)
    assert len(drifts(references)) == 1
    assert facts.reference_median_s == pytest.approx(2.6518e-3, rel=1e-4)
    assert facts.stopping.reason
    assert facts.notice == ""
    assert facts.declaration.number == 35
    assert facts.declaration.reference == Finalist(-1, 0.00265, 0.00264, 0.00266, 0.923, 0.919, 0.927)
    assert facts.declaration.rejected == {7: "wrong result"}
    assert Declaration.from_json(facts.declaration.to_json()) == facts.declaration


@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_store_of_another_format_is_refused_and_not_changed(copy_of, number):
    import sqlite3

    path = copy_of(NAME) / FILE
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {number}")
    connection.close()
    before = path.read_bytes()
    for attempt in (Store.read_only, Store.open):
        with pytest.raises(DamagedRunError, match=f"it is of format {number}"):
            attempt(path.parent)
    assert path.read_bytes() == before


def test_commands_show_report_and_export_a_run(copy_of, tmp_path):
    directory = copy_of(NAME)

    shown = json.loads(output("show", directory, "--json"))
    output("report", directory, "--out", tmp_path / "report")
    output("show", directory, "--dataset", tmp_path / "exported")

    assert shown["best"][0]["trial"] == 35
    assert "sgemm NT 4096" in (tmp_path / "report" / "report.md").read_text()
    assert json.loads((tmp_path / "report" / "winners.json").read_text())
    manifest = json.loads((tmp_path / "exported" / f"{NAME}.json").read_text())
    assert manifest["rows"] >= 48
    assert manifest["reference_median_s"] == pytest.approx(2.6518e-3, rel=1e-4)


@pytest.mark.parametrize("name", [NAME, "campaign"])
def test_events_are_read(name):
    events, offset = read_events(GOLDEN / name / EVENT_LOG)
    assert offset == (GOLDEN / name / EVENT_LOG).stat().st_size
    assert len(events) > 5
    for event in events:
        assert event.keys() - {"at", "event"} - EVERYWHERE <= EVENTS[event["event"]]
    for event in (event for event in events if event["event"] == "best"):
        assert "share_of_reference" in event


def test_progress_and_dead_workers_are_read():
    progress = [event for event in read_events(GOLDEN / NAME / EVENT_LOG)[0] if event["event"] == "progress"]
    assert [(run["trials"], round(run["best_share_of_reference"], 3)) for run in progress[0]["runs"]] == [(32, 0.906)]
    names = [event["event"] for event in read_events(GOLDEN / "campaign" / EVENT_LOG)[0]]
    assert names.count("worker_died") == 1


def test_commands_show_and_report_a_campaign(copy_of, tmp_path):
    directory = copy_of("campaign")

    shown = json.loads(output("show", directory, "--json"))
    output("report", directory, "--out", tmp_path / "report")

    assert [problem["slug"] for problem in shown["problems"]] == ["h200-sgemm-nt-4096-random", "convolution-mi250x-gcd"]
    assert [problem["trials"] for problem in shown["problems"]] == [40, 40]
    assert len(runs_in(directory)) == 2
    assert "Golden: two recorded problems" in (tmp_path / "report" / "report.md").read_text()
