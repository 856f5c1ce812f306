"""Double-double matrices: random elements, and products in more than their precision, with NumPy or CuPy.

A double-double number is the unevaluated sum of two doubles, the second at most half a unit in the last place of the
first. An array of them is stored as ``complex128``, whose parts are the high and the low one.
"""

from __future__ import annotations

import math
from typing import Any

SMALLEST_BIT = 2.0**-106
"""The low parts of random elements are multiples of this: the last of the 106 bits of an element near 1."""

_MOST_BITS = 240  # of an element, counted from the largest of its matrix
_SPLIT = 2.0**27 + 1


def random_low_parts(xp: Any, high: Any, uniform: Any) -> Any:
    """Return low parts for high ones in [-1, 1], from random numbers in [-1, 1); less than half a unit each."""
    return xp.rint(uniform * high * 2.0**-54 / SMALLEST_BIT) * SMALLEST_BIT


def gemm(xp: Any, alpha: float, left: Any, right: Any, beta: float, added: Any) -> Any:
    """Return alpha left right + beta added, with a few roundings to double-double precision.

    The matrices are complex128. Where alpha or beta is 0, its factor is not read.
    """
    high = low = xp.zeros(added.shape)
    if alpha and left.shape[1]:
        high, low = _scaled(alpha, *_product(xp, left, right))
    if beta:
        high, low = _total(high, low, *_scaled(beta, added.real, added.imag))
    return high + 1j * low


def _product(xp: Any, left: Any, right: Any) -> tuple[Any, Any]:
    """Return the product of two matrices.

    Both are written in digits of so few bits that a product of two matrices of digits is exact in doubles, whatever the
    order of its sums (Ozaki, Ogita, Oishi, Rump, "Error-free transformations of matrix multiplication by using fast
    routines of matrix multiplication and its applications", 2012). These products are added in double-double
    arithmetic, the smallest first.
    """
    high = low = xp.zeros((left.shape[0], right.shape[1]))
    bits = (53 - max(left.shape[1] - 1, 1).bit_length()) // 2
    of_left, of_right = _digits(xp, left, bits), _digits(xp, right, bits)
    pairs = [(i, j) for i in range(len(of_left)) for j in range(len(of_right))]
    for i, j in sorted(pairs, key=sum, reverse=True):
        (first, unit), (second, other) = of_left[i], of_right[j]
        high, low = _total(high, low, (first @ second) * unit * other, 0.0)
    return high, low


def _digits(xp: Any, matrix: Any, bits: int) -> list[tuple[Any, float]]:
    """Return matrices of integers up to 2**bits and the unit of each, largest first, whose sum is the matrix.

    Parts below 2**-240 of the largest element are left out.
    """
    high, low = matrix.real, matrix.imag
    largest = float(abs(high).max()) if high.size else 0.0
    exponent = math.frexp(largest)[1] if math.isfinite(largest) else 0
    found = []
    for position in range(1, _MOST_BITS // bits + 1):
        if not high.any():
            break
        unit = math.ldexp(1.0, exponent - position * bits)
        digit = xp.rint(high / unit)
        found.append((digit, unit))
        high, low = _two_sum(high - digit * unit, low)
    return found


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
