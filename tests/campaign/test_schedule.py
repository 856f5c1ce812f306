"""Sharing out of a budget: laws that hold for any outcome of the searches."""

import dataclasses
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mltune.campaign.schedule import LEAST_GAIN, Standing, next_slice
from mltune.kernel.bundle import Kernel
from mltune.records.trial import BATCH


def carry_out(plan, *, overrun=0.0, stops=(), fails=(), curve=lambda slug, spent: [(1.0, 1.0)]):
    """Carry out a plan on one device; return the final standings and all time slices."""
    at, slices = {task.slug: Standing(task.slug) for task in plan.tasks}, []
    for _ in range(10_000):
        chosen = next_slice(plan, list(at.values()))
        if chosen is None:
            return at, slices
        slices.append(chosen)
        before = at[chosen.slug]
        assert chosen.limit > before.spent
        assert not before.ended
        spent = chosen.limit + overrun
        at[chosen.slug] = dataclasses.replace(
            before,
            spent=spent,
            curve=curve(chosen.slug, spent),
            stopped="nothing is left" if chosen.slug in stops else "",
            failed="broken" if chosen.slug in fails else "",
        )
    raise AssertionError("a campaign must end")


@st.composite
def plans(draw):
    """Return arguments of a plan that is in order."""
    trials = draw(st.booleans())
    minima = draw(st.lists(st.integers(1, 300), min_size=1, max_size=12))
    budget = sum(minima) + draw(st.integers(0, 3000))
    maximum = draw(st.none() | st.integers(300, 2000))
    priorities = draw(st.lists(st.sampled_from([0.5, 1.0, 4.0]), min_size=len(minima), max_size=len(minima)))
    return (
        [float(minimum) for minimum in minima],
        float(budget),
        {
            "unit": "trials" if trials else "s",
            "maximum": None if maximum is None else float(maximum),
            "priorities": priorities,
        },
    )


class TestLaws:
    @given(plans(), st.sets(st.integers(0, 11)), st.sets(st.integers(0, 11)), st.integers(0, 5))
    @pytest.mark.system
    def test_of_a_whole_campaign(self, make_plan, arguments, stops, fails, jump):
        minima, budget, options = arguments
        plan = make_plan(minima, budget, **options)
        stops, fails = {f"p{at}" for at in stops}, {f"p{at}" for at in fails}

        def curve(slug, spent):
            return [(1.0, 2.0), (spent * jump / 5 + 1e-3, 1.0 + len(slug))]

        at, slices = carry_out(plan, stops=stops, fails=fails, curve=curve)
        assert sum(one.spent for one in at.values()) <= budget + 1e-6
        for task in plan.tasks:
            one = at[task.slug]
            assert one.spent >= 0.98 * task.minimum
            assert task.maximum is None or one.spent <= task.maximum
        for chosen in slices:
            assert (chosen.trials is None) != (chosen.time_s is None)
            assert chosen.trials is None or chosen.trials == chosen.limit
        for slug in stops | fails:
            assert sum(chosen.slug == slug for chosen in slices) <= 1
        assert carry_out(plan, stops=stops, fails=fails, curve=curve)[1] == slices

    @settings(max_examples=40, deadline=None)
    @given(plans())
    def test_the_rest_at_the_end_is_too_small_for_any_task(self, make_plan, arguments):
        minima, budget, options = arguments
        plan = make_plan(minima, budget, **options)
        at, slices = carry_out(plan)
        left = budget - sum(one.spent for one in at.values())
        for task in plan.tasks:
            more = math.inf if task.maximum is None else task.maximum - at[task.slug].spent
            assert min(left, more) < max(0.5 * task.minimum, 1)
        for chosen in slices:
            assert chosen.reason in ("minimum", "gain")

    @settings(max_examples=30, deadline=None)
    @given(plans(), st.data())
    def test_an_interrupted_time_slice_is_resumed_first(self, make_plan, arguments, data):
        minima, budget, options = arguments
        plan = make_plan(minima, budget, **options)
        _, slices = carry_out(plan)
        cut = data.draw(st.integers(0, len(slices) - 1))
        at = {task.slug: Standing(task.slug) for task in plan.tasks}
        for chosen in slices[:cut]:
            at[chosen.slug] = Standing(chosen.slug, chosen.limit, curve=[(1.0, 1.0)])
        under_way, before = slices[cut], at[slices[cut].slug]
        half = (before.spent + under_way.limit) // 2
        at[under_way.slug] = dataclasses.replace(before, spent=half, limit=under_way.limit)
        again = next_slice(plan, list(at.values()))
        assert (again.slug, again.reason) == (under_way.slug, "resumed")
        assert again.limit == pytest.approx(under_way.limit)


class TestOrder:
    def test_minima_come_first_and_by_priority(self, make_plan):
        plan = make_plan([60, 60, 60], 600, priorities=[1, 1, 2])
        _, slices = carry_out(plan)
        assert [(one.slug, one.limit, one.reason) for one in slices[:3]] == [
            ("p2", 60, "minimum"),
            ("p0", 60, "minimum"),
            ("p1", 60, "minimum"),
        ]
        assert {one.reason for one in slices[3:]} == {"gain"}

    def test_time_goes_with_the_root_of_the_priority(self, make_plan):
        at, _ = carry_out(make_plan([10, 10], 3000, priorities=[4, 1]))
        assert at["p0"].spent == pytest.approx(2000, rel=0.01)

    def test_equal_expected_gains_have_equal_shares(self, make_plan):
        at, slices = carry_out(make_plan([60] * 5, 5 * 300))
        assert {round(one.spent) for one in at.values()} == {300}
        assert len(slices) <= 5 * 4

    def test_the_rest_of_a_finished_problem_goes_to_the_others(self, make_plan):
        at, _ = carry_out(make_plan([60] * 3, 900), stops={"p0"}, fails={"p1"})
        assert [round(at[slug].spent) for slug in ("p0", "p1", "p2")] == [60, 60, 780]

    def test_the_unfinished_slice_of_one_that_stopped_is_not_resumed(self, make_plan):
        plan = make_plan([60, 60], 600)
        standings = [Standing("p0", 30, limit=60, stopped="nothing is left"), Standing("p1", 10, limit=60)]
        assert next_slice(plan, standings).slug == "p1"

    def test_a_problem_without_a_result_is_not_given_up(self, make_plan):
        plan = make_plan([60, 60], 600)
        chosen = next_slice(plan, [Standing("p0", 60), Standing("p1", 90, curve=[(1, 2.0), (80, 1.0)])])
        assert (chosen.slug, chosen.reason) == ("p0", "gain")

    def test_limits_of_trials_are_whole_batches(self, make_plan):
        _, slices = carry_out(make_plan([50, 50, 50], 700, unit="trials"))
        gains = [one for one in slices if one.reason == "gain"]
        assert gains
        assert all(one.limit % BATCH == 0 for one in gains[:-1])


class TestDevices:
    def test_a_task_is_done_by_one_device_at_a_time(self, make_plan):
        plan = make_plan([60, 60], 600, devices=2)
        first = next_slice(plan, [])
        at = [Standing(first.slug, 0, limit=first.limit)]
        second = next_slice(plan, at, busy=[first.slug])
        assert {first.slug, second.slug} == {"p0", "p1"}
        assert next_slice(plan, at, busy=["p0", "p1"]) is None

    def test_two_devices_have_twice_the_budget(self, make_plan):
        plan = make_plan([60, 60], 600, devices=2)
        assert plan.capacity == 1200
        at, _ = carry_out(plan)
        assert sum(one.spent for one in at.values()) == pytest.approx(1200)

    def test_unfinished_time_slices_of_other_devices_are_reserved(self, make_plan):
        plan = make_plan([60, 60], 300, devices=2)
        standings = [Standing("p0", 100, limit=500, curve=[(1, 1.0)]), Standing("p1", 60, curve=[(1, 1.0)])]
        assert next_slice(plan, standings, busy=["p0"]).limit == pytest.approx(60 + 600 - 160 - 400)


class TestTimeThatNoRecordShows:
    """Workers start, die and are replaced, which no record shows."""

    def test_a_time_slice_ends_with_the_campaign(self, make_plan):
        plan = make_plan([60], 600)
        assert next_slice(plan, [Standing("p0", 60, curve=[(1, 1.0)])], remaining=80).limit == pytest.approx(140)
        assert next_slice(plan, [Standing("p0", 30, limit=60)], remaining=10).limit == 40
        assert next_slice(plan, [Standing("p0", 60)], remaining=0) is None

    def test_minima_that_no_longer_fit_shrink_alike(self, make_plan):
        plan, left, at = make_plan([60, 60, 60, 60], 240), 120.0, [Standing("p0", 60), Standing("p1", 0)]
        limits = []
        while chosen := next_slice(plan, at, remaining=left):
            at = [*(one for one in at if one.slug != chosen.slug), Standing(chosen.slug, chosen.limit)]
            left -= chosen.limit
            limits.append((chosen.slug, round(chosen.limit), chosen.reason))
        assert limits == [(slug, 40, "minimum") for slug in ("p1", "p2", "p3")]

    def test_searches_that_end_a_little_late_change_nothing(self, make_plan):
        plan = make_plan([60] * 4, 1200)
        at, _ = carry_out(plan, overrun=0.7)
        assert sum(one.spent for one in at.values()) <= 1200 + 0.7
        assert min(one.spent for one in at.values()) > 250


def test_a_run_whose_finals_ended_early_has_had_its_minimum(make_plan):
    """Another time slice would take longer to start than the few seconds that are left of the minimum."""
    plan = make_plan([60, 60], 1200)
    chosen = next_slice(plan, [Standing("p0", 60 - 3.5, curve=[(1.0, 1.0)])])
    assert (chosen.slug, chosen.reason) == ("p1", "minimum")


def test_a_problem_slower_than_its_siblings_gets_more(make_plan):
    from mltune.problem.gemm import GemmProblem

    plan = make_plan([60, 60], 1200)
    problems = [GemmProblem("s", "N", ops, 64, 64, 64) for ops in "NT"]
    tasks = [dataclasses.replace(task, problem=problem) for task, problem in zip(plan.tasks, problems, strict=True)]
    plan = dataclasses.replace(plan, tasks=tuple(tasks))
    at, _ = carry_out(plan, curve=lambda slug, spent: [(1.0, 1.0 if slug == "p0" else 1.0 + 8 * LEAST_GAIN)])
    assert at["p1"].spent > 2 * at["p0"].spent


def kernel_of(name):
    return Kernel(name=name, problem="gemm", folder=Path(name))


class TestChoice:
    """Kernels that compete for one problem."""

    @pytest.fixture
    def choice(self, make_plan):
        def make(count, budget=600, maximum=None, minimum=30.0):
            plan = make_plan([minimum] * count, budget, maximum=maximum)
            tasks = [
                dataclasses.replace(task, problem=plan.tasks[0].problem, kernel=kernel_of(task.slug), choice="c")
                for task in plan.tasks
            ]
            return dataclasses.replace(plan, tasks=tuple(tasks))

        return make

    def test_a_kernel_that_is_far_behind_has_its_first_slice_only(self, choice):
        at, slices = carry_out(choice(2), curve=lambda slug, spent: [(1.0, 1.0 if slug == "p1" else 2.0)])
        assert (at["p0"].spent, at["p1"].spent) == (30, 570)
        assert [one.slug for one in slices] == ["p0", "p1", "p1"]

    def test_kernels_that_are_close_share_the_rest(self, choice):
        at, _ = carry_out(choice(2), curve=lambda slug, spent: [(1.0, 1.0 if slug == "p1" else 1.002)])
        assert 0.2 < at["p0"].spent / at["p1"].spent < 1.0

    def test_a_kernel_that_catches_up_gets_the_rest(self, choice):
        def curve(slug, spent):
            return [(1.0, 1.05 if slug == "p1" else 1.04), *([(50.0, 0.5)] if slug == "p1" and spent > 50 else [])]

        at, _ = carry_out(choice(2), curve=curve)
        assert at["p1"].spent > at["p0"].spent

    def test_once_the_best_has_ended_by_itself_the_hopeless_get_nothing(self, choice):
        at, _ = carry_out(choice(2), stops=["p1"], curve=lambda slug, spent: [(1.0, 1.0 if slug == "p1" else 2.0)])
        assert (at["p0"].spent, at["p1"].spent) == (30, 30)

    def test_they_share_the_maximum_of_their_problem(self, choice):
        at, _ = carry_out(choice(2, maximum=100.0))
        assert 85 <= sum(one.spent for one in at.values()) <= 100
