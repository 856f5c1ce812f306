"""What more time is expected to bring, and sharing it out."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltune.campaign.schedule import (
    HOPELESS,
    LEAST_GAIN,
    Standing,
    allot,
    chances,
    deficits,
    gain_constants,
    last_doubling,
)
from mltune.kernel.reader import load_kernel
from mltune.problem.gemm import GemmProblem
from mltune.resolve.plan import Task

KERNEL = load_kernel("gemm_simt")


def task(slug, ops="NN", size=64, **changes):
    problem = GemmProblem("s", *ops, size, size, size)
    return Task(slug, KERNEL, problem, changes.get("dataset"), 1.0, 10.0)


def standing(slug, best_s, spent=100.0, before_s=None):
    curve = [(1.0, before_s or best_s), (spent * 0.75, best_s)]
    return Standing(slug, spent, curve=curve)


class TestLastDoubling:
    def test_it_is_what_the_second_half_brought(self):
        assert last_doubling(Standing("a", 8, curve=[(1, 4.0), (3, 2.0), (6, 1.0)])) == pytest.approx(math.log(2))

    def test_a_flat_curve_brought_nothing(self):
        assert last_doubling(Standing("a", 8, curve=[(1, 1.0)])) == 0

    def test_where_the_first_half_found_nothing_its_first_time_counts(self):
        assert last_doubling(Standing("a", 8, curve=[(5, 3.0), (7, 1.0)])) == pytest.approx(math.log(3))


class TestDeficits:
    def test_siblings_do_the_same_work_with_other_ops(self):
        tasks = [task("a", "NN"), task("b", "NT"), task("other", "NN", 65)]
        at = {"a": standing("a", 1.0), "b": standing("b", 1.5), "other": standing("other", 9.0)}
        assert deficits(tasks, at) == {"a": 0.0, "b": pytest.approx(math.log(1.5))}

    def test_recorded_timings_of_different_gpus_are_no_siblings(self):
        tasks = [task("a", dataset="x"), task("b", dataset="y")]
        assert deficits(tasks, {"a": standing("a", 1.0), "b": standing("b", 2.0)}) == {}


class TestConstants:
    def test_who_lies_behind_deserves_more(self):
        tasks = [task("a", "NN"), task("b", "NT")]
        constants = gain_constants(tasks, {"a": standing("a", 1.0), "b": standing("b", 1.2)})
        assert constants["b"] > constants["a"] > 0

    def test_one_without_siblings_is_taken_for_an_average_one(self):
        tasks = [task("a", "NN"), task("b", "NT"), task("c", "NN", 65)]
        at = {"a": standing("a", 1.0), "b": standing("b", 1.2), "c": standing("c", 7.0)}
        constants = gain_constants(tasks, at)
        assert constants["c"] == pytest.approx((constants["a"] + constants["b"]) / 2)

    def test_nothing_is_given_up_because_all_stand_still(self):
        tasks = [task("a"), task("b", size=65)]
        constants = gain_constants(tasks, {"a": standing("a", 1.0), "b": standing("b", 2.0)})
        assert constants == {"a": 100 * LEAST_GAIN, "b": 100 * LEAST_GAIN}

    def test_before_anything_is_known_all_are_the_same(self):
        assert gain_constants([task("a"), task("b")], {"a": Standing("a"), "b": Standing("b")}) == {"a": 1.0, "b": 1.0}


class TestChances:
    """Of several kernels for one problem only the best counts."""

    def factors(self, *best_s, constant=10.0):
        tasks = [Task(f"k{at}", KERNEL, GemmProblem("s", "N", "N", 8, 8, 8), None, 1, 1, choice="c") for at in range(3)]
        standings = {one.slug: Standing(one.slug) for one in tasks}
        standings |= {f"k{at}": standing(f"k{at}", time_s) for at, time_s in enumerate(best_s)}
        return chances(tasks, standings, {one.slug: constant for one in tasks})

    def test_a_task_on_its_own_and_the_fastest_kernel_have_all_of_theirs(self):
        assert chances([task("a")], {"a": standing("a", 1.0)}, {"a": 1.0}) == {"a": 1.0}
        assert self.factors(1.0, 1.1)["k0"] == 1.0

    def test_one_that_has_not_begun_may_be_any(self):
        assert self.factors(1.0)["k1"] == 1.0

    def test_the_further_behind_the_less_and_at_last_nothing(self):
        near, far = self.factors(1.0, 1.02)["k1"], self.factors(1.0, 1.2)["k1"]
        assert 1.0 > near > far > 0.0
        assert 0.1 * far >= HOPELESS > 0.1 * math.exp(-math.log(2.0) / 0.1)
        assert self.factors(1.0, 2.0)["k1"] == 0.0

    def test_who_may_still_gain_much_is_not_given_up(self):
        assert self.factors(1.0, 2.0, constant=100.0)["k1"] > 0.4

    def test_one_of_which_nothing_works_is_given_up_once_another_works(self):
        tasks = [Task(slug, KERNEL, GemmProblem("s", "N", "N", 8, 8, 8), None, 1, 1, choice="c") for slug in "ab"]
        broken = Standing("b", 100.0)
        constants = {"a": 1.0, "b": 1.0}
        assert chances(tasks, {"a": standing("a", 1.0), "b": broken}, constants) == {"a": 1.0, "b": 0.0}
        assert chances(tasks, {"a": Standing("a", 100.0), "b": broken}, constants) == {"a": 1.0, "b": 1.0}


SHARES = st.lists(
    st.tuples(st.floats(0, 1e4), st.floats(1e-3, 1e3), st.floats(0, 1e5) | st.just(math.inf)), min_size=1, max_size=20
)


class TestAllot:
    def test_where_nothing_binds_shares_are_as_the_weights(self):
        assert allot(60, [0, 0, 0], [1, 2, 3], [math.inf] * 3) == pytest.approx([10, 20, 30])

    def test_what_was_spent_counts(self):
        assert allot(10, [20, 0, 0], [1, 1, 1], [math.inf] * 3) == pytest.approx([20, 5, 5])

    def test_what_one_cannot_have_goes_to_the_others(self):
        assert allot(60, [0, 0, 0], [1, 1, 1], [5, math.inf, math.inf]) == pytest.approx([5, 27.5, 27.5])

    @given(st.floats(0, 1e6), SHARES)
    def test_all_of_it_is_shared_out_and_never_more(self, room, shares):
        spent, weights, most = map(list, zip(*shares, strict=True))
        total = allot(room, spent, weights, most)
        given_out = sum(total) - sum(spent)
        slack = 1e-6 * (1 + room + sum(spent))
        assert given_out <= room + slack
        assert all(has <= got <= max(has, top) for has, got, top in zip(spent, total, most, strict=True))
        if given_out < room - slack:
            assert all(got >= top for got, top in zip(total, most, strict=True))

    def test_nobody_is_there(self):
        assert allot(10, [], [], []) == []
