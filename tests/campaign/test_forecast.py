"""What would happen, with a GPU and without one."""

import dataclasses
import json

import pytest

from mltune.campaign.forecast import even_shares, forecast, recorded_rate
from mltune.dataset.dataset import find_datasets, list_datasets
from mltune.errors import PlanError
from mltune.problem.gemm import parse_problem
from mltune.resolve.placement import place
from mltune.resolve.plan_file import load_plan, parse_plan
from mltune.resolve.problems import named_problem


def test_with_a_gpu(text, gpu):
    document = forecast(parse_plan(text, "few"), [gpu], "", 16)
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["obstacle"] is None
    assert document["devices"] == [{"spec": "cuda:0", "name": gpu.name}]
    assert document["first_round"] == pytest.approx(8 * 60)
    assert sum(problem["share"] for problem in document["problems"]) == pytest.approx(3600)
    assert document["trials"] == sum(problem["trials"] for problem in document["problems"]) > 0
    assert {problem["recorded"] for problem in document["problems"]} == {None}
    assert {"report.html", "winners/"} <= {*document["writes"]}
    assert "datasets/" not in document["writes"]


def test_two_gpus_need_half_as_long_for_the_first_round_but_share_the_cores(text, gpu):
    plan = parse_plan(text.replace('"1m"', '"1m"\ndevices = ["all"]'), "few")
    one, two = (forecast(plan, [gpu] * count, "", 16) for count in (1, 2))
    assert two["first_round"] == pytest.approx(one["first_round"] / 2)
    assert two["problems"][0]["share"] == pytest.approx(2 * one["problems"][0]["share"])
    assert two["problems"][0]["trials"] < 1.5 * one["problems"][0]["trials"]


def test_without_a_gpu_it_says_what_stands_in_the_way_and_goes_on(text):
    document = forecast(parse_plan(text, "few"), [], "no driver", 2)
    assert "no driver" in document["obstacle"]
    assert len(document["problems"]) == 8
    assert all(problem["trials"] for problem in document["problems"])


def test_in_replay_trials_are_counted():
    document = forecast(load_plan("rehearsal"), [], "no driver", 2)
    assert document["obstacle"] is None
    assert document["devices"] == [{"spec": "replay", "name": None}]
    assert document["trials"] == pytest.approx(document["budget"], abs=len(document["problems"]))
    assert all(problem["recorded"] for problem in document["problems"])
    assert "winners/" not in document["writes"], "nothing is compiled"


def test_a_plan_that_can_be_carried_out_nowhere_is_an_error(text):
    with pytest.raises(PlanError, match="below the minimum of"):
        forecast(parse_plan(text.replace('"1h"', '"2m"'), "few"), [], "no driver", 2)


def test_equal_expected_gains_are_shared_out_by_priority(text, gpu):
    plan = place(parse_plan(text + "priority = 4\n", "few"), [gpu])
    assert even_shares(plan) == pytest.approx([450] * 8)
    tasks = (dataclasses.replace(plan.tasks[0], priority=16.0), *plan.tasks[1:])
    shares = even_shares(dataclasses.replace(plan, tasks=tasks))
    assert shares[0] == pytest.approx(2 * shares[1])


class TestRates:
    def test_of_the_nearest_size_scaled_by_the_work(self, gpu):
        def rate(size):
            return recorded_rate(
                "gemm_simt", parse_problem("sgemm", trans="NN", m=size, n=size, k=size), manifests, gpu
            )

        manifests = list_datasets()
        assert rate(1024).recorded == "h200-sgemm-nt-1024-random"
        assert rate(8192).time_s == pytest.approx(8 * rate(4096).time_s)
        assert rate(8192).trials(100, 16) < rate(4096).trials(100, 16)

    def test_a_slower_gpu_takes_longer(self, gpu):
        problem = parse_problem("dgemm", trans="NT", m=4096, n=4096, k=4096)
        slow = dataclasses.replace(gpu, clock_hz=gpu.clock_hz / 2)
        fast_s, slow_s = (recorded_rate("gemm_simt", problem, list_datasets(), one).time_s for one in (gpu, slow))
        assert slow_s == pytest.approx(2 * fast_s, rel=0.05)

    def test_of_what_nobody_recorded_nothing_is_said(self, gpu):
        problem = parse_problem("sgemm", trans="NT", m=64, n=64, k=64)
        assert recorded_rate("mine", problem, list_datasets(), gpu) is None
        assert recorded_rate("gemm_simt", problem, [], gpu) is None

    def test_builders_and_the_gpu_work_side_by_side(self, gpu):
        problem = parse_problem("cgemm", trans="NN", m=4096, n=4096, k=4096)
        rate = recorded_rate("gemm_simt", problem, list_datasets(), gpu)
        assert rate.trials(60, 1) == int(60 / rate.compile_s)
        assert rate.trials(60, 10_000) == int(60 / (rate.verify_s + rate.time_s))


def test_a_trial_of_a_kernel_that_counts_bytes_costs_more_at_a_larger_size():
    def rate(rows):
        problem, _ = named_problem("transpose", {"size": {"rows": rows, "columns": 8192}})
        return recorded_rate("transpose", problem, list_datasets(), None)

    assert rate(8192).recorded == "h200-transpose-8192x8192-random"
    assert rate(16384).time_s == pytest.approx(2 * rate(8192).time_s)


def test_the_sizes_of_verification_make_no_other_problem():
    problem, _ = named_problem("transpose", {"size": {"rows": 8192, "columns": 8192}})
    assert problem.checks
    assert dataclasses.replace(problem, checks=()) == problem
    assert [one.name for one in find_datasets("transpose", problem)] == ["h200-transpose-8192x8192-random"]
