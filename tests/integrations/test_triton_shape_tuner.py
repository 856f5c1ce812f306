"""The file of a Triton kernel, as the process that tunes it imports it."""

import pytest

from mltune.process.child import Child
from tests.planted import executed, plant
from tests.triton_file import triton_file

READS = """
import neighbour, numpy, pydoc, warnings, wave
assert neighbour.BLOCKS == (1, 1)
SERVING = {"block_shape": neighbour.BLOCKS}
"""


@pytest.fixture
def folder(tmp_path):
    """Return a folder with a module for every name that can be imported here, and a neighbour of the kernel's file."""
    made = plant(tmp_path / "beside")
    (made / "neighbour.py").write_text("BLOCKS = (1, 1)\n")
    return made


def facts_of(file, kernel="tuned", shape=None, trials=5):
    options = {"trials": trials, "wisdom": "none", "compilers": 1}
    child = Child("mltune.integrations.triton.shape_tuner:make_tuner", (str(file), kernel, ("M",), options))
    try:
        return child.call(shape, 60)
    finally:
        child.kill()


def test_modules_beside_the_file_of_a_kernel_are_not_taken_in_place_of_installed_ones(folder):
    facts = facts_of(triton_file(folder, READS))
    assert facts.get("block_shape") == [1, 1], facts
    assert executed(folder) == []


def test_a_kernel_may_replace_tritons_decorator(tmp_path):
    replaces = "import triton, mltune.integrations.triton\ntriton.autotune = mltune.integrations.triton.autotune\n"
    path = triton_file(tmp_path)
    text = (tmp_path / "kernels.py").read_text()
    (tmp_path / "kernels.py").write_text(replaces + text)
    assert facts_of(path).get("kernel") == "tuned"


def test_a_benchmark_that_returns_no_time_for_a_configuration_does_not_win(tmp_path):
    doubtful = """
def doubtful(call, quantiles):
    times = bench(call, quantiles)
    return [math.nan] * 3 if calls[-1][3]["BLOCK_SIZE_M"] == 128 and calls[-1][0] == "second" else times
tuned = triton.autotune(configs=CONFIGS, key=["M"], do_bench=doubtful)(Kernel())
"""
    row = facts_of(triton_file(tmp_path, doubtful), shape={"M": 128}, trials=20)
    assert row["configuration"]["BLOCK_SIZE_M"] == 64
    assert row["median_s"] > 0


@pytest.mark.parametrize(("gain", "taken"), [(1.003, 64), (1.02, 32)])
@pytest.mark.sampled(1, nightly=99)
def test_the_first_stays_where_nothing_is_faster_by_more_than_the_noise(tmp_path, gain, taken):
    close = f"""
def close(call, quantiles):
    call()
    return {{64: {gain}, 32: 1.0}}.get(calls[-1][3]["BLOCK_SIZE_M"], 2.0)
order = sorted(CONFIGS, key=lambda config: config.kwargs["BLOCK_SIZE_M"] != 64)
tuned = triton.autotune(configs=order, key=["M"], do_bench=close)(Kernel())
"""
    row = facts_of(triton_file(tmp_path, close), shape={"M": 128}, trials=20)
    assert row["configuration"]["BLOCK_SIZE_M"] == taken
