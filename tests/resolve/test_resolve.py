"""What a command names, resolved to a request or a plan."""

import shutil
from dataclasses import fields

import pytest

from mltune.device.known import H200
from mltune.errors import UsageError
from mltune.kernel.reader import load_kernel
from mltune.problem.gemm import GemmProblem
from mltune.resolve.options import Limits
from mltune.resolve.placement import place
from mltune.resolve.plan import MAX_RIVALS, Plan
from mltune.resolve.plan_file import parse_plan
from mltune.resolve.request import TuneRequest
from mltune.resolve.resolve import plan_of, resolve


def with_limits(options):
    """Return options with those that are limits in one."""
    limits = {field.name for field in fields(Limits)}
    others = {name: value for name, value in options.items() if name not in limits}
    return {**others, "limits": Limits(**{name: options[name] for name in limits & options.keys()})}


@pytest.fixture
def plan_on(monkeypatch):
    """Return a function that resolves a plan on a machine with some GPUs."""

    def resolved(gpus, problem, sizes, *, shape=None, **options):
        monkeypatch.setattr("mltune.resolve.resolve.find_gpus", lambda: ((H200,) * gpus, ""))
        plan, notices = resolve(problem, shape or {}, sizes=sizes, **with_limits(options))
        assert isinstance(plan, Plan)
        assert not notices
        return plan

    return resolved


def test_every_size_is_a_problem_in_the_order_that_was_given(plan_on):
    plan = plan_on(1, "cgemm", [4096, 512], shape={"trans": "NC"}, kernels=["gemm_simt"], seed=7)
    assert [task.problem.label for task in plan.tasks] == ["cgemm NC 4096", "cgemm NC 512"]
    assert (plan.title, plan.seed, plan.devices) == ("cgemm NC at 2 sizes", 7, ("auto",))
    assert {task.kernel.label for task in plan.tasks} == {"gemm_simt"}


def test_sizes_by_name_and_the_folder_of_a_kernel(plan_on, tmp_path):
    folder = shutil.copytree(load_kernel("transpose").folder, tmp_path / 'a "kernel"')
    plan = plan_on(1, str(folder), [{"rows": 8, "columns": 3}, {"rows": 9}])
    assert [task.problem.label for task in plan.tasks] == ["transpose 8x3", "transpose 9x16384"]
    assert {task.kernel.folder for task in plan.tasks} == {folder.resolve()}
    assert parse_plan(plan.text, plan.name) == plan


@pytest.mark.parametrize(
    "options",
    [
        {"time": "1h", "device": "cuda:0", "skip": False, "search": "model"},
        {"trials": 301, "kernels": ["gemm_simt", "gemm_shared", "gemm_simt:astra"], "enough": 0.9},
        {"time": "100s", "device": "all", "prior": "none", "wisdom": 'a "file"', "seed": 3},
    ],
)
def test_its_text_is_the_same_plan(plan_on, options):
    plan = plan_on(2, "sgemm", [512, 4096], **options)
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
def test_the_budget_is_shared(plan_on, options, gpus, unit, budget, minimum):
    plan = plan_on(gpus, "sgemm", [512, 1024, 4096], **options)
    assert (plan.unit, plan.budget, plan.tasks[0].minimum) == (unit, budget, minimum)
    if gpus and not plan.replayed:
        assert len(place(plan, [H200] * gpus).devices) == (gpus if options.get("device") == "all" else 1)


def test_equal_sizes_are_refused_also_where_one_is_the_default(plan_on):
    with pytest.raises(UsageError, match="a size was given twice"):
        plan_on(1, "transpose", [{"rows": 16384}, {"columns": 16384}])


def test_kernels_compete_for_every_size_with_shorter_first_slices(plan_on):
    plan = plan_on(1, "sgemm", [512, 4096], kernels=["gemm_simt", "gemm_shared"], time="80s")
    assert [(task.problem.m, task.kernel.name) for task in plan.tasks] == [
        (512, "gemm_simt"),
        (512, "gemm_shared"),
        (4096, "gemm_simt"),
        (4096, "gemm_shared"),
    ]
    assert {task.minimum for task in plan.tasks} == {5.0}
    assert len({task.choice for task in plan.tasks}) == 2


def test_a_batch_is_that_of_every_size(plan_on):
    plan = plan_on(1, "dgemm", [64, 128], shape={"trans": "NN", "batch": 1000})
    assert {(task.problem.label, task.kernel.name) for task in plan.tasks} == {
        (f"dgemm NN {size} batch 1000", kernel) for size in (64, 128) for kernel in ("gemm_simt", "gemm_mma64")
    }
    assert parse_plan(plan.text, plan.name) == plan


@pytest.mark.parametrize(("begun", "tried"), [("gemm_simt", "gemm_simt"), (None, "gemm_mma64")])
def test_a_run_of_a_kernel_that_is_no_longer_tried_goes_on_with_it(make_run, tmp_path, monkeypatch, begun, tried):
    monkeypatch.setattr("mltune.resolve.resolve.find_gpus", lambda: ((H200,), ""))
    if begun:
        make_run.of(kernel=begun)(tmp_path / "run")
    request, _ = resolve("dgemm", {"trans": "NT", "size": 64}, limits=Limits(device="cuda:0"), run=tmp_path / "run")
    assert request.kernel.name == tried


def test_a_problem_with_scalars_and_leading_dimensions_is_written_out(plan_on):
    problem = GemmProblem("c", "N", "C", 10, 20, 30, alpha=2 - 1j, beta=1, ldc=64)
    plan = plan_on(1, problem, [None], kernels=["gemm_simt", "gemm_shared"])
    assert {task.problem for task in plan.tasks} == {problem}
    assert plan.title == problem.label
    assert {task.problem for task in parse_plan(plan.text, plan.name).tasks} == {problem}


@pytest.mark.parametrize(
    ("options", "minimum"),
    [({"time": "1h"}, 20.0), ({"time": "8s"}, 1.0), ({"trials": 100}, 12), ({"trials": 9999}, 96)],
)
def test_the_first_slice_of_a_kernel_is_short(plan_on, options, minimum):
    plan = plan_on(1, "sgemm", [None], kernels=["gemm_simt", "gemm_shared"], **options)
    assert [task.minimum for task in plan.tasks] == [minimum, minimum]


def test_what_a_plan_file_could_not_hold_is_refused(plan_on):
    for options in ({"trials": 10**8}, {"time": "9999h"}, {"device": "tpu"}, {"enough": 2}, {"seed": -1}):
        with pytest.raises(UsageError):
            plan_on(1, "sgemm", [512, 4096], **options)
    kernel, problem = load_kernel("gemm_simt"), GemmProblem("s", "N", "N", 8, 8, 8)
    with pytest.raises(UsageError, match=f"at most {MAX_RIVALS} kernels"):
        plan_of([problem], [kernel] * (MAX_RIVALS + 1), (), Limits())


def test_one_kernel_and_one_size_are_a_request():
    limits = Limits(device="cuda:1", time="20s", seed=3)
    request, notices = resolve("sgemm", {"size": 4096}, kernels=["gemm_simt"], limits=limits)
    assert isinstance(request, TuneRequest)
    assert (request.problem.label, request.kernel.name, request.target.cuda) == ("sgemm NT 4096", "gemm_simt", 1)
    assert (request.trials, request.time_s, request.seed, notices) == (None, 20.0, 3, ())


def test_a_dataset_holds_one_problem_of_one_kernel():
    for options in ({"sizes": [512, 4096]}, {"kernels": ["gemm_simt", "gemm_shared"]}):
        with pytest.raises(UsageError, match="a dataset holds one problem of one kernel"):
            resolve("sgemm", {}, limits=Limits(device="replay:h200-sgemm-nt-4096-random"), **options)
