"""Tables of configurations: one integer column for each parameter, and the array types that all rooms share."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Columns = Mapping[str, Indices]
"""Columns of equal length by parameter name, in the order of the kernel bundle."""


def length(columns: Columns) -> int:
    """Return the number of configurations in a table."""
    return len(next(iter(columns.values()))) if columns else 0


def row(columns: Columns, position: int) -> dict[str, int]:
    """Return one configuration of a table."""
    return {name: int(column[position]) for name, column in columns.items()}
