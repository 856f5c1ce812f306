"""The precisions of GEMM, its random operands, and the matrix arithmetic of its result and error.

An element of precision ``dd`` is the unevaluated sum of two doubles, the second at most half a unit in the last place
of the first. An array of them is stored as ``complex128``, whose parts are the high and the low one.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mltune.problem.array_values import E4M3, E5M2, FP8, stored


@dataclass(frozen=True, slots=True)
class Precision:
    """The types of the matrices of a GEMM, and the exactness of its arithmetic.

    `number` is the macro ``PRECISION`` of a kernel's source. `operands` and `result` are types of
    :data:`mltune.problem.array_values.STORAGE`, of A and B, and of C. The `arithmetic` is the unit whose peak bounds
    the problem, `roundoff` the largest relative error of an operation in the error bound, and `wider` NumPy's type of
    the correct result or empty. An element is the unevaluated sum of `terms` numbers: 2 in double-double arithmetic,
    stored as ``complex128``. Sums of so many products, `promoted`, are added in FP32; 0 if there is one kind of sums.
    """

    number: int
    operands: tuple[str, str]
    result: str
    arithmetic: str
    roundoff: float
    wider: str
    reference: str = "cuBLAS"
    terms: int = 1
    promoted: int = 0

    @property
    def accumulator(self) -> str:
        """The type of sums, alpha and beta: that of C, or FP32 where C is in half precision."""
        return "float32" if self.result in HALF_PRECISION else self.result

    @property
    def rounding(self) -> tuple[float, float, float]:
        """The entry of :data:`HALF_PRECISION` for C; 0, 0 and infinity where sums are not rounded to it."""
        return HALF_PRECISION.get(self.result, (0.0, 0.0, math.inf))

    @property
    def is_complex(self) -> bool:
        """Whether the elements are complex numbers."""
        return self.terms == 1 and self.result.startswith("complex")

    @property
    def is_fp8(self) -> bool:
        """Whether A and B are in FP8."""
        return self.operands[0] in FP8

    @property
    def is_sum(self) -> bool:
        """Whether an element is the sum of two doubles."""
        return self.terms == 2

    @property
    def has_wider_on_gpu(self) -> bool:
        """Whether a GPU has the wider type, too."""
        return self.wider in ("float64", "complex128")


HALF_PRECISION: Mapping[str, tuple[float, float, float]] = {
    "float16": (2.0**-11, 2.0**-25, 65504.0),
    "bfloat16": (2.0**-8, 2.0**-134, 255 * 2.0**120),
}
"""Of a type: the largest relative error of rounding to it, the largest error of subnormal numbers, its largest number.
"""

NARROW = (*HALF_PRECISION, *FP8)
"""The types of A and B that have fewer bits than sums, alpha and beta."""


def _of_blas(number: int, dtype: str, arithmetic: str, wider: str) -> Precision:
    return Precision(number, (dtype, dtype), dtype, arithmetic, float(np.finfo(dtype).eps) / 2, wider)


def _of_half(number: int, dtype: str, result: str) -> Precision:
    return Precision(number, (dtype, dtype), result, "tensor_fp16", _TENSOR_CORES, "float64")


def _of_fp8(name: str, number: int, operands: tuple[str, str]) -> dict[str, Precision]:
    """Return the precisions of some operands in FP8 by their names, the last of which has fast sums."""
    return {
        f"{name}{suffix}": Precision(
            number + place, operands, result, "tensor_fp8", _FP8_TENSOR_CORES, "float64", "", promoted=promoted
        )
        for place, (suffix, result, promoted) in enumerate(
            (("b", "bfloat16", 128), ("h", "float16", 128), ("s", "float32", 128), ("bf", "bfloat16", 0))
        )
    }


_TENSOR_CORES = 2.0**-22
"""Products of two half-precision numbers are exact in FP32. Tensor cores add several of them to an FP32 number at once:
they shift all terms to the exponent of the largest, cut off what lies below some bits beyond FP32, and cut off the sum,
too (Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ Computer Science 7, 2021).
A term loses less than a unit in the last place of FP32, 2**-23, of the largest sum of moduli, and a sum as much again:
2**-22 for each product bounds both.
"""

_FP8_TENSOR_CORES = 2.0**-13
"""Products of two FP8 numbers are exact. Tensor cores of Hopper add 32 of them to a sum at once, as above, but keep 13
bits below the first of the largest term. So each of the 33 terms loses less than 2**-13 of the largest, which is at
most the sum of moduli until then: half of the whole one in the mean of the instructions. This is 2**-14 for each
product, and 2**-13 bounds the cut of the sum, too.
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

PRECISIONS: Mapping[str, Precision] = {
    "s": _of_blas(0, "float32", "fp32", "float64"),
    "d": _of_blas(1, "float64", "fp64", "longdouble"),
    "c": _of_blas(2, "complex64", "fp32", "complex128"),
    "z": _of_blas(3, "complex128", "fp64", "clongdouble"),
    "h": _of_half(7, "float16", "float16"),
    "b": _of_half(8, "bfloat16", "bfloat16"),
    "hs": _of_half(4, "float16", "float32"),
    "bs": _of_half(5, "bfloat16", "float32"),
    **_of_fp8("e", 9, (E4M3, E4M3)),
    **_of_fp8("e45", 13, (E4M3, E5M2)),
    **_of_fp8("e54", 17, (E5M2, E4M3)),
    "dd": Precision(6, ("complex128", "complex128"), "complex128", "fp64", _DOUBLE_DOUBLE, "", reference="", terms=2),
}
"""The precisions of GEMM by the letters before its name: those of the BLAS, FP16, BF16, the same with C in FP32,
FP8 with C in BF16, FP16 or FP32 and with fast sums (``e`` of e4m3, ``e45`` of e4m3 and e5m2, ``e54`` the other way
round), double-double arithmetic. Sums of half-precision products are in
FP32; those of FP8 products are added to sums in FP32 every 128 steps of k, or never if they are fast.
"""

TRANSPOSES = ("N", "T", "C")


def transpositions(precision: str) -> tuple[tuple[str, str], ...]:
    """Return the pairs (trans_a, trans_b) of a precision that differ; C of a real matrix is T, and FP8 has one pair."""
    if PRECISIONS[precision].is_fp8:
        return (FP8_OPS,)
    ops = TRANSPOSES if PRECISIONS[precision].is_complex else TRANSPOSES[:2]
    return tuple((trans_a, trans_b) for trans_a in ops for trans_b in ops)


FP8_OPS = ("T", "N")
"""The only case of FP8: tensor cores read lines along k of both operands."""

LARGEST_INTEGER = 3
"""Largest modulus of an integer operand."""

MOST_SAMPLED = 512
"""Rows, and columns, of a sample of a matrix."""

REPEATED = 4_194_301
"""Numbers that are drawn for operands on a GPU, which repeat them: a prime, so that no two rows are the same."""


def random_generator(xp: Any, seed: int) -> Any:
    """Return a generator of random numbers for arrays of module `xp`: NumPy's, or one that repeats NumPy's numbers.

    CuPy's own generators take a second to start, and NumPy takes as long for as many numbers as a GPU holds.
    """
    generator = np.random.default_rng(seed)
    return generator if xp is np else _Repeating(xp, generator)


class _Repeating:
    def __init__(self, xp: Any, generator: np.random.Generator) -> None:
        self._xp = xp
        self._generator = generator

    def random(self, count: int, dtype: str) -> Any:
        drawn = self._xp.asarray(self._generator.random(min(count, REPEATED), dtype=np.dtype(dtype)))
        return self._xp.tile(drawn, -(-count // len(drawn)))[:count] if count > len(drawn) else drawn


def random_matrix(
    xp: Any,
    generator: Any,
    dtype: str,
    extents: tuple[int, int, int],
    *,
    integers: bool,
    unread: bool,
    is_sum: bool = False,
) -> Any:
    """Make a flat column-major buffer of random elements, uniform in [-1, 1), with a generator of module `xp`.

    The extents are rows, columns and leading dimension. The padding and all of an `unread` matrix are NaN. Elements are
    `integers` up to :data:`LARGEST_INTEGER`, of half precision and FP8 rounded from single, or with `is_sum`
    double-double numbers.
    """
    rows, columns, leading = extents
    is_narrow, is_complex = dtype in NARROW, dtype.startswith("complex")
    drawn = np.dtype("float32" if is_narrow else dtype)
    values = generator.random(leading * columns * (2 if is_complex else 1), dtype=drawn.char.lower())
    if integers:
        values *= 2 * LARGEST_INTEGER + 1
        xp.floor(values, out=values)
        values -= LARGEST_INTEGER
        xp.clip(values, -LARGEST_INTEGER, LARGEST_INTEGER, out=values)
    else:
        values *= 2
        values -= 1
    if is_sum:
        values[1::2] = 0 if integers else random_low_parts(xp, values[::2], values[1::2])
    matrix = values.view(drawn)
    nan = complex(math.nan, math.nan) if is_complex else math.nan
    matrix.reshape(columns, leading)[:, 0 if unread else rows :] = nan
    return stored(xp, matrix, dtype) if is_narrow else matrix


def numbers(values: Any, dtype: str) -> Any:
    """Return the values of a buffer of some type as numbers: of bfloat16 and FP8, stored as bits, in float32."""
    if dtype == E5M2:  # the upper half of FP16
        return (values.astype("uint16") << 8).view("float16").astype("float32")
    if dtype == E4M3:
        halves = (values & 0x80).astype("uint16") << 8 | (values & 0x7F).astype("uint16") << 7
        halves |= ((values & 0x7F) == 0x7F) * np.uint16(0x7C00)  # NaN
        return halves.view("float16").astype("float32") * np.float32(256)
    return (values.astype("uint32") << 16).view("float32") if dtype == "bfloat16" else values


def sampled_indices(extent: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Return some rows or columns of an extent, one in each of equal parts; the first and the last are among them."""
    parts = min(extent, MOST_SAMPLED)
    indices = ((np.arange(parts) + generator.random(parts)) * extent / parts).astype(np.int64)
    indices[0], indices[-1] = 0, extent - 1
    return np.unique(indices)


def module(array: Any) -> Any:
    """Return the module of an array, NumPy or CuPy, without importing either."""
    return sys.modules[type(array).__module__.partition(".")[0]]


def view(buffer: Any, shape: tuple[int, int], leading: int, batch: int) -> Any:
    """View a flat column-major buffer as a matrix of a shape (rows, columns), or as a batch (batch, rows, columns)."""
    rows, columns = shape
    matrices = buffer[: batch * columns * leading].reshape(batch, columns, leading)[:, :, :rows].swapaxes(1, 2)
    return matrices if batch > 1 else matrices[0]


def op(buffer: Any, shape: tuple[int, int], leading: int, batch: int, trans: str) -> Any:
    """View a flat column-major buffer of a stored shape as op of its matrix, or of a batch."""
    matrix = view(buffer, shape, leading, batch)
    if trans == "N":
        return matrix
    return matrix.swapaxes(-2, -1).conj() if trans == "C" else matrix.swapaxes(-2, -1)


def moduli(matrix: Any) -> Any:
    """Return |x|, of either part where complex, in double precision."""
    if matrix.dtype.kind != "c":
        return abs(matrix).astype("float64")
    return abs(matrix.real).astype("float64") + 1j * abs(matrix.imag).astype("float64")


def multiply_moduli(lhs: Any, rhs: Any) -> Any:
    """Return the sums of the moduli of all products in either part of a matrix product."""
    lhs, rhs = moduli(lhs), moduli(rhs)
    if lhs.dtype.kind != "c":
        return lhs @ rhs
    return lhs.real @ rhs.real + lhs.imag @ rhs.imag + 1j * (lhs.real @ rhs.imag + lhs.imag @ rhs.real)


def scale_moduli(scalar: complex | float, moduli: Any) -> Any:
    """Return the sums of the moduli of all products in either part of a scalar times a matrix of given moduli."""
    real, imag = abs(scalar.real), abs(scalar.imag)
    if moduli.dtype.kind != "c":
        return real * moduli
    return real * moduli.real + imag * moduli.imag + 1j * (real * moduli.imag + imag * moduli.real)


def largest_ratio(error: Any, limit: Any) -> float:
    """Return the largest error as a share of its limit; NaN counts as infinite."""
    xp = module(error)
    allowed = xp.maximum(limit, np.finfo("float64").tiny).astype(error.dtype)
    with np.errstate(over="ignore"):
        worst = float(xp.max(error / allowed))
    return worst if math.isfinite(worst) else math.inf


SMALLEST_BIT = 2.0**-106
"""The low parts of random elements are multiples of this: the last of the 106 bits of an element near 1."""

_MOST_BITS = 240  # of an element, counted from the largest of its matrix
_SPLIT = 2.0**27 + 1


def random_low_parts(xp: Any, high: Any, uniform: Any) -> Any:
    """Return low parts for high ones in [-1, 1], from random numbers in [-1, 1); less than half a unit each."""
    return xp.rint(uniform * high * 2.0**-54 / SMALLEST_BIT) * SMALLEST_BIT


def gemm(xp: Any, alpha: float, lhs: Any, rhs: Any, beta: float, added: Any) -> Any:
    """Return alpha lhs rhs + beta added of complex128 matrices, nearly in double-double; a factor of 0 is not read."""
    high = low = xp.zeros(added.shape)
    if alpha and lhs.shape[1]:
        high, low = _scaled(alpha, *_product(xp, lhs, rhs))
    if beta:
        high, low = _total(high, low, *_scaled(beta, added.real, added.imag))
    return high + 1j * low


def product(lhs: Any, rhs: Any) -> Any:
    """Return the product of matrices of doubles, nearly exactly, in long double, faster than NumPy's product."""
    if lhs.dtype.kind == "c":
        parts = product(np.concatenate([lhs.real, lhs.imag], axis=-2), np.concatenate([rhs.real, rhs.imag], axis=-1))
        (rr, ri), (ir, ii) = (np.split(rows, 2, axis=-1) for rows in np.split(parts, 2, axis=-2))
        return rr - ii + 1j * (ri + ir)
    total = np.zeros((*lhs.shape[:-1], rhs.shape[-1]), np.longdouble)
    for exact, unit in _exact_products(np, lhs, rhs):
        total += exact * unit
    return total


def _product(xp: Any, lhs: Any, rhs: Any) -> tuple[Any, Any]:
    """Return the product of two matrices, in double-double arithmetic."""
    high = low = xp.zeros((*lhs.shape[:-1], rhs.shape[-1]))
    for exact, unit in _exact_products(xp, lhs, rhs):
        high, low = _total(high, low, exact * unit, 0.0)
    return high, low


def _exact_products(xp: Any, lhs: Any, rhs: Any) -> Iterator[tuple[Any, float]]:
    """Yield matrices of integers and the unit of each, the smallest first, whose sum is the product of two matrices.

    Both are written in digits of so few bits that a product of two matrices of digits is exact in doubles, whatever the
    order of its sums (Ozaki, Ogita, Oishi, Rump, "Error-free transformations of matrix multiplication by using fast
    routines of matrix multiplication and its applications", 2012).
    """
    bits = (53 - max(lhs.shape[-1] - 1, 1).bit_length()) // 2
    of_left, of_right = _digits(xp, lhs, bits), _digits(xp, rhs, bits)
    pairs = [(i, j) for i in range(len(of_left)) for j in range(len(of_right))]
    for i, j in sorted(pairs, key=sum, reverse=True):
        (first, unit), (second, other) = of_left[i], of_right[j]
        yield first @ second, unit * other


def _digits(xp: Any, matrix: Any, bits: int) -> list[tuple[Any, float]]:
    """Return matrices of integers up to 2**bits with units that sum to the matrix, to 2**-240 of its largest."""
    high, low = matrix.real, matrix.imag
    largest = float(abs(high).max()) if high.size else 0.0
    exponent = math.frexp(largest)[1] if math.isfinite(largest) else 0
    digits = []
    for position in range(1, _MOST_BITS // bits + 1):
        if not high.any():
            break
        unit = math.ldexp(1.0, exponent - position * bits)
        digit = xp.rint(high / unit)
        digits.append((digit, unit))
        high, low = _two_sum(high - digit * unit, low)
    return digits


def _two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """Return a sum and its error (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _two_product(a: Any, b: Any) -> tuple[Any, Any]:
    """Return a product and its error, without fused multiply-adds (Dekker, Veltkamp)."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _halves(a: Any) -> tuple[Any, Any]:
    scaled = _SPLIT * a
    high = scaled - (scaled - a)
    return high, a - high


def _scaled(factor: float, high: Any, low: Any) -> tuple[Any, Any]:
    product, error = _two_product(factor, high)
    return _two_sum(product, error + factor * low)


def _total(high: Any, low: Any, other_high: Any, other_low: Any) -> tuple[Any, Any]:
    total, error = _two_sum(high, other_high)
    lower, rest = _two_sum(low, other_low)
    total, error = _two_sum(total, error + lower)
    return _two_sum(total, error + rest)
