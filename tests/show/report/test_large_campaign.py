"""The report of a large campaign: what it reads and draws grows at most with the number of problems."""

import re
import shutil
from collections import Counter

import pytest
from campaigns import replayed

from mltune.kernel.parts import KernelSpace
from mltune.records.store import Store
from mltune.show.report import figures, sections
from mltune.show.report.svg import plotting
from mltune.show.report.writing import write_report

COPIES = 3


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Return the directory of a campaign of copies of two runs, to read only."""
    directory = tmp_path_factory.mktemp("large") / "campaign"
    for name in ("h200-sgemm-nt-4096-random", "convolution_rtx_a4000"):
        first = directory / "problems" / f"{name.replace('_', '-')}-0"
        replayed(first, name, trials=32)
        for number in range(1, COPIES):
            shutil.copytree(first, first.with_name(f"{first.name[:-2]}-{number}"))
    (directory / "plan.toml").write_text('title = "Copies"\n')
    return directory


def counted(monkeypatch, owner, name):
    """Count the calls of a function, which does what it did."""
    calls, called = Counter(), getattr(owner, name)

    def count(*arguments, **options):
        calls[name] += 1
        return called(*arguments, **options)

    monkeypatch.setattr(owner, name, count)
    return calls


def test_each_store_is_read_once_each_dataset_once_and_each_kernel_evaluated_once_a_problem(
    large, tmp_path, monkeypatch
):
    from mltune.results import summary

    summary._load_last.cache_clear()
    stores = counted(monkeypatch, Store, "read_only")
    evaluations = counted(monkeypatch, KernelSpace, "evaluate")
    write_report(large, tmp_path, quick=True)
    assert stores["read_only"] == 2 * COPIES
    assert evaluations["evaluate"] <= 2 * COPIES
    assert summary._load_last.cache_info().misses == 2


def test_figures_are_of_the_problems_furthest_behind_and_the_tables_of_all(large, tmp_path, monkeypatch):
    monkeypatch.setattr(sections, "MOST_DRAWN", 3)
    written = write_report(large, tmp_path)
    page = written.html.read_text()
    assert len(re.findall(r"<title[^>]*>Best so far:", page)) == 3
    assert len(re.findall(r"<title[^>]*>Predicted and measured:", page)) == 3
    assert "This page has the figures of 3 problems" in page
    assert f"The tables have all {2 * COPIES} problems" in page
    for entry in written.document["winners"]:
        assert page.count(f'href="#p-{entry["slug"]}"') >= 2  # of the winners, and of the predictions
        assert f"<dt>name</dt><dd>{entry['slug']}</dd>" in page
    alone = large / "problems" / written.document["winners"][0]["slug"]
    assert "Best so far:" in write_report(alone, tmp_path / "alone").html.read_text()


def test_those_furthest_behind_a_reference_come_before_those_without_one(monkeypatch):
    monkeypatch.setattr(sections, "MOST_DRAWN", 3)

    def entry(slug, share=None, peak=None):
        return {"slug": slug, "reference": None if share is None else {"share": share}, "share_of_peak": peak}

    entries = [entry("nothing"), entry("near", 1.1, 0.1), entry("slow", peak=0.2), entry("behind", 0.8, 0.9)]
    assert sections.furthest_behind([*entries, entry("fast", peak=0.9)]) == {"behind", "near", "slow"}


def test_a_small_campaign_says_nothing_of_what_is_drawn(large, tmp_path):
    page = write_report(large, tmp_path).html.read_text()
    assert len(re.findall(r"<title[^>]*>Best so far:", page)) == 2 * COPIES
    assert "This page has the figures of" not in page
    assert "<dt>name</dt>" not in page


def test_bars_are_of_the_problems_that_took_longest():
    seconds = {f"problem {number}": {"total": 1.0 + number, "search": 1.0} for number in range(200)}
    with plotting():
        plot = figures.time_bars(seconds, "t")
    drawn = {int(number) for number in re.findall(r"problem (\d+)<", plot.svg)}
    assert drawn == set(range(200 - figures.MOST_BARS, 200))
    assert "335 minutes in all" in plot.caption
    assert f"Bars are of the {figures.MOST_BARS} problems that took longest." in plot.caption


def test_a_thousand_warnings_are_folded(tmp_path):
    """A reader of the page sees the winners, not screens of warnings about problems that have none."""
    directory = tmp_path / "campaign"
    for number in range(sections.MOST_ATTENTION + 30):
        (directory / "problems" / f"problem-{number}").mkdir(parents=True)
    (directory / "plan.toml").write_text('title = "Not begun"\n')
    page = write_report(directory).html.read_text()
    assert "<summary>And 30 more</summary>" in page
    assert all(f"problem-{number}: not begun" in page for number in range(sections.MOST_ATTENTION + 30))
