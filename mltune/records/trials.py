"""Trials of a run as columns: a fraction of the memory of records, and whole-column operations."""

from __future__ import annotations

import functools
import operator
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Self, overload

import numpy as np
from numpy.typing import NDArray

from mltune.records.columns import COLUMNS, LONGEST_S, PARAMETER, Column, from_row, to_row
from mltune.records.trial import TrialRecord, TrialState

_AT_ONCE = 1_000  # records made from the columns together


class Trials(Sequence[TrialRecord]):
    """Trials as columns (n_trials,) and parameters' values (n_trials, n_parameters); items are made when asked for."""

    def __init__(
        self, parameters: Sequence[str], columns: Mapping[str, NDArray[Any]], values: NDArray[np.integer]
    ) -> None:
        self.parameters = tuple(parameters)
        self._columns = dict(columns)
        self._values = values

    @classmethod
    def from_records(cls, records: Iterable[TrialRecord], parameters: Sequence[str]) -> Self:
        """Return records as columns."""
        return cls.from_rows([to_row(record, parameters) for record in records], parameters)

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[Sequence[Any]],
        parameters: Sequence[str],
        allowed: Mapping[str, Sequence[int]] | None = None,
    ) -> Self:
        """Return rows of :func:`mltune.records.columns.to_row` as columns; a ValueError where a cell is not allowed."""
        cells = list(zip(*rows, strict=True)) or [()] * (len(COLUMNS) + len(parameters))
        choices = allowed or dict.fromkeys(parameters, ())
        values = {name: replace(PARAMETER, choices=tuple(choices[name])) for name in parameters}
        columns = [
            _checked(name, column, part, cells[0])
            for (name, column), part in zip([*COLUMNS.items(), *values.items()], cells, strict=True)
        ]
        table = np.stack(columns[len(COLUMNS) :], axis=1) if values else np.empty((len(rows), 0), dtype=np.int64)
        if np.all(np.abs(table) < 2**31):
            table = table.astype(np.int32)  # of long runs half the memory
        return cls(parameters, dict(zip(COLUMNS, columns, strict=False)), table)

    @classmethod
    def concatenate(cls, parts: Sequence[Trials]) -> Trials:
        """Return the trials of several parts, at least one, one after the other."""
        if len(parts) == 1:
            return parts[0]
        columns = {name: np.concatenate([part._columns[name] for part in parts]) for name in COLUMNS}
        return cls(parts[0].parameters, columns, np.concatenate([part._values for part in parts]))

    def column(self, name: str) -> NDArray[Any]:
        """Return a column: int64 of number, batch and index, float64 with NaN of other numbers; texts are objects."""
        return self._columns[name]

    def parameter(self, name: str) -> NDArray[np.integer]:
        """Return the values of a parameter: ndarray of shape (n_trials,)."""
        return self._values[:, self.parameters.index(name)]

    @property
    def configurations(self) -> NDArray[np.integer]:
        """All configurations: ndarray of shape (n_trials, n_parameters)."""
        return self._values

    def in_state(self, state: TrialState) -> NDArray[np.bool_]:
        """Return which trials are in a state: ndarray of shape (n_trials,)."""
        mask: NDArray[np.bool_] = self.column("state") == str(state)
        return mask

    @property
    def succeeded(self) -> NDArray[np.bool_]:
        """Which trials are OK and have a time: ndarray of shape (n_trials,)."""
        return self.timed & self.in_state(TrialState.OK)

    @property
    def timed(self) -> NDArray[np.bool_]:
        """Which trials have a time, also one that was too noisy to count: ndarray of shape (n_trials,)."""
        mask: NDArray[np.bool_] = ~np.isnan(self.column("median_s"))
        return (self.in_state(TrialState.OK) | self.in_state(TrialState.UNSTABLE)) & mask

    def fastest(self, count: int | None = None) -> Trials:
        """Return the trials that succeeded, fastest first."""
        rows = np.flatnonzero(self.succeeded)
        order = np.lexsort((self.column("number")[rows], self.column("median_s")[rows]))
        return self.take(rows[order[:count]])

    def take(self, rows: NDArray[Any] | slice) -> Trials:
        """Return the trials at some positions, or where a mask is true, in this order; slices share memory."""
        return Trials(
            self.parameters, {name: column[rows] for name, column in self._columns.items()}, self._values[rows]
        )

    def by_number(self) -> Trials:
        """Return the trials in the order of their numbers."""
        numbers = self.column("number")
        return self if bool(np.all(numbers[1:] > numbers[:-1])) else self.take(np.argsort(numbers, kind="stable"))

    def __len__(self) -> int:
        return len(self._values)

    @overload
    def __getitem__(self, at: int) -> TrialRecord: ...

    @overload
    def __getitem__(self, at: slice) -> Trials: ...

    def __getitem__(self, at: int | slice) -> TrialRecord | Trials:
        """Return one record, or the trials of a slice."""
        if isinstance(at, slice):
            return self.take(at)
        row = range(len(self))[at]
        return next(iter(self[row : row + 1]))

    def __iter__(self) -> Iterator[TrialRecord]:
        for start in range(0, len(self), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            columns = [_cells(column[part]) for column in self._columns.values()]
            for row in zip(*columns, *self._values[part].T.tolist(), strict=True):
                yield from_row(row, self.parameters)

    def __eq__(self, other: object) -> bool:
        """Compare with any sequence of records."""
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Trials({len(self)} trials of {', '.join(self.parameters)})"


def _cells(column: NDArray[Any]) -> list[Any]:
    """Return the cells of a column with None for NaN."""
    cells: list[Any] = column.tolist()
    return [None if cell != cell else cell for cell in cells] if column.dtype == np.float64 else cells


def _checked(name: str, column: Column, cells: Sequence[Any], numbers: Sequence[Any]) -> NDArray[Any]:
    """Return the array of a column; a cell that the column does not allow raises a ValueError with its trial."""
    values = _array(column, cells)
    if values is None:
        at = next(at for at, cell in enumerate(cells) if _array(column, [cell]) is None)
        raise ValueError(f"trial {numbers[at]!r:.30}: `{name}` is {cells[at]!r:.100}, but it must {column.law}")
    return values


def _array(column: Column, cells: Sequence[Any]) -> NDArray[Any] | None:
    """Return the cells of a column as an array; None if the column does not allow one of them."""
    if not {*map(type, cells)} <= ({column.cells.type} if column.needed else {column.cells.type, type(None)}):
        return None
    if column.kind is tuple:
        return _samples(cells)
    if column.kind is float:
        values = np.array(cells, dtype=np.float64)  # None is NaN
        return None if np.any((values < column.lowest) | (values > column.highest)) else values
    distinct = {*cells} - {None}
    if column.choices and not distinct <= {*column.choices}:
        return None
    if column.cells.type is str:
        kept = {text: text for text in distinct} | {None: None}  # one object for many equal texts
        return _objects([kept[text] for text in cells])
    if distinct and not column.lowest <= min(distinct) <= max(distinct) <= column.highest:
        return None
    return np.array(cells, dtype=np.int64 if column.needed else np.float64)


def _samples(cells: Sequence[str | None]) -> NDArray[Any] | None:
    from pydantic import ValidationError

    try:
        lists = _sample_lists().validate_python(cells)
    except ValidationError:
        return None
    return _objects([None if samples is None else array("d", samples).tobytes() for samples in lists])


@functools.cache
def _sample_lists() -> Any:
    from pydantic import Field, Json, TypeAdapter

    return TypeAdapter(list[Json[list[Annotated[float, Field(ge=0.0, le=LONGEST_S)]]] | None])


def _objects(cells: Sequence[Any]) -> NDArray[Any]:
    column = np.empty(len(cells), dtype=object)
    column[:] = cells
    return column
