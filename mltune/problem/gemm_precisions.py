"""The precisions of GEMM: the types of the elements, the error of the arithmetic and the reference implementation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mltune.problem.problem import GEMM_PRECISIONS


@dataclass(frozen=True, slots=True)
class Precision:
    """The types of the matrices of a GEMM, and the exactness of its arithmetic.

    Attributes
    ----------
    number : int
        The macro ``PRECISION`` of a kernel's source.
    operand, result : str
        Types of the elements of A and B, and of C, alpha and beta: names of
        :data:`mltune.problem.array_values.DTYPES`. An element that is the sum of two doubles is stored as a
        ``complex128`` whose parts are the high and the low one.
    arithmetic : {"fp32", "fp64", "tensor_fp16"}
        The unit whose peak bounds the problem.
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
        return self.terms == 1 and self.result.startswith("complex")

    @property
    def is_sum(self) -> bool:
        """Whether an element is the sum of two doubles."""
        return self.terms == 2

    @property
    def has_wider_on_gpu(self) -> bool:
        """Whether a GPU has the wider type, too."""
        return self.wider in ("float64", "complex128")


def _of_blas(number: int, dtype: str, arithmetic: str, wider: str) -> Precision:
    return Precision(number, dtype, dtype, arithmetic, float(np.finfo(dtype).eps) / 2, wider)


_TENSOR_CORES = 2.0**-22
"""Products of two half-precision numbers are exact in FP32. Tensor cores add several of them to an FP32 number at once:
they shift all terms to the exponent of the largest, cut off what lies below some bits beyond FP32, and cut off the sum,
too (Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ Computer Science 7, 2021).
A term loses less than a unit in the last place of FP32, 2**-23, of the largest sum of moduli, and a sum as much again:
2**-22 for each product bounds both.
"""

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
            Precision(4, "float16", "float32", "tensor_fp16", _TENSOR_CORES, "float64"),
            Precision(5, "bfloat16", "float32", "tensor_fp16", _TENSOR_CORES, "float64"),
            Precision(6, "complex128", "complex128", "fp64", _DOUBLE_DOUBLE, "", reference="", terms=2),
        ),
        strict=True,
    )
)
"""The precisions by name."""

TRANSPOSES = ("N", "T", "C")


def transpositions(precision: str) -> tuple[tuple[str, str], ...]:
    """Return the pairs (trans_a, trans_b) of a precision that differ; C of a real matrix is T.

    Examples
    --------
    >>> transpositions("h")
    (('N', 'N'), ('N', 'T'), ('T', 'N'), ('T', 'T'))
    """
    ops = TRANSPOSES if PRECISIONS[precision].is_complex else TRANSPOSES[:2]
    return tuple((trans_a, trans_b) for trans_a in ops for trans_b in ops)
