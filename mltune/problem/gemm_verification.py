"""Verification of GEMM kernels: the sizes, layouts and operands, and the correct content of C.

A correct kernel leaves a known word everywhere: a result within an error bound, an exact result (integer operands have
no rounding), or in the padding below the columns of C the word from before.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mltune.problem.runnable import CaseBuffer

Gemm = Any
"""A :class:`mltune.problem.gemm.GemmProblem`, whose module imports this one."""

WINNER_SIZES = ((1, 1, 1), (127, 129, 65), (256, 256, 256), (1023, 33, 257), (64, 1500, 1), (500, 300, 0))
"""Sizes (m, n, k) that a winner is verified on, besides its own."""

_MOST_ELEMENTS, _MOST_PRODUCTS = 2**21, 2**26  # of a problem that is solved on the host
_SEED = 20110
_GUARD_COLUMNS = 256  # columns behind C: as wide as tiles are
_CANARY = 12345.0  # exact in every precision, and never a result


@dataclass(frozen=True, slots=True)
class GemmCase:
    """A GEMM with operands for which every word of the result is known.

    Attributes
    ----------
    problem : Gemm
    integers : bool
        Whether the operands are small integers, whose result is exact.
    offset : int
        Elements between an aligned address and the first element of each matrix.
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
        offset_bytes = self.offset * problem.element_bytes
        inputs = {
            name: CaseBuffer("in", problem.types.operand, operands[name], offset_bytes=offset_bytes) for name in "AB"
        }
        return {**inputs, "C": self._output(operands)}

    def _output(self, operands: dict[str, NDArray[Any]]) -> CaseBuffer:
        problem, dtype = self.problem, self.problem.result_dtype
        parts = 2 if dtype.kind == "c" else 1
        answer = problem.answer(operands)
        error_bound = np.zeros_like(answer) if self.integers else problem.error_bound(operands)
        content = operands["C"].copy()
        problem.padding(content)[...] = dtype.type(complex(_CANARY, _CANARY) if parts == 2 else _CANARY)
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
    precision. Leading dimensions are multiples of 16 elements if aligned, so that wide loads are allowed; otherwise
    they are odd, and ``beta == 0``, so that C starts as NaN. A batch has two.
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
    )


def own_cases(problem: Gemm) -> tuple[GemmCase, ...]:
    """Return the cases of a given problem: random operands, and integers where their result is exact.

    There are none where the host would take too long to solve the problem in higher precision.
    """
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
        "leading_dimensions": [[one.lda, one.ldb, one.ldc] for one in (problem, wide, narrow)],
        "addresses": "aligned to 256 bytes, and one element behind that",
    }


def _words(matrix: NDArray[Any], columns: int, parts: int) -> NDArray[np.float64]:
    """Return matrices of n columns in all, each of shape (m, n), as doubles of shape (columns, m, parts)."""
    wide = np.ascontiguousarray(matrix.swapaxes(-2, -1)).astype("complex128" if parts == 2 else "float64")
    return wide.view(np.float64).reshape(columns, matrix.shape[-2], parts)
