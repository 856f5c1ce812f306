"""A table of configurations: one integer column per parameter. Everything on the hot path works on whole columns."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Columns = Mapping[str, NDArray[np.int64]]
"""Columns of equal length by parameter name, in the order of the kernel bundle."""


def length(columns: Columns) -> int:
    """Return the number of configurations in a table."""
    return len(next(iter(columns.values()))) if columns else 0


def row(columns: Columns, position: int) -> dict[str, int]:
    """Return one configuration of a table."""
    return {name: int(column[position]) for name, column in columns.items()}
