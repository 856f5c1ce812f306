"""Codes of parameter values: the position of each value in the list of its parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Codes: TypeAlias = Mapping[str, NDArray[np.intp]]
"""Columns of codes by parameter name; -1 for a value that is not in the list."""

_LARGEST_LOOKUP = 1 << 16


class ValueList:
    """The values of one parameter.

    Parameters
    ----------
    values : sequence of int
        Distinct, in any order.
    """

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
        """Return the distances of values from each value of the list.

        Parameters
        ----------
        column : ndarray of shape (n,)
        parameters : int
            Number of parameters over which the caller sums the distances.

        Returns
        -------
        ndarray of shape (n, n_values), float32
            0 if equal; otherwise 1 plus a term below ``1 / parameters`` that grows with the steps between the values.
        """
        steps = np.abs(self.closest(column)[:, None] - np.arange(len(self._values)))
        differs = column[:, None] != self._values
        distance: NDArray[np.float32] = (differs + steps / (parameters * (len(self._values) + 1))).astype(np.float32)
        return distance
