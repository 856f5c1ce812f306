"""The formulas of a winner agree with its bundle at every size."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from winners import PROBLEMS, SMALL, a_winner, placed_with, split_k_winner

from mltune.dataset.dataset import load_dataset
from mltune.kernel.expressions import parse
from mltune.kernel.parts import Restriction
from mltune.kernel.reader import load_kernel
from mltune.results.winner import formula, launch_formulas, size_restrictions

KERNEL = load_kernel("gemm_simt")
WINNER = a_winner(PROBLEMS["d"])
CONFIGURATIONS = {name: column[:50] for name, column in load_dataset("h200-dgemm-nt-4096-random").columns.items()}
EXTENTS = st.integers(1, 100_000)


@given(st.integers(0, 49), EXTENTS, EXTENTS, EXTENTS)
def test_a_launch_at_any_size_follows_from_its_formulas(row, m, n, k):
    configuration = {name: int(column[row]) for name, column in CONFIGURATIONS.items()}
    winner = replace(WINNER, record=replace(WINNER.record, configuration=configuration))
    launch = KERNEL.launch(configuration, dict(winner.placed.variables) | {"m": m, "n": n, "k": k})

    texts = launch_formulas(winner)

    def value(text: str) -> int:
        return parse(text).evaluate({"m": m, "n": n, "k": k})

    assert tuple(map(value, texts["grid"])) == launch.grid
    assert tuple(map(value, texts["block"])) == launch.block
    assert value(texts["shared_bytes"]) == launch.shared_bytes


def test_a_workspace_has_a_formula():
    tiles = "ceil_div(m, 8) * ceil_div(n, 8)"
    assert launch_formulas(split_k_winner(PROBLEMS["d"]))["workspace_bytes"] == f"{tiles} * 3 * 64 * 8 + 4 * ({tiles})"


def test_formulas_name_nothing_but_the_sizes():
    texts = launch_formulas(WINNER)
    assert texts == {
        "grid": ["ceil_div(m, 32) * ceil_div(n, 32)", "1", "1"],
        "block": ["64", "1", "1"],
        "shared_bytes": str(3 * 8 * (33 + 33) * 8),
        "workspace_bytes": "0",
        "tensor_maps": [],
    }


@pytest.mark.parametrize(
    ("text", "put"),
    [
        ("m + two * -three", "m + -6"),
        ("m * (two - three)", "m * -1"),
        ("m ** two if three > two else n", "m ** 2"),
        ("m // (two - 2)", "m // 0"),
        ("k + 1 / (two - 2)", "k + 1 / 0"),
        ("max(m, double) / 4", "max(m, n * 2) / 4"),
        ("two == 2 or m == 1", "1"),
        ("two == 3 or m == 1", "m == 1"),
        ("two == 2 and m == 1 and n > 2", "m == 1 and n > 2"),
        ("two == 3 and m == 1", "0"),
        ("two == 2 and m", "1 and m"),
    ],
)
def test_what_is_known_is_put_in_and_worked_out(text, put):
    assert formula(parse(text), {"two": 2, "three": 3}, {"double": parse("n * two")}) == put


def test_only_conditions_on_the_size_are_told():
    assert size_restrictions(WINNER) == {}
    demanding = Restriction(parse("m % BLK_M == 0 and BLK_N <= 64"), "whole tiles")
    space = replace(KERNEL.space, restrictions=(*KERNEL.space.restrictions, demanding))
    winner = placed_with(WINNER, kernel=replace(KERNEL, space=space))
    assert size_restrictions(winner) == {f"m % {SMALL['BLK_M']} == 0": "whole tiles"}
