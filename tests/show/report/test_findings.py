"""The findings: winners, their intervals, and their notes."""

import math
from dataclasses import replace

import pytest
from campaigns import DECLARED, RECORDS, stored

from mltune.cost.bound import LIMITS
from mltune.problem.gemm import GemmProblem
from mltune.records import store
from mltune.records.declaration import Finalist
from mltune.records.trial import TrialState
from mltune.show.report.evidence import read_input
from mltune.show.report.findings import findings


def entry_of(directory, records=RECORDS, **facts):
    stored(directory, records, **facts)
    (entry,) = findings(read_input(directory), {})["winners"]
    return entry


def test_a_declared_winner_comes_with_its_intervals(tmp_path):
    entry = entry_of(tmp_path, declaration=DECLARED.to_json())
    flops = 2 * 4096 * 512 * 4096
    assert entry["trial"] == 39
    assert entry["tflops"] == pytest.approx(flops / 2.61e-3 / 1e12)
    low, high = entry["tflops_interval"]
    assert (low, high) == pytest.approx((flops / 2.62e-3 / 1e12, flops / 2.60e-3 / 1e12))
    assert entry["reference"]["share"] == 1.0153
    assert entry["reference"]["share_interval"] == [1.011, 1.019]
    assert entry["ties"] == [38]
    assert [one["tie"] for one in entry["finalists"]] == [True, False, False]
    assert entry["verified"]
    assert entry["notes"] == ["1 faster trial failed the last verification", "declared 7 trials before the end"]


def test_a_winner_that_was_noisy_is_said_to_be_one(tmp_path):
    noisy = replace(RECORDS[39], state=TrialState.UNSTABLE)
    entry = entry_of(tmp_path, [*RECORDS[:39], noisy, *RECORDS[40:]], declaration=DECLARED.to_json())
    assert entry["trial"] == 39
    assert "noisy when first timed" in entry["notes"]


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(1.01, 1.02, "faster"), (0.99, 1.01, "level"), (0.9, 0.99, "slower")]
)
def test_a_ratio_whose_interval_contains_one_is_level(tmp_path, low, high, verdict):
    declared = replace(DECLARED, reference=Finalist(-1, 2.6e-3, 2.6e-3, 2.6e-3, math.sqrt(low * high), low, high))
    assert entry_of(tmp_path, declaration=declared.to_json())["verdict"] == verdict


def test_without_a_declaration_the_fastest_is_the_best_so_far(tmp_path):
    entry = entry_of(tmp_path)
    assert entry["state"] == "best so far"
    assert entry["median_s"] == min(record.median_s for record in RECORDS if record.median_s is not None)
    assert entry["interval_s"] is None
    assert entry["reference"]["share_interval"] is None
    assert not entry["verified"]


def test_the_launch_is_that_of_the_bundle_that_was_run(campaign):
    entries = {entry["slug"]: entry for entry in findings(read_input(campaign), {})["winners"]}
    launch = entries["h200-sgemm-nt-4096-complete"]["launch"]
    configuration = entries["h200-sgemm-nt-4096-complete"]["configuration"]
    assert launch["block"] == [configuration["DIM_X"] * configuration["DIM_Y"], 1, 1]
    tiles = (4096 // configuration["BLK_M"]) * (4096 // configuration["BLK_N"])
    assert math.prod(launch["grid"]) == tiles
    assert entries["declared"]["launch"] is None  # of a bundle that is not ours


def test_the_bound_is_that_of_the_winner(campaign):
    entries = {entry["slug"]: entry for entry in findings(read_input(campaign), {})["winners"]}
    entry = entries["h200-sgemm-nt-4096-complete"]
    assert entry["bound"]["binding"] in LIMITS
    assert 0.5 < entry["bound"]["share"] == entry["bound"]["time_s"] / entry["median_s"] < 1
    assert entries["declared"]["bound"] is None


def test_problems_that_share_a_label_have_what_they_differ_in(tmp_path):
    (tmp_path / "plan.toml").write_text("")
    for slug, size, device in (("one", 32, "H200"), ("two", 32, "RTX"), ("three", 32, "RTX"), ("four", 64, "RTX")):
        stored(tmp_path / "problems" / slug, [], problem=GemmProblem("s", "N", "T", size, size, size), device=device)
    labels = {entry["slug"]: entry["label"] for entry in findings(read_input(tmp_path), {})["winners"]}
    assert labels == {
        "four": "sgemm NT 64",
        "one": "sgemm NT 32 on H200",
        "three": "sgemm NT 32 on RTX (three)",
        "two": "sgemm NT 32 on RTX (two)",
    }


def test_the_totals_are_those_of_the_entries(report):
    document = report.document
    assert document["problems"] == len(document["winners"])
    assert document["trials"] == sum(entry["trials"] for entry in document["winners"])
    assert sum(document["counts"].values()) == document["trials"]
    shares = [entry["reference"]["share"] for entry in document["winners"] if entry["reference"]]
    assert document["geometric_mean_share_of_reference"] == pytest.approx(math.prod(shares) ** (1 / len(shares)))
    assert sum(document["against_reference"].values()) == len(shares)
    assert sum(those["problems"] for those in document["by_name"].values()) == len(shares)
    logs = [
        those["problems"] * math.log(those["geometric_mean_share_of_reference"])
        for those in document["by_name"].values()
    ]
    assert sum(logs) == pytest.approx(sum(map(math.log, shares)))


def test_no_phase_of_a_run_is_left_out(report):
    assert report.document["seconds"].keys() == set(store.PHASES)


def test_every_entry_has_the_same_fields(report):
    first, *others = (set(entry) for entry in report.document["winners"])
    assert all(other == first for other in others)
