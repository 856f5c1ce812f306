import json

import numpy as np
import pytest

from mltune.dataset.dataset import Dataset, list_datasets, load_dataset, write_dataset
from mltune.dataset.importing import Outcomes, foreign_dataset
from mltune.dataset.replay import ReplayBuilder, ReplayRunner
from mltune.device.known import UNKNOWN
from mltune.device.peaks import peak_flops
from mltune.errors import DatasetError
from mltune.files import folders
from mltune.kernel.bundle import variables_of
from mltune.kernel.reader import load_kernel
from mltune.kernel.space import ConstrainedSpace
from mltune.problem.recorded import RecordedProblem
from mltune.records.trial import TrialState

FOREIGN = [manifest.name for manifest in list_datasets() if manifest.source]
ROWS = {
    "xgemm_rtx_2080_ti": 17956,
    "xgemm_titan_rtx": 17956,
    "xgemm_rtx_3060_laptop": 10000,
    "xgemm_rtx_a4000": 34217,
    **{f"convolution_{gpu}": 4362 for gpu in ("rtx_a4000", "rtx_a6000", "mi250x_gcd", "w6600")},
}


def small(**changes: object) -> Dataset:
    arguments = {
        "name": "small",
        "kind": "search",
        "kernel": "toy",
        "problem": RecordedProblem("toy"),
        "device": UNKNOWN,
    }
    columns = {"tile_size": np.array([1, 2, 4]), "WARPS": np.array([8, 8, 4])}
    outcomes = Outcomes(["ok", "compile_error", "launch_error"], [2e-3, np.nan, np.nan], [0.5, np.nan, 0.25], 1.0)
    return foreign_dataset(columns, outcomes, **(arguments | changes))


def test_the_public_sweeps_are_there() -> None:
    assert set(ROWS) <= set(FOREIGN)


@pytest.mark.parametrize("name", FOREIGN)
def test_every_row_of_a_public_sweep_is_valid_for_its_bundle(name: str) -> None:
    dataset = load_dataset(name)
    manifest = dataset.manifest
    kernel = load_kernel(manifest.kernel)
    kernel.check_problem(manifest.problem)
    assert dataset.manifest.check_kernel(kernel) == ""
    assert len(dataset) == ROWS[name]
    space = ConstrainedSpace(kernel, variables_of(manifest.problem, manifest.device))
    assert (space.index_of(dataset.columns) >= 0).all()
    if manifest.kind == "complete":
        narrowed = kernel.with_values(manifest.parameters)
        assert ConstrainedSpace(narrowed, space.variables).count == len(dataset)


@pytest.mark.parametrize("name", FOREIGN)
def test_a_public_sweep_names_its_source_and_holds_its_licence(name: str) -> None:
    manifest = load_dataset(name).manifest
    assert "github.com" in manifest.source
    licence, _, text = manifest.licence.partition(", ")
    assert licence == "MIT"
    assert "Permission is hereby granted" in (folders.assets("datasets") / manifest.kernel / text).read_text()


@pytest.mark.parametrize("name", FOREIGN)
def test_nothing_in_a_public_sweep_is_above_the_peak_of_its_gpu(name: str) -> None:
    manifest = load_dataset(name).manifest
    assert manifest.best is not None
    share = manifest.problem.flops / manifest.best.median_s / peak_flops(manifest.device, manifest.problem.arithmetic)
    assert 0.3 < share < 1


def test_failures_are_kept_as_their_states() -> None:
    states = load_dataset("convolution_rtx_a6000").states
    assert [int((states == state).sum()) for state in ("ok", "compile_error", "launch_error")] == [3889, 252, 221]


def test_the_random_rows_of_a_search_stand_first() -> None:
    dataset = load_dataset("xgemm_rtx_a4000")
    assert "first 18136 rows are a uniform random sample" in dataset.manifest.source
    median_s = dataset.numbers("median_s")
    assert np.median(median_s[:18136]) > np.median(median_s[18136:])


def test_is_replayed_as_it_was_recorded() -> None:
    dataset = small()
    builder, runner = ReplayBuilder(dataset), ReplayRunner(dataset)
    first, second, third = ({"tile_size": tile, "WARPS": warps} for tile, warps in ((1, 8), (2, 8), (4, 4)))
    build = builder.submit(first).result()
    assert (build.state, build.compile_s, build.registers) == (TrialState.OK, 0.5, None)
    measurement = runner.submit(first, build).result()
    assert (measurement.state, measurement.samples_s, measurement.time_s) == (TrialState.OK, (), 1.0)
    assert measurement.median_s == pytest.approx(2e-3, rel=2**-20)
    assert builder.submit(second).result().state is TrialState.COMPILE_ERROR
    assert runner.submit(third, builder.submit(third).result()).result().state is TrialState.LAUNCH_ERROR


def test_survives_a_file(tmp_path) -> None:
    written = write_dataset(small(), tmp_path)
    again = load_dataset(tmp_path / "small.json")
    assert again.manifest == written.manifest
    assert again.table.equals(written.table)


@pytest.mark.parametrize(
    ("columns", "law"),
    [
        ({"state": np.array([1, 2, 4])}, "'state'"),
        ({"a": np.array([1, 2, 4]), "A": np.array([1, 2, 4])}, "case"),
        ({"a-b": np.array([1, 2, 4])}, "'a-b'"),
        ({"a": np.array([1, 2, 1])}, "occurs twice"),
    ],
)
def test_impossible_parameters_are_refused(columns: dict[str, np.ndarray], law: str) -> None:
    with pytest.raises(DatasetError, match=law):
        foreign_dataset(
            columns,
            Outcomes(["ok"] * 3, [1.0, 2.0, 3.0]),
            name="small",
            kind="search",
            kernel="toy",
            problem=RecordedProblem("toy"),
            device=UNKNOWN,
        )


def test_a_time_that_cannot_be_is_refused() -> None:
    with pytest.raises(DatasetError, match="median_s"):
        foreign_dataset(
            {"a": np.array([1])},
            Outcomes(["ok"], [-1.0]),
            name="small",
            kind="search",
            kernel="toy",
            problem=RecordedProblem("toy"),
            device=UNKNOWN,
        )


def test_a_manifest_without_a_kind_of_problem_is_still_read() -> None:
    ours = [manifest for manifest in list_datasets() if manifest.kernel == "gemm_simt"]
    path = folders.assets("datasets") / "gemm_simt" / f"{ours[0].name}.json"
    assert "kind" not in json.loads(path.read_text())["problem"]
    assert ours[0].problem.kind == "gemm"
