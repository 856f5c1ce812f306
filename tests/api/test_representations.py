"""What the results of functions look like in a session: a line that names them, not their whole content."""

import mltune
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
