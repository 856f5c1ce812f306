"""What the results of functions look like in a session: a line that names them, not their whole content."""

import json
from dataclasses import replace

import pytest

import mltune
from mltune.api.display import Listing
from mltune.comparison.results import Comparison
from mltune.results.run import KernelResult


def test_datasets_are_a_line_each():
    datasets = mltune.list_datasets()
    assert repr(datasets[0]).startswith(f"Manifest({datasets[0].name}: ")
    assert max(len(repr(dataset)) for dataset in datasets) < 200


def test_a_check_says_what_is_wrong():
    checked = mltune.check("gemm_simt", time=0.01)
    assert repr(checked).startswith("KernelCheck(sgemm NT 4096: ")
    assert len(repr(checked)) < 2000


def test_a_comparison_names_its_strategies(tmp_path):
    comparison = Comparison(("random", "tpe"), {}, 10, {}, directory=tmp_path)
    assert repr(comparison) == f"Comparison(random, tpe on 0 datasets, {tmp_path})"


def test_a_list_of_datasets_has_a_line_or_a_row_for_each():
    datasets = mltune.list_datasets()
    few = Listing(datasets[:40])
    assert len(repr(few).splitlines()) == 40
    assert repr(few).splitlines()[1].startswith(f" Manifest({few[1].name}: ")
    assert repr(few).endswith(")]")
    assert len(repr(datasets).splitlines()) == 40
    assert repr(datasets).endswith(f"... and {len(datasets) - 39} more]")
    html = datasets._repr_html_()
    assert html.startswith("<table><tr><th>dataset</th>")
    assert html.count("<tr>") == len(datasets) + 1
    assert Listing()._repr_html_() == "<table><tr></tr></table>"


def test_names_of_strangers_are_no_html_of_a_list():
    manifest = mltune.list_datasets()[0]
    html = Listing([replace(manifest, kernel="<script>\x1b[2J")])._repr_html_()
    assert "&lt;script&gt; [2J" in html


def test_a_forecast_is_a_dict_and_a_table():
    forecast = mltune.plan("rehearsal")
    assert json.loads(json.dumps(forecast)) == forecast
    assert repr(forecast).startswith("Forecast(")
    assert len(repr(forecast)) < 200
    assert forecast._repr_html_().count("<tr>") == len(forecast["problems"]) + 1


DATASET = "h200-sgemm-nt-4096-random"
REPLAY, SMALL = f"replay:{DATASET}", "h200-transpose-8192x8192-random"
SIMPLE = {"search": "random", "skip": False, "progress": None}


def compared():
    return mltune.compare("random", SMALL, evaluations=20, seeds=1, out="compared", progress=None)


MADE = {
    "TuneResult(sgemm NT 4096 by gemm_simt: ": lambda: mltune.tune(trials=20, device=REPLAY, run="run", progress=None),
    "CampaignResult(2 problems, 0 failed, sizes)": lambda: mltune.tune_sizes(
        "sgemm", [1024, 4096], trials=32, device="replay", kernel="gemm_simt", run="sizes", **SIMPLE
    ),
    "Comparison(random on 1 dataset, compared)": compared,
    "Dataset(h200-sgemm-nt-4096-random: 5,000 configurations of ": lambda: mltune.load_dataset(DATASET),
    "Manifest(": lambda: mltune.list_datasets()[0],
    "[Manifest(": mltune.list_datasets,
    "PretrainedModel(gemm_simt, of ": lambda: mltune.load_model("gemm_simt"),
    "KernelCheck(sgemm NT 4096: ": lambda: mltune.check("gemm_shared", time="1s"),
    "Forecast(A rehearsal on recorded timings: ": lambda: mltune.plan("rehearsal"),
    "Plan(A rehearsal on recorded timings: ": lambda: mltune.load_plan("rehearsal"),
    "Kernel(gemm_simt for gemm, ": lambda: mltune.load_kernel("gemm_simt"),
    "Predicted(1 configuration of gemm_shared for sgemm NT 4096 on ": lambda: mltune.predict(
        "sgemm", gpu="h200", kernel="gemm_shared"
    ),
    "UpperBound(sgemm NT 4096 on NVIDIA H200: ": lambda: mltune.bound("sgemm", gpu="h200", kernel="gemm_shared"),
    "Search(6 configurations of x, y; 0 told)": lambda: mltune.Search({"x": [1, 2, 3], "y": [1, 2]}),
    "Wisdom(0 entries)": mltune.Wisdom,
}
IN_A_NOTEBOOK = (
    *("TuneResult(", "Comparison(", "Dataset(", "Manifest(", "[Manifest("),
    *("PretrainedModel(", "KernelCheck(", "Forecast("),
)


@pytest.mark.filterwarnings("ignore::mltune.MltuneWarning")
@pytest.mark.parametrize("beginning", MADE)
def test_an_object_is_shown_in_few_lines(beginning, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    value = MADE[beginning]()
    lines = repr(value).splitlines()
    assert lines[0].startswith(beginning)
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 200
    html = value._repr_html_() if beginning.startswith(IN_A_NOTEBOOK) else "<table>"
    assert html.startswith("<table>")
    assert len(html) < 10_000


def test_a_result_of_a_kernel_of_ones_own_is_named_as_such(tmp_path):
    result = mltune.tune(trials=20, device=REPLAY, run=tmp_path / "run", progress=None)
    assert repr(KernelResult.of(result, {})).startswith("KernelResult(sgemm NT 4096 by gemm_simt: ")
