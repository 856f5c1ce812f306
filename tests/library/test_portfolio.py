"""The choice of a portfolio and of its dispatcher."""

from itertools import combinations

import numpy as np
import pytest

from mltune.library import dispatcher as dispatcher_module
from mltune.library.dispatcher import expected, inputs, learn
from mltune.library.measured import Measured, choose
from mltune.library.portfolio import choose_portfolio, geometric_mean, shares


def speeds(seed, sizes=30, configurations=12):
    """Return shares of configurations that are each good in a region of sizes."""
    rng = np.random.default_rng(seed)
    at, best_at = rng.uniform(5, 13, (sizes, 2)), rng.uniform(5, 13, (configurations, 2))
    distance = np.linalg.norm(at[:, None] - best_at, axis=2)
    times = np.exp(0.1 * distance + rng.normal(0, 0.02, distance.shape))
    return (2**at).astype(np.int64), times


@pytest.mark.parametrize("seed", range(5))
def test_the_greedy_choice_is_nearly_the_best_of_all(seed):
    _, times = speeds(seed)
    speed = shares(times)
    chosen = choose_portfolio(speed, np.ones(30), np.zeros(12, bool), most=3, floor=0.0)
    best = max(speed[:, list(one)].max(axis=1).mean() for one in combinations(range(12), 3))
    assert len(chosen) == 3
    assert speed[:, chosen].max(axis=1).mean() > 0.98 * best


def test_a_size_of_little_weight_does_not_fall_below_the_floor():
    speed = np.array([[1.0, 0.9], [0.3, 0.85]])
    weights = np.array([1000.0, 1.0])
    assert choose_portfolio(speed, weights, np.zeros(2, bool), most=1, floor=0.8) == [1]
    assert choose_portfolio(speed, weights, np.zeros(2, bool), most=1, floor=0.0) == [0]


def test_one_that_is_valid_everywhere_is_chosen_even_if_it_is_slow():
    speed = np.array([[1.0, 0.9, 0.1], [0.0, 1.0, 0.1]])
    assert choose_portfolio(speed, np.ones(2), np.array([False, False, True]), most=2)[0] == 2


def test_configurations_that_gain_nothing_are_left_out():
    speed = np.array([[1.0, 1.0, 0.9995], [1.0, 0.9995, 1.0]])
    assert len(choose_portfolio(speed, np.ones(2), np.zeros(3, bool), most=3)) == 1


def of_unknown_work(tiles):
    """Return tiles of launches, of which it is not known what each does."""
    return np.stack([tiles, np.zeros_like(tiles)], axis=-1)


def learned(sizes, times):
    return learn(sizes, times, np.ones(len(sizes)), of_unknown_work(np.ones(times.shape)), 132)


def test_a_dispatcher_finds_regions_and_orders_all_configurations():
    sizes, times = speeds(3, sizes=200, configurations=4)
    speed = shares(times)
    dispatcher = learned(sizes[:150], times[:150])
    orders = [dispatcher.order(size, np.ones((4, 2))) for size in sizes[150:]]
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders)
    reached = [speed[150 + number, order[0]] for number, order in enumerate(orders)]
    assert geometric_mean(reached) > geometric_mean(speed[150:].max(axis=1)) * 0.96
    assert geometric_mean(reached) > geometric_mean(speed[150:].mean(axis=1)) * 1.05


def test_a_dispatcher_sees_alignment():
    new = (1101, 1104, 1192, 1196)
    sizes = np.array([[size, 64] for size in range(1000, 1256) if size not in new])
    even = sizes[:, 0] % 8 == 0
    dispatcher = learned(sizes, np.where(even[:, None], [1.0, 2.0], [2.0, 1.0]))
    assert [dispatcher.order((size, 64), np.ones((2, 2)))[0] for size in new] == [1, 0, 0, 1]
    assert inputs(np.array([[0, 48]])).tolist() == [[0.0, np.log2(48), 0.0, 4.0, np.log2(48), -np.log2(48)]]


def measured_of(sizes, times, found_at, tiles=None, crossed=None, seen=None):
    """Return times of candidates that are valid at every size; unless it is said, all were timed and work alike."""
    every = np.ones(len(times), bool)
    return Measured(
        np.array(sizes),
        times,
        np.ones(len(times)),
        np.ones(times.shape[1], bool),
        found_at,
        np.ones((*times.shape, 2)) if tiles is None else tiles,
        132,
        every if crossed is None else crossed,
        times if seen is None else seen,
    )


def test_every_size_is_held_out_once():
    sizes, times = speeds(1, sizes=40)
    measured = measured_of(sizes, times, tuple(frozenset({n, n + 12}) for n in range(12)))
    chosen = choose(measured, most=5, floor=0.8)
    report = chosen.report(measured, np.full(40, np.nan))
    assert len(chosen.held_out) == 40
    assert report["portfolio"]["mean"] >= report["dispatched"]["mean"] >= report["held_out"]["mean"] - 0.02
    assert report["held_out"]["least"] == min(chosen.held_out)
    assert len(report["sizes"]) == 40
    assert len(chosen.chosen) <= 5


def test_what_is_expected_around_the_sizes_decides_there_and_never_at_a_listed_size():
    """The timed sizes are small; the model knows that the second candidate is faster from 1024 on."""
    sizes = np.arange(64, 256, 8)[:, None]
    times = np.where(sizes == 64, [[1.5, 1.0]], [[1.0, 1.3]]) * sizes
    measured = measured_of(sizes, times, (frozenset({0}), frozenset({1})))

    def around(numbers):
        further = np.arange(64, 4096, 64)[:, None]
        expected_s = np.where(further >= 1024, [[2.0, 1.5]], [[3.0, 1.0]]) * further
        return further, expected_s[:, numbers], np.ones((len(further), len(numbers), 2))

    def fastest(size, expected):
        chosen = choose(measured, most=2, floor=0.8, are_listed=True, around=expected)
        return chosen.chosen[chosen.dispatcher.order([size], np.ones((2, 2)))[0]]

    assert (fastest(3000, None), fastest(3000, around)) == (0, 1)
    assert [fastest(size, around) for size in (64, 72, 200)] == [1, 0, 0]


def test_what_the_tuning_of_a_size_alone_found_is_held_out_with_it():
    times = np.array([[1.0, 9.0, 1.5], [9.0, 1.0, 1.5]])
    found_at = (frozenset({0}), frozenset({1}), frozenset({0, 1}))
    held_out = choose(measured_of([[64], [4096]], times, found_at), most=3, floor=0.8).held_out
    assert held_out == pytest.approx([1 / 9, 1 / 9])  # each by the winner of the other, which it alone prefers


def test_one_size_has_one_answer():
    measured = measured_of([[64, 64]], np.array([[2.0, 1.0]]), (frozenset({0}),) * 2)
    chosen = choose(measured, most=3, floor=0.8)
    assert chosen.chosen == (1,)
    assert chosen.dispatcher.order((7, 9), [(1, 1)]) == (0,)


def reached(times, sizes, tiles, seen):
    """Return what a dispatcher that has seen the first sizes reaches at the others."""
    dispatcher = learn(sizes[:seen], times[:seen], np.ones(seen), tiles[:seen], 132)
    first = [dispatcher.order(size.tolist(), of)[0] for size, of in zip(sizes[seen:], tiles[seen:], strict=True)]
    return geometric_mean([shares(times)[seen + at, one] for at, one in enumerate(first)])


def test_waves_of_tiles_are_seen():
    """The tile of one configuration is twice that of the other: which one fills its last wave better changes often."""
    rng = np.random.default_rng(0)
    sizes = np.exp(rng.uniform(np.log(500), np.log(6000), (160, 2))).astype(np.int64)
    tile = np.array([[64, 64], [128, 128], [64, 256]])
    tiles = np.prod(np.ceil(sizes[:, None] / tile), axis=2)
    waves, ones = np.ceil(tiles / 132), np.ones(tiles.shape)
    times = (2e-6 + waves * tile.prod(axis=1) * [1.2e-9, 1e-9, 1.05e-9]) * np.exp(rng.normal(0, 0.01, tiles.shape))
    with_tiles, without = (reached(times, sizes, of_unknown_work(one), 60) for one in (tiles, ones))
    assert with_tiles > 0.99 > without + 0.005


def test_what_a_tile_moves_is_seen():
    """Rows of more than 1,000 elements are read twice by one configuration, which is the faster one below."""
    rng = np.random.default_rng(0)
    sizes = np.exp(rng.uniform(np.log(64), np.log(8192), (160, 2))).astype(np.int64)
    rows, columns = sizes.T
    tiles = np.stack([rows, np.ceil(rows / 2)], axis=1)
    moved = np.stack([columns * np.where(columns > 1000, 2, 1), 2 * columns], axis=1)
    times = 2e-6 + tiles * moved * [1e-11, 1.3e-11]
    found = reached(times, sizes, np.stack([tiles, moved], axis=-1), 40)
    assert found > 0.99 > reached(times, sizes, of_unknown_work(tiles), 40) + 0.01


def test_trees_correct_what_waves_do_not_explain(monkeypatch):
    """One configuration is slow between two sizes of n, for a reason that no term has."""
    rng = np.random.default_rng(0)
    sizes = np.exp(rng.uniform(np.log(64), np.log(8192), (300, 2))).astype(np.int64)
    counts = np.prod(np.ceil(sizes[:, None] / np.array([[64, 64], [128, 128]])), axis=2)
    tiles = of_unknown_work(counts)
    slow = (sizes[:, 1] > 300) & (sizes[:, 1] < 1500)
    times = 1e-6 + np.ceil(counts / 132) * [1e-6, 3.5e-6] * np.where(slow[:, None], [3.0, 1.0], 1.0)
    with_trees = reached(times, sizes, tiles, 200)
    monkeypatch.setattr(dispatcher_module, "_TREES", 0)
    assert with_trees > reached(times, sizes, tiles, 200) + 0.02


def test_sizes_where_the_chosen_alone_were_timed_teach_the_dispatcher_and_choose_nothing():
    times = np.array([[1.0, 1.6, 3.0], [3.0, 1.6, 1.0], [9.0, 1.0, np.nan]])
    found_at = (frozenset({0, 1}), frozenset({0, 1}), frozenset({0, 1}))
    crossed = np.array([True, True, False])
    seen = np.where(crossed[:, None], times, np.nan)
    measured = measured_of([[64], [128], [4096]], times, found_at, crossed=crossed, seen=seen)
    chosen = choose(measured, most=2, floor=0.0)
    assert len(chosen.held_out) == 2
    assert set(chosen.chosen) == {0, 2} == set(measured.portfolio(most=2, floor=0.0))


def test_what_is_expected_to_be_fast_where_nothing_was_timed_is_chosen():
    """Large tiles are never the best at the sizes with times, but the waves of those say where they are."""
    small = [(m, n) for m in (100, 200, 400, 800, 1600) for n in (100, 300, 900, 1900)]
    sizes = np.array(small + [(9000, 9000 + 50 * n) for n in range(20)])
    tiles = np.ceil(sizes[:, :1] / [32, 128]) * np.ceil(sizes[:, 1:] / [32, 128])
    times = 2e-6 + np.ceil(tiles / 132) * [1e-6, 1.3e-5]
    timed = np.arange(40) < 20
    assert (times[timed, 0] < times[timed, 1]).all()
    assert (times[~timed, 0] > 1.1 * times[~timed, 1]).all()
    found_at = (frozenset({0}), frozenset({0}))
    seen = np.where(timed[:, None], times, np.nan)
    measured = measured_of(sizes, seen, found_at, of_unknown_work(tiles), timed)
    assert set(measured.portfolio(most=2, floor=0.8)) == {0, 1}


def test_what_was_timed_where_others_were_not_says_what_is_expected_elsewhere():
    """The second one is valid at large sizes alone, of which none has the times of both."""
    sizes, tiles = np.array([[n] for n in range(1, 9)]), np.ones((8, 2, 2))
    tiles[:4, 1] = np.nan
    seen = np.array([[1.0 * n, np.nan] for n in range(1, 5)] + [[np.nan, 0.5 * n] for n in (5, 6, 7)] + [[np.nan] * 2])
    crossed = np.arange(8) < 4
    times = np.where(crossed[:, None], seen, np.nan)
    measured = measured_of(sizes, times, (frozenset({7}),) * 2, tiles, crossed, seen)
    assert measured.speed()[:, 1].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert measured.speed()[7, 0] == pytest.approx(0.5, rel=0.01)


def test_nothing_is_expected_of_what_is_not_valid_or_has_no_time():
    sizes, tiles = np.array([[64], [128]]), of_unknown_work(np.array([[1.0, 2.0], [np.nan, 3.0]]))
    found = expected((sizes, np.array([[1.0, np.nan], [np.nan, np.nan]]), tiles), sizes, tiles, 132)
    assert np.isfinite(found).tolist() == [[True, False], [False, False]]


def test_where_nothing_can_be_held_out_what_was_measured_decides():
    times = np.array([[1.0, np.nan], [np.nan, 1.0]])
    found_at = (frozenset({0}), frozenset({1}))
    tiles = of_unknown_work(np.array([[4, np.nan], [np.nan, 128]]))
    chosen = choose(measured_of([[64], [4096]], times, found_at, tiles), most=3, floor=0.8)
    first = [chosen.dispatcher.order((n,), of_size)[0] for n, of_size in zip((64, 4096), tiles, strict=True)]
    assert [chosen.chosen[one] for one in first] == [0, 1]


def test_what_was_found_at_the_sizes_of_one_part_alone_holds_nothing_out_there():
    """Two sizes are tuned, both in one part: without them there is no candidate."""
    times = np.array([[1.0, 2.0]] * 9)
    found_at = (frozenset({3}), frozenset({3}))
    measured = measured_of(np.arange(64, 73)[:, None], times, found_at)
    chosen = choose(measured, most=2, floor=0.8)
    assert 0 < len(chosen.held_out) < 9
    assert chosen.report(measured, np.full(9, np.nan))["held_out"]["least"] == 1.0
