"""Files of earlier versions stay readable: stores of both formats, events and declarations."""

import json
import shutil
from pathlib import Path

import pytest

from mltune.errors import RunDirectoryError
from mltune.records.declaration import Declaration, Finalist, Reference, drifts
from mltune.records.directory import runs_in
from mltune.records.events import EVENTS, EVERYWHERE, FILE, read_events
from mltune.records.store import Store
from mltune.records.trial import TrialState
from tests.cli.program import command

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
RUNS = sorted(path for path in GOLDEN.glob("run-format-*"))


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


@pytest.mark.parametrize("name", ["run-format-1", "run-format-2"])
def test_records_header_and_facts_of_every_format_are_read(copy_of, name):
    with Store.read_only(copy_of(name)) as store:
        records = store.records()
        assert store.header.kernel == "gemm_simt"
        assert store.header.versions["mltune"] == "0.1.0"
        assert store.facts().reference_median_s == pytest.approx(2.6518e-3, rel=1e-4)
        assert store.seconds()["search"] > 0
    assert [record.number for record in records[:48]] == list(range(48))
    assert records[35].median_s == pytest.approx(2.8713e-3, rel=1e-4)
    assert records[35].configuration["BLK_M"] == 128
    assert records[35].build.registers is not None
    assert min(record.measurement.discarded for record in records[:48]) == 0


def test_what_format_1_lacks_is_unknown(copy_of):
    with Store.read_only(copy_of("run-format-1")) as store:
        assert store.references() == []
        assert store.facts().declaration is None
        assert {(one.predicted, one.elapsed_s, one.measurement.discarded) for one in store.records()} == {(None, 0, 0)}


@pytest.mark.parametrize("number", [1, 2])
def test_a_store_of_an_old_format_is_not_resumed_and_not_changed(copy_of, number):
    directory = copy_of(f"run-format-{number}")
    before = (directory / "run.sqlite").read_bytes()
    with pytest.raises(RunDirectoryError, match=f"of format {number}, which can only be read"):
        Store.open(directory)
    assert (directory / "run.sqlite").read_bytes() == before


def test_a_store_of_a_later_format_is_refused(copy_of):
    import sqlite3

    directory = copy_of("run-format-2")
    connection = sqlite3.connect(directory / "run.sqlite")
    connection.execute("PRAGMA user_version = 4")
    connection.close()
    with pytest.raises(RunDirectoryError, match=r"format 1 to 3 can be read, but it is of format 4"):
        Store.read_only(directory)


def test_what_only_format_2_has_is_read(copy_of):
    directory = copy_of("run-format-2")
    with Store.read_only(directory) as store:
        records, references = store.records(), store.references()
        assert [record.state for record in records[48:]] == [TrialState.SKIPPED, TrialState.COMPILE_ERROR]
        assert records[48].skip.gate == "after_compile"
        assert records[49].detail == "ptxas: too many registers"
        assert references[0] == Reference(16, 0.32, 0.00265, 0.001, 1.98e9, 40.0, 600.0, 4)
        assert len(drifts(references)) == 1
        declaration = store.facts().declaration
        assert store.facts().stopping.reason
    assert declaration.number == 35
    assert declaration.reference == Finalist(-1, 0.00265, 0.00264, 0.00266, 0.923, 0.919, 0.927)
    assert declaration.rejected == {7: "wrong result"}
    assert Declaration.from_json(declaration.to_json()) == declaration


@pytest.mark.parametrize("name", ["run-format-1", "run-format-2"])
@pytest.mark.sampled(1)
def test_commands_show_report_and_export_every_format(copy_of, name, tmp_path):
    directory = copy_of(name)

    shown = json.loads(output("show", directory, "--json"))
    output("report", directory, "--output", tmp_path / "report")
    output("show", directory, "--export", tmp_path / "exported")

    assert shown["best"][0]["trial"] == 35
    assert "sgemm NT 4096" in (tmp_path / "report" / "report.md").read_text()
    assert json.loads((tmp_path / "report" / "winners.json").read_text())
    manifest = json.loads((tmp_path / "exported" / f"{name}.json").read_text())
    assert manifest["rows"] >= 48
    assert manifest["reference_median_s"] == pytest.approx(2.6518e-3, rel=1e-4)


@pytest.mark.parametrize("name", ["run-format-2", "campaign"])
def test_events_have_the_names_of_today(name):
    events, offset = read_events(GOLDEN / name / FILE)
    assert offset == (GOLDEN / name / FILE).stat().st_size
    assert len(events) > 5
    for event in events:
        assert event.keys() - {"at", "event"} - EVERYWHERE <= EVENTS[event["event"]]
    for event in (event for event in events if event["event"] == "best"):
        assert "share_of_reference" in event


def test_progress_and_dead_workers_have_the_names_of_today():
    progress = [one for one in read_events(GOLDEN / "run-format-2" / FILE)[0] if one["event"] == "progress"]
    assert [(run["trials"], round(run["best_share_of_reference"], 3)) for run in progress[0]["runs"]] == [(32, 0.906)]
    names = [event["event"] for event in read_events(GOLDEN / "campaign" / FILE)[0]]
    assert names.count("worker_died") == 1


def test_commands_show_and_report_a_campaign(copy_of, tmp_path):
    directory = copy_of("campaign")

    shown = json.loads(output("show", directory, "--json"))
    output("report", directory, "--output", tmp_path / "report")

    assert [problem["slug"] for problem in shown["problems"]] == ["h200-sgemm-nt-4096-random", "convolution-mi250x-gcd"]
    assert [problem["trials"] for problem in shown["problems"]] == [40, 40]
    assert len(runs_in(directory)) == 2
    assert "Golden: two recorded problems" in (tmp_path / "report" / "report.md").read_text()
