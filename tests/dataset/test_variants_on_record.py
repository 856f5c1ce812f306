"""Compiler parameters on record: in datasets, in replay, and in the models that are trained on them."""

import json

import numpy as np
import pytest

import mltune
from mltune.dataset.dataset import dataset_from_records, load_dataset, write_dataset
from mltune.device.known import H200
from mltune.kernel.reader import load_kernel
from mltune.problem.gemm import parse_problem
from mltune.records.header import RunHeader
from mltune.records.trial import Build, Measurement, TrialRecord, TrialState
from mltune.tuning.training import train

BUNDLE = """
[kernel]
name = "small"
source = "small.cu"
entry = "entry"
problem = "gemm"
precisions = ["s"]
[parameters]
WIDTH = [1, 2, 4, 8, 16]
UNROLL = [1, 2, 3, 4, 5]
DEPTH = [1, 2, 3]
[launch]
block = [32]
grid = [1]
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    (folder / "kernel.toml").write_text(BUNDLE)
    (folder / "small.cu").write_text('extern "C" __global__ void entry(float* out) { out[0] = WIDTH; }')
    return folder


def recorded(bundle, folder, *, varied, size=64):
    """Write a dataset of all configurations, of which those under another name take half of the time."""
    kernel = load_kernel(bundle)
    kernel = kernel.recorded_with(("entry_name",)) if varied else kernel
    values = kernel.all_parameters
    grids = (grid.reshape(-1).tolist() for grid in np.meshgrid(*values.values(), indexing="ij"))
    records = []
    for number, row in enumerate(zip(*grids, strict=True)):
        one = dict(zip(values, row, strict=True))
        time_s = 1e-4 * (1 + abs(one["WIDTH"] - 4) + one["UNROLL"] + one["DEPTH"]) / (1 + one.get("entry_name", 0))
        measured = Measurement(TrialState.OK, "", (time_s,) * 3, time_s, 0.0)
        records.append(
            TrialRecord(number, 0, number, one, TrialState.OK, build=Build(TrialState.OK), measurement=measured)
        )
    header = RunHeader(
        kernel="small",
        source_hash=kernel.source.sha256,
        parameters=values,
        problem=parse_problem("sgemm", size=size).to_json(),
        device=H200.to_json(),
        seed=0,
        labels=kernel.space.labels,
    )
    name = f"{'varied' if varied else 'plain'}-{size}"
    write_dataset(dataset_from_records(records, header, name=name, kind="random"), folder)
    return folder / f"{name}.json"


def test_a_recording_in_variants_is_replayed_with_them(bundle, tmp_path):
    path = recorded(bundle, tmp_path, varied=True)
    assert json.loads(path.read_text())["labels"] == {"entry_name": ["", "cutlass"]}

    result = mltune.tune(kernel=bundle, device=f"replay:{path}", trials=60, run=tmp_path / "run", prior="none")

    assert result.best_config == {"WIDTH": 4, "UNROLL": 1, "DEPTH": 1, "entry_name": "cutlass"}
    assert "variant" in {one.proposed_by for one in result.records}


def test_a_recording_from_before_has_the_defaults(bundle, tmp_path):
    path = recorded(bundle, tmp_path, varied=False)
    result = mltune.tune(kernel=bundle, device=f"replay:{path}", trials=60, run=tmp_path / "run", prior="none")
    assert result.best_config == {"WIDTH": 4, "UNROLL": 1, "DEPTH": 1}


def test_a_model_learns_from_both(bundle, tmp_path):
    paths = [recorded(bundle, tmp_path, varied=True), recorded(bundle, tmp_path, varied=False, size=128)]
    model = train([load_dataset(path) for path in paths])
    assert model.parameters == ("WIDTH", "UNROLL", "DEPTH", "entry_name")
    table = {
        "WIDTH": np.array([4, 4]),
        "UNROLL": np.array([1, 1]),
        "DEPTH": np.array([1, 1]),
        "entry_name": np.array([0, 1]),
    }
    plain, cutlass = model.predict(table)
    assert cutlass > plain
    assert {one["entry_name"] for member in model.members for one in member.fastest} == {0, 1}
