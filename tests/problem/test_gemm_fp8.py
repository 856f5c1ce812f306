"""FP8 operands: how their bits are read and rounded, the one case, what is exact, and the bound of promoted sums."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from mltune.errors import ProblemError
from mltune.problem.array_values import FP8, STORAGE, stored
from mltune.problem.gemm import GemmProblem, parse_problem
from mltune.problem.gemm_operands import PRECISIONS, numbers

CODES = np.arange(256, dtype=np.uint8)
FP8_PRECISIONS = [precision for precision in PRECISIONS if PRECISIONS[precision].is_fp8]


def value_of(code: int) -> float:
    """Return the number of some bits by its definition: a sign, 4 bits of exponent (bias 7), 3 of fraction."""
    exponent, fraction = code >> 3 & 15, code & 7
    if code & 127 == 127:
        return math.nan
    size = Fraction(8 + fraction if exponent else fraction, 8) * Fraction(2) ** (max(exponent, 1) - 7)
    return math.copysign(float(size), -1.0 if code >> 7 else 1.0)


def test_every_code_is_read_as_its_definition_says():
    expected = np.array([value_of(code) for code in range(256)], dtype="float32")
    np.testing.assert_array_equal(numbers(CODES, FP8), expected)
    assert np.signbit(numbers(CODES, FP8)[128])
    assert STORAGE[FP8] == np.uint8


def test_every_number_is_stored_as_its_code():
    codes = stored(np, numbers(CODES, FP8), FP8)
    is_nan = (CODES & 127) == 127
    np.testing.assert_array_equal(codes[~is_nan], CODES[~is_nan])
    assert (codes[is_nan] & 127 == 127).all()


def test_a_number_becomes_the_nearest_of_two_and_the_even_one_between():
    positive = numbers(CODES[:127], FP8).astype("float64")
    for code, (low, high) in enumerate(itertools.pairwise(positive)):
        middle = (low + high) / 2
        below, above = (np.nextafter(np.float32(middle), np.float32(side)) for side in (low, high))
        for sign in (1, -1):
            drawn = sign * np.array([low, below, middle, above, high], dtype="float32")
            even = code + code % 2
            expected = np.array([code, code, even, code + 1, code + 1]) | (0 if sign > 0 else 128)
            np.testing.assert_array_equal(stored(np, drawn, FP8), expected)


@pytest.mark.parametrize("value", [464.0, 480.0, 1e30, math.inf, -math.inf, math.nan, -500.0])
def test_beyond_the_largest_is_no_number(value):
    assert math.isnan(numbers(stored(np, np.array([value]), FP8), FP8)[0])


def test_what_rounds_to_the_largest_is_a_number():
    largest = stored(np, np.array([448.0, np.nextafter(np.float32(464), np.float32(0)), -463.0]), FP8)
    assert numbers(largest, FP8).tolist() == [448.0, 448.0, -448.0]
    tiny = stored(np, np.array([2.0**-10, 2.0**-10 * 1.01, 1e-30, -1e-42]), FP8)
    assert numbers(tiny, FP8).tolist() == [0.0, 2.0**-9, 0.0, 0.0]


@pytest.mark.parametrize("precision", FP8_PRECISIONS)
@pytest.mark.parametrize("trans", ["NN", "NT", "TT", "NC"])
def test_lines_of_both_operands_lie_along_k(precision, trans):
    with pytest.raises(ProblemError, match=f"there is no {precision}gemm .*tensor cores read FP8 along k.*use TN"):
        parse_problem(f"{precision}gemm", trans=trans, size=64)
    assert parse_problem(f"{precision}gemm", trans="CN", size=64).trans_a == "T"
    assert parse_problem(f"{precision}gemm", size=64).case == f"{precision}gemm TN"


@pytest.mark.parametrize(
    ("precision", "result"), [("eb", "bfloat16"), ("eh", "float16"), ("es", "float32"), ("ebf", "bfloat16")]
)
def test_facts_of_a_problem(precision, result):
    problem = parse_problem(f"{precision}gemm", trans="TN", m=4096, n=512, k=64)
    assert (problem.element_bytes, problem.arithmetic, problem.reference) == (1, "tensor_fp8", "")
    assert [buffer.dtype for buffer in problem.buffers] == [FP8, FP8, result]
    assert problem.bytes == 4096 * 64 + 512 * 64 + problem.result_dtype.itemsize * 4096 * 512
    assert type(problem.kernel_arguments({"A": 0, "B": 0, "C": 0})["alpha"]) is np.float32
    assert problem.variables["promotes"] == int(precision != "ebf")
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
        ones = stored(np, np.ones(k), FP8)
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
