"""Datasets of earlier versions stay readable."""

import json
import shutil
from pathlib import Path

import pytest

from mltune.dataset.dataset import load_dataset, write_dataset

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "dataset"
NAME = "h200-sgemm-nt-4096-random"


def test_a_dataset_is_read():
    dataset = load_dataset(GOLDEN / f"{NAME}.json")
    assert dataset.manifest.reference_median_s == pytest.approx(2.6518e-3, rel=1e-4)
    assert dataset.manifest.problem.label == "sgemm NT 4096"
    assert len(dataset) == len(dataset.builds()) == len(dataset.measurements()) == 40
    assert dataset.manifest.best.median_s == pytest.approx(2.8596e-3, rel=1e-4)


def test_it_is_written_again_as_it_was(tmp_path):
    shutil.copytree(GOLDEN, tmp_path / "old")
    dataset = load_dataset(tmp_path / "old" / NAME)
    write_dataset(dataset, tmp_path / "new")
    before, after = (json.loads((folder / f"{NAME}.json").read_text()) for folder in (GOLDEN, tmp_path / "new"))
    assert after | {"sha256": ""} == before | {"sha256": ""}, "other versions of pyarrow write other bytes"
    assert load_dataset(tmp_path / "new" / NAME).table.equals(dataset.table)


def test_half_precision_that_was_recorded_had_a_result_in_single():
    """What hgemm and bgemm were when it was recorded is hsgemm and bsgemm; models and forecasts go by the operands."""
    searches = sorted((GOLDEN.parents[2] / "datasets" / "gemm_wgmma" / "searches").glob("*.json"))
    recorded = [path for path in searches if '"result"' not in path.read_text()]
    problems = [load_dataset(path).manifest.problem for path in recorded]
    assert {problem.name for problem in problems} == {"hsgemm", "bsgemm"}
    assert {problem.result_dtype.name for problem in problems} == {"float32"}
    assert {problem.cost_class for problem in problems} == {"h", "b"}
    assert "hgemm TN" in {problem.cost_case for problem in problems}
