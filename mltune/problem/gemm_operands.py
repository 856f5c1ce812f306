"""Random operands of a GEMM, and the matrix arithmetic of its result and error bound."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mltune.problem.array_values import stored
from mltune.problem.double_double import random_low_parts

LARGEST_INTEGER = 3
"""Largest modulus of an integer operand."""

MOST_SAMPLED = 512
"""Rows, and columns, of a sample of a matrix."""

REPEATED = 4_194_301
"""Numbers that are drawn for operands on a GPU, which repeat them: a prime, so that no two rows are the same."""


def random_generator(xp: Any, seed: int) -> Any:
    """Return a generator of random numbers for arrays of module ``xp``: NumPy's, or one that repeats NumPy's numbers.

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
    rows: int,
    columns: int,
    leading: int,
    integers: bool,
    *,
    unread: bool,
    is_sum: bool = False,
) -> Any:
    """Make a flat column-major buffer of random elements, uniform in [-1, 1), with a generator of module ``xp``.

    The padding between the rows and the leading dimension is NaN, and so is all of a matrix that must stay ``unread``.
    With ``integers`` the elements are integers up to :data:`LARGEST_INTEGER`. Half precision is rounded from single.
    With ``is_sum`` the parts of an element are those of a double-double number.
    """
    is_half, is_complex = dtype in ("float16", "bfloat16"), dtype.startswith("complex")
    drawn = np.dtype("float32" if is_half else dtype)
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
    return stored(xp, matrix, dtype) if is_half else matrix


def numbers(values: Any, dtype: str) -> Any:
    """Return the values of a buffer of some type as numbers: of bfloat16, which is stored as its bits, in float32."""
    return (values.astype("uint32") << 16).view("float32") if dtype == "bfloat16" else values


def sampled_indices(extent: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Return some rows or columns of an extent, one in each of equal parts; the first and the last are among them."""
    parts = min(extent, MOST_SAMPLED)
    found = ((np.arange(parts) + generator.random(parts)) * extent / parts).astype(np.int64)
    found[0], found[-1] = 0, extent - 1
    return np.unique(found)


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


def multiply_moduli(left: Any, right: Any) -> Any:
    """Return the sums of the moduli of all products in either part of a matrix product."""
    left, right = moduli(left), moduli(right)
    if left.dtype.kind != "c":
        return left @ right
    return left.real @ right.real + left.imag @ right.imag + 1j * (left.real @ right.imag + left.imag @ right.real)


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
