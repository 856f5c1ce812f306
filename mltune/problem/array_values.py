"""Values of arrays and scalars of every type that kernels take: storage, initial values, conversion.

NumPy has neither bfloat16 nor FP8: such arrays are stored as their bits.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from mltune.errors import ProblemError

_INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_COMPLEX = ("complex64", "complex128")

DTYPES = (*_FLOATS, *_COMPLEX, *_INTEGERS, "bool")
"""The types of arrays and scalars by name."""

E4M3, E5M2 = FP8 = "float8_e4m3fn", "float8_e5m2"
"""PyTorch's names of the types of FP8, which are for GEMMs alone: with 4 bits of exponent and 3 of fraction, up to 448,
without infinity; and with 5 and 2, up to 57,344.
"""

FP8_BLOCK = 128
"""Rows, and columns, of a matrix in FP8 that share a factor, where blocks have factors."""


def block_shapes(m: int, n: int, k: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the shapes of the factors of blocks of op(A), m x k, and of each column of op(B), k x n, stored by rows.

    >>> block_shapes(300, 5, 256)
    ((3, 2), (2, 5))
    """
    blocks = -(-k // FP8_BLOCK)
    return (-(-m // FP8_BLOCK), blocks), (blocks, n)


STORAGE = {name: np.dtype(np.uint16 if name == "bfloat16" else name) for name in DTYPES} | dict.fromkeys(
    FP8, np.dtype(np.uint8)
)
"""NumPy's type for the storage of each type."""

INITIAL = ("uniform", "normal", "integers", "arange")
"""Names of initial values; a number is a constant, and a name that ends with ``.npy`` a file."""

_LARGEST_UNIFORM = 1000
_MOST_FILE_BYTES = 2**36


def initial_array(xp: Any, generator: Any, dtype: str, shape: tuple[int, ...], initial: str | float) -> Any:
    """Make a flat array of a type and shape with NumPy or CuPy, whose generator is given.

    Initial values are a number; the path of an ``.npy`` file of this shape and type; ``"arange"``: 0, 1, 2 and so on;
    ``"integers"``: from -3 to 3 (0 to 3 unsigned); ``"normal"``: mean 0, standard deviation 1 (integers: 100, rounded);
    or ``"uniform"``: floats from -1 to 1, integers of 8 bits over their whole range, others from -1000 (0 unsigned) to
    1000, booleans. Both parts of complex elements are drawn. A file that does not fit raises a ProblemError.
    """
    count = math.prod(shape)
    if isinstance(initial, str) and initial.endswith(".npy"):
        return xp.asarray(np.ascontiguousarray(open_array(Path(initial), dtype, shape)).reshape(-1))
    if not isinstance(initial, str):
        return xp.full(count, stored(np, np.array([initial]), dtype)[0], dtype=STORAGE[dtype])
    if initial == "arange":
        return stored(xp, xp.arange(count), dtype)
    if dtype in _COMPLEX:
        parts = _drawn(generator, "float64", 2 * count, initial).astype("float64")
        return parts.view("complex128").astype(dtype)
    return stored(xp, _drawn(generator, dtype, count, initial), dtype)


def _drawn(generator: Any, dtype: str, count: int, initial: str) -> Any:
    is_float = dtype in (*_FLOATS, *_COMPLEX)
    if initial == "normal":
        drawn = generator.standard_normal(count)
        return drawn if is_float else (100 * drawn).round()
    if initial == "integers":
        return generator.integers(0 if dtype.startswith("u") or dtype == "bool" else -3, 4, count)
    if is_float:
        return 2.0 * generator.random(count, dtype="float32" if dtype == "float32" else "float64") - 1.0
    if dtype == "bool":
        return generator.integers(0, 2, count)
    if dtype in ("int8", "uint8"):
        limits = np.iinfo(dtype)
        return generator.integers(int(limits.min), int(limits.max) + 1, count)
    return generator.integers(0 if dtype.startswith("u") else -_LARGEST_UNIFORM, _LARGEST_UNIFORM + 1, count)


def stored(xp: Any, values: Any, dtype: str) -> Any:
    """Return values in the storage of a type; integers wrap, and values beyond a float's range become infinite."""
    if dtype == "bfloat16":
        return to_bfloat16(values.astype("float32"))
    if dtype in FP8:
        return to_fp8(values.astype("float32"), dtype)
    if dtype == "bool":
        return values != 0
    with np.errstate(all="ignore"):
        return (
            values.astype("int64").astype(dtype) if dtype in _INTEGERS and dtype != "uint64" else values.astype(dtype)
        )


def to_bfloat16(values: Any) -> Any:
    """Return the bits of float32 values rounded to bfloat16, to the nearest even."""
    bits = values.view("uint32")
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000  # rounding may carry it to infinity or zero
    return (rounded * ~is_nan + is_nan * np.uint32(0x7FC0)).astype("uint16")


def to_fp8(values: Any, dtype: str) -> Any:
    """Return the bits of float32 values rounded to FP8, to the nearest even; NaN, or infinite, beyond the largest."""
    fraction, bias, end, beyond = (3, 7, 464, 0x7F) if dtype == E4M3 else (2, 15, 61440, 0x7C)
    dropped = 23 - fraction
    size = abs(values)
    bits = size.view("uint32")
    normal = ((bits + ((1 << dropped - 1) - 1) + ((bits >> dropped) & 1)) >> dropped) - ((127 - bias) << fraction)
    smallest = np.float32(2.0 ** (dropped + 1 - bias))  # whose last bit is the last of the smallest numbers
    with np.errstate(invalid="ignore"):  # of a signalling NaN
        subnormal = (size + smallest).view("uint32") & 0xF
    is_small, is_beyond, is_nan = size < 2.0 ** (1 - bias), size >= end, size != size
    code = normal * ~(is_small | is_beyond | is_nan) + subnormal * is_small
    code = code + is_beyond * np.uint32(beyond) + is_nan * np.uint32(0x7F)
    return (code | (values.view("uint32") >> 24) & 0x80).astype("uint8")


def scalar(dtype: str, value: complex | float) -> Any:
    """Return a NumPy scalar of a type, as a kernel's argument."""
    return stored(np, np.array([value]), dtype)[0]


def open_array(path: Path, dtype: str, shape: tuple[int, ...]) -> Any:
    """Return the array in a file, whose content is read as it is used; raise what :func:`initial_array` does."""
    try:
        if path.stat().st_size > _MOST_FILE_BYTES:
            raise ValueError("it is larger than 64 GiB")
        array = np.lib.format.open_memmap(path, mode="r")  # neither archives nor pickled objects
    except Exception as error:  # also those of Python's parser, for what is no header
        raise ProblemError(f"{path} is no readable .npy file: {error!s:.200}.") from error
    storage = STORAGE[dtype]
    if array.dtype != storage or array.size != math.prod(shape):
        raise ProblemError(
            f"{path} holds {array.size} elements of {array.dtype}; the array has {math.prod(shape)} of {storage}."
        )
    return array
