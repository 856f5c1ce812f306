"""The number of distinct configurations: exact for few, near for many, the same in whatever parts it was counted."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltune.records.distinct import KEPT, DistinctCount


def counted(*parts):
    count = DistinctCount()
    for part in parts:
        count.add(np.array(part, dtype=np.int64))
    return count


@given(st.lists(st.lists(st.integers(0, 2**62), max_size=60), max_size=6))
def test_few_are_counted_exactly(parts):
    assert counted(*parts).estimate == len(set().union(*parts))


@pytest.mark.parametrize("size", [KEPT, 5_000, 300_000])
@pytest.mark.parametrize("first", [0, 10**12])
def test_many_are_counted_within_a_tenth(size, first):
    assert counted(range(first, first + size)).estimate == pytest.approx(size, rel=0.1)


@given(st.lists(st.integers(0, 400)), st.lists(st.integers(0, 400)))
def test_some_can_be_left_out(added, others):
    assert counted(added).without(np.array(others, dtype=np.int64)) == len(set(added) - set(others))


def test_of_many_the_share_that_is_left_is_an_estimate():
    assert counted(range(20_000)).without(np.arange(15_000, 40_000)) == pytest.approx(15_000, rel=0.1)


def test_what_was_added_before_and_the_order_change_nothing():
    once, parts = counted(range(9000)), [range(5000, 9000), range(6000), range(100)]
    assert counted(*parts).to_json() == once.to_json()
    again = DistinctCount.from_json(json.loads(json.dumps(counted(*parts[:2]).to_json())))
    again.add(np.arange(7000))
    assert again.to_json() == once.to_json()


@pytest.mark.parametrize(
    "damaged",
    [None, {}, "12", 3, [-1], [1.5], [True], [None], ["1"], [2**53], [[1]], [float("nan")], list(range(1025))],
)
def test_what_is_no_number_on_record_is_refused(damaged):
    with pytest.raises(ValueError, match="whole numbers"):
        DistinctCount.from_json(damaged)
