"""Bank conflicts and cache lines agree with a count lane by lane."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltune.cost.bound import LaneLayout, line_wavefronts, shared_wavefronts, traffic


def layout(width, *digits):
    """Return a layout of one configuration."""
    return LaneLayout(
        np.array([width]), [(np.array([radix], dtype=np.int64), np.array([stride])) for radix, stride in digits]
    )


def by_hand(width, digits, warp_size):
    """Return wavefronts and lines counted lane by lane."""
    radices = [range(radix) for radix, _ in digits]
    addresses = []
    for spelled in itertools.product(*reversed(radices)):
        addresses.append(sum(d * stride for d, (_, stride) in zip(reversed(spelled), digits, strict=True)))
    addresses = addresses[:warp_size]
    lanes = 128 // max(width, 4)
    wavefronts = lines = 0
    for start in range(0, warp_size, lanes):
        phase = addresses[start : start + lanes]
        banks: dict[int, set[int]] = {}
        for address in phase:
            for word in range(address // 4, address // 4 + max(width // 4, 1)):
                banks.setdefault(word % 32, set()).add(word)
        wavefronts += max(len(words) for words in banks.values())
        lines += len({address // 128 for address in phase})
    return wavefronts, lines


@pytest.mark.parametrize(
    ("width", "digits", "wavefronts"),
    [
        (4, [(32, 4)], 1),  # neighbours
        (4, [(32, 0)], 1),  # one word for all: a broadcast
        (4, [(32, 8)], 2),  # every other word
        (4, [(32, 128)], 32),  # a column of a tile 32 words wide
        (4, [(32, 132)], 1),  # the same, padded by a word
        (16, [(32, 16)], 4),  # 512 bytes take four phases
        (16, [(8, 16), (4, 0)], 4),
        (16, [(8, 32), (4, 0)], 8),  # eight lanes 32 bytes apart: two on each bank
        (8, [(32, 8)], 2),
    ],
)
def test_known_patterns(width, digits, wavefronts):
    assert shared_wavefronts(layout(width, *digits), 32)[0] == wavefronts


def test_a_wave_of_64_lanes_takes_twice_the_phases():
    assert shared_wavefronts(layout(4, (64, 4)), 64)[0] == 2


def test_lanes_beyond_the_last_digit_repeat_it():
    assert shared_wavefronts(layout(16, (8, 16)), 32)[0] == shared_wavefronts(layout(16, (8, 16), (32, 0)), 32)[0]


POWERS = st.sampled_from([1, 2, 4, 8, 16, 32])


@given(
    width=st.sampled_from([4, 8, 16]),
    split=st.tuples(POWERS, POWERS),
    strides=st.tuples(*[st.integers(0, 300)] * 3),
    warp_size=st.sampled_from([32, 64]),
)
def test_simulation_agrees_with_counting_lane_by_lane(width, split, strides, warp_size):
    digits = [(radix, stride * width) for radix, stride in zip((*split, warp_size), strides, strict=True)]
    wavefronts, lines = by_hand(width, digits, warp_size)
    assert shared_wavefronts(layout(width, *digits), warp_size)[0] == wavefronts
    assert line_wavefronts(layout(width, *digits), warp_size)[0] == lines


@given(st.integers(0, 2**32))
def test_a_table_of_layouts_is_its_rows(seed):
    rng = np.random.default_rng(seed)
    width = rng.choice([4, 8, 16], size=40)
    radix, stride, far = rng.choice([1, 2, 8, 32], 40), rng.integers(0, 2**40, 40) * 4, rng.integers(0, 2**40, 40) * 4
    together = shared_wavefronts(LaneLayout(width, [(radix, stride), (np.full(40, 32), far)]), 32)
    apart = [
        shared_wavefronts(layout(w, (r, s), (32, f)), 32)[0]
        for w, r, s, f in zip(width, radix, stride, far, strict=True)
    ]
    np.testing.assert_array_equal(together, apart)


def test_traffic_adds_up_accesses_and_weighs_conflicts():
    strided, plain = layout(4, (32, 128)), layout(4, (32, 4))
    found = traffic([("shared", np.array([1.0]), strided), ("shared", np.array([3.0]), plain)], 32, 1)
    assert found.shared_instructions[0] == 4
    assert found.shared_wavefronts[0] == 32 + 3
    assert found.bank_conflicts[0] == pytest.approx(35 / 4)
    through_cache = traffic([("global", np.array([2.0]), strided)], 32, 1)
    assert through_cache.global_wavefronts[0] == 2 * 32
    assert through_cache.bank_conflicts[0] == 1


def test_no_configurations_have_no_traffic():
    nothing = np.empty(0, dtype=np.int64)
    assert (
        len(traffic([("shared", np.empty(0), LaneLayout(nothing, [(nothing, nothing)]))], 32, 0).shared_wavefronts) == 0
    )
