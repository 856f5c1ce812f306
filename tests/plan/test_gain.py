"""What more time is expected to bring, and sharing it out."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltune.plan.gain import LEAST_GAIN, allot, deficits, gain_constants, last_doubling
from mltune.plan.plan import Standing, Task
from mltune.problem.gemm import GemmProblem


def task(slug, ops="NN", size=64, **changes):
    problem = GemmProblem("s", *ops, size, size, size)
    return Task(slug, "gemm_simt", problem, changes.get("dataset"), 1.0, 10.0)


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
