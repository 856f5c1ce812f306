"""Figures hold every value, and say why they cannot: values come from stores that may be damaged."""

import re
from dataclasses import replace

import numpy as np
import pytest
from campaigns import DECLARED, RECORDS, REFERENCES, stored, trial

from mltune.problem.gemm import GemmProblem
from mltune.problem.recorded import RecordedProblem
from mltune.records.declaration import Finalist
from mltune.results.rating import MS, TFLOPS
from mltune.show.report import figures
from mltune.show.report.evidence import Cells, Curve, Evidence, Predictions, read_input
from mltune.show.report.figures import not_drawn, roofline
from mltune.show.report.svg import NotDrawableError, Omission, drawn, plotting
from mltune.show.report.writing import write_report


@pytest.fixture(autouse=True)
def _plotting():
    with plotting():
        yield


@pytest.fixture
def evidence_of(tmp_path):
    def read(name, records=RECORDS[:40], **options):
        stored(tmp_path / name, records, **options)
        return Evidence(read_input(tmp_path / name).runs[0])

    return read


def test_what_cannot_be_drawn_is_a_sentence():
    found = drawn("The figure", lambda: 1 / 0)
    assert found == Omission("The figure cannot be drawn: ZeroDivisionError: division by zero.")


def test_points_beyond_the_axes_are_counted():
    shares = np.array([0.1, 0.2, 0.3, 7.0])
    plot = figures.predicted_and_measured(Predictions(shares, shares, None), "p", "x")
    assert plot.caption.endswith("Not drawn: 1, the slowest or beyond 150 % of the peak.")
    whole = figures.predicted_and_measured(Predictions(shares[:3], shares[:3], None), "p", "x")
    assert "Not drawn" not in whole.caption


def test_of_very_many_points_some_are_drawn():
    shares = np.linspace(0.1, 0.9, 200_000)
    plot = figures.predicted_and_measured(Predictions(shares, shares, 1.0), "p", "x")
    assert "One in 40 is drawn." in plot.caption
    assert len(plot.svg) < 400_000


@pytest.mark.parametrize(
    "draw",
    [
        lambda: figures.best_so_far(Curve(np.ones(2), np.array([1e-300, np.inf]), "cuBLAS", "s"), "c", "x", alone=True),
        lambda: figures.best_so_far(Curve(np.array([1, 1e12]), np.ones(2), "cuBLAS", "s"), "c", "x", alone=True),
        lambda: figures.predicted_and_measured(Predictions(np.full(9, 5e-324), np.zeros(9), None), "p", "x"),
        lambda: figures.heat_map(Cells(("a", "b"), (1,), (1, 2), MS, np.array([[1.0, np.inf]]), 0.01), "x"),
    ],
)
def test_values_out_of_range_are_refused_with_a_reason(draw):
    with pytest.raises(NotDrawableError, match=r"\d|inf"):
        draw()


def test_equal_and_single_values_are_drawn():
    figures.best_so_far(Curve(np.array([0.0]), np.ones(1), "final best", "trials"), "c", "x", alone=True)
    figures.heat_map(Cells(("a", "b"), (1,), (2**53,), TFLOPS, np.array([[1e300]]), 0.01), "x")
    figures.predicted_and_measured(Predictions(np.full(9, 0.5), np.full(9, 0.5), None), "p", "x")


def test_colours_of_a_heat_map_differ_where_results_differ_by_more_than_the_noise():
    """A single very slow cell does not leave one colour to all others."""
    values = np.array([[54.0, 53.7, 50.0], [45.0, 44.9, 0.3]])
    shades = figures.heat_map(Cells(("a", "b"), (1, 2), (1, 2, 3), TFLOPS, values, 0.01), "x").shades
    colours = [shade.colour for row in shades for shade in row]
    assert colours[0] == colours[1] != colours[2]
    assert colours[3] == colours[4] != colours[2]
    assert len(set(colours)) == 4
    slow = figures.heat_map(Cells(("a", "b"), (1,), (1, 2, 3), MS, np.array([[1.0, 2.0, 9.0]]), 0.01), "x")
    assert "1 at a=1, b=1 is best" in slow.caption
    assert [shade.bright for shade in slow.shades[0]] == [True, False, False]


def test_the_scatter_spans_the_trials():
    predicted, measured = np.linspace(0.6, 0.8, 9), np.linspace(0.7, 0.75, 9)
    plot = figures.predicted_and_measured(Predictions(predicted, measured, None), "p", "x")
    ticks = [float(text) for text in re.findall(r">([\d.]+) %<", plot.svg)]
    assert min(ticks) >= 59
    assert len(ticks) >= 6


def test_a_problem_of_impossible_seconds_leaves_the_bars_to_the_others():
    plot = figures.time_bars({"sane": {"total": 10.0, "search": 4.0}, "mad": {"total": 1e12}}, "t")
    assert "10 seconds in all" in plot.caption
    assert plot.caption.endswith("Not drawn: mad, with 1e+12 s.")


def test_a_roofline_shows_the_slope_of_the_memory(evidence_of):
    each = evidence_of("one", problem=GemmProblem("s", "N", "T", 4096, 4096, 4096))
    plot = roofline([each], "r")
    numbers = {float(text) for text in re.findall(r">([\d.]+)</text>", plot.svg)}
    assert numbers == {1, 10, 100, 1000, *(5, 10, 20, 50, 100)}  # flop per byte, TFLOPS: the peak is 66.9
    assert "the best of 1 problem " in plot.caption


def test_peaks_that_are_near_to_each_other_share_a_label(evidence_of):
    """Those of single and double precision are equal on some GPUs."""
    problems = {name: GemmProblem(name, "N", "T", 4096, 4096, 4096) for name in "sd"}
    plot = roofline([evidence_of(name, problem=problem) for name, problem in problems.items()], "r")
    assert re.findall(r">([^<>]* TFLOPS)<", plot.svg) == ["fp32, fp64 peak 66.9 TFLOPS"]


def test_no_name_in_a_roofline_lies_on_its_axes(evidence_of):
    """A point may be anywhere below the peak, so a legend inside would cover one."""
    problems = {name: GemmProblem(name, "N", "T", 4096, 4096, 4096) for name in "sdczh"}
    plot = roofline([evidence_of(name, problem=problem) for name, problem in problems.items()], "r")
    heights = {
        text: float(y)
        for y, text in re.findall(r'<text[^>]*?(?:translate\([\d.]+ |y=")([\d.]+)[^>]*>([^<]+)<', plot.svg)
    }
    names = {heights[f"{name}gemm"] for name in problems}
    assert max(names) < min(height for text, height in heights.items() if "peak" in text)
    assert "tensor_fp16 peak 1,070 TFLOPS" in heights


def test_the_axes_of_the_best_so_far_say_what_they_show():
    plot = figures.best_so_far(Curve(np.array([0.0, 9.0]), np.ones(2), "cuBLAS", "trials"), "c", "x", alone=True)
    assert {">of cuBLAS<", ">trials<"} <= {*re.findall(r">[^<>]+<", plot.svg)}


def test_a_problem_in_no_roofline_has_a_reason(evidence_of):
    reasons = {
        "unknown work": evidence_of("a", problem=RecordedProblem("convolution")),
        "unknown traffic": evidence_of("b", problem=RecordedProblem("convolution", flops=10**9)),
        "nothing measured": evidence_of("c", []),
        "absurd": evidence_of("d", [trial(0, median_s=1e-12)]),
    }
    assert [not_drawn(each) for each in reasons.values()] == [
        "neither its operations nor its memory traffic is known",
        "its memory traffic is not known",
        "no trial succeeded",
        "1.72e+10 TFLOPS at 102 flop per byte is too far from the limits of its device",
    ]
    assert roofline(list(reasons.values()), "r") is None


ABSURD = Finalist(39, *[1e12] * 6)
DAMAGE = {
    "times": {"records": [trial(at, median_s=(1e-12, 1e12)[at % 2]) for at in range(60)]},
    "clocks": {"records": [replace(trial(at), elapsed_s=1e12, predicted=(-1e308, 1e308)[at % 2]) for at in range(60)]},
    "equal": {"records": [trial(at, median_s=1e-3) for at in range(60)]},
    "one": {"records": [trial(0)]},
    "finals": {"records": RECORDS, "declaration": replace(DECLARED, finalists=(ABSURD,), reference=ABSURD).to_json()},
    "references": {
        "records": RECORDS,
        "references": [replace(one, median_s=10.0**-at) for at, one in enumerate(REFERENCES)],
    },
    "work": {"records": RECORDS, "problem": RecordedProblem("convolution", flops=2**62)},
}


@pytest.mark.parametrize("name", DAMAGE)
@pytest.mark.sampled(3, nightly=99)
def test_a_report_stands_whatever_a_run_holds(tmp_path, name):
    (tmp_path / "plan.toml").write_text('title = "sane and mad"')
    stored(tmp_path / "problems/mad", **DAMAGE[name])
    stored(tmp_path / "problems/sane", RECORDS, references=REFERENCES)
    report = write_report(tmp_path)
    text = report.html.read_text()
    assert {entry["state"] for entry in report.document["winners"]} <= {"declared", "best so far"}
    assert "Best so far: dgemm" in text
    assert not re.search(r"\b(nan|inf)\b", report.winners.read_text(), re.IGNORECASE)
