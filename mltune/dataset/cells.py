"""Columns of tables from strangers: distinct values and positions, read as parameters, times and states."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mltune.dataset.manifest import LONGEST_LABEL
from mltune.dataset.parquet import LONGEST_S, SHORTEST_S
from mltune.errors import DatasetError
from mltune.files.text import printable
from mltune.kernel.coding import Floats, Indices, code_ordered
from mltune.records.trial import TrialState

NOT_MEASURED = frozenset({"not_measured", "not measured", "skipped", "unmeasured"})
"""States of rows without an outcome, which are left out."""

_OK = frozenset({"", "ok", "correct", "success", "valid", "passed", "pass", "true", "1", "1.0"})
_NO_TIME = frozenset({"", "nan", "na", "n/a", "none", "null", "-"})
_FAILURES = (
    (("compil", "build"), TrialState.COMPILE_ERROR),
    (("timeout", "timed out"), TrialState.TIMEOUT),
    (("wrong", "incorrect", "correctness", "verif", "mismatch"), TrialState.WRONG_RESULT),
    (("crash",), TrialState.CRASHED),
    (("fail", "error", "invalid", "runtime", "illegal", "abort", "kill", "memory"), TrialState.LAUNCH_ERROR),
)
"""Parts of words that stand for a failure; those of Kernel Tuner's error types are among them."""

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_TRUTH = {"true": True, "false": False}
_LONGEST_TEXT = LONGEST_LABEL


@dataclass(frozen=True, eq=False)
class Cells:
    """A column of a table.

    Attributes
    ----------
    name : str
        Name of the column.
    codes : ndarray of shape (n_rows,), int32
        For each row the position of its value.
    values : sequence
        The values: numbers, texts, truth values and None.
    """

    name: str
    codes: NDArray[np.int32]
    values: Sequence[Any]

    def __getitem__(self, rows: NDArray[Any]) -> Cells:
        """Return the column of some rows."""
        return Cells(self.name, self.codes[rows], self.values)


@dataclass(frozen=True, eq=False)
class Parameter:
    """A column of configurations.

    Attributes
    ----------
    name : str
    codes : ndarray of shape (n_rows,), int32
        For each row the position of its value in the sorted order of values.
    integers : ndarray of shape (n_values,), int64
        The values as integers; codes 0, 1, ... for values that are not integers.
    values : tuple or None
        The values that have codes.
    """

    name: str
    codes: NDArray[np.int32]
    integers: Indices
    values: tuple[int | float | str, ...] | None


def encode(name: str, values: Sequence[object]) -> Cells:
    """Return a column of values."""
    kinds = set(map(type, values))
    if strange := kinds - {str, bool, int, float, type(None)}:
        row, kind = next((row, type(value)) for row, value in enumerate(values, 1) if type(value) in strange)
        raise DatasetError(
            f"a table holds numbers, texts and truth values, but {printable(name)!r} has a {kind.__name__} in row {row}"
        )
    keys: Iterable[object] = values if len(kinds) == 1 else zip(map(type, values), values, strict=True)  # 1 == True
    positions: dict[object, int] = {}
    codes = np.array([positions.setdefault(key, len(positions)) for key in keys], dtype=np.int32)
    first = np.unique(codes, return_index=True)[1].tolist()
    return Cells(name, codes, [values[row] for row in first])


def typed(texts: Sequence[str]) -> Sequence[object]:
    """Return the distinct texts of a column as numbers or truth values if all are such, as in a CSV file.

    Examples
    --------
    >>> typed(["1", "2.0"]), typed(["1", "None"]), typed(["True", "false"])
    ([1, 2.0], ['1', 'None'], [True, False])
    """
    words = [text.strip() for text in texts]
    if all(not word or _NUMBER.fullmatch(word) for word in words):
        return [None if not word else int(word) if _INTEGER.fullmatch(word) else float(word) for word in words]
    if all(word.lower() in _TRUTH for word in words):
        return [_TRUTH[word.lower()] for word in words]
    return [word or None for word in words]


def parameter(cells: Cells) -> Parameter:
    """Return the column of a parameter."""
    used = np.unique(cells.codes)
    values = [cells.values[code] for code in used.tolist()]
    for value in values:
        if value is None or value != value:
            raise DatasetError(
                f"every row of a table has all parameters, but {printable(cells.name)!r} is missing in "
                f"row {_row(cells, value)}"
            )
        if type(value) is str and len(value) > _LONGEST_TEXT:
            raise DatasetError(
                f"a parameter has at most {_LONGEST_TEXT} characters, but {printable(cells.name)!r} has {len(value):,} "
                f"in row {_row(cells, value)}"
            )
    try:
        ordered = sorted(set(values))
    except TypeError:  # values of different types cannot be ordered
        values = [str(value) for value in values]
        ordered = sorted(set(values))
    coded = code_ordered(ordered)
    places = {value: place for place, value in enumerate(ordered)}
    codes = np.array([places[value] for value in values], dtype=np.int32)[np.searchsorted(used, cells.codes)]
    return Parameter(cells.name, codes, np.array(coded.integers, dtype=np.int64), coded.labels)


def states(cells: Cells) -> tuple[NDArray[np.object_], tuple[str, ...]]:
    """Return the state of each row from its status, and the words that were not known and count as failures.

    Rows without an outcome have a word of :data:`NOT_MEASURED`.
    """
    found, unknown = [], []
    for value in cells.values:
        word = "" if value is None else str(value).strip().lower()[:_LONGEST_TEXT]
        state = _state(word)
        if state is None:
            unknown.append(printable(word, longest=40))
        found.append(state or TrialState.LAUNCH_ERROR.value)
    return np.array(found, dtype=object)[cells.codes], tuple(unknown)


def _state(word: str) -> str | None:
    """Return the state that a word stands for, None if it is unknown."""
    if word in NOT_MEASURED or word in set(TrialState):
        return word
    if word in _OK:
        return TrialState.OK.value
    if word in ("0", "0.0", "no", "false"):
        return TrialState.LAUNCH_ERROR.value
    return next((state.value for parts, state in _FAILURES if any(part in word for part in parts)), None)


def times(cells: Cells, unit_s: float, failed: NDArray[np.bool_]) -> tuple[Floats, NDArray[np.object_]]:
    """Return the times of a column in seconds, NaN for failures, and the states that texts in their place stand for.

    Nothing, NaN or a text that tells of a failure stands for one. Rows that have ``failed`` may have anything.
    """
    number_s, found = _read(cells.values)
    time_s = unit_s * number_s
    wrong = (found == "") | (time_s < SHORTEST_S) | (time_s > LONGEST_S)
    rows = np.flatnonzero(wrong[cells.codes] & ~failed)
    if len(rows):
        value = printable(repr(cells.values[cells.codes[rows[0]]]), longest=60)
        raise DatasetError(
            f"a time is a positive and finite number, but {cells.name!r} has {value} in row {rows[0] + 1}"
            f"{'' if len(rows) == 1 else f' ({len(rows):,} rows are like that)'}; leave the time of a failed "
            "configuration empty, or write `failed` into a column `status`"
        )
    return time_s[cells.codes], np.where(failed, TrialState.LAUNCH_ERROR.value, found[cells.codes])


def known_times(cells: Cells, unit_s: float) -> Floats:
    """Return the times of a column in seconds, 0 for everything that is no time."""
    time_s = unit_s * _read(cells.values)[0]
    return np.where((time_s >= SHORTEST_S) & (time_s <= LONGEST_S), time_s, 0.0)[cells.codes]


def _read(values: Sequence[object]) -> tuple[Floats, NDArray[np.object_]]:
    """Return the numbers, NaN for other values, and the states: empty for what is neither a number nor a failure."""
    numbers = np.array([value if type(value) in (int, float) else math.nan for value in values], dtype=np.float64)
    found = np.where(np.isnan(numbers), TrialState.LAUNCH_ERROR.value, TrialState.OK.value).astype(object)
    for position, value in enumerate(values):
        if type(value) is bool:
            found[position] = ""
        elif type(value) is str:
            numbers[position], found[position] = _time(value.strip().lower()[:_LONGEST_TEXT])
    return numbers, found


def _time(word: str) -> tuple[float, str]:
    if _NUMBER.fullmatch(word):
        return float(word), TrialState.OK.value
    if word in _NO_TIME:
        return math.nan, TrialState.LAUNCH_ERROR.value
    state = _state(word)
    return math.nan, "" if state in (None, TrialState.OK) else str(state)


def _row(cells: Cells, value: object) -> int:
    """Return the number of the first row with a value, from 1 on."""
    codes = [code for code, one in enumerate(cells.values) if one is value]
    return int(np.argmax(np.isin(cells.codes, codes))) + 1
