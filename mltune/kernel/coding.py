"""The coder of parameter values: integers that stand for values of any type, and positions in lists of integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from mltune.files.text import printable
from mltune.kernel.columns import LARGEST_INTEGER

Codes: TypeAlias = Mapping[str, NDArray[np.intp]]
"""Columns of codes by parameter name; -1 for a value that is not in the list."""

_LARGEST_LOOKUP = 1 << 16

_Label = TypeVar("_Label")


@dataclass(frozen=True, slots=True)
class CodedValues:
    """The values of one parameter with the integers that stand for them.

    Attributes
    ----------
    listed : tuple
        The values in the order of their list.
    integers : tuple of int
        For each the integer that stands for it.
    labels : tuple or None
        The values that 0, 1, ... stand for; None where values stand for themselves.
    """

    listed: tuple[Any, ...]
    integers: tuple[int, ...]
    labels: tuple[Any, ...] | None

    def code(self, value: Any, what: str = "a value") -> int:
        """Return the integer that stands for a value; a ``ValueError`` tells of one that is not in the list."""
        if value not in self.listed:
            known, got = printable(list(self.listed), 300), printable(repr(value), 60)
            raise ValueError(f"{what} must be one of {known}, got {got}")
        return self.integers[self.listed.index(value)]


def code_values(values: Sequence[Any]) -> CodedValues:
    """Code the values of a kernel's parameter: integers stand for themselves, others have their positions.

    Examples
    --------
    >>> code_values([True, 4]).integers, code_values([0.5, 1]).labels
    ((1, 4), (0.5, 1.0))
    """
    if not 0 < len(set(values)) == len(values):
        raise ValueError(f"a parameter must have distinct values, got {printable(list(values), 200)}")
    if all(isinstance(value, int | np.integer | np.bool_) for value in values):
        return CodedValues(tuple(values), tuple(map(int, values)), None)
    labels = map(str if any(isinstance(value, str) for value in values) else float, values)
    return CodedValues(tuple(values), tuple(range(len(values))), tuple(labels))


def code_ordered(values: Sequence[Any]) -> CodedValues:
    """Code values of any type for a search, in which neighbours are similar: whole numbers stand for themselves.

    Others have their positions: in ascending order if they are numbers, otherwise as listed.

    Examples
    --------
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


def code_default(given: Mapping[str, Any], parameters: Mapping[str, CodedValues]) -> dict[str, int]:
    """Code a default configuration; a ``ValueError`` tells why it is none."""
    for fact, names in (("lacks", parameters.keys() - given.keys()), ("has", given.keys() - parameters.keys())):
        if names:
            law = "a default must have a value of every parameter"
            raise ValueError(f"{law}, but this one {fact} {printable(', '.join(sorted(names)), 300)}")
    return {name: coded.code(given[name], name) for name, coded in parameters.items()}


def labelled(configuration: Mapping[str, int], labels: Mapping[str, Sequence[_Label]]) -> dict[str, int | _Label]:
    """Return a configuration with labels in place of their positions.

    Examples
    --------
    >>> labelled({"MODE": 1, "BLK": 16}, {"MODE": ("row", "column")})
    {'MODE': 'column', 'BLK': 16}
    """
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
        values; ``parameters`` is the number of them over which the caller sums.
        """
        steps = np.abs(self.closest(column)[:, None] - np.arange(len(self._values)))
        differs = column[:, None] != self._values
        distance: NDArray[np.float32] = (differs + steps / (parameters * (len(self._values) + 1))).astype(np.float32)
        return distance
