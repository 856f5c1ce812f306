"""The verification cases of GEMM: sizes, layouts, expected words and bounds."""

import numpy as np
import pytest

from mltune.problem.array_values import stored
from mltune.problem.gemm import CASES, parse_problem
from mltune.problem.gemm_operands import PRECISIONS, numbers, product, transpositions


def cases_of(precision, trans, batch=1):
    return parse_problem(f"{precision}gemm", trans=trans, m=4096, n=4096, k=4096, batch=batch).verification_cases()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_fringe_alignment_and_kind_of_operand_occurs(precision):
    cases = cases_of(precision, "".join(transpositions(precision)[-1]))

    assert {(case.integers, bool(case.offset)) for case in cases} == {
        (a, b) for a in (True, False) for b in (True, False)
    }
    for case in cases:
        problem = case.problem
        assert all(extent % 2 for extent in (problem.m, problem.n, problem.k))
        odd = all(leading % 2 for leading in (problem.lda, problem.ldb, problem.ldc))
        assert odd == bool(case.offset)
        assert problem.is_exact
        assert "aligned" in case.label


@pytest.mark.parametrize(
    ("precision", "trans", "batch"),
    [
        *((one, a + b, 1) for one, a, b in CASES[::5]),
        ("h", "NT", 1),
        ("bs", "TN", 1),
        ("b", "TN", 1),
        ("z", "CN", 2),
        ("s", "TN", 9),
    ],
)
@pytest.mark.sampled(5, system=7)
def test_right_answer_passes_and_the_padding_is_guarded(precision, trans, batch):
    parts = 2 if precision in "cz" else 1
    for case in cases_of(precision, trans, batch):
        buffers, problem = case.buffers(), case.problem
        output = buffers["C"]
        operands = problem.operands(np, 20110, integers=case.integers)
        before = output.values.view(output.values.dtype.char.lower())
        answer = output.values.copy()
        assert problem.batch == min(batch, 2)
        problem.result(answer)[...] = stored(np, problem.answer(operands), problem.types.result)
        before, answer = (numbers(words, problem.types.result) for words in (before, answer.view(before.dtype)))

        guarded = output.bound < 0
        error = abs(answer.astype(np.float64) - output.expected)[~guarded]

        assert (~guarded).sum() == problem.m * problem.n * problem.batch * parts
        assert (error <= output.bound[~guarded]).all()
        assert (answer[guarded] == before[guarded]).all()
        assert not case.integers or (error == 0).all()
        for name, buffer in buffers.items():
            assert (buffer.offset_bytes % 256 == 0) == (case.offset == 0)
            assert buffer.role == ("inout" if name == "C" else "in")
        for name in "AB":
            np.testing.assert_array_equal(buffers[name].values, operands[name])


def test_bytes_behind_are_as_wide_as_a_tile():
    case = cases_of("z", "NN")[0]
    assert case.buffers()["C"].guard_bytes >= 256 * 16 * case.problem.ldc


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (5, 0, 3), (0, 5, 3), (7, 3, 0)])
def test_sizes_without_elements_are_legal(m, n, k):
    cases = parse_problem("zgemm", trans="CN", m=m, n=n, k=k).own_cases()

    assert [case.integers for case in cases] == [False, True]
    for case in cases:
        assert (case.buffers()["C"].bound >= 0).sum() == 2 * m * n


def test_integers_are_left_out_where_their_answer_is_not_exact():
    cases = parse_problem("sgemm", trans="NN", m=4, n=4, k=4, alpha=0.1).own_cases()

    assert [case.integers for case in cases] == [False]


@pytest.mark.parametrize(("m", "n", "k"), [(2**10, 2**10, 2**6 + 1), (2**21 + 1, 1, 1)])
def test_a_problem_that_is_too_large_for_the_host_has_no_cases_of_its_own(m, n, k):
    assert parse_problem("sgemm", trans="NN", m=m, n=n, k=k).own_cases() == ()
    assert parse_problem("sgemm", trans="NN", m=m // 2, n=n, k=k - k // 2).own_cases()


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_products_of_doubles_are_those_of_long_doubles(dtype):
    rng = np.random.default_rng(4)
    left, right = (
        (rng.standard_normal((2, *shape)) * 2.0 ** rng.integers(-12, 12, shape)).astype(dtype)
        for shape in ((7, 211), (211, 5))
    )
    if dtype == "complex128":
        left, right = left + 1j * left[:, ::-1], right - 3j * right[:, ::-1]
    wider = np.clongdouble if dtype == "complex128" else np.longdouble
    exact = left.astype(wider) @ right.astype(wider)

    found = product(left, right)

    assert found.dtype == wider
    assert abs(found - exact).max() <= 211 * np.finfo(np.longdouble).eps * (abs(left) @ abs(right)).max()
