"""The plan of one problem at several sizes."""

import pytest

from mltune.device.known import H200
from mltune.errors import UsageError
from mltune.kernel.reader import load_kernel
from mltune.problem.gemm import GemmProblem
from mltune.resolve.placement import place
from mltune.resolve.plan_reader import parse_plan
from mltune.resolve.sizes import plan_of_sizes


def test_every_size_is_a_problem_in_the_order_that_was_given():
    plan = plan_of_sizes("cgemm", [4096, 512], [H200], shape={"trans": "NC"}, kernels=["gemm_simt"], seed=7)
    assert [task.problem.label for task in plan.tasks] == ["cgemm NC 4096", "cgemm NC 512"]
    assert (plan.title, plan.seed, plan.devices) == ("cgemm NC at 2 sizes", 7, ("auto",))
    assert {task.kernel for task in plan.tasks} == {"gemm_simt"}


def test_sizes_by_name_and_the_folder_of_a_kernel(tmp_path):
    folder = tmp_path / 'a "kernel"'
    folder.symlink_to(load_kernel("transpose").folder)
    plan = plan_of_sizes(str(folder), [{"rows": 8, "columns": 3}, {"rows": 9}], [H200])
    assert [task.problem.label for task in plan.tasks] == ["transpose 8x3", "transpose 9x16384"]
    assert {task.kernel for task in plan.tasks} == {str(folder)}


def test_its_text_is_the_same_plan():
    plan = plan_of_sizes(
        "sgemm", [512, 4096], [H200], time="1h", device="cuda:0", options={"skip": False, "search": "model"}
    )
    assert parse_plan(plan.text, plan.name) == plan


@pytest.mark.parametrize(
    ("options", "gpus", "unit", "budget", "minimum"),
    [
        ({}, 1, "s", 180.0, 40.0),
        ({}, 0, "trials", 900.0, 200.0),
        ({"device": "replay"}, 1, "trials", 900.0, 200.0),
        ({"time": "90s"}, 1, "s", 90.0, 20.0),
        ({"trials": 300}, 1, "trials", 300.0, 66.0),
        ({"trials": 3}, 1, "trials", 3.0, 1.0),
        ({"device": "all"}, 2, "s", 90.0, 40.0),
        ({"device": "all", "time": "90s"}, 4, "s", 90.0, 60.0),
    ],
)
@pytest.mark.sampled(3)
def test_the_budget_is_shared(options, gpus, unit, budget, minimum):
    plan = plan_of_sizes("sgemm", [512, 1024, 4096], [H200] * gpus, **options)
    assert (plan.unit, plan.budget, plan.tasks[0].minimum) == (unit, budget, minimum)
    if gpus and not plan.replayed:
        assert len(place(plan, [H200] * gpus).devices) == (gpus if options.get("device") == "all" else 1)


def test_equal_sizes_are_refused_also_where_one_is_the_default():
    with pytest.raises(UsageError, match="several sizes differ"):
        plan_of_sizes("transpose", [{"rows": 16384}, {"columns": 16384}], [H200])


def test_kernels_compete_for_every_size_with_shorter_first_slices():
    plan = plan_of_sizes("sgemm", [512, 4096], [H200], kernels=["gemm_simt", "gemm_shared"], time="80s")
    assert [(task.problem.m, task.kernel) for task in plan.tasks] == [
        (512, "gemm_simt"),
        (512, "gemm_shared"),
        (4096, "gemm_simt"),
        (4096, "gemm_shared"),
    ]
    assert {task.minimum for task in plan.tasks} == {5.0}
    assert len({task.choice for task in plan.tasks}) == 2


def test_a_batch_is_that_of_every_size():
    plan = plan_of_sizes("dgemm", [64, 128], [H200], shape={"trans": "NN", "batch": 1000})
    assert {(task.problem.label, task.kernel) for task in plan.tasks} == {
        (f"dgemm NN {size} batch 1000", kernel) for size in (64, 128) for kernel in ("gemm_simt", "gemm_mma64")
    }


def test_a_problem_with_scalars_and_leading_dimensions_is_written_out():
    problem = GemmProblem("c", "N", "C", 10, 20, 30, alpha=2 - 1j, beta=1, ldc=64)
    plan = plan_of_sizes(problem, [None], [H200], kernels=["gemm_simt", "gemm_shared"])
    assert {task.problem for task in plan.tasks} == {problem}
    assert plan.title == problem.label


@pytest.mark.parametrize(
    ("options", "minimum"),
    [({"time": "1h"}, 20.0), ({"time": "8s"}, 1.0), ({"trials": 100}, 12), ({"trials": 9999}, 96)],
)
def test_the_first_slice_of_a_kernel_is_short(options, minimum):
    plan = plan_of_sizes("sgemm", [None], [H200], kernels=["gemm_simt", "gemm_shared"], **options)
    assert [task.minimum for task in plan.tasks] == [minimum, minimum]
