"""Where a plan is carried out: GPUs that are there, or recorded timings."""

import dataclasses

import pytest

from mltune.errors import PlanError
from mltune.resolve.placement import place, recorded_for
from mltune.resolve.plan_file import parse_plan

RECORDED = """
[plan]
title = "What is recorded"
budget = "300 trials"
minimum = "32 trials"
[[problems]]
precisions = ["s", "d"]
trans = ["NT"]
sizes = [4096]
"""


@pytest.mark.parametrize(
    ("asked", "devices"), [('["auto"]', ("cuda:0",)), ('["all"]', ("cuda:0", "cuda:1")), ('["cuda:1"]', ("cuda:1",))]
)
def test_devices_are_what_they_stand_for(text, gpu, asked, devices):
    plan = place(parse_plan(text.replace('"1m"', f'"1m"\ndevices = {asked}'), "few"), [gpu, gpu])
    assert plan.devices == devices
    assert plan.capacity == 3600 * len(devices)
    assert {task.target for task in plan.tasks} == {None}


@pytest.mark.parametrize("devices", ['["auto"]', '["all"]', '["replay"]'])
def test_without_a_gpu_every_problem_finds_its_dataset(devices, gpu):
    text = RECORDED.replace("[[problems]]", f"devices = {devices}\n[[problems]]")
    plan = place(parse_plan(text, "recorded"), [gpu] if "replay" in devices else [], "none here")
    assert plan.devices == ("replay",)
    assert plan.replayed
    assert [task.slug for task in plan.tasks] == ["sgemm-nt-4096", "gemm-simt-dgemm-nt-4096"]
    assert [str(task.target) for task in plan.tasks] == [
        "replay:h200-sgemm-nt-4096-complete",
        "replay:h200-dgemm-nt-4096-random",
    ]


def test_problems_that_nobody_recorded_need_a_gpu(text):
    with pytest.raises(
        PlanError,
        match=r"no GPU was found \(none here\).* 8 of 8 problems have no recorded timings to replay \(sgemm NN 512, ",
    ):
        place(parse_plan(text, "few"), [], "none here")


def test_a_gpu_that_is_not_there(text, gpu):
    plan = parse_plan(text.replace('"1m"', '"1m"\ndevices = ["cuda:1"]'), "few")
    with pytest.raises(PlanError, match=r"cuda:1 is no GPU of this machine \(cuda:0\)"):
        place(plan, [gpu])
    with pytest.raises(PlanError, match=r"cuda:1 is no GPU of this machine \(no driver\)"):
        place(plan, [], "no driver")


def test_operands_must_fit_into_memory(text, gpu, small_gpu):
    plan = parse_plan(text, "few")
    with pytest.raises(PlanError, match=r"zgemm NN 256x512x1024 take 0\.0 GB, but small has 0\.0 GB"):
        place(dataclasses.replace(plan, devices=("all",)), [gpu, small_gpu])
    assert place(plan, [gpu, small_gpu]).devices == ("cuda:0",)


def test_operands_are_three_matrices(text):
    tasks = {task.slug: task for task in parse_plan(text, "few").tasks}
    assert tasks["sgemm-nn-512"].problem.operand_bytes == 3 * 512 * 512 * 4
    assert tasks["zgemm-nc-256x512x1024"].problem.operand_bytes == (256 * 1024 + 512 * 1024 + 256 * 512) * 16


def test_the_budget_must_hold_the_minima(text, gpu):
    plan = parse_plan(text.replace('"1h"', '"5m"'), "few")
    with pytest.raises(PlanError, match="the budget of 300 s is below the minimum of 8 problems, 480 s"):
        place(plan, [gpu])
    both = dataclasses.replace(plan, devices=("all",))
    assert place(both, [gpu, gpu]).capacity == 600
    with pytest.raises(
        PlanError, match="the budget of 200 s is below the minimum of 8 problems, 240 s on each of 2 devices"
    ):
        place(dataclasses.replace(both, budget=200.0), [gpu, gpu])


def test_a_kernel_without_a_source_is_not_measured(gpu):
    text = RECORDED.replace("[[problems]]", '[[problems]]\nkernel = "clblast_xgemm"').replace('"s", "d"', '"s"')
    with pytest.raises(PlanError, match="clblast_xgemm has no source"):
        place(parse_plan(text, "foreign"), [gpu])


def test_of_several_datasets_that_with_most_rows_is_taken():
    task, *_ = parse_plan(RECORDED, "recorded").tasks
    assert recorded_for([task]) == {"sgemm-nt-4096": "h200-sgemm-nt-4096-complete"}
    own = dataclasses.replace(task, dataset="h200-sgemm-nt-4096-random")
    assert recorded_for([own]) == {"sgemm-nt-4096": "h200-sgemm-nt-4096-random"}


def test_kernels_that_cannot_be_measured_leave_their_minimum_to_the_others(gpu, monkeypatch):
    plan = parse_plan(RECORDED.replace("precisions", 'kernel = ["gemm_simt", "gemm_shared"]\nprecisions'), "recorded")
    assert [(one.choice != "", one.minimum) for one in place(plan, [gpu]).tasks] == [(True, 16.0)] * 4
    replayed = place(plan, [])  # of gemm_shared nothing is recorded
    assert [(one.kernel.name, one.choice, one.minimum) for one in replayed.tasks] == [("gemm_simt", "", 32.0)] * 2
    monkeypatch.setattr("mltune.resolve.placement.fits", lambda kernel, device: kernel.name == "gemm_shared")
    assert [(one.kernel.name, one.choice) for one in place(plan, [gpu]).tasks] == [("gemm_shared", "")] * 2
