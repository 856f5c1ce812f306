"""The precisions of GEMM: the types of the elements, the error of the arithmetic and the reference implementation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mltune.problem.problem import GEMM_PRECISIONS


@dataclass(frozen=True, slots=True)
class Precision:
    """What the matrices of a GEMM consist of, and how exactly it is computed.

    Attributes
    ----------
    number : int
        The macro ``PRECISION`` of a kernel's source. 4 and 5 are reserved.
    operand, result : str
        NumPy's types of the elements of A and B, and of C, alpha and beta. An element that is the sum of two doubles is
        stored as a ``complex128`` whose parts are the high and the low one.
    arithmetic : {"fp32", "fp64"}
        The arithmetic whose peak bounds the problem.
    roundoff : float
        Largest relative error of an operation in the error bound of a result.
    wider : str
        NumPy's type in which the correct result is computed; empty where there is none.
    reference : str
        Name of the reference implementation; empty where there is none.
    terms : int
        Numbers that an element is the unevaluated sum of: 2 in double-double arithmetic.
    """

    number: int
    operand: str
    result: str
    arithmetic: str
    roundoff: float
    wider: str
    reference: str = "cuBLAS"
    terms: int = 1

    @property
    def is_complex(self) -> bool:
        """Whether the elements are complex numbers."""
        return self.terms == 1 and np.dtype(self.result).kind == "c"

    @property
    def is_sum(self) -> bool:
        """Whether an element is the sum of two doubles."""
        return self.terms == 2


def _of_blas(number: int, dtype: str, arithmetic: str, wider: str) -> Precision:
    return Precision(number, dtype, dtype, arithmetic, float(np.finfo(dtype).eps) / 2, wider)


_DOUBLE_DOUBLE = 2.0**-102
"""16 times the square of a double's roundoff u.

A multiply-add of double-double numbers has a relative error of 7 u^2 at most (Joldes, Muller, Popescu, "Tight and
rigorous error bounds for basic building blocks of double-word arithmetic", 2017: 4 for the product, 3 for the sum). The
rest allows for low parts that are added up over at most 16 steps of k before they are carried into the high part. Such
a sum grows to (j + 1) u times the sum of the moduli after j steps, and each addition rounds it: 9.5 u^2 a step in the
mean of 16, besides one for the addition of the two errors of a step. The errors of products are counted once for the
whole sum.
"""

PRECISIONS: Mapping[str, Precision] = dict(
    zip(
        GEMM_PRECISIONS,
        (
            _of_blas(0, "float32", "fp32", "float64"),
            _of_blas(1, "float64", "fp64", "longdouble"),
            _of_blas(2, "complex64", "fp32", "complex128"),
            _of_blas(3, "complex128", "fp64", "clongdouble"),
            Precision(6, "complex128", "complex128", "fp64", _DOUBLE_DOUBLE, "", reference="", terms=2),
        ),
        strict=True,
    )
)
"""The precisions by name."""
