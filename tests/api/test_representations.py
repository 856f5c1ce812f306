"""What the results of functions look like in a session: a line that names them, not their whole content."""

import json
from dataclasses import replace

import mltune
from mltune.api.display import Listing
from mltune.comparison.results import Comparison


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
