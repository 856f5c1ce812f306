"""Projection of proposals outside a space to the nearest untried configuration of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mltune.kernel.space import TableSpace

SPARSE = 0.01
"""A space with less than this share of the raw combinations of its values is sparse: few proposals are in it."""


def is_sparse(space: TableSpace) -> bool:
    """Return whether nearly all combinations of values are outside a space, as in a sample of a larger space."""
    return space.count < SPARSE * math.prod(len(values) for values in space.values.values())


class Projection:
    """The nearest untried configuration for any combination of values.

    The distance of two values of a parameter is the number of values between them, as a share of all its values.
    """

    def __init__(self, space: TableSpace) -> None:
        columns = space.rows(np.arange(space.count))
        self._names = space.names
        self._values = {name: np.array(space.values[name]) for name in space.names}
        self.codes = np.column_stack([np.searchsorted(self._values[name], columns[name]) for name in space.names])
        self._scaled = (self.codes / np.maximum(self.codes.max(axis=0), 1)).astype(np.float32)
        self._tried = np.zeros(space.count, dtype=bool)

    @property
    def exhausted(self) -> bool:
        """Whether all configurations have been tried."""
        return bool(self._tried.all())

    def take(self, codes: Any) -> int:
        """Return the index of the nearest untried configuration, and mark it as tried.

        Parameters
        ----------
        codes : array_like of shape (n_parameters,)
            Position of each value among the values of its parameter.
        """
        wanted = np.asarray(codes) / np.maximum(self.codes.max(axis=0), 1)
        distance = np.abs(self._scaled - wanted.astype(np.float32)).sum(axis=1)
        distance[self._tried] = np.inf
        index = int(np.argmin(distance))
        self._tried[index] = True
        return index

    def code(self, configuration: Mapping[str, int]) -> list[int]:
        """Return the position of each value of a configuration among the values of its parameter."""
        return [int(np.searchsorted(self._values[name], configuration[name])) for name in self._names]
