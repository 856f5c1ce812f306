"""Kernels that compete for a problem: the fastest counts, and all stand side by side."""

import pytest

from mltune.records.directory import PLAN_FILE
from mltune.records.events import EventLog
from mltune.results.reader import read_run
from mltune.results.summary import by_problem, chosen, kernel_rows, summarise_campaign
from mltune.show.report.writing import write_report


@pytest.fixture
def campaign(tmp_path, make_run, make_trial):
    """Return a campaign with two kernels for one problem, a third that was left out, and a problem of its own."""
    (tmp_path / PLAN_FILE).write_text("")
    problems = tmp_path / "problems"
    make_run(problems / "slow", make_trial(0, median_s=3e-3), choice="it", accuracy="ieee")
    make_run.of(kernel="split")(problems / "fast", make_trial(0, median_s=1e-3), choice="it", accuracy="fp32")
    make_run(problems / "alone", make_trial(0, median_s=2e-3), accuracy="what")
    log = EventLog(tmp_path)
    log.write("plan_started", problems=["slow", "fast", "hopeless", "alone"])
    log.write("left_out", slug="hopeless", problem="sgemm", detail="too slow")
    return tmp_path


@pytest.fixture
def runs(campaign):
    return [read_run(campaign / "problems" / slug, slug) for slug in ("slow", "fast", "alone")]


def test_the_kernels_of_a_choice_are_one_problem_and_the_fastest_is_its_winner(runs):
    assert [[run.slug for run in group] for group in by_problem(runs)] == [["fast", "slow"], ["alone"]]
    assert chosen(runs) == {"fast", "alone"}


def test_a_row_for_each_kernel(runs):
    rows = kernel_rows(by_problem(runs)[0])
    known = [(row["kernel"], row["accuracy"], row["trials"]) for row in rows]
    assert known == [("split", "fp32", 1), ("toy", "ieee", 1)]
    assert rows[0]["best"]["median_s"] == 1e-3
    assert rows[0]["error"] is None


def test_a_class_that_nobody_knows_is_the_strictest(runs):
    assert runs[-1].accuracy == "ieee"


def test_the_summary_names_the_fastest_and_what_was_left_out(campaign):
    document = summarise_campaign(campaign)
    states = {entry["slug"]: (entry["state"], entry["chosen"]) for entry in document["problems"]}
    assert states["hopeless"] == ("left out", False)
    assert (states["fast"][1], states["slow"][1], states["alone"][1]) == (True, False, True)
    assert document["distinct"] == 2


def test_a_report_counts_problems_and_shows_their_kernels(campaign):
    paths = write_report(campaign, quick=True)
    assert (paths.document["problems"], paths.document["with_winner"]) == (2, 2)
    found = {entry["slug"]: entry for entry in paths.document["winners"]}
    assert {slug: (entry["accuracy"], entry["chosen"]) for slug, entry in found.items()} == {
        "slow": ("ieee", False),
        "fast": ("fp32", True),
        "alone": ("ieee", True),
    }
    text = paths.markdown.read_text()
    winners, kernels = text.split("## Kernels")
    assert "with split" in winners
    assert "with toy" in kernels
    assert kernels.index("fp32") < kernels.index("ieee")
    assert 'id="kernels"' in paths.html.read_text()
