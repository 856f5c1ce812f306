"""Datasets of earlier versions stay readable."""

import json
import shutil
from pathlib import Path

import pytest

from mltune.dataset.dataset import load_dataset, write_dataset

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "dataset"
NAME = "h200-sgemm-nt-4096-random"


def test_a_dataset_of_version_0_1_is_read():
    dataset = load_dataset(GOLDEN / f"{NAME}.json")
    assert "cublas_median_s" in json.loads((GOLDEN / f"{NAME}.json").read_text())
    assert dataset.manifest.reference_median_s == pytest.approx(2.6518e-3, rel=1e-4)
    assert dataset.manifest.problem.label == "sgemm NT 4096"
    assert len(dataset) == len(dataset.builds()) == len(dataset.measurements()) == 40
    assert dataset.manifest.best.median_s == pytest.approx(2.8596e-3, rel=1e-4)


def test_it_is_written_again_with_the_names_of_today(tmp_path):
    shutil.copytree(GOLDEN, tmp_path / "old")
    dataset = load_dataset(tmp_path / "old" / NAME)
    write_dataset(dataset, tmp_path / "new")
    document = json.loads((tmp_path / "new" / f"{NAME}.json").read_text())
    assert "cublas_median_s" not in document
    assert document["reference_median_s"] == dataset.manifest.reference_median_s
    assert load_dataset(tmp_path / "new" / NAME).table.equals(dataset.table)
