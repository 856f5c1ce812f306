"""Kernels at problems on devices: their default configurations, and what is made once."""

from dataclasses import replace

import numpy as np
import pytest

from mltune.device.known import H200
from mltune.errors import ExpressionError
from mltune.kernel.coding import row
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.kernel.space import ConstrainedSpace, TableSpace
from mltune.problem.gemm import parse_problem
from mltune.problem.kinds import problem_from_name

TRANSPOSE = load_kernel("transpose")
PROBLEM = TRANSPOSE.arrays.problem({"rows": 100, "columns": 70})


def with_default(configuration):
    return replace(TRANSPOSE, space=replace(TRANSPOSE.space, default=configuration))


def test_the_default_configuration_is_the_kernels_own_where_it_is_valid():
    placed = PlacedKernel(TRANSPOSE, PROBLEM, H200)
    assert isinstance(placed.space, ConstrainedSpace)
    assert placed.default == TRANSPOSE.space.default
    assert PlacedKernel(load_kernel("gemm_simt"), problem_from_name("sgemm", trans="NT", size=4096), H200).default == {}


def test_without_one_it_is_the_valid_configuration_nearest_to_the_first_values():
    placed = PlacedKernel(with_default({}), PROBLEM, H200)
    assert placed.space.index_of({name: [value] for name, value in placed.default.items()})[0] >= 0
    assert (placed.default["TILE_X"], placed.default["TILE_Y"], placed.default["THREADS"]) == (16, 16, 64)


def test_an_invalid_default_gives_way_to_one_near_it():
    kernel = with_default({**TRANSPOSE.space.default, "SWIZZLE": 1})  # which excludes padding
    placed = PlacedKernel(kernel, PROBLEM, H200)
    assert placed.space.index_of({name: [value] for name, value in placed.default.items()})[0] >= 0
    assert len(placed.default.items() - kernel.space.default.items()) == 1


def test_variables_space_and_default_are_made_once():
    placed = PlacedKernel(TRANSPOSE, PROBLEM, H200)
    for name in ("variables", "space", "default", "verified"):
        assert getattr(placed, name) is getattr(placed, name)


def test_a_chosen_space_takes_the_place_of_all_that_is_valid():
    name, *_ = TRANSPOSE.all_parameters
    space = TableSpace({name: [1, 2]})
    assert PlacedKernel(TRANSPOSE, PROBLEM, H200, space).space is space


def test_launches_follow_from_the_problem():
    placed = PlacedKernel(TRANSPOSE, PROBLEM, H200)
    larger = placed.at(TRANSPOSE.arrays.problem({"rows": 1000, "columns": 70}))
    assert larger.launch(placed.default).grid > placed.launch(placed.default).grid
    assert placed.verified[0].launch(placed.default) == TRANSPOSE.launch(placed.default, placed.verified[0].variables)


@pytest.mark.parametrize(
    ("kernel", "problem"),
    [
        ("gemm_wgmma", parse_problem("hgemm", trans="TN", m=4096, n=200, k=1024)),
        ("gemm_simt", parse_problem("cgemm", trans="NT", size=300)),
        ("gemm_mma64", parse_problem("dgemm", trans="NN", size=1000)),
    ],
)
def test_launches_of_many_configurations_are_those_of_each(kernel, problem):
    placed = PlacedKernel(load_kernel(kernel).recorded_with(()), problem, H200)
    columns = placed.space.rows(placed.space.sample(40, np.random.default_rng(0)))
    configurations = [row(columns, number) for number in range(40)]
    launches = placed.launches(configurations)
    assert launches == [placed.launch(configuration) for configuration in configurations]
    assert len({*launches}) > 10
    assert placed.launches(configurations[:1]) == launches[:1]


def test_one_wrong_launch_among_many_is_an_error(tmp_path):
    (tmp_path / "kernel.toml").write_text(
        """[kernel]
name = "k"
problem = "arrays"
source = "k.cu"
entry = "k"
[arguments]
n = { dtype = "int32", value = "n" }
x = { dtype = "float32", shape = ["n"], role = "out" }
[sizes]
n = 100
[parameters]
T = [32, 64]
[launch]
block = ["T", "1", "1"]
grid = ["n / (T - 32)", "1", "1"]
"""
    )
    (tmp_path / "k.cu").write_text('extern "C" __global__ void k(int n, float *x) {}')
    placed = PlacedKernel(load_kernel(tmp_path), load_kernel(tmp_path).own_problem(), H200)
    with pytest.raises(ExpressionError, match="n / "):
        placed.launches([{"T": 64}, {"T": 32}])
