"""Trials of a run as columns: a fraction of the memory of records, and whole-column operations."""

from __future__ import annotations

import functools
import operator
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray

from mltune.files.validation import law_of
from mltune.records.header import LARGEST
from mltune.records.rows import KINDS, Kind, from_row, to_row
from mltune.records.trial import TrialRecord, TrialState

_AT_ONCE = 1_000  # records made from the columns together
_TYPES = {"INTEGER": int, "REAL": float, "TEXT": str}


class Trials(Sequence[TrialRecord]):
    """Trials as columns. An item is a :class:`TrialRecord`, made when it is asked for.

    Parameters
    ----------
    parameters : sequence of str
        Names of the parameters.
    columns : mapping of str to ndarray of shape (n_trials,)
        Those of :data:`mltune.records.rows.KINDS`.
    values : ndarray of shape (n_trials, n_parameters)
        The configurations.

    Examples
    --------
    >>> from mltune.records.trial import Measurement
    >>> measured = Measurement(TrialState.OK, median_s=2e-3)
    >>> record = TrialRecord(0, 0, 7, {"BLK_M": 64}, TrialState.OK, measurement=measured)
    >>> trials = Trials.from_records([record], ["BLK_M"])
    >>> trials.column("median_s").tolist(), trials.parameter("BLK_M").tolist(), trials[0] == record
    ([0.002], [64], True)
    """

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
        """Return rows of :func:`mltune.records.rows.to_row` as columns, and check every cell.

        A cell of another type, out of its range, or not among the allowed values of its parameter raises a ValueError.
        """
        cells = list(zip(*rows, strict=True)) or [()] * (len(KINDS) + len(parameters))
        columns = {
            name: _checked(name, kind, column, cells[0])
            for (name, kind), column in zip(KINDS.items(), cells[: len(KINDS)], strict=True)
        }
        values = [
            _checked_values(name, column, cells[0], None if allowed is None else allowed[name])
            for name, column in zip(parameters, cells[len(KINDS) :], strict=True)
        ]
        table = np.stack(values, axis=1) if values else np.empty((len(rows), 0), dtype=np.int64)
        if np.all(np.abs(table) < 2**31):
            table = table.astype(np.int32)  # of long runs half the memory
        return cls(parameters, columns, table)

    @classmethod
    def concatenate(cls, parts: Sequence[Trials]) -> Trials:
        """Return the trials of several parts, at least one, one after the other."""
        if len(parts) == 1:
            return parts[0]
        columns = {name: np.concatenate([part._columns[name] for part in parts]) for name in KINDS}
        return cls(parts[0].parameters, columns, np.concatenate([part._values for part in parts]))

    def column(self, name: str) -> NDArray[Any]:
        """Return a column of :data:`mltune.records.rows.KINDS`.

        Numbers are float64 with NaN for what is unknown; ``number``, ``batch`` and ``index`` are int64. Texts are
        objects, None where there is none.
        """
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


def _checked(name: str, kind: Kind, cells: Sequence[Any], numbers: Sequence[Any]) -> NDArray[Any]:
    """Return a column of checked cells."""
    checked = _validated(_adapter(name), name, cells, numbers)
    if name == "samples_s":
        return _objects([None if samples is None else array("d", samples).tobytes() for samples in checked])
    if kind.sql == "TEXT":
        columns: dict[str, str] = {}
        return _objects([None if text is None else columns.setdefault(text, text) for text in checked])
    if kind.sql == "INTEGER" and kind.needed:
        return np.array(checked, dtype=np.int64)
    return np.array(checked, dtype=np.float64)  # None is NaN


def _checked_values(
    name: str, cells: Sequence[Any], numbers: Sequence[Any], allowed: Sequence[int] | None
) -> NDArray[np.int64]:
    """Return the checked values of a parameter."""
    values = np.array(_validated(_adapter(""), name, cells, numbers), dtype=np.int64)
    strange = set() if allowed is None else set(cells).difference(allowed)  # of few trials faster than columns
    if strange:
        at = next(at for at, cell in enumerate(cells) if cell in strange)
        raise ValueError(f"trial {numbers[at]!r:.30}: `{name}` is {cells[at]}, which is no value of this parameter")
    return values


def _validated(adapter: Any, name: str, cells: Sequence[Any], numbers: Sequence[Any]) -> Any:
    """Return cells after a check by pydantic; the error names the trial and the column."""
    from pydantic import ValidationError

    try:
        return adapter.validate_python(cells)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        at = int(first["loc"][0])
        raise ValueError(
            f"trial {numbers[at]!r:.30}: `{name}` is {cells[at]!r:.100}, but it {law_of([first])}"
        ) from None


def _objects(cells: Sequence[Any]) -> NDArray[Any]:
    column = np.empty(len(cells), dtype=object)
    column[:] = cells
    return column


@functools.cache
def _adapter(name: str) -> Any:
    """Return the validator of a column; that of a parameter for an empty name."""
    from typing import Annotated, Literal

    from pydantic import Field, Json, TypeAdapter

    if not name:
        return TypeAdapter(list[Annotated[int, Field(strict=True, ge=-LARGEST, le=LARGEST)]])
    kind = KINDS[name]
    law: Any = kind.law
    cell: Any = Annotated[_TYPES[kind.sql], Field(strict=True)]
    if name == "samples_s":
        cell = Json[list[Annotated[float, Field(**law)]]]
    elif isinstance(law, tuple):
        cell = Literal[law]
    elif law is not None:
        cell = Annotated[cell, Field(**law)]
    column: Any = list[cell] if kind.needed else list[cell | None]
    return TypeAdapter(column)
