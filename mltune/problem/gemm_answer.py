"""The right answer of a GEMM in higher precision, and the error bound of a correct kernel, with NumPy or CuPy."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mltune.problem import double_double
from mltune.problem.gemm_operands import (
    largest_ratio,
    module,
    moduli,
    multiply_moduli,
    numbers,
    op,
    sampled_indices,
    scale_moduli,
)
from mltune.problem.runnable import Operands

Gemm = Any
"""A :class:`mltune.problem.gemm.GemmProblem`, whose module imports this one."""

_SAMPLE_SEED = 267


def answer(problem: Gemm, operands: Operands) -> Any:
    """Return the correct result, an array of the shape of the result computed in higher precision.

    Results in single precision are computed in double on the device of the operands. Double precision is computed
    on the host in NumPy's long double; for CuPy operands it is rounded to double, which the error bound allows for.
    Double-double results are computed on the device of the operands, nearly exactly, and rounded.
    """
    on_host = isinstance(operands["C"], np.ndarray)
    if problem.types.is_sum:
        (left, right), added = factors(problem, operands), problem.result(operands["C"])
        return double_double.gemm(module(added), problem.alpha.real, left, right, problem.beta.real, added)
    if problem.types.has_wider_on_gpu or on_host:
        return _answer(problem, operands)
    host = {name: buffer.get() for name, buffer in operands.items()}
    return module(operands["C"]).asarray(_answer(problem, host).astype(problem.result_dtype))


def _answer(problem: Gemm, operands: Operands) -> Any:
    wider = np.dtype(problem.types.wider)
    alpha, beta = (wider.type(problem.result_dtype.type(scalar)) for scalar in (problem.alpha, problem.beta))
    result = module(operands["C"]).zeros(problem.result(operands["C"]).shape, dtype=wider)
    if alpha and problem.k:
        left, right = factors(problem, operands)
        result = alpha * (left.astype(wider) @ right.astype(wider))
    if beta:
        result = result + beta * problem.result(operands["C"]).astype(wider)
    return result


def factors(problem: Gemm, operands: Operands) -> tuple[Any, Any]:
    """Return op(A) and op(B) as matrices of numbers."""
    sides = zip("AB", problem.shapes(), (problem.lda, problem.ldb), (problem.trans_a, problem.trans_b), strict=False)
    left, right = (
        op(numbers(operands[name], problem.types.operand), shape, leading, problem.batch, trans)
        for name, shape, leading, trans in sides
    )
    return left, right


def error_bound(problem: Gemm, operands: Operands) -> Any:
    """Return the largest error of a correct kernel, element by element.

    Higham, Accuracy and Stability of Numerical Algorithms, section 3.5: with unit roundoff u and
    gamma(p) = p u / (1 - p u), the error is at most gamma(k + 2) (|alpha| |A| |B| + |beta| |C|) in any order of
    summation, with or without fused multiply-adds. In complex arithmetic (the four-multiplication form) the same
    holds for either part with its 2 k products and one more rounding for the complex scaling.
    One rounding is added for the computation of :func:`answer`. The table of precisions
    (:mod:`~mltune.problem.gemm_precisions`) derives the roundoff of tensor cores, which cut off sums, and that of
    double-double arithmetic, for which the high parts alone make the bound.

    Returns
    -------
    array of the shape of the result
        float64, or complex128 whose parts bound the errors of the parts.
    """
    roundings = (2 * problem.k + 4) if problem.is_complex else (problem.k + 3)
    unit = problem.types.roundoff
    gamma = roundings * unit / (1 - roundings * unit)
    shape, dtype = problem.result(operands["C"]).shape, "complex128" if problem.is_complex else "float64"
    bound = module(operands["C"]).zeros(shape, dtype=dtype)
    if problem.alpha and problem.k:
        bound = scale_moduli(
            problem.alpha, multiply_moduli(*(_leading_part(problem, one) for one in factors(problem, operands)))
        )
    if problem.beta:
        added = _leading_part(problem, problem.result(operands["C"]))
        bound = bound + scale_moduli(problem.beta, moduli(added))
    return gamma * bound


def _leading_part(problem: Gemm, matrix: Any) -> Any:
    return matrix.real if problem.types.is_sum else matrix


def worst_error(problem: Gemm, result: Any, reference: Any, bound: Any) -> float:
    """Return the largest error of a result as a share of its bound: above 1 is wrong; NaN counts as infinite."""
    if not result.size:
        return 0.0
    difference = result.astype(reference.dtype) - reference
    if problem.is_complex:
        parts = [(difference.real, bound.real), (difference.imag, bound.imag)]
    else:
        parts = [(difference.real + difference.imag if problem.types.is_sum else difference, bound)]
    return max(largest_ratio(abs(error), limit) for error, limit in parts)


def device_error(problem: Gemm, before: Operands, after: Operands, run_reference: Callable[[Operands], None]) -> float:
    """Return the largest error of a kernel on a problem that is too large for the host, as a share of its bound.

    A result in single precision is compared with one in double. Double precision is compared with the reference
    implementation: its error may be as large as the kernel's, so the bound is doubled. Where there is none, some
    rows of some columns are computed, at least one in every 512th part of either; all others must be finite.
    """
    if not problem.reference:
        return _error_of_sample(problem, before, after)
    bound = error_bound(problem, before)
    if problem.types.has_wider_on_gpu:
        right = answer(problem, before)
    else:
        computed = {**before, "C": before["C"].copy()}
        run_reference(computed)
        right, bound = problem.result(computed["C"]), 2 * bound
    return worst_error(problem, problem.result(after["C"]), right, bound)


def _error_of_sample(problem: Gemm, before: Operands, after: Operands) -> float:
    result, xp = problem.result(after["C"]), module(after["C"])
    if not result.size:
        return 0.0
    if not bool(xp.isfinite(result).all()):
        return math.inf
    generator = np.random.default_rng(_SAMPLE_SEED)
    rows, columns = (xp.asarray(sampled_indices(extent, generator)) for extent in (problem.m, problem.n))
    left, right = factors(problem, before)
    matrices = {"A": left[rows], "B": right[:, columns], "C": problem.result(before["C"])[rows][:, columns]}
    sample = dataclasses.replace(problem, trans_a="N", trans_b="N", m=len(rows), n=len(columns), lda=0, ldb=0, ldc=0)
    operands = {name: xp.ascontiguousarray(matrix.T).reshape(-1) for name, matrix in matrices.items()}
    computed = result[rows][:, columns]
    return worst_error(sample, computed, answer(sample, operands), error_bound(sample, operands))
