"""A mistake in the call of ``tune_kernel`` is told on a machine without a GPU, too."""

import numpy as np
import pytest

import mltune
from mltune.errors import DeviceError, MltuneError, UsageError
from mltune.resolve.device import find_gpus
from tests import needs

SOURCE = """
__global__ void add(float *c, const float *a, int n) {
  int i = blockIdx.x * block_size_x + threadIdx.x;
  if (i < n) c[i] = a[i];
}"""
ARRAY = np.ones(1000, np.float32)


def call(tmp_path, name="add", **options):
    """Tune a kernel on a GPU that is not there."""
    options = {"device": "cuda:99", "quiet": True, "run": tmp_path / "run"} | options
    arguments = options.pop("arguments", [ARRAY, ARRAY, np.int32(1000)])
    size, parameters = options.pop("size", 1000), options.pop("params", {"block_size_x": [64, 128]})
    mltune.tune_kernel(name, SOURCE, size, arguments, parameters, **options)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"restrictions": ["block_size_x > 500"]}, "combinations of .* satisfies every restriction"),
        ({"restrictions": ["block > 500"]}, "`block` is not"),
        ({"size": "m"}, "`m` is not"),
        ({"grid_div_x": ["blocks"]}, "`blocks` is not"),
        ({"size": 0}, "problem_size cannot be 0: it is an integer >= 1"),
        ({"grid_div_x": "block_size_x - 64"}, "grid_div_x is 0 for .*'block_size_x': 64.*; it must be positive"),
        ({"compiler_options": "-O3"}, "compiler_options cannot be .-O3.: it is a list of texts"),
        ({"params": {"block_size_x": 64}}, "is no list of values"),
        ({"params": [{"block_size_x": 64}]}, "tune_params cannot be .*: it is a dict"),
        ({"answer": [np.ones(5, np.float32), None, None]}, "argument_0 has 5 elements, but the argument 1000"),
        ({"strategy_options": {"time_limit": "soon"}}, "is no positive time"),
    ],
)
def test_it_is_told_before_a_gpu_is_missing(tmp_path, wrong, message):
    with pytest.raises(MltuneError, match=message):
        call(tmp_path, **wrong)


@needs.nvrtc
def test_so_is_a_mistake_in_the_source(tmp_path):
    with pytest.raises(MltuneError, match="the source does not define the kernel"):
        call(tmp_path, "sub")


@needs.nvrtc
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([ARRAY, ARRAY], "has 3 parameters, not one for each of 2 arguments: argument_0, argument_1"),
        ([ARRAY, ARRAY, np.int32(1000), np.int32(1000)], r"has 3 parameters, not one for each of 4 arguments"),
        ([ARRAY, np.int32(1000), ARRAY], "parameter 2 of add is .*, not int32"),
        ([ARRAY.astype(np.float64), ARRAY, np.int32(1000)], "parameter 1 of add is .*, not a pointer to float64"),
    ],
)
def test_so_are_arguments_that_do_not_fit_the_source(tmp_path, arguments, message):
    with pytest.raises(MltuneError, match=message):
        call(tmp_path, arguments=arguments)


def test_of_a_right_call_only_the_gpu_is_missing(tmp_path):
    with pytest.raises(DeviceError):
        call(tmp_path)


@needs.nvrtc
@pytest.mark.skipif(bool(find_gpus()[0]), reason="there is a GPU")
def test_without_a_gpu_the_call_is_checked_and_the_next_step_is_said(tmp_path):
    with pytest.raises(DeviceError) as refusal:
        call(tmp_path)
    message = str(refusal.value)
    assert message.startswith("tune_kernel found no GPU: ")
    assert "the arguments fit add, and 4 of 4 configurations that were tried compile" in message
    assert message.endswith("Make the same call on a machine with a GPU.")
    assert len(refusal.traceback) <= 4
    assert not (tmp_path / "run").exists()
    law = r"not float32, as the argument .*\. Correct this, then call tune_kernel on a machine with"
    with pytest.raises(DeviceError, match=law):
        call(tmp_path, arguments=[ARRAY, ARRAY, np.float32(1)])


@pytest.mark.parametrize("params", [[("block_size_x", 64)], 64])
def test_parameters_of_one_run_are_a_dict(params):
    with pytest.raises(UsageError, match=r"params cannot be .*: it is a dict"):
        mltune.run_kernel("add", SOURCE, 1000, [ARRAY, ARRAY, np.int32(1000)], params)
