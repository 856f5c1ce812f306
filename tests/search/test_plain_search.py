"""The search of the adapters: any values, any objective, results in any order."""

import math

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mltune.errors import ExpressionError, SpaceError, UsageError
from mltune.kernel.configurations import ConfigurationTable, list_configurations
from mltune.kernel.space import LARGE
from mltune.search.plain_search import PlainSearch, symmetric_logs

PARAMETERS = {
    "block": [16, 32, 64, 128, 256],
    "factor": [1.5, 0.5, 1.0],
    "order": ["row", "column"],
    "vector": [False, True],
    "limit": [64, None, 32],
}


SCALES = ["log", pytest.param("symlog", marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def table():
    return list_configurations(PARAMETERS, ["block * factor <= 256"])


def cost(configuration):
    block, factor, order, vector, limit = configuration
    return 1.0 + abs(math.log2(block / 64)) + factor + (order == "row") + (not vector) + 0.2 * (limit is not None)


def play(table, count, *, under_way=1, transformed=lambda cost: cost, rng=None, **options):
    """Search with some configurations under way, and return the rows in the order of the proposals."""
    search = PlainSearch(table, **options)
    asked, waiting = [], []
    while len(asked) < count:
        new = search.ask(under_way - len(waiting))
        if not new:
            break
        asked += new
        waiting += new
        row = waiting.pop(0 if rng is None else int(rng.integers(len(waiting))))
        search.tell(row, transformed(cost(table[row])))
    return asked


class TestConfigurations:
    def test_every_combination_that_satisfies_the_restrictions_is_listed_once(self, table):
        every = [table[row] for row in range(len(table))]
        assert len(set(every)) == len(table) == 14 * 2 * 2 * 3
        assert all(block * factor <= 256 for block, factor, *_ in every)
        assert [table.row_of(one) for one in every] == list(range(len(table)))
        assert table.row_of((256, 1.5, "row", False, None)) == -1
        assert table.row_of(("nonsense", 1.5, "row", False, None)) == -1

    def test_whole_numbers_stand_for_themselves_and_others_for_their_places(self, table):
        assert table.space.values["block"] == (16, 32, 64, 128, 256)
        rows = {factor: table.row_of((16, factor, "row", True, None)) for factor in PARAMETERS["factor"]}
        codes = table.space.rows(np.array([rows[0.5], rows[1.0], rows[1.5]]))["factor"]
        assert codes.tolist() == [0, 1, 2]
        limits = [table.row_of((16, 0.5, "row", True, limit)) for limit in (None, 32, 64)]
        assert table.space.rows(np.array(limits))["limit"].tolist() == [0, 1, 2]

    def test_restrictions_are_expressions_and_functions(self):
        listed = list_configurations(
            PARAMETERS, ["block <= 64", "1 > 0", lambda one: one["order"] == "row" or one["limit"] is None]
        )
        assert len(listed) == 3 * 3 * 2 * (3 + 1)

    @pytest.mark.parametrize(
        "values", [[2**60, 1], [2**53, 1], [-(2**70), 3.5], [math.inf, 1.0], [np.int64(3), np.float32(2)]]
    )
    def test_numbers_of_any_size_are_accepted(self, values):
        listed = list_configurations({"a": values})
        assert sorted(listed[row][0] for row in range(2)) == sorted(values)

    @pytest.mark.parametrize(
        ("restriction", "error", "message"),
        [
            ("blok < 3", UsageError, "did you mean 'block'"),
            ("order == 1", UsageError, "use a function"),
            ("limit < 40", UsageError, "use a function"),
            ("block <", ExpressionError, "valid Python arithmetic"),
            ("__import__('os')", ExpressionError, "is no part of an expression"),
            ("block > 999", SpaceError, r"no configuration satisfies all restrictions \(block > 999\)"),
        ],
    )
    def test_restrictions_that_cannot_be_are_refused(self, restriction, error, message):
        with pytest.raises(error, match=message):
            list_configurations(PARAMETERS, [restriction])

    @pytest.mark.parametrize("values", [[], [1, 1], [1, True]])
    def test_values_are_distinct(self, values):
        with pytest.raises(UsageError, match="distinct"):
            list_configurations({"a": values})

    def test_a_parameter_is_needed(self):
        with pytest.raises((UsageError, SpaceError)):
            list_configurations({})

    def test_a_space_that_is_too_large_is_refused_at_once(self):
        with pytest.raises(SpaceError, match=r"at most 8,000,000"):
            list_configurations({f"p{at}": range(10) for at in range(30)})

    def test_restrictions_are_applied_as_soon_as_they_can_be(self):
        many = {f"p{at}": range(10) for at in range(12)}
        assert len(list_configurations(many, [f"p{at} == p{at + 1}" for at in range(11)])) == 10


@pytest.mark.system
def test_an_earlier_part_is_known(table):
    """With what was told and is under way the search goes on as if it had never ended."""
    asked = play(table, 30, seed=2)
    search = PlainSearch(table, seed=2)
    search.resume({row: cost(table[row]) for row in asked[:20]}, asked[20:22])
    assert not {*search.ask(40)} & {*asked[:22]}
    again = PlainSearch(table, seed=2)
    again.resume({row: cost(table[row]) for row in asked[:20]})
    assert again.ask() == [asked[20]]


def test_a_large_space_is_searched_at_once():
    """No proposal compares all rows with all candidates."""
    large = list_configurations({f"p{at}": [1, 2, 4, 8, 16, 32] for at in range(7)}, ["p0 * p1 * p2 <= 256"])
    assert len(large) > LARGE
    search = PlainSearch(large, seed=1)
    rows = []
    for _ in range(30):
        rows += search.ask()
        search.tell(rows[-1], 1.0 + sum(abs(math.log2(value / 8)) for value in large[rows[-1]]))
    assert len(set(rows)) == 30
    near, itself = large.space.nearest({name: np.array([32, 4]) for name in large.names}).tolist()
    assert large[itself] == (4,) * 7
    assert sum(value == 32 for value in large[near]) >= 4


class TestSearch:
    @pytest.mark.parametrize("scale", ["log", "symlog"])
    @pytest.mark.parametrize("under_way", [1, 3])
    def test_everything_is_proposed_once(self, table, scale, under_way):
        small = list_configurations({"a": [1, 2, 3], "b": ["x", "y"]})
        search = PlainSearch(small, scale=scale)
        proposed = []
        while new := search.ask(under_way):
            proposed += new
            for row in reversed(new):
                search.tell(row, None if row == 2 else 1.0 + row)
        assert sorted(proposed) == list(range(6))

    @pytest.mark.parametrize("scale", SCALES)
    def test_a_search_finds_a_fast_configuration(self, table, scale):
        every = sorted(cost(table[row]) for row in range(len(table)))
        for seed in range(3):
            found = min(cost(table[row]) for row in play(table, 40, seed=seed, scale=scale))
            assert every.index(found) <= 4

    @pytest.mark.parametrize("scale", SCALES)
    def test_the_same_calls_make_the_same_proposals(self, table, scale):
        def asked(seed):
            return play(table, 30, under_way=3, rng=np.random.default_rng(0), seed=seed, scale=scale)

        assert asked(5) == asked(5) != asked(6)

    def test_a_search_that_recalls_proposes_what_one_that_learned_step_by_step_does(self, table):
        rows = play(table, 30, seed=2)
        again = PlainSearch(table, seed=2)
        for row in rows[:-1]:
            again.tell(row, cost(table[row]))
        assert again.ask() == rows[-1:]

    def test_a_result_that_is_corrected_is_learned_as_if_it_had_been_told_at_first(self, table):
        rows = play(table, 30, seed=2)
        search = PlainSearch(table, seed=2)
        for row in rows[:-1]:
            search.tell(row, None if row == rows[3] else cost(table[row]))
        search.ask()  # fits the models
        search.tell(rows[3], cost(table[rows[3]]))
        again = PlainSearch(table, seed=2)
        again.resume({row: cost(table[row]) for row in rows[:-1]}, [*search._running])
        assert search.ask() == again.ask()

    def test_what_is_under_way_counts_in_a_search_that_recalls(self, table):
        rows = play(table, 20, seed=2)
        search = PlainSearch(table, seed=2)
        for row in rows[:15]:
            search.tell(row, cost(table[row]))
        search.begin(rows[15:])
        assert not set(search.ask(30)) & set(rows)

    @pytest.mark.parametrize("unit", [2.0**-40, 2.0**40, -1.0, -(2.0**70)])
    @pytest.mark.sampled(1, nightly=4)
    def test_the_unit_and_the_sign_of_any_objective_do_not_matter(self, table, unit):
        expected = play(table, 40, scale="symlog", seed=1)
        options = {"transformed": lambda x: unit * x, "maximise": unit < 0}
        assert play(table, 40, scale="symlog", seed=1, **options) == expected

    @pytest.mark.parametrize(
        "transformed",
        [lambda x: -1 / x, lambda x: x - 1e6, lambda x: 1e-9 * x - 1.0, lambda x: math.exp(8 * x), lambda x: x**3 - 40],
    )
    @pytest.mark.sampled(1, nightly=2)
    def test_objectives_of_any_sign_and_size_are_searched(self, table, transformed):
        every = sorted(cost(table[row]) for row in range(len(table)))
        for seed in range(3):
            rows = play(table, 50, scale="symlog", seed=seed, transformed=transformed)
            assert every.index(min(cost(table[row]) for row in rows)) <= 6

    @given(st.floats(min_value=1e-150, max_value=1e150))
    @settings(max_examples=5)
    def test_the_unit_of_times_does_not_matter(self, table, unit):
        expected = play(table, 20, seed=1)
        assert play(table, 20, seed=1, transformed=lambda x: unit * x) == expected

    @pytest.mark.parametrize("scale", SCALES)
    def test_failures_are_learned_whatever_the_unit(self, table, scale):
        def failing(cost, unit=1.0):
            return None if cost > 4.5 else unit * cost

        failures = [cost(table[row]) > 4.5 for row in range(len(table))]
        found = [play(table, 30, scale=scale, seed=seed, transformed=failing) for seed in range(4)]
        assert np.mean([[failures[row] for row in rows[8:]] for rows in found]) < 0.75 * np.mean(failures)
        for unit in (2.0**-30, 2.0**30):
            assert play(table, 30, scale=scale, transformed=lambda x, unit=unit: failing(x, unit)) == found[0]

    @pytest.mark.parametrize("result", [None, math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("scale", ["log", "symlog"])
    def test_results_that_are_no_numbers_are_failures(self, table, scale, result):
        search = PlainSearch(table, scale=scale)
        for _ in range(12):
            (row,) = search.ask()
            search.tell(row, result)
        for _ in range(12):
            (row,) = search.ask()
            search.tell(row, 1.0)
        assert len(search.ask()) == 1

    def test_a_result_may_be_reported_again(self, table):
        search = PlainSearch(table)
        (row,) = search.ask()
        search.tell(row, None)
        search.tell(row, 2.0)
        assert search.ask() != [row]

    def test_the_log_of_optuna_stays_as_its_user_set_it(self, table):
        level = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.DEBUG)
        try:
            play(table, 12, scale="symlog")
            assert optuna.logging.get_verbosity() == optuna.logging.DEBUG
        finally:
            optuna.logging.set_verbosity(level)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30))
def test_symmetric_logs_are_finite_or_far_away_and_keep_the_order(values):
    scores = symmetric_logs(np.array(values))
    assert not np.isnan(scores).any()
    rising = scores[np.argsort(values)]
    assert np.all(rising[1:] >= rising[:-1])  # a difference of what is far away is no number
    assert np.allclose(symmetric_logs(-np.array(values)), -scores, rtol=1e-12)


@pytest.mark.parametrize("values", [[3.0], [0.0, 0.0], [1.0, 1.0, 1.0, 5.0], [1e308, -1e308, 0.0], [5e-324, 0.0]])
def test_symmetric_logs_of_equal_values_are_equal(values):
    scores = symmetric_logs(np.array(values))
    assert np.isfinite(scores).all()
    assert len(set(scores)) == len(set(values))


def test_rows_are_given_by_their_values():
    table = ConfigurationTable.from_rows({"a": [3, 1], "b": ["x", "y"]}, [(1, "y"), (3, "x")])
    assert [table[0], table[1]] == [(1, "y"), (3, "x")]
    with pytest.raises(SpaceError, match="distinct"):
        ConfigurationTable.from_rows({"a": [3, 1]}, [(1,), (1,)])
