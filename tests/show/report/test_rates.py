"""A report on problems of which one counts its operations, one only its bytes, and one neither."""

import json
import re
from dataclasses import replace

import pytest
from campaigns import DECLARED, stored, trial

from mltune.dataset.dataset import load_manifest
from mltune.problem.gemm import GemmProblem
from mltune.problem.recorded import RecordedProblem
from mltune.show.report.evidence import Evidence, read_input
from mltune.show.report.figures import bandwidths, not_drawn, roofline
from mltune.show.report.svg import plotting
from mltune.show.report.writing import write_report

TRANSPOSE = load_manifest("h200-transpose-8192x8192-random").problem
TRAFFIC = 8 * 8192**2
TRIALS = [trial(number, median_s=3e-3 - 1e-5 * (number % 40)) for number in range(80)]
PROBLEMS = {
    "gemm": GemmProblem("s", "N", "T", 4096, 4096, 4096),
    "transpose": TRANSPOSE,
    "uncounted": RecordedProblem("convolution"),
}


def write(directory, names):
    """Write a campaign of some problems, all with the same trials and finals."""
    (directory / "problems").mkdir(parents=True)
    (directory / "plan.toml").write_text('title = "mixed"')
    for name in names:
        stored(directory / "problems" / name, TRIALS, problem=PROBLEMS[name], declaration=DECLARED.to_json())
    return write_report(directory)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    return write(tmp_path_factory.mktemp("mixed") / "campaign", PROBLEMS)


@pytest.fixture(scope="module")
def entries(mixed):
    return {entry["slug"]: entry for entry in json.loads(mixed.winners.read_text())["winners"]}


def headings(text, start):
    """Return the headings of the first table after some text of a page."""
    head = re.search(r"<thead>(.*?)</thead>", text[text.index(start) :], re.DOTALL)[1]
    return [re.sub(r"<[^>]*>", "", cell) for cell in re.findall(r"<th.*?</th>", head)]


def test_the_document_has_the_rate_that_a_problem_counts(entries):
    transpose, uncounted = entries["transpose"], entries["uncounted"]
    assert transpose["tflops"] is transpose["tflops_interval"] is None
    assert transpose["gb_per_s"] == pytest.approx(TRAFFIC / 2.61e-3 / 1e9)
    assert transpose["gb_per_s_interval"] == pytest.approx([TRAFFIC / 2.62e-3 / 1e9, TRAFFIC / 2.60e-3 / 1e9])
    assert transpose["share_of_peak"] == pytest.approx(TRAFFIC / 2.61e-3 / 4.8e12, rel=1e-3)
    assert transpose["finalists"][0]["gb_per_s"] == pytest.approx(TRAFFIC / 2.60e-3 / 1e9)
    assert transpose["reference"]["gb_per_s"] == pytest.approx(TRAFFIC / 2.65e-3 / 1e9)
    assert entries["gemm"]["gb_per_s"] is entries["gemm"]["gb_per_s_interval"] is None
    assert entries["gemm"]["tflops"] > 0
    assert uncounted["tflops"] is uncounted["gb_per_s"] is uncounted["share_of_peak"] is None


def test_the_table_of_winners_has_a_column_for_each_unit(mixed):
    page = mixed.html.read_text()
    assert headings(page, 'id="winners"')[:4] == ["problem", "TFLOPS", "GB/s", "ms"]
    row = re.search(r'<tr><th scope="row"><a href="#p-transpose">.*?</tr>', page, re.DOTALL)[0]
    cells = [re.sub(r"<[^>]*>", "", cell).split() for cell in re.findall(r"<td.*?</td>", row, re.DOTALL)]
    assert cells[:3] == [["-"], ["205.7", "204.9\N{EN DASH}206.5"], ["-"]]
    assert "The peak of GB/s is the memory bandwidth" in page
    lines = mixed.markdown.read_text().splitlines()
    head = lines.index("## Winners") + 2
    assert lines[head].startswith("| problem | TFLOPS | GB/s | ms | of ")
    assert re.fullmatch(r"\|---\|(--:\|)+---\|", lines[head + 1])
    assert len({line.count("|") for line in lines[head : head + 5]}) == 1
    transpose = next(line for line in lines if line.startswith("| transpose"))
    assert transpose.startswith("| transpose 8192x8192 | - | 205.7 (204.9\N{EN DASH}206.5) | - | 101.5 % ")
    assert "| 2.6100 (2.6000\N{EN DASH}2.6200) |" in next(line for line in lines if line.startswith("| convolution |"))


def test_the_details_are_in_the_unit_of_their_problem(mixed):
    page = mixed.html.read_text()
    assert "<strong>transpose 8192x8192</strong> 205.7 GB/s, 101.5 % of" in page
    assert "<strong>convolution</strong> 2.6100 ms, " in page
    for slug, unit in (("gemm", "TFLOPS"), ("transpose", "GB/s"), ("uncounted", "ms")):
        assert headings(page[page.index(f'id="p-{slug}"') :], "Finalists")[1] == unit
    assert "transpose 8192x8192: best GB/s found in each cell; 205.7 at BLK_M=16" in page
    assert "convolution: best ms found in each cell" in page


def test_the_lead_names_the_limit(tmp_path):
    page = write(tmp_path / "one", ["transpose"]).html.read_text()
    assert "<strong>205.7 GB/s</strong>, 4.3 % of the memory bandwidth, 101.5 %" in page
    assert headings(page, 'id="winners"')[:3] == ["problem", "GB/s", "of default"]
    assert "205.7 GB/s" not in write(tmp_path / "other", ["uncounted"]).html.read_text()


def test_winners_in_gigabytes_per_second_are_drawn_under_the_bandwidth(mixed):
    source = read_input(mixed.html.parent)
    evidence = {run.slug: Evidence(run) for run in source.runs}
    with plotting():
        bars = bandwidths(evidence, "b")
        roof = roofline(list(evidence.values()), "r")
    assert "the best of 1 problem whose memory traffic alone is counted, at 4.29 % of the memory" in bars.caption
    assert "the best of 1 problem under" in roof.caption
    assert [not_drawn(evidence[slug]) for slug in PROBLEMS] == [
        "",
        "",
        "neither its operations nor its memory traffic is known",
    ]
    page = mixed.html.read_text()
    assert 'id="bandwidth-0-t">Memory bandwidth of ' in page
    assert "In no roofline: convolution (neither" in page


def test_predicted_speed_is_a_share_of_the_bandwidth(mixed):
    predictions = {run.slug: Evidence(run).predictions for run in read_input(mixed.html.parent).runs}
    assert predictions["transpose"].measured.max() == pytest.approx(TRAFFIC / 2.61e-3 / 4.8e12, rel=1e-3)
    ranks = [found.rank_correlation for found in predictions.values()]
    assert ranks == pytest.approx([ranks[0]] * 3), "the order does not depend on the unit"
    page = mixed.html.read_text()
    assert "Predicted and measured: transpose 8192x8192" in page
    assert "Predicted and measured: convolution" not in page


def test_a_bandwidth_that_is_not_known_is_said_not_to_be(tmp_path):
    stored(tmp_path, TRIALS, problem=TRANSPOSE)
    (run,) = read_input(tmp_path).runs
    without = Evidence(replace(run, device=replace(run.device, memory_bytes_per_s=0.0)))
    assert not_drawn(without) == "the memory bandwidth of its device is not known"
    with plotting():
        assert bandwidths({"x": without}, "b") is None


def test_a_problem_that_counts_both_stands_in_the_roofline_only(tmp_path):
    """It is rated in GB/s, because memory limits it, and has an arithmetic intensity all the same."""
    stored(tmp_path, TRIALS, problem=load_manifest("h200-softmax-16384x4096-random").problem)
    (run,) = read_input(tmp_path).runs
    found = Evidence(run)
    assert found.run.rate.unit.name == "GB/s"
    assert not_drawn(found) == ""
    with plotting():
        assert bandwidths({"x": found}, "b") is None
        assert "the best of 1 problem under" in roofline([found], "r").caption
