"""Merge rows of a table that are repeated measurements of one configuration, and tell of contradictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mltune.dataset.cells import Cells
from mltune.errors import DatasetError
from mltune.files.text import printable
from mltune.kernel.columns import Floats, Indices
from mltune.records.trial import TrialState

CONTRADICTORY = 2.0
"""Times of one configuration that differ by more than this factor contradict each other."""


@dataclass(frozen=True, eq=False)
class Merged:
    """The distinct configurations of a table, in the order of their first rows.

    Attributes
    ----------
    first : ndarray of shape (n_configs,), int64
        The row that each configuration has its state from: the first that succeeded, else the first.
    median_s : ndarray of shape (n_configs,)
        Median over the rows that succeeded, seconds; NaN if none did.
    notices : tuple of str
        How many rows were merged, and what is contradictory about them.
    """

    first: Indices
    median_s: Floats
    notices: tuple[str, ...]


def merge(number: Indices, states: NDArray[np.object_], time_s: Floats, others: Sequence[Cells] = ()) -> Merged:
    """Merge the rows of each configuration, given the number of its configuration for each row.

    A ``DatasetError`` tells that rows to merge differ in another column, which may be a forgotten parameter.
    """
    ok = states == TrialState.OK.value
    order = np.lexsort((time_s, ~ok, number))  # by configuration, first what succeeded, by time
    starts = np.flatnonzero(np.diff(number[order], prepend=-1))
    _refuse_forgotten(number[order], [cells[order] for cells in others])
    succeeded = np.bincount(number, weights=ok).astype(np.int64)
    ran = succeeded > 0
    ascending = np.where(ok, time_s, np.nan)[order]
    last = np.maximum(succeeded, 1) - 1
    median_s = (ascending[starts + last // 2] + ascending[starts + (last + 1) // 2]) / 2
    spread = np.where(ran, ascending[starts + last] / ascending[starts], 1.0)
    rows = np.arange(len(number))
    preferred = np.full(len(starts), len(number))
    np.minimum.at(preferred, number, np.where(ok | ~ran[number], rows, len(number)))
    earliest = np.full(len(starts), len(number))
    np.minimum.at(earliest, number, rows)
    by_row = np.argsort(earliest)
    notices = tuple(_notices(np.bincount(number), succeeded, spread))
    return Merged(preferred[by_row], median_s[by_row], notices)


def _refuse_forgotten(number: Indices, others: Sequence[Cells]) -> None:
    """Refuse to merge rows, sorted by configuration, that differ in a column which may be a parameter."""
    same = number[1:] == number[:-1]
    varying = [cells.name for cells in others if _may_be_parameter(cells) and (np.diff(cells.codes) != 0)[same].any()]
    if varying:
        names = ", ".join(printable(name, longest=40) for name in varying[:20])
        raise DatasetError(
            f"rows with the same parameters are repeated measurements, but in such rows {names} also "
            f"{'varies: is it a parameter' if len(varying) == 1 else 'vary: are they parameters'}? If so, name "
            f"{'it' if len(varying) == 1 else 'them'} in --parameters; if not, --aggregate takes the median over them"
        )


def _may_be_parameter(cells: Cells) -> bool:
    """Return whether a column may be a parameter; fractions that hardly repeat are measurements."""
    fractional = any(isinstance(value, float) and value % 1 for value in cells.values)
    return not (fractional and len(cells.values) > len(cells.codes) / 2)


def _notices(rows: Indices, succeeded: Indices, spread: Floats) -> Iterator[str]:
    merged = rows > 1
    if not merged.any():
        return
    yield (
        f"{rows[merged].sum():,} rows repeat {merged.sum():,} configurations, of which the median counts; the times of "
        f"one differ by a factor of up to {spread.max():.3g}"
    )
    half, wide = (succeeded > 0) & (succeeded < rows), spread > CONTRADICTORY
    if half.any() or wide.any():
        yield (
            f"repeated rows contradict each other: {half.sum():,} configurations both succeeded and failed, "
            f"{wide.sum():,} have times that differ by more than a factor of {CONTRADICTORY:g}"
        )
