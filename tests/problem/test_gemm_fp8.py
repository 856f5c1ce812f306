"""FP8 operands: how their bits are read and rounded, the one case, what is exact, and the bound of promoted sums."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from mltune.errors import ProblemError
from mltune.problem.array_values import E4M3, E5M2, FP8, STORAGE, stored
from mltune.problem.gemm import GemmProblem, parse_problem
from mltune.problem.gemm_operands import PRECISIONS, numbers

CODES = np.arange(256, dtype=np.uint8)
FP8_PRECISIONS = [precision for precision in PRECISIONS if PRECISIONS[precision].is_fp8]


FORMATS = {E4M3: (3, 7), E5M2: (2, 15)}
"""Bits of the fraction, and the bias of the exponent."""

both = pytest.mark.parametrize("dtype", FP8)


def value_of(code: int, dtype: str) -> float:
    """Return the number of some bits by its definition: a sign, an exponent, a fraction."""
    bits, bias = FORMATS[dtype]
    exponent, fraction = (code & 127) >> bits, code & ((1 << bits) - 1)
    if code & 127 == 127 or (dtype == E5M2 and exponent == 31 and fraction):
        return math.nan
    size = Fraction(fraction + ((1 << bits) if exponent else 0), 1 << bits) * Fraction(2) ** (max(exponent, 1) - bias)
    return math.copysign(math.inf if dtype == E5M2 and exponent == 31 else float(size), -1.0 if code >> 7 else 1.0)


@both
def test_every_code_is_read_as_its_definition_says(dtype):
    expected = np.array([value_of(code, dtype) for code in range(256)], dtype="float32")
    np.testing.assert_array_equal(numbers(CODES, dtype), expected)
    assert np.signbit(numbers(CODES, dtype)[128])
    assert STORAGE[dtype] == np.uint8


@both
def test_every_number_is_stored_as_its_code(dtype):
    values = numbers(CODES, dtype)
    codes, is_nan = stored(np, values, dtype), np.isnan(values)
    np.testing.assert_array_equal(codes[~is_nan], CODES[~is_nan])
    assert np.isnan(numbers(codes[is_nan], dtype)).all()


@both
def test_a_number_becomes_the_nearest_of_two_and_the_even_one_between(dtype):
    positive = numbers(CODES[:128], dtype)
    positive = positive[np.isfinite(positive)].astype("float64")
    for code, (low, high) in enumerate(itertools.pairwise(positive)):
        middle = (low + high) / 2
        below, above = (np.nextafter(np.float32(middle), np.float32(side)) for side in (low, high))
        for sign in (1, -1):
            drawn = sign * np.array([low, below, middle, above, high], dtype="float32")
            even = code + code % 2
            expected = np.array([code, code, even, code + 1, code + 1]) | (0 if sign > 0 else 128)
            np.testing.assert_array_equal(stored(np, drawn, dtype), expected)


@pytest.mark.parametrize("value", [464.0, 480.0, 1e30, math.inf, -math.inf, math.nan, -500.0])
def test_beyond_the_largest_of_e4m3_is_no_number(value):
    assert math.isnan(numbers(stored(np, np.array([value]), E4M3), E4M3)[0])


@pytest.mark.parametrize("value", [61440.0, 65536.0, 1e30, math.inf, math.nan])
def test_beyond_the_largest_of_e5m2_is_infinite(value):
    signed = np.array([value, -value])
    expected = signed * math.inf
    np.testing.assert_array_equal(numbers(stored(np, signed, E5M2), E5M2), expected)


@pytest.mark.parametrize(("dtype", "largest", "middle", "smallest"), [(E4M3, 448, 464, -9), (E5M2, 57344, 61440, -16)])
def test_what_rounds_to_the_largest_or_to_zero_is_a_number(dtype, largest, middle, smallest):
    sizes = stored(np, np.array([largest, np.nextafter(np.float32(middle), np.float32(0)), 1 - middle]), dtype)
    assert numbers(sizes, dtype).tolist() == [largest, largest, -largest]
    tiny = stored(np, 2.0**smallest * np.array([0.5, 0.505, 1e-30, -1e-30]), dtype)
    assert numbers(tiny, dtype).tolist() == [0.0, 2.0**smallest, 0.0, 0.0]


@pytest.mark.parametrize("precision", FP8_PRECISIONS)
@pytest.mark.parametrize("trans", ["NN", "NT", "TT", "NC"])
def test_lines_of_both_operands_lie_along_k(precision, trans):
    with pytest.raises(ProblemError, match=f"there is no {precision}gemm .*tensor cores read FP8 along k.*use TN"):
        parse_problem(f"{precision}gemm", trans=trans, size=64)
    assert parse_problem(f"{precision}gemm", trans="CN", size=64).trans_a == "T"
    assert parse_problem(f"{precision}gemm", size=64).case == f"{precision}gemm TN"


@pytest.mark.parametrize("operands", [("e", E4M3, E4M3), ("e45", E4M3, E5M2), ("e54", E5M2, E4M3)], ids=str)
@pytest.mark.parametrize(
    ("suffix", "result"), [("b", "bfloat16"), ("h", "float16"), ("s", "float32"), ("bf", "bfloat16")]
)
def test_facts_of_a_problem(operands, suffix, result):
    name, *dtypes = operands
    precision = name + suffix
    problem = parse_problem(f"{precision}gemm", trans="TN", m=4096, n=512, k=64)
    assert (problem.element_bytes, problem.arithmetic, problem.reference) == (1, "tensor_fp8", "")
    assert [buffer.dtype for buffer in problem.buffers] == [*dtypes, result]
    assert problem.bytes == 4096 * 64 + 512 * 64 + problem.result_dtype.itemsize * 4096 * 512
    assert type(problem.kernel_arguments({"A": 0, "B": 0, "C": 0})["alpha"]) is np.float32
    assert problem.variables["promotes"] == int(suffix != "bf")
    assert problem.cost_case == "egemm TN"
    assert GemmProblem.from_json(problem.to_json()) == problem


def test_sums_that_are_promoted_are_exact_for_longer():
    def is_exact(precision, k):
        return GemmProblem(precision, "T", "N", 8, 8, k).is_exact

    assert is_exact("ebf", 910)
    assert not is_exact("ebf", 911)  # 14 bits
    assert is_exact("eb", 29000)
    assert not is_exact("eb", 30000)  # 24 bits


def test_the_error_of_promoted_sums_does_not_grow_with_k():
    def share(precision, k):
        """Return the bound as a share of the sum of moduli."""
        problem = GemmProblem(precision, "T", "N", 1, 1, k)
        ones = stored(np, np.ones(k), E4M3)
        return float(problem.error_bound({"A": ones, "B": ones, "C": np.zeros(1, problem.result_dtype)})[0, 0]) / k

    assert share("eb", 128) <= share("eb", 16384) < 1.1 * share("eb", 128) < 0.02
    assert share("ebf", 16384) > 10 * share("ebf", 512)
    assert math.isfinite(share("ebf", 2**23))


def test_a_number_that_is_none_spoils_its_row_alone():
    problem = GemmProblem("es", "T", "N", 3, 2, 4)
    operands = problem.operands(np, 1)
    operands["A"][5] = 0x7F
    assert np.isnan(problem.answer(operands)).tolist() == [[False, False], [True, True], [False, False]]
    zeros = np.zeros((3, 2), "float32")
    assert problem.worst_error(zeros, problem.answer(operands), problem.error_bound(operands)) == math.inf
