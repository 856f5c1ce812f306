"""The precisions of GEMM: the types of the operands and of the result, and the error of an operation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_FP32, _FP64 = 2.0**-24, 2.0**-53
_TENSOR_FP16 = 2.0**-22


@dataclass(frozen=True, slots=True)
class Precision:
    """Types of a GEMM and the error of its operations.

    Attributes
    ----------
    operands : str
        Type of A and B, a name of :data:`mltune.problem.array_values.DTYPES`.
    result : str
        Type of alpha, beta and C; sums are of this type.
    wider : str
        NumPy's type in which a right answer is computed.
    unit_roundoff : float
        Largest relative error of an operation.
    arithmetic : str
        The unit whose peak bounds the problem.
    """

    operands: str
    result: str
    wider: str
    unit_roundoff: float
    arithmetic: str

    @property
    def is_complex(self) -> bool:
        """Whether the elements are complex."""
        return self.result.startswith("complex")

    @property
    def has_wider_on_gpu(self) -> bool:
        """Whether a GPU has the wider type, too."""
        return self.wider in ("float64", "complex128")


PRECISIONS: Mapping[str, Precision] = {
    "s": Precision("float32", "float32", "float64", _FP32, "fp32"),
    "d": Precision("float64", "float64", "longdouble", _FP64, "fp64"),
    "c": Precision("complex64", "complex64", "complex128", _FP32, "fp32"),
    "z": Precision("complex128", "complex128", "clongdouble", _FP64, "fp64"),
    "h": Precision("float16", "float32", "float64", _TENSOR_FP16, "tensor_fp16"),
    "b": Precision("bfloat16", "float32", "float64", _TENSOR_FP16, "tensor_fp16"),
}
"""The precisions by the letter of their problems, in the order of the macro ``PRECISION``.

Products of two half-precision numbers are exact in FP32. Tensor cores add several of them to an FP32 number at once:
they shift all terms to the exponent of the largest, cut off what lies below some bits beyond FP32, and cut off the sum,
too (Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ Computer Science 7, 2021).
A term loses less than a unit in the last place of FP32, 2**-23, of the largest sum of moduli, and a sum as much again:
2**-22 for each product bounds both.
"""

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
