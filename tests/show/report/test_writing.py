"""A report is written from any directory, and names what is missing."""

import json
import os
import sqlite3

import pytest
from campaigns import RECORDS, REPLAYED, replayed, stored

from mltune.errors import MltuneError, MltuneWarning, RunDirectoryError, RunError
from mltune.records.store import Store
from mltune.show.report.writing import MOST_BYTES, MOST_FILES, write_report


def entries(paths):
    return {entry["slug"]: entry for entry in json.loads(paths.winners.read_text())["winners"]}


def test_every_problem_is_listed_in_the_order_of_the_plan(report):
    found = entries(report)
    assert list(found)[:3] == ["no-success", "declared", "interrupted"]
    assert {slug: entry["state"] for slug, entry in found.items()} == {
        "no-success": "none",
        "declared": "declared",
        "interrupted": "best so far",
        "convolution-rtx-a4000": "declared",
        "empty": "none",
        "h200-sgemm-nt-4096-complete": "declared",
        "never": "not begun",
        "damaged": "unreadable",
    }
    page = report.html.read_text()
    for said in (
        "no trial succeeded",
        "no trial on record",
        "not verified: interrupted before its finals",
        "not begun",
    ):
        assert said in page


def test_winners_are_gathered_beside_the_report(campaign):
    (campaign / "problems/declared/winner/passwd").symlink_to("/etc/passwd")
    for _ in range(2):
        found = entries(write_report(campaign, quick=True))
    assert found["declared"]["folder"] == "winners/declared"
    assert {path.name for path in (campaign / "winners/declared").iterdir()} == {"kernel.cu", "winner.json"}
    assert found["interrupted"]["folder"] is None
    assert [path.name for path in (campaign / "winners").iterdir()] == ["declared"]


def test_what_is_no_plain_file_of_a_winner_is_not_gathered(campaign):
    winner = campaign / "problems/declared/winner"
    os.mkfifo(winner / "fifo")
    (winner / "inner").mkdir()
    for name in ("\x1b[2J", ".profile", "-rf", "x" * 101, "a b"):
        (winner / name).write_text(name)
    write_report(campaign, quick=True)
    assert {path.name for path in (campaign / "winners/declared").iterdir()} == {"kernel.cu", "winner.json"}


@pytest.mark.parametrize("excess", ["files", "bytes"])
def test_a_winner_that_is_too_large_is_not_gathered_and_the_others_are(campaign, excess):
    winner = campaign / "problems/declared/winner"
    if excess == "files":
        for number in range(MOST_FILES):
            (winner / f"file-{number}").write_text("")
    else:
        with (winner / "kernel.cubin").open("wb") as file:
            file.truncate(MOST_BYTES + 1)  # sparse: it takes no room
    with pytest.warns(MltuneWarning, match="declared/winner has more than .*, and is not copied"):
        found = entries(write_report(campaign, quick=True))
    assert found["declared"]["folder"] is None
    assert not (campaign / "winners").exists()


@pytest.mark.parametrize("folder", ["campaign", "elsewhere"])
def test_the_folder_of_winners_is_not_reached_through_a_link(campaign, tmp_path, folder):
    (tmp_path / "declared").mkdir()
    (tmp_path / "declared" / "canary").write_text("alive")
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / "winners").symlink_to("..")
    with pytest.raises(MltuneError, match=r"winners is a link to \.\."):
        write_report(campaign, tmp_path / folder, quick=True)
    assert (tmp_path / "declared" / "canary").read_text() == "alive"


def test_a_report_is_written_elsewhere_and_leaves_the_run_alone(campaign, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in campaign.rglob("*") if path.is_file()}
    paths = write_report(campaign, tmp_path / "out/side")
    assert paths.html.parent == tmp_path / "out/side"
    assert (tmp_path / "out/side/winners/declared/kernel.cu").is_file()
    assert {path: path.stat().st_mtime_ns for path in campaign.rglob("*") if path.is_file()} == before


def test_a_single_run_has_its_report(tmp_path):
    replayed(tmp_path / "run", REPLAYED[0], trials=32)
    paths = write_report(tmp_path / "run")
    (entry,) = entries(paths).values()
    assert entry["tflops"] > 0
    assert entry["trials"] == 32
    assert "<h1>sgemm NT 4096</h1>" in paths.html.read_text()


def test_a_run_that_goes_on_has_its_report(tmp_path):
    stored(tmp_path, RECORDS[:10])
    with Store.open(tmp_path) as store:
        first = entries(write_report(tmp_path, quick=True))
        store.append(RECORDS[10])
        second = entries(write_report(tmp_path))
    assert [next(iter(found.values()))["trials"] for found in (first, second)] == [10, 11]


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_the_first_trials_are_enough(tmp_path, count):
    stored(tmp_path, RECORDS[:count])
    assert "<h1>" in write_report(tmp_path).html.read_text()


@pytest.mark.parametrize(
    ("statement", "values"),
    [
        ("UPDATE facts SET value = ? WHERE name = 'declaration'", ['{"number": 3}']),
        ("UPDATE facts SET value = ? WHERE name = 'declaration'", ["[" * 5000]),
        ("UPDATE facts SET value = ? WHERE name = 'reference_median_s'", ["-1.0"]),
        ("UPDATE facts SET value = ? WHERE name = 'reference_median_s'", ['"fast"']),
        ("UPDATE trials SET median_s = ?", [0.0]),
        ("UPDATE trials SET median_s = ?", ["soon"]),
        ("UPDATE trials SET p_BLK_M = ?", ["wide"]),
        ("UPDATE trials SET state = ?", ["splendid"]),
        ("UPDATE trials SET expected = ?", [1e308]),
        ("UPDATE trials SET elapsed_s = ?", [-1e308]),
        ("UPDATE header SET value = ? WHERE name = 'device'", ["{}"]),
        ("UPDATE header SET value = ? WHERE name = 'problem'", ['{"kind": "recorded", "name": "x", "flops": 1}']),
        ("UPDATE header SET value = ? WHERE name = 'settings'", ["[]"]),
        ("UPDATE header SET value = ? WHERE name = 'settings'", ['{"a": NaN}']),
        ("UPDATE header SET value = ? WHERE name = 'versions'", ['{"a": 1}']),
        ("UPDATE header SET value = replace(value, '132', ?) WHERE name = 'device'", ["NaN"]),
        ("UPDATE header SET value = replace(value, '132', ?) WHERE name = 'device'", ['"many"']),
        ("UPDATE header SET value = ? WHERE name = 'created_at'", ["1e300"]),
        ("UPDATE trials SET compile_s = ?", [float("inf")]),
        ("UPDATE trials SET verify_s = ?", [float("inf")]),
        ("UPDATE trials SET time_s = ?", ["long"]),
        ("UPDATE trials SET gate = ? WHERE gate IS NOT NULL", ["heaven's"]),
        ("UPDATE reference_timings SET after = ?", ["all"]),
        ("UPDATE trials SET discarded = ?", ["few"]),
        ("UPDATE reference_timings SET elapsed_s = ?", ["late"]),
        ("UPDATE reference_timings SET noise = ?", ["loud"]),
        ("UPDATE seconds SET value = ?", [-5.0]),
        ("UPDATE reference_timings SET median_s = ?", [0.0]),
        ("DELETE FROM header", []),
        ("DROP TABLE facts", []),
    ],
)
@pytest.mark.sampled(6)
def test_what_is_damaged_in_a_store_does_not_keep_the_others_from_the_report(campaign, statement, values):
    with sqlite3.connect(campaign / "problems/declared/run.sqlite") as connection:
        connection.execute(statement, values)
    found = entries(write_report(campaign, quick=True))
    assert found["h200-sgemm-nt-4096-complete"]["state"] == "declared"
    assert "declared" in found


def test_the_quick_report_says_that_it_is_one(campaign):
    paths = write_report(campaign, quick=True)
    page = paths.html.read_text()
    assert "<svg" not in page
    assert "Quick report" in page
    assert entries(paths)["declared"]["tflops"] > 0


def test_a_directory_of_neither_is_refused(tmp_path):
    with pytest.raises(RunDirectoryError, match="neither"):
        write_report(tmp_path)


def test_where_nothing_can_be_written_is_said(campaign, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written"):
        write_report(campaign, tmp_path / "file")


def test_nothing_half_written_stays(report):
    assert {path.name for path in report.html.parent.iterdir() if path.name.startswith(".")} == set()
