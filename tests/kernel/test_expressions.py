"""The expression language: values, undefined rows, and errors."""

import ast
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltune.errors import ExpressionError
from mltune.kernel.evaluation import FUNCTIONS
from mltune.kernel.expressions import MAX_TEXT, parse

A = np.array([1, 2, 3, 4, 8])
B = np.array([0, 1, 2, 0, 4])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a + b * 2", [1, 4, 7, 4, 16]),
        ("-a + +b", [-1, -1, -1, -4, -4]),
        ("a // 2", [0, 1, 1, 2, 4]),
        ("-a // 2", [-1, -1, -2, -2, -4]),
        ("a % 3", [1, 2, 0, 1, 2]),
        ("a / 2", [0.5, 1.0, 1.5, 2.0, 4.0]),
        ("a ** 2", [1, 4, 9, 16, 64]),
        ("2 ** b", [1, 2, 4, 1, 16]),
        ("1 < a <= 4", [False, True, True, True, False]),
        ("a > 1 and b > 1", [False, False, True, False, True]),
        ("a > 7 or b == 0", [True, False, False, True, True]),
        ("not a > 1", [True, False, False, False, False]),
        ("a and b", [False, True, True, False, True]),
        ("a if b else -a", [-1, 2, 3, -4, 8]),
        ("(a > 1) + (b > 1)", [0, 1, 2, 1, 2]),
        ("min(a, b, 2)", [0, 1, 2, 0, 2]),
        ("max(a, 3)", [3, 3, 3, 4, 8]),
        ("abs(b - a)", [1, 1, 1, 4, 4]),
        ("ceil(a / 3)", [1, 1, 1, 2, 3]),
        ("floor(a / 3)", [0, 0, 1, 1, 2]),
        ("ceil_div(a, 3)", [1, 1, 1, 2, 3]),
        ("log2(a)", [0.0, 1.0, math.log2(3), 2.0, 3.0]),
        ("is_pow2(b)", [False, True, True, False, True]),
    ],
)
def test_columns(text: str, expected: list[float]) -> None:
    assert np.asarray(parse(text).evaluate({"a": A, "b": B})).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("text", ["7 // 2", "max(x, 3) ** 2", "1 if x > 2 else y", "ceil(x / 3)", "log2(8)", "x == 4"])
def test_numbers_give_numbers(text: str) -> None:
    assert isinstance(parse(text).evaluate({"x": 4}), int | float)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a % b == 0", [False, True, False, False, True]),
        ("a % b != 1", [False, True, False, False, True]),
        ("not a % b == 0", [False, False, True, False, False]),
        ("b == 0 or a % b == 0", [True, True, False, True, True]),
        ("b != 0 and a // b > 1", [False, True, False, False, True]),
        ("(a // b if b > 0 else 2) == 2", [True, True, False, True, True]),
        ("log2(b) >= 0", [False, True, True, False, True]),
        ("a % 0 == 0", [False] * 5),
        ("a > 0 or a % 0", [True] * 5),
    ],
)
def test_a_restriction_does_not_hold_where_it_is_undefined(text: str, expected: list[bool]) -> None:
    assert np.broadcast_to(parse(text).holds({"a": A, "b": B}), 5).tolist() == expected


@pytest.mark.parametrize(
    "text",
    [
        *(
            "x in [1, 2]",
            "x not in (1, 2, y)",
            "x in range(1, 9, 3)",
            "x in range(9, 1, -3)",
            "x in []",
            "0 < x in {1, 4}",
        ),
        *("x > 2 or True", "(x > 2) & (y > 2)", "x & 3 | y ^ 5", "x << 3 > y >> 1", "~x & 1", "int(x / 3) == 1"),
        *(
            "round(x / 2) == 2",
            "math.log2(x) is 3.0 or x is not 4",
            "len([x, y]) == 2",
            "sum([x, y]) == 9",
            "sum([]) == 0",
        ),
        *("any([x == 2, y == 3])", "all((x, y))", "all(n % 2 == 0 for n in [x, y])", "any([])", "bool(x) == True"),
        *("sum(x * n for n in range(4)) > y", "max([x, y]) == min((x, 8))", "pow(x, 2) < y", "math.sqrt(x) == 2"),
    ],
)
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_pythons_notation_of_conditions_means_what_it_means_in_python(text: str) -> None:
    x, y = (column.reshape(-1) for column in np.meshgrid(np.arange(1, 17), [1, 2, 3, 8, 40]))
    code = compile(text, "restriction", "eval")
    names = {"math": math, **{function.__name__: function for function in (any, all, len, sum, min, max, int, round)}}
    scope = {**names, "bool": bool, "pow": pow, "range": range, "True": True, "__builtins__": {}}
    expected = [bool(eval(code, {**scope, "x": a, "y": b})) for a, b in zip(x.tolist(), y.tolist(), strict=True)]  # noqa: S307
    assert np.broadcast_to(parse(text).holds({"x": x, "y": y}), len(x)).tolist() == expected


def test_texts_are_members_of_lists() -> None:
    layouts = np.array(["row", "column", "tiled"])
    assert parse("layout in ['row', 'tiled']").holds({"layout": layouts}).tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("text", "part"), [("x + foo(y) > 1", "foo(y)"), ("x[0] > 1", "x[0]"), ("len(x) > 2", "len(x)")]
)
def test_the_error_of_an_unknown_part_names_it_and_offers_a_function(text: str, part: str) -> None:
    with pytest.raises(ExpressionError, match="Python function in place of a text") as caught:
        parse(text)
    assert f"`{part}`" in str(caught.value)


def test_a_shift_by_a_negative_count_holds_nowhere() -> None:
    assert parse("1 << (a - 2) >= 0").holds({"a": np.array([1, 2, 3])}).tolist() == [False, True, True]
    with pytest.raises(ExpressionError, match="take integers"):
        parse("1.5 & a").evaluate({"a": 1})


def test_an_undefined_value_is_refused() -> None:
    with pytest.raises(ExpressionError, match="divides by zero"):
        parse("a // b").evaluate({"a": A, "b": B})


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "a +",
            "a.b",
            "a[0]",
            "'x'",
            "None",
            "lambda: 1",
            "a := 3",
            "[a]",
            "{a}",
            "(a, b)",
            "a is None",
            "~(a > 1)",
            "~((a > 1) & (b > 1))",
        ),
        *("len(a)", "sum(a)", "min([])", "[a, b] < a", "a in 'xy'", "[n for n in (a, b)]", "any(n for n in (a,) if n)"),
        *("int(a, b)", "round(a, 1)", "math.pi", "os.log2(a)", "sum(n for n in range(10**30))", "a in range(10**30)"),
        *(
            "all(n + m for n in range(300) for m in range(300))",
            "all(all(n < m for n in range(300)) for m in range(300))",
        ),
        *("a in b", "f(a)", "min", "min()", "min(*a)", "min(a, key=b)", "ceil_div(a)"),
        *(
            "__import__('os').system('true')",
            "().__class__",
            "f'{a}'",
            "1j",
            "1e999",
            "2**53 if a else 9007199254740992",
        ),
        *("a\0b", "a\nb", "ä", "a" * (MAX_TEXT + 1), "(" * 400 + "a" + ")" * 400, "-" * 400 + "a", "~" * 900 + "a"),
    ],
)
def test_what_is_not_of_the_language_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse(text)


@pytest.mark.parametrize("text", ["x * x", "x ** 2", "9 ** 64", "2 ** y", "2 ** -1", "2 ** 0.5", "1e15 ** 64", "a * x"])
def test_numbers_that_grow_too_large_are_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse(text).evaluate({"x": 2**40, "y": 65, "a": np.array([1, 2**20])})


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ExpressionError, match="`zeta`"):
        parse("zeta + 1").evaluate({})


def test_names_and_text() -> None:
    expression = parse("  min(BLK_M, m) % threads == 0 ")
    assert expression.names == {"BLK_M", "m", "threads"}
    assert str(expression) == expression.text == "min(BLK_M, m) % threads == 0"
    assert expression == parse(expression.text)
    assert pickle.loads(pickle.dumps(expression)).evaluate({"BLK_M": 8, "m": 9, "threads": 4}) is True  # noqa: S301


NAMES = st.sampled_from(["a", "b", "c"])
LEAVES = st.one_of(NAMES, st.integers(0, 20).map(str))


def _grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    binary = st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%", "<", "<=", "==", "and", "or"]), inner)
    return st.one_of(
        binary.map(lambda parts: "({} {} {})".format(*parts)),
        st.tuples(inner, inner, inner).map(lambda parts: "({} if {} else {})".format(*parts)),
        st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda parts: "{}({}, {})".format(*parts)),
        inner.map(lambda text: f"(not {text})"),
        inner.map(lambda text: f"(-{text})"),
    )


@given(
    text=st.recursive(LEAVES, _grow, max_leaves=12),
    rows=st.lists(st.tuples(*[st.integers(-9, 9)] * 3), min_size=1, max_size=6),
)
def test_every_row_is_what_python_computes(text: str, rows: list[tuple[int, int, int]]) -> None:
    """The truth of an expression in each row is Python's own; where Python divides by zero, it does not hold."""
    columns = dict(zip("abc", np.array(rows).T, strict=True))
    expression = parse(text)
    holds = np.broadcast_to(expression.holds(columns), len(rows))
    for row, held in zip(rows, holds, strict=True):
        scope = dict(zip("abc", row, strict=True)) | {"min": min, "max": max, "_": lambda value: bool(value)}
        try:
            value = bool(eval(_as_truth(text), scope))  # noqa: S307 - the text was made here
        except ZeroDivisionError:
            value = False
        assert held == value


def _as_truth(text: str) -> str:
    """Make Python's `and` and `or` give truth values, as the language's do."""

    class Truth(ast.NodeTransformer):
        def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
            self.generic_visit(node)
            return ast.Call(ast.Name("_", ast.Load()), [node], [])

    return ast.unparse(ast.fix_missing_locations(Truth().visit(ast.parse(text, mode="eval"))))


def test_functions_are_listed() -> None:
    assert set(FUNCTIONS) == {
        "min",
        "max",
        "abs",
        "ceil",
        "floor",
        "int",
        "round",
        "sqrt",
        "ceil_div",
        "log2",
        "is_pow2",
    }
