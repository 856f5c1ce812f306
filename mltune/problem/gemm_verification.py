"""The right answer of a GEMM, the error bound of a correct kernel, and the cases that kernels are verified on.

A correct kernel leaves a known word everywhere: a result within an error bound, an exact result (integer operands have
no rounding), or in the padding below the columns of C the word from before.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mltune.problem import gemm_operands
from mltune.problem.array_values import FP8_BLOCK, block_shapes, stored
from mltune.problem.gemm_operands import HALF_PRECISION, module, moduli, multiply_moduli, numbers, scale_moduli
from mltune.problem.problem import CaseBuffer, Operands

Gemm = Any
"""A :class:`mltune.problem.gemm.GemmProblem`, whose module imports this one."""

_SAMPLE_SEED = 267
_PROMOTION = 2.0**-23  # an addition in FP32, whatever its rounding


def answer(problem: Gemm, operands: Operands) -> Any:
    """Return the correct result, an array of the shape of the result computed in higher precision.

    Results in single precision are computed in double on the device of the operands; double precision on the host in
    NumPy's long double, rounded for CuPy operands to double, which the error bound allows for; double-double results on
    the device, nearly exactly, and rounded.
    """
    on_host = isinstance(operands["C"], np.ndarray)
    if problem.types.is_sum:
        (lhs, rhs), added = factors(problem, operands), problem.result(operands["C"])
        return gemm_operands.gemm(module(added), problem.alpha.real, lhs, rhs, problem.beta.real, added)
    if problem.types.has_wider_on_gpu or on_host:
        return _answer(problem, operands)
    host = {name: buffer.get() for name, buffer in operands.items()}
    return module(operands["C"]).asarray(_answer(problem, host).astype(problem.result_dtype))


def _answer(problem: Gemm, operands: Operands) -> Any:
    wider = np.dtype(problem.types.wider)
    alpha, beta = (wider.type(problem.scalar_dtype.type(scalar)) for scalar in (problem.alpha, problem.beta))
    result = module(operands["C"]).zeros(problem.result(operands["C"]).shape, dtype=wider)
    if alpha and problem.k:
        lhs, rhs = _scaled(problem, operands)
        is_long = not problem.types.has_wider_on_gpu
        result = alpha * (gemm_operands.product(lhs, rhs) if is_long else lhs.astype(wider) @ rhs.astype(wider))
    if beta:
        result = result + beta * numbers(problem.result(operands["C"]), problem.types.result).astype(wider)
    if "bias" in operands:
        result = result + _bias(problem, operands).astype(wider)
    return problem.finish.activated(module(operands["C"]), result)


def _scaled(problem: Gemm, operands: Operands) -> tuple[Any, Any]:
    """Return op(A) and op(B) with their factors, which FP64 has exactly."""
    lhs, rhs = factors(problem, operands)
    if not problem.finish.scales:
        return lhs, rhs
    of_m, of_n = (operands[f"scale_{side}"][: problem.vectors[f"scale_{side}"][1]] for side in "mn")
    if problem.has_block_scales:
        shape_m, shape_n = block_shapes(problem.m, problem.n, problem.k)
        of_m = of_m.reshape(shape_m).repeat(FP8_BLOCK, 0)[: problem.m].repeat(FP8_BLOCK, 1)[:, : problem.k]
        of_n = of_n.reshape(shape_n).repeat(FP8_BLOCK, 0)[: problem.k]
    else:
        of_m = of_m[:, None]
    return lhs.astype("float64") * of_m, rhs.astype("float64") * of_n


def _bias(problem: Gemm, operands: Operands) -> Any:
    bias = numbers(operands["bias"][: problem.vectors["bias"][1]], problem.types.result)
    return bias[:, None] if problem.finish.bias == "bias_m" else bias


def factors(problem: Gemm, operands: Operands) -> tuple[Any, Any]:
    """Return op(A) and op(B) as matrices of numbers."""
    leading, ops = (problem.lda, problem.ldb), (problem.trans_a, problem.trans_b)
    sides = zip("AB", problem.types.operands, problem.shapes(), leading, ops, strict=False)
    lhs, rhs = (
        gemm_operands.op(numbers(operands[name], dtype), shape, leading, problem.batch, trans)
        for name, dtype, shape, leading, trans in sides
    )
    return lhs, rhs


def error_bound(problem: Gemm, operands: Operands) -> Any:
    """Return the largest error of a correct kernel, element by element: float64, or complex128 of both parts' bounds.

    Higham, Accuracy and Stability of Numerical Algorithms, section 3.5: with unit roundoff u and gamma(p) = exp(p u) -
    1, which is above (1 + u)**p - 1, the error is at most gamma(k + 2) (|alpha| |A| |B| + |beta| |C|) in any order of
    summation, with or without fused multiply-adds. In complex arithmetic (the four-multiplication form) the same holds
    for either part with its 2 k products and one more rounding for the complex scaling.
    One rounding is added for the computation of :func:`answer`. The table of precisions
    (:mod:`~mltune.problem.gemm_operands`) derives the roundoff of tensor cores, which cut off sums, and that of
    double-double arithmetic, for which the high parts alone make the bound. An epilogue adds its roundings, and an
    activation multiplies the bound by its largest slope. Sums of FP8 products that are added in FP32 have their
    roundoff in as many steps as are between, and that of FP32 in these additions. The rounding of a result to half
    precision is added where the correct result is at hand (:func:`with_rounding`).
    """
    terms, promoted = problem.k, problem.types.promoted
    steps = min(terms, promoted) if promoted else terms
    roundings = (2 * steps + 4) if problem.is_complex else (steps + 3 + problem.finish.roundings)
    largest = roundings * problem.types.roundoff + (terms // promoted * _PROMOTION if promoted else 0.0)
    gamma = math.expm1(min(largest, 500.0))
    shape, dtype = problem.result(operands["C"]).shape, "complex128" if problem.is_complex else "float64"
    bound = module(operands["C"]).zeros(shape, dtype=dtype)
    if problem.alpha and problem.k:
        lhs, rhs = (_leading_part(problem, factor) for factor in _scaled(problem, operands))
        bound = scale_moduli(problem.alpha, multiply_moduli(lhs, rhs))
    if problem.beta:
        added = _leading_part(problem, numbers(problem.result(operands["C"]), problem.types.result))
        bound = bound + scale_moduli(problem.beta, moduli(added))
    if "bias" in operands:
        bound = bound + moduli(_bias(problem, operands))
    return gamma * problem.finish.slope * bound


def _leading_part(problem: Gemm, matrix: Any) -> Any:
    return matrix.real if problem.types.is_sum else matrix


def with_rounding(problem: Gemm, reference: Any, bound: Any) -> Any:
    """Return an error bound together with the error of rounding the result to half precision, if that is its type."""
    unit, least, _ = problem.types.rounding
    return bound + unit * (abs(reference) + bound) + least if unit else bound


def worst_error(problem: Gemm, result: Any, reference: Any, bound: Any) -> float:
    """Return the largest error of a result as a share of its bound: above 1 is wrong; NaN counts as infinite.

    Results in half precision may overflow, in which case the largest number stands for infinity.
    """
    if not result.size:
        return 0.0
    result = numbers(result, problem.types.result).astype(reference.dtype)
    bound = with_rounding(problem, reference, bound)
    *_, largest = problem.types.rounding
    if math.isfinite(largest):
        result, reference = (values.clip(-largest, largest) for values in (result, reference))
    difference = result - reference
    if problem.is_complex:
        parts = [(difference.real, bound.real), (difference.imag, bound.imag)]
    else:
        parts = [(difference.real + difference.imag if problem.types.is_sum else difference, bound)]
    return max(gemm_operands.largest_ratio(abs(error), limit) for error, limit in parts)


def device_error(problem: Gemm, before: Operands, after: Operands, run_reference: Callable[[Operands], None]) -> float:
    """Return the largest error of a kernel on a problem that is too large for the host, as a share of its bound.

    Single precision is compared with double. Double precision is compared with the reference implementation, whose
    error may be as large, so the bound is doubled. Without one, some rows of some columns are computed, at least one in
    every 512th part of either; all others must be finite.
    """
    if problem.types.is_sum:
        return _error_of_sample(problem, before, after)
    bound = error_bound(problem, before)
    if problem.types.has_wider_on_gpu:
        correct = answer(problem, before)
    else:
        computed = {**before, "C": before["C"].copy()}
        run_reference(computed)
        correct, bound = problem.result(computed["C"]), 2 * bound
    return worst_error(problem, problem.result(after["C"]), correct, bound)


def _error_of_sample(problem: Gemm, before: Operands, after: Operands) -> float:
    result, xp = problem.result(after["C"]), module(after["C"])
    if not result.size:
        return 0.0
    if not bool(xp.isfinite(result).all()):
        return math.inf
    generator = np.random.default_rng(_SAMPLE_SEED)
    indices = (gemm_operands.sampled_indices(extent, generator) for extent in (problem.m, problem.n))
    rows, columns = map(xp.asarray, indices)
    lhs, rhs = factors(problem, before)
    matrices = {"A": lhs[rows], "B": rhs[:, columns], "C": problem.result(before["C"])[rows][:, columns]}
    sample = dataclasses.replace(problem, trans_a="N", trans_b="N", m=len(rows), n=len(columns), lda=0, ldb=0, ldc=0)
    operands = {name: xp.ascontiguousarray(matrix.T).reshape(-1) for name, matrix in matrices.items()}
    computed = result[rows][:, columns]
    return worst_error(sample, computed, answer(sample, operands), error_bound(sample, operands))


WINNER_SIZES = ((1, 1, 1), (127, 129, 65), (256, 256, 256), (1023, 33, 257), (64, 1500, 1), (500, 300, 0))
"""Sizes (m, n, k) that a winner is verified on, besides its own."""

_MOST_ELEMENTS, _MOST_PRODUCTS = 2**21, 2**26  # of a problem that is solved on the host
_SEED = 20110
_GUARD_COLUMNS = 256  # columns behind C: as wide as tiles are
_CANARY = 12352.0  # exact in every precision, and never a result


@dataclass(frozen=True, slots=True)
class GemmCase:
    """A GEMM with operands for which every word of the result is known; exact where they are small `integers`.

    `offset` is the number of elements between an aligned address and the first element of each matrix.
    """

    problem: Gemm
    integers: bool
    offset: int

    is_timed: ClassVar[bool] = False

    @property
    def label(self) -> str:
        """The problem, its operands and their alignment."""
        kind = "integer operands" if self.integers else "random operands"
        return f"{self.problem.label}, {kind}, {'unaligned' if self.offset else 'aligned'}"

    def buffers(self, xp: Any = np) -> dict[str, CaseBuffer]:
        """Make A and B, and C with everything that a correct kernel leaves there."""
        problem = self.problem
        operands = problem.operands(np, _SEED, integers=self.integers)
        kinds = {buffer.name: buffer.dtype for buffer in problem.buffers if buffer.name != "C"}
        offsets = {name: self.offset * operands[name].dtype.itemsize for name in kinds}
        inputs = {name: CaseBuffer("in", kinds[name], operands[name], offset_bytes=offsets[name]) for name in kinds}
        return {**inputs, "C": self._output(operands)}

    def _output(self, operands: dict[str, NDArray[Any]]) -> CaseBuffer:
        problem, dtype, kind = self.problem, self.problem.result_dtype, self.problem.types.result
        parts = 2 if dtype.kind == "c" else 1
        answer = problem.answer(operands)
        error_bound = np.zeros_like(answer) if self.integers else problem.error_bound(operands)
        if kind in HALF_PRECISION:
            rounded = numbers(stored(np, answer, kind), kind).astype(answer.dtype)
            error_bound = error_bound if self.integers else with_rounding(problem, answer, error_bound)
            answer = np.where(np.isfinite(rounded) & (not self.integers), answer, rounded)
        content = operands["C"].copy()
        canary = complex(_CANARY, _CANARY) if parts == 2 else _CANARY
        problem.padding(content)[...] = stored(np, np.array([canary]), kind)[0]
        columns = problem.n * problem.batch
        expected, bound = np.zeros(content.size * parts), np.full(content.size * parts, -1.0)
        for words, values in ((expected, answer), (bound, error_bound)):
            inside = words[: problem.ldc * columns * parts].reshape(columns, problem.ldc, parts)
            inside[:, : problem.m] = _words(values, columns, parts)
        return CaseBuffer(
            "inout",
            problem.types.result,
            content,
            offset_bytes=self.offset * dtype.itemsize,
            guard_bytes=_GUARD_COLUMNS * problem.ldc * dtype.itemsize,
            expected=expected,
            bound=bound,
            terms=problem.types.terms,
        )


def verification_problem(problem: Gemm, *, aligned: bool) -> Gemm:
    """Return a small problem of the same case to verify kernels on.

    Its extents are odd, so that tiles are cut at every edge; its scalars are neither 0 nor 1, and exact in every
    precision. Leading dimensions are multiples of 16 elements if aligned, for wide loads; otherwise odd, and
    ``beta == 0``, so that C starts as NaN. A batch has two.
    """
    alpha, beta = (1.25 - 0.5j, -0.75 + 0.25j) if problem.is_complex else (1.25, -0.75)
    scaled = dataclasses.replace(problem, alpha=alpha, beta=beta if aligned else 0.0)
    small = dataclasses.replace(scaled, m=389, n=293, k=211, lda=0, ldb=0, ldc=0, batch=min(problem.batch, 2))
    leading = [(rows // 16 + 1) * 16 if aligned else rows + 2 for rows, _ in small.shapes()]
    return dataclasses.replace(small, lda=leading[0], ldb=leading[1], ldc=leading[2])


def verification_cases(problem: Gemm) -> tuple[GemmCase, ...]:
    """Return the cases of every configuration: random and integer operands, aligned and with odd addresses."""
    return tuple(
        GemmCase(verification_problem(problem, aligned=aligned), integers, 0 if aligned else 1)
        for aligned in (True, False)
        for integers in (False, True)
        if not integers or problem.finish.is_exact
    )


def own_cases(problem: Gemm) -> tuple[GemmCase, ...]:
    """Return a problem's cases, random and exact with integers; none where the host would take too long to solve it."""
    products = problem.batch * problem.m * problem.n * max(problem.k, 1)
    if products > _MOST_PRODUCTS or problem.batch * problem.ldc * problem.n > _MOST_ELEMENTS:
        return ()
    return tuple(GemmCase(problem, integers, 0) for integers in (False, True) if not integers or problem.is_exact)


def winner_problems(problem: Gemm) -> tuple[Gemm, ...]:
    """Return the problems of :data:`WINNER_SIZES`, with the smallest leading dimensions; a batch has three."""
    batch = min(problem.batch, 3)
    return tuple(
        dataclasses.replace(problem, m=m, n=n, k=k, lda=0, ldb=0, ldc=0, batch=batch) for m, n, k in WINNER_SIZES
    )


def verification_document(problem: Gemm) -> dict[str, Any]:
    """Return the sizes, leading dimensions and addresses that a winner is verified on as plain JSON values."""
    wide, narrow = (verification_problem(problem, aligned=aligned) for aligned in (True, False))
    return {
        "sizes": [[problem.m, problem.n, problem.k], *map(list, WINNER_SIZES), [wide.m, wide.n, wide.k]],
        "leading_dimensions": [[size.lda, size.ldb, size.ldc] for size in (problem, wide, narrow)],
        "addresses": "aligned to 256 bytes, and one element behind that",
    }


def _words(matrix: NDArray[Any], columns: int, parts: int) -> NDArray[np.float64]:
    """Return matrices of n columns in all, each of shape (m, n), as doubles of shape (columns, m, parts)."""
    wide = np.ascontiguousarray(matrix.swapaxes(-2, -1)).astype("complex128" if parts == 2 else "float64")
    return wide.view(np.float64).reshape(columns, matrix.shape[-2], parts)
