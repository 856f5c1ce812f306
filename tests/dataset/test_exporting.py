"""What is exported is read by Kernel Tuner, fits the schema of T4, and is imported again as it was."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest

from mltune.cli import options
from mltune.dataset.dataset import Dataset, load_dataset
from mltune.dataset.exporting import FORMATS
from mltune.dataset.importing import Outcomes, foreign_dataset, import_table
from mltune.device.known import UNKNOWN
from mltune.kernel.reader import load_kernel
from mltune.problem.recorded import RecordedProblem
from tests import needs

STATES = ["ok", "compile_error", "launch_error", "timeout", "wrong_result", "crashed", "ok", "ok"]


def small() -> Dataset:
    columns = {"block": np.array([16, 16, 32, 32, 64, 64, 128, 128]), "mode": np.array([0, 1] * 4)}
    outcomes = Outcomes(STATES, np.arange(1, 9) / 3000, np.arange(8) / 7, np.arange(8) / 5)
    facts = {"name": "small", "kind": "search", "kernel": "toy", "problem": RecordedProblem("toy", values={"n": 77})}
    return foreign_dataset(columns, outcomes, **facts, device=UNKNOWN, labels={"mode": ("row", "column")})


def exported(dataset: Dataset, kind: str, folder: Path) -> Path:
    path = folder / f"{dataset.manifest.name}.json"
    path.write_text(FORMATS[kind](dataset))
    return path


def test_the_command_line_knows_the_formats() -> None:
    assert tuple(FORMATS) == options.FORMATS


def simulated(path: Path) -> list[dict]:
    """Return the results of Kernel Tuner's brute force over a cache."""
    import kernel_tuner

    with warnings.catch_warnings(action="ignore"):  # about parameters that are no sizes of blocks
        return kernel_tuner.tune_cache(path, strategy="brute_force", quiet=True, verbose=False)[0]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("make", [small, lambda: load_dataset("convolution_w6600")], ids=["small", "convolution"])
def test_it_is_imported_again_as_it_was(tmp_path: Path, make, kind: str) -> None:
    dataset = make()
    manifest = dataset.manifest
    kernel = "toy" if manifest.kernel == "toy" else load_kernel(manifest.kernel)
    facts = {"problem": manifest.problem, "device": manifest.device, "kind": manifest.kind}
    again = import_table(exported(dataset, kind, tmp_path), kernel=kernel, **facts).dataset
    assert again.manifest.parameters == manifest.parameters
    assert again.manifest.best.median_s == manifest.best.median_s
    assert [again.manifest.labelled(again.manifest.best.configuration)] == [
        manifest.labelled(manifest.best.configuration)
    ]
    for name in ("median_s", "compile_s", "time_s"):
        np.testing.assert_array_equal(again.numbers(name), dataset.numbers(name))
    lost = {"kernel-tuner": ("timeout", "wrong_result", "crashed"), "t4": ("crashed",)}[kind]
    expected = ["launch_error" if state in lost else state for state in dataset.states.tolist()]
    assert again.states.tolist() == expected


@needs.kernel_tuner
def test_kernel_tuner_simulates_a_dataset(tmp_path: Path) -> None:
    dataset = load_dataset("convolution_w6600")
    results = simulated(exported(dataset, "kernel-tuner", tmp_path))
    times = {tuple(one[key] for key in dataset.columns): one["time"] for one in results if "__error__" not in one}
    assert len(times) == dataset.manifest.counts["ok"]
    best = min(times, key=times.get)
    assert dict(zip(dataset.columns, best, strict=True)) == dataset.manifest.best.configuration
    assert times[best] == pytest.approx(1e3 * dataset.manifest.best.median_s, rel=1e-7)


@needs.kernel_tuner
def test_kernel_tuner_reads_texts_and_failures(tmp_path: Path) -> None:
    path = exported(small(), "kernel-tuner", tmp_path)
    from kernel_tuner import util

    cache = util.read_cache(path, open_cache=False)
    errors = [type(entry.get("__error__")).__name__ for entry in cache["cache"].values()]
    assert errors == ["NoneType", "CompilationFailedConfig", *["RuntimeFailedConfig"] * 4, "NoneType", "NoneType"]
    assert cache["tune_params"] == {"block": [16, 32, 64, 128], "mode": ["row", "column"]}
    assert cache["problem_size"] == [77]
    assert {(one["block"], one["mode"]) for one in simulated(path)} == {(16, "row"), (128, "row"), (128, "column")}


@needs.kernel_tuner
def test_kernel_tuner_can_add_to_the_cache(tmp_path: Path) -> None:
    path = exported(small(), "kernel-tuner", tmp_path)
    from kernel_tuner import util

    cache = util.read_cache(path, open_cache=True)["cache"]
    util.store_cache("256,row", {"block": 256, "mode": "row", "time": 1.0}, path, cache)
    util.close_cache(path)
    assert len(json.loads(path.read_text())["cache"]) == 9


@pytest.mark.parametrize("make", [small, lambda: load_dataset("h200-dgemm-nt-4096-random")], ids=["small", "dgemm"])
@needs.kernel_tuner
def test_t4_fits_the_schema_that_kernel_tuner_brings(tmp_path: Path, make) -> None:
    import jsonschema
    from kernel_tuner import file_utils

    version, schema = file_utils.output_file_schema("results")
    document = json.loads(exported(make(), "t4", tmp_path).read_text())
    jsonschema.validate(document, schema)
    assert document["schema_version"] == version


def test_the_samples_are_exported(tmp_path: Path) -> None:
    dataset = load_dataset("h200-dgemm-nt-4096-random")
    row = int(np.nanargmin(dataset.numbers("median_s")))
    results = json.loads(exported(dataset, "t4", tmp_path).read_text())["results"]
    expected = 1e3 * np.array(dataset.table["samples_s"][row].as_py())
    np.testing.assert_allclose(results[row]["times"]["runtimes"], expected, rtol=1e-7)
