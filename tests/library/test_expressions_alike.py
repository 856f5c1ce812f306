"""Expressions in Python, on columns, as formulas of the sizes, and in a library's C code: one value, or all refuse."""

import ctypes
import math
import shutil
import subprocess

import numpy as np
import pytest

from mltune.errors import ExpressionError
from mltune.kernel import evaluation
from mltune.kernel.expressions import parse
from mltune.library import c_expressions
from mltune.library.c_expressions import to_c
from mltune.library.source import TEMPLATES
from mltune.results.winner import formula
from mltune.results.winner_texts import text_templates

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

SIZES = ("a", "b")
PARAMETERS = {"TILE": 48, "RATE": 2.75, "ONE": 1, "NONE": 0, "HUGE": 3_000_000_001}
NUMBERS = ("0", "1", "2", "3", "7", "32", "1.5", "0.1", "2.0", "1000003", "9007199254740991", "4503599627370496.5")
ARITHMETIC, COMPARISONS = ("+", "-", "*", "/", "//", "%"), ("<", "<=", ">", ">=", "==", "!=")
ONE_NUMBER = ("int", "round", "math.sqrt", "np.ceil", "bool", "~abs")
VALUES = np.array(
    [
        (a, b)
        for a in (0, 1, 2, 5, 64, 1000, 12345, 2**31 - 1, 2**52 + 1)
        for b in (0, 1, 3, 8, 77, 2**31 - 2, 2**53 - 1)
    ]
)
"""Sizes at which each expression is evaluated."""
SEEN = (
    "a / 4", "(a / 4) * 8", "is_pow2(1.5)", "is_pow2(a / 1)", "a % 0.1", "(a * 1.0) % 1e9", "(a * 1.1) // 0.1",
    "9007199254740991 * 1.5 // 1e-3", "min(a, 2.5)", "is_pow2(min(a, 2.5))", "is_pow2(a if b > 3 else 1.5)",
    "2 ** (a if b > 3 else 1.5)", "1 < a < 7 // b", "floor(log2(a)) + ceil(log2(b))", "1.1 ** (b % 64)",
    "TILE / 2 * a", "HUGE * HUGE", "(HUGE * 1.0) * HUGE", "a - 2 * b", "a // -1", "a % -7", "a // -7 * (0 - 1)",
    "a // (b - 3) and NONE", "NONE and a // NONE", "(a > 2) * (b > 2) + (not a)", "ceil_div(0 - a, 7)",
    "1e15 * a * 1e15",
    "ceil_div(a / 3, 0.7)", "a + b + 9007199254740991 - 9007199254740991", "abs(a - b) ** 2", "-a % 5", "+a",
    "a in [1, 2, 64]", "a not in (b, TILE, 0)", "(a > 2) & (b > 2)", "~a & 7", "a & 1 == 0", "(a > 2) | b",
    "a << b", "a << 70", "0 << b", "a >> b", "1 << (2 - b)", "-a >> 70", "(a / 3) << 1", "(a if b > 3 else 1.5) & 3",
    "a ^ b ^ True", "int(a / -3)", "round(a / 2)", "round(-a / 8)", "math.log2(a)", "math.sqrt(b - 3)", "pow(b % 5, 3)",
    "sum([a, b, 1])", "len([a, b]) * a", "any([a == 2, b == 3])", "all(n % 2 == 0 for n in (a, b))", "a is True",
    "max([a, b, 7])", "a in range(0, 1001, 5)", "1 < a in (5, 64, b)", "bool(a) + bool(b)",
    "np.ceil(a / 3)", "math.trunc(b / -4)", "any([a])", "sum(n * n for n in [a % 9, b % 9])", "(a > b) ^ (b > a)",
)  # fmt: skip


def drawn(rng, depth):
    """Return a random expression: each operator and function of the language occurs."""
    kind = rng.integers(0, 16) if depth else 0
    part = [drawn(rng, depth - 1) for _ in range(3)] if kind else []
    match kind:
        case 0:
            return str(rng.choice([*SIZES * 4, *PARAMETERS, *NUMBERS]))
        case 1 | 2 | 3 | 4:
            return f"({part[0]} {rng.choice(ARITHMETIC)} {part[1]})"
        case 5:
            return f"({part[0]} {rng.choice(COMPARISONS)} {part[1]} {rng.choice(COMPARISONS)} {part[2]})"
        case 6:
            return f"({part[0]} {rng.choice(['and', 'or'])} {part[1]})"
        case 7:
            return f"({part[0]} if {part[1]} else {part[2]})"
        case 8:
            return f"({rng.choice(['-', '+', 'not '])}{part[0]})"
        case 9:
            return f"{rng.choice(['abs', 'ceil', 'floor', 'log2', 'is_pow2', *ONE_NUMBER])}({part[0]})"
        case 10:
            return f"({part[0]} ** ({part[1]} % {rng.integers(2, 70)}))"
        case 11 | 12:
            return f"({part[0]} {rng.choice(['&', '|', '^', '<<', '>>'])} {part[1]})"
        case 13:
            return f"({part[0]} {rng.choice(['in', 'not in'])} [{part[1]}, {part[2]}])"
        case 14:
            return f"{rng.choice(['any', 'all', 'sum', 'max'])}([{part[0]}, {part[1]}, {part[2]}])"
    return f"{rng.choice(['min', 'max', 'ceil_div'])}({part[0]}, {part[1]})"


def in_c(folder, texts):
    """Return value, refusal, size of a launch and refusal of each text at each of the sizes."""
    values = [to_c(formula(parse(text), PARAMETERS, {}), {"a": "s[0]", "b": "s[1]"}) for text in texts]
    source = (
        "#include <math.h>\n#include <stdint.h>\n"
        + text_templates(TEMPLATES).get_template("expressions.c.txt").render()
    )
    for number, value in enumerate(values):
        source += (
            f"static void value_{number}(const int64_t *s, double *to) {{ int undefined = 0, *bad = &undefined;"
            f" to[0] = (double)({value.value}); to[1] = undefined; undefined = 0;"
            f" to[2] = (double)({value.size}); to[3] = undefined || to[2] < 0; }}\n"
        )
    names = ", ".join(f"value_{number}" for number in range(len(texts)))
    source += f"static void (*const VALUES[])(const int64_t *, double *) = {{{names}}};\n"
    source += "void all(const int64_t *s, int64_t count, double *to) {\n"
    source += f"  for (int v = 0; v < {len(texts)}; v++)"
    source += " for (int64_t i = 0; i < count; i++, to += 4) VALUES[v](s + 2 * i, to);\n}\n"
    (folder / "all.c").write_text(source)
    flags = ["-O2", "-ffp-contract=off", "-std=c99", "-w", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, "all.c", "-o", "all.so", "-lm"], cwd=folder, check=True)
    answers = np.zeros((len(texts), len(VALUES), 4))
    pointers = [VALUES.astype(np.int64).ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(len(VALUES))]
    ctypes.CDLL(str(folder / "all.so")).all(*pointers, answers.ctypes.data_as(ctypes.c_void_p))
    return answers


def value_of(function, *arguments):
    try:
        return float(function(*arguments))
    except ExpressionError:
        return None


def same(first, second):
    return first == second or (None not in (first, second) and math.isnan(first) and math.isnan(second))


def check(folder, texts):
    refused = 0
    for text, answers in zip(texts, in_c(folder, texts), strict=True):
        expression = parse(text)
        written = parse(formula(expression, PARAMETERS, {}))
        for (a, b), (value, no_value, size, no_size) in zip(VALUES.tolist(), answers.tolist(), strict=True):
            sizes = {"a": a, "b": b}
            expected = value_of(expression.evaluate, {**sizes, **PARAMETERS})
            where = f"{text} = {written} at {sizes}"
            assert same(None if no_value else value, expected), where
            assert same(value_of(written.evaluate, sizes), expected), where
            assert (None if no_size else size) == value_of(expression.size, {**sizes, **PARAMETERS}), where
            refused += expected is None
    assert refused > 0


def test_c_has_all_operations_of_python():
    assert c_expressions.OPERATIONS.keys() == evaluation.OPERATORS.keys() | evaluation.FUNCTIONS.keys()
    assert c_expressions.COMPARISONS.keys() == evaluation.COMPARISONS.keys()


def test_python_formulas_and_c_have_one_value_or_all_refuse(tmp_path):
    rng = np.random.default_rng(0)
    check(tmp_path, [*SEEN, *(drawn(rng, int(rng.integers(1, 5))) for _ in range(100))])


@pytest.mark.system
@pytest.mark.parametrize(
    "count", [50, pytest.param(200, marks=pytest.mark.nightly), pytest.param(2000, marks=pytest.mark.slow)]
)
def test_large_expressions_have_one_value_or_all_refuse(tmp_path, count):
    rng = np.random.default_rng(1)
    check(tmp_path, [drawn(rng, int(rng.integers(1, 6))) for _ in range(count)])


@pytest.mark.parametrize("text", SEEN)
def test_a_column_has_the_values_of_its_rows(text):
    """Where all rows have a value; one that a row refuses may refuse the column."""
    expression = parse(text)
    rows = [{"a": a, "b": b} for a, b in VALUES.tolist()]
    values = [value_of(expression.evaluate, {**sizes, **PARAMETERS}) for sizes in rows]
    rows = [sizes for sizes, value in zip(rows, values, strict=True) if value is not None]
    columns = {name: np.array([sizes[name] for sizes in rows], dtype=np.int64) for name in SIZES}
    try:
        column = np.broadcast_to(np.asarray(expression.evaluate({**columns, **PARAMETERS})), len(rows))
    except ExpressionError:
        return
    assert column.astype(float).tolist() == [value for value in values if value is not None]
