"""GEMM in double-double arithmetic: operands, answers, bounds and verification cases, against fractions."""

import dataclasses
import json
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from mltune.problem import gemm_operands
from mltune.problem.gemm import GemmProblem, parse_problem
from mltune.problem.gemm_operands import PRECISIONS, sampled_indices, transpositions
from mltune.problem.kinds import problem_from_json

CASES = tuple(("dd", *ops) for ops in transpositions("dd"))
cases = pytest.mark.parametrize("case", CASES, ids="".join)


def nontrivial(case=("dd", "N", "T"), **changed):
    return dataclasses.replace(GemmProblem(*case, 7, 5, 41, 1.3, -0.7, lda=43, ldb=44, ldc=9), **changed)


def fraction(element):
    return Fraction(float(element.real)) + Fraction(float(element.imag))


def exact(problem, operands):
    """Return the result of a GEMM as fractions, and the sums of the moduli; written independently of the module."""
    m, n, k = problem.m, problem.n, problem.k
    A, B, C = (operands[name] for name in "ABC")
    a = [
        [A[i + q * problem.lda] if problem.trans_a == "N" else A[q + i * problem.lda] for q in range(k)]
        for i in range(m)
    ]
    b = [
        [B[q + j * problem.ldb] if problem.trans_b == "N" else B[j + q * problem.ldb] for q in range(k)]
        for j in range(n)
    ]
    alpha, beta = Fraction(problem.alpha), Fraction(problem.beta)
    answer, moduli = np.empty((m, n), dtype=object), np.empty((m, n), dtype=object)
    for i in range(m):
        for j in range(n):
            terms = [alpha * fraction(x) * fraction(y) for x, y in zip(a[i], b[j], strict=True)]
            terms += [beta * fraction(C[i + j * problem.ldc])] if beta else []
            answer[i, j], moduli[i, j] = sum(terms), sum(map(abs, terms))
    return answer, moduli


def double_double(value):
    """Return a fraction as the nearest double-double number."""
    high = float(value)
    return complex(high, float(value - Fraction(high)))


def test_precisions_have_distinct_numbers():
    assert len({precision.number for precision in PRECISIONS.values()}) == len(PRECISIONS)


def test_facts():
    problem = parse_problem("DDGEMM", trans="cn", size=64)
    assert (problem.label, problem.case, problem.reference) == ("ddgemm TN 64", "ddgemm TN", "")
    assert (problem.element_bytes, problem.arithmetic, problem.flops) == (16, "fp64", 2 * 64**3)
    assert problem.variables.items() >= {"words": 4, "is_complex": 0, "is_double": 1, "fma_per_mac": 1}.items()
    assert problem.macros()["PRECISION"] == 6
    assert problem_from_json(json.loads(json.dumps(problem.to_json()))) == problem
    arguments = problem.kernel_arguments({"A": "a", "B": "b", "C": "c"})
    assert (arguments["alpha"], arguments["alpha"].nbytes) == (1, 16)


@cases
def test_the_answer_is_exact_to_the_last_of_106_bits(case):
    problem = nontrivial(case)
    operands = problem.operands(np, seed=1)
    right, moduli = exact(problem, operands)

    answer = problem.answer(operands)

    errors = [abs(fraction(answer[at]) - right[at]) / moduli[at] for at in np.ndindex(7, 5)]
    assert max(errors) < Fraction(1, 2**105)
    assert (answer.real + answer.imag == answer.real).all()


def test_an_answer_with_cancellation_and_many_orders_of_magnitude():
    problem = GemmProblem("dd", "N", "N", 2, 2, 3)
    A = np.array([1 + 1e-17j, 3e-30, -1 + 2e-33j, 1e-12 + 1e-29j, 1e15 + 0.01j, 7], dtype=np.complex128)
    operands = {"A": A, "B": np.ones(6, dtype=np.complex128), "C": np.empty(4, dtype=np.complex128)}

    answer, (right, moduli) = problem.answer(operands), exact(problem, operands)

    assert all(abs(fraction(answer[at]) - right[at]) <= moduli[at] / 2**104 for at in np.ndindex(2, 2))


@cases
def test_integers_have_one_right_answer(case):
    problem = nontrivial(case, alpha=1.25, beta=-0.75)
    assert problem.is_exact
    operands = problem.operands(np, seed=2, integers=True)
    assert set(operands["A"][np.isfinite(operands["A"])].imag) == {0}

    answer = problem.answer(operands)

    assert (answer == np.vectorize(double_double)(exact(problem, operands)[0])).all()
    assert (answer.imag == 0).all()


@pytest.mark.parametrize("xp", [np, SimpleNamespace(asarray=np.asarray, tile=np.tile, rint=np.rint)])
def test_operands_use_all_106_bits_and_are_carried(xp):
    A = nontrivial(lda=0, ldb=0, ldc=0, m=60, k=60).operands(xp, seed=1)["A"]

    assert (A.real + A.imag == A.real).all()
    assert np.median(abs(A.imag / A.real)) > 2**-57
    assert len(set(A.imag)) > 0.99 * A.size
    assert abs(A.real).max() <= 1


def test_what_must_not_be_read_is_nan_in_both_parts():
    operands = nontrivial(beta=0.0).operands(np, seed=1)
    for matrix in (operands["C"], operands["A"].reshape(41, 43)[:, 7:]):
        assert np.isnan(matrix.real).all()
        assert np.isnan(matrix.imag).all()


def test_a_result_of_doubles_alone_is_wrong_and_the_next_of_106_bits_is_right():
    problem = nontrivial()
    operands = problem.operands(np, seed=1)
    right = np.vectorize(double_double)(exact(problem, operands)[0])
    answer, bound = problem.answer(operands), problem.error_bound(operands)

    def error(result):
        return problem.worst_error(result, answer, bound)

    assert error(right) < 0.01
    assert error(right + 1j * 2**-105 * abs(right)) < 0.1
    assert error(right.real + 0j) > 1000
    assert error(right * np.nan) == np.inf
    another = right.copy()  # the same number, whose high part is the next double
    another.real = np.nextafter(right.real, 2)
    another.imag = right.imag - (another.real - right.real)
    assert error(another) < 0.01


@pytest.mark.parametrize("sizes", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (1, 1, 1), (1, 1, 2)])
def test_empty_extents(sizes):
    problem = GemmProblem("dd", "T", "N", *sizes, beta=1)
    operands = problem.operands(np, seed=1)
    answer = problem.answer(operands)
    assert answer.shape == problem.error_bound(operands).shape == sizes[:2]
    if not sizes[2]:
        np.testing.assert_array_equal(answer, problem.result(operands["C"]))


@pytest.mark.parametrize("changed", [{}, {"beta": 0.0}, {"alpha": 0.0}, {"m": 0, "lda": 41}])
def test_a_large_problem_is_verified_in_a_sample_without_a_reference(monkeypatch, changed):
    monkeypatch.setattr(gemm_operands, "MOST_SAMPLED", 4)
    problem = nontrivial(("dd", "T", "N"), **changed)
    before = problem.operands(np, seed=1)
    after = {**before, "C": before["C"].copy()}
    problem.result(after["C"])[...] = problem.answer(before)

    assert problem.device_error(before, after, pytest.fail) < 1
    if not problem.is_empty:
        for wrong in (np.nan, 1.0):
            problem.result(after["C"])[-1, -1] = wrong
            assert problem.device_error(before, after, pytest.fail) > 1


@pytest.mark.parametrize("extent", [1, 2, 511, 512, 513, 8192, 100_003])
def test_a_sample_has_an_index_of_every_part(extent):
    found = sampled_indices(extent, np.random.default_rng(0))
    assert 0.7 * min(extent, 512) <= len(found) <= min(extent, 512)
    assert {found[0], found[-1]} == {0, extent - 1}
    assert np.diff(found).max(initial=0) <= 2 * -(-extent // 512)


def test_words_of_a_verification_case_are_compared_as_sums():
    for case in parse_problem("ddgemm", trans="NN").verification_cases():
        output, problem = case.buffers()["C"], case.problem
        assert output.terms == 2
        assert output.offset_bytes % 16 == output.expected.size % 2 == 0
        content = output.values.view(np.float64)
        inside = output.bound[::2] >= 0
        assert inside.sum() == problem.m * problem.n
        assert (output.bound[1::2][inside] >= 0).all()
        assert (output.bound[1::2][~inside] < 0).all()
        assert (content[1::2][~inside] == content[::2][~inside]).all()  # also low parts are guarded
        assert case.integers == (not output.bound[::2][inside].any())
        element = problem.answer(problem.operands(np, 20110, integers=case.integers))[0, 0]
        assert list(output.expected[:2]) == [element.real, element.imag]
