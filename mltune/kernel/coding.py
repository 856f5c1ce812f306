"""Values and names of parameters: integers that stand for values of any type, and tables of configurations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from mltune.errors import BundleError
from mltune.files.text import printable

_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_WORDS = (
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t char8_t class "
    "co_await co_return co_yield compl concept const const_cast consteval constexpr constinit continue decltype "
    "default defined delete do double dynamic_cast else enum explicit export extern false float for friend goto if "
    "inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public "
    "register reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch "
    "template this thread_local throw true try typedef typeid typename union unsigned using virtual void volatile "
    "wchar_t while xor xor_eq"
)
KEYWORDS = frozenset(_WORDS.split())
"""Words of C++."""
_CUDA = frozenset(["threadIdx", "blockIdx", "blockDim", "gridDim", "warpSize", "x", "y", "z", "w"])


def check_macro_name(name: str) -> None:
    """Check that a parameter's name can be the name of a macro."""
    if _IDENTIFIER.fullmatch(name) is None:
        law = "consists of letters, digits and _, begins with a letter and has at most 64 characters"
    elif name in KEYWORDS:
        law = "is not a keyword of C++"
    elif "__" in name:
        law = "has no double _, which C++ reserves"
    elif name in _CUDA:
        law = "is not one of CUDA's variables or their members"
    else:
        return
    raise BundleError(
        f"{printable(name, 80)!r} cannot name a parameter, which becomes a macro: its name {law}; rename it"
    )


Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Columns = Mapping[str, Indices]
"""Columns of equal length by parameter name, in the order of the kernel bundle."""

LARGEST_INTEGER = 2**53
"""Bound on the size of integers: below it sums of products do not overflow, and floats represent them exactly."""


def length(columns: Columns) -> int:
    """Return the number of configurations in a table."""
    return len(next(iter(columns.values()))) if columns else 0


def row(columns: Columns, position: int) -> dict[str, int]:
    """Return one configuration of a table."""
    return {name: int(column[position]) for name, column in columns.items()}


def columns_of(*configurations: Mapping[str, int]) -> Columns:
    """Return configurations with the same parameters as a table."""
    first, *_ = configurations
    return {name: np.array([values[name] for values in configurations], dtype=np.int64) for name in first}


def crossed(columns: Columns, values: Mapping[str, Sequence[int]]) -> Columns:
    """Return each configuration of a table with all combinations of some parameters' values, one after the other."""
    grids = np.meshgrid(np.arange(length(columns)), *values.values(), indexing="ij")
    rows, *chosen = (grid.reshape(-1) for grid in grids)
    return {name: column[rows] for name, column in columns.items()} | dict(zip(values, chosen, strict=True))


def number_rows(
    columns: Sequence[NDArray[np.integer]], extents: Sequence[int], size: int | None = None
) -> tuple[Indices, NDArray[np.intp]]:
    """Give distinct rows of a table numbers from 0 on; return that of each row, and a row of each number.

    Numbers are compared ten times as fast as rows. A column has integers from 0 to its extent - 1, at most 2**45.
    `size` is needed where there are no columns.
    """
    size = len(columns[0]) if size is None else size
    number = np.zeros(size, dtype=np.int64)
    extent = 1
    for column, radix in zip(columns, extents, strict=True):
        if extent * radix >= 2**62:
            number, extent = _renumbered(number, extent)
        number = number * radix + column
        extent *= radix
    number, extent = _renumbered(number, extent)
    representative = np.zeros(extent, dtype=np.intp)
    representative[number] = np.arange(size)
    return number, representative


def _renumbered(number: Indices, extent: int) -> tuple[Indices, int]:
    """Renumber so that every number from 0 on occurs; return the numbers and how many there are."""
    if extent > max(8 * len(number), 1 << 16):
        numbers, inverse = np.unique(number, return_inverse=True)
        return inverse, len(numbers)
    occurs = np.zeros(extent, dtype=bool)
    occurs[number] = True
    numbers = np.flatnonzero(occurs)
    renumbered = np.empty(extent, dtype=np.int64)
    renumbered[numbers] = np.arange(len(numbers))
    return renumbered.take(number), len(numbers)


Codes: TypeAlias = Mapping[str, NDArray[np.intp]]
"""Columns of codes by parameter name; -1 for a value that is not in the list."""

_LARGEST_LOOKUP = 1 << 16

_Label = TypeVar("_Label")


@dataclass(frozen=True, slots=True)
class CodedValues:
    """The values of one parameter as listed, the integers that stand for them, and `labels` if these are positions."""

    listed: tuple[Any, ...]
    integers: tuple[int, ...]
    labels: tuple[Any, ...] | None

    def code(self, value: Any, what: str = "a value") -> int:
        """Return the integer that stands for a value; a ``ValueError`` tells of one that is not in the list."""
        if value not in self.listed:
            listed, got = printable(list(self.listed), 300), printable(repr(value), 60)
            raise ValueError(f"{what} cannot be {got}: it is one of {listed}")
        return self.integers[self.listed.index(value)]


def code_values(values: Sequence[Any]) -> CodedValues:
    """Code the values of a kernel's parameter: integers stand for themselves, others have their positions.

    >>> code_values([True, 4]).integers, code_values([0.5, 1]).labels
    ((1, 4), (0.5, 1.0))
    """
    if not 0 < len(set(values)) == len(values):
        raise ValueError(
            f"{printable(list(values), 200)} cannot be the values of a parameter: they are one or more, and distinct"
        )
    if all(isinstance(value, int | np.integer | np.bool_) for value in values):
        return CodedValues(tuple(values), tuple(map(int, values)), None)
    labels = map(str if any(isinstance(value, str) for value in values) else float, values)
    return CodedValues(tuple(values), tuple(range(len(values))), tuple(labels))


def spanned(coded: Mapping[str, CodedValues]) -> dict[str, Any]:
    """Return the fields of a space: the integers of its ``parameters``, and the ``labels`` of those that have some."""
    labels = {name: values.labels for name, values in coded.items() if values.labels is not None}
    return {"parameters": {name: values.integers for name, values in coded.items()}, "labels": labels}


def code_ordered(values: Sequence[Any]) -> CodedValues:
    """Code values of any type for a search, in which neighbours are similar: whole numbers stand for themselves.

    Others have their positions: in ascending order if they are numbers, otherwise as listed.

    >>> code_ordered([2.0, 1]).integers, code_ordered([1.5, None, 0.5]).integers, code_ordered(["b", "a"]).integers
    ((2, 1), (2, 0, 1), (0, 1))
    """
    if all(_is_number(value) and abs(value) < LARGEST_INTEGER and value == int(value) for value in values):
        return CodedValues(tuple(values), tuple(map(int, values)), None)
    ordered = list(values)
    if all(value is None or _is_number(value) for value in values):
        ordered.sort(key=lambda value: (value is not None, value or 0))
    place = {value: position for position, value in enumerate(ordered)}
    return CodedValues(tuple(values), tuple(place[value] for value in values), tuple(ordered))


def _is_number(value: Any) -> bool:
    return isinstance(value, Real)


def code_default(default: Mapping[str, Any], parameters: Mapping[str, CodedValues]) -> dict[str, int]:
    """Code a default configuration; a ``ValueError`` tells why it is none."""
    for fact, names in (("lacks", parameters.keys() - default.keys()), ("has", default.keys() - parameters.keys())):
        if names:
            listed = printable(", ".join(sorted(names)), 300)
            raise ValueError(f"it {fact} {listed}; a default has a value of every parameter")
    return {name: coded.code(default[name], name) for name, coded in parameters.items()}


def labelled(configuration: Mapping[str, int], labels: Mapping[str, Sequence[_Label]]) -> dict[str, int | _Label]:
    """Return a configuration with labels in place of their positions."""
    return {name: labels[name][value] if name in labels else value for name, value in configuration.items()}


class ValueList:
    """The integers of one parameter, distinct and in any order; the code of one is its position."""

    def __init__(self, values: Sequence[int]) -> None:
        self._values = np.array(values, dtype=np.int64)
        self._order = np.argsort(self._values)
        self._ascending = self._values[self._order]
        self._lowest = int(self._ascending[0])
        span = int(self._ascending[-1]) - self._lowest + 1
        self._lookup: NDArray[np.intp] | None = None
        if span <= _LARGEST_LOOKUP:
            self._lookup = np.full(span + 1, -1, dtype=np.intp)  # the last entry is for all values outside
            self._lookup[self._values - self._lowest] = np.arange(len(self._values))

    def decode(self, codes: NDArray[np.intp]) -> NDArray[np.int64]:
        """Return the values of codes."""
        return self._values[codes]

    def encode(self, column: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return the codes of values, -1 for those that are not in the list."""
        if self._lookup is not None:
            # as unsigned numbers, values below the lowest are above the highest
            offset = np.minimum((column - self._lowest).view(np.uint64), np.uint64(len(self._lookup) - 1))
            return self._lookup[offset.view(np.int64)]
        place = np.minimum(np.searchsorted(self._ascending, column), len(self._values) - 1)
        return np.where(self._ascending[place] == column, self._order[place], -1)

    def closest(self, column: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return for each value the code of the value in the list that is closest to it."""
        above = np.clip(np.searchsorted(self._ascending, column), 1, max(len(self._values) - 1, 1))
        above = np.minimum(above, len(self._values) - 1)
        below = np.maximum(above - 1, 0)
        lower = column - self._ascending[below] <= self._ascending[above] - column
        return self._order[np.where(lower, below, above)]

    def distances(self, column: NDArray[np.int64], parameters: int) -> NDArray[np.float32]:
        """Return the distances of values from each value of the list, of shape (n, n_values).

        They are 0 if equal, otherwise 1 plus a term below ``1 / parameters`` that grows with the steps between the
        values; `parameters` is the number of them over which the caller sums.
        """
        steps = np.abs(self.closest(column)[:, None] - np.arange(len(self._values)))
        differs = column[:, None] != self._values
        distance: NDArray[np.float32] = (differs + steps / (parameters * (len(self._values) + 1))).astype(np.float32)
        return distance
