"""Every command does its work on an honest input: what the hostile ones show does not hold by accident."""

import shutil

import pytest

from tests.hostile.cases import Case
from tests.hostile.commands import COMMANDS_OF
from tests.hostile.libraries import specification, write_formulas
from tests.hostile.own_code import shapes
from tests.hostile.suite import failures
from tests.hostile.targets import INPUTS
from tests.hostile.versions import honest_repository

HONEST = {
    "store": {"store": "run"},
    "campaign": {"campaign": "run"},
    "winner folder": {"campaign": "run"},
    "plan": {"plan.toml": "plan.toml"},
    "bundle": {"bundle": "bundle"},
    "source": {"bundle": "bundle"},
    "arrays bundle": {"arrays": "bundle"},
    "include folders": {"includes": "bundle"},
    "tuned kernel": {"winner": "winner"},
    "dataset": {"dataset/recorded.json": "recorded.json", "dataset/recorded.parquet": "recorded.parquet"},
    "table": {"table.csv": "table.csv"},
    "Kernel Tuner cache": {"cache.json": "table.json"},
    "comparison": {"comparison": "comparison"},
    "cubin cache": {"cubins": "cubins"},
    "wisdom": {"wisdom.json": "wisdom.json"},
    "winners of Triton": {name: name for name in ("triton.json", "triton.json.calls", "winners")},
    "model": {"model.json": "model.json", "model.npy": "model.npy"},
    "database rows": {"store": "run"},
    "cluster messages": {"message.pickle": "message.pickle"},
    "library": {"library": "library", "libcuda.so.1": "../libcuda.so.1", "content.pickle": "content.pickle"},
    "tuned function": {"tuned": "tuned"},
    "target": INPUTS,
}
MADE = {"versions": honest_repository, "shapes": shapes, "specification": specification, "formulas": write_formulas}
OTHERWISE = {("bundle", "tune_bundle"): {2}, ("bundle", "sweep"): {0, 2}, ("plan", "run_plan"): {0, 130},
    ("shapes", "tune_shapes"): {0, 2}, ("specification", "build_from_specification"): {2}, ("target", "run_to"): {0, 130}}  # fmt: skip
"""A bundle of GEMM is not replayed from a dataset of another kernel, there may be no GPU to sweep on, no Triton, and a campaign may be
ended by its test before all of its problems have begun."""
KINDS = [kind for kind in COMMANDS_OF if kind != "run folder"]  # has the input and the commands of a store


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(3, system=4, nightly=12)
def test_an_honest_input_is_accepted(kind, tmp_path, base, sandbox):
    place = Case(kind, "honest", print).place(tmp_path / "input", base)
    for name, to in HONEST.get(kind, {}).items():
        place.copy(name, to)
    MADE.get(kind, lambda place: None)(place)
    for command in dict.fromkeys(COMMANDS_OF[kind]):
        shutil.rmtree(place.folder / "elsewhere", ignore_errors=True)
        (place.folder / "elsewhere").mkdir()
        outcome = sandbox.run(command, place.folder)
        assert failures(outcome) == []
        assert outcome.status in OTHERWISE.get((kind, command), {0}), outcome.output
    shutil.rmtree(place.folder)
