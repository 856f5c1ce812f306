"""Columns of tables from strangers, read as parameters, times and states."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mltune.dataset.manifest import LONGEST_LABEL
from mltune.dataset.parquet import LONGEST_S
from mltune.errors import DatasetError
from mltune.files.text import printable
from mltune.kernel.coding import Floats, Indices, code_ordered
from mltune.records.columns import SHORTEST_S
from mltune.records.trial import TrialState

if TYPE_CHECKING:
    import pandas as pd

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


def distinct(column: pd.Series[Any]) -> tuple[NDArray[np.intp], list[Any]]:
    """Return the position of the value of each row, and the values; None for one that is missing."""
    codes, values = column.factorize(use_na_sentinel=False)
    return codes, [None if value != value else value for value in values.tolist()]


def typed(texts: Sequence[str]) -> Sequence[object]:
    """Return the distinct texts of a column as numbers or truth values if all are such, as in a CSV file."""
    words = [text.strip() for text in texts]
    if all(not word or _NUMBER.fullmatch(word) for word in words):
        return [None if not word else int(word) if _INTEGER.fullmatch(word) else float(word) for word in words]
    if all(word.lower() in _TRUTH for word in words):
        return [_TRUTH[word.lower()] for word in words]
    return [word or None for word in words]


def parameter(column: pd.Series[Any]) -> tuple[Indices, tuple[int | float | str, ...] | None]:
    """Return the column of a parameter as integers, and the values that 0, 1, ... stand for where they are others."""
    codes, values = distinct(column)
    for code, value in enumerate(values):
        if value is None or (type(value) is str and len(value) > LONGEST_LABEL):
            row, name = int(np.argmax(codes == code)) + 1, printable(column.name)
            if value is None:
                raise DatasetError(f"every row of a table has all parameters, but {name!r} is missing in row {row}")
            raise DatasetError(
                f"a parameter has at most {LONGEST_LABEL} characters, but {name!r} has {len(value):,} in row {row}"
            )
    try:
        ordered = sorted(set(values))
    except TypeError:  # values of different types cannot be ordered
        values = [str(value) for value in values]
        ordered = sorted(set(values))
    coded = code_ordered(ordered)
    places = {value: place for place, value in enumerate(ordered)}
    return np.array([coded.integers[places[value]] for value in values], dtype=np.int64)[codes], coded.labels


def states(column: pd.Series[Any]) -> tuple[NDArray[np.object_], tuple[str, ...]]:
    """Return the state of each row from its status, and the words that were not known and count as failures.

    Rows without an outcome have a word of :data:`NOT_MEASURED`.
    """
    states, unknown = [], []
    codes, values = distinct(column)
    for value in values:
        word = "" if value is None else str(value).strip().lower()[:LONGEST_LABEL]
        state = _state(word)
        if state is None:
            unknown.append(printable(word, longest=40))
        states.append(state or TrialState.LAUNCH_ERROR.value)
    return np.array(states, dtype=object)[codes], tuple(unknown)


def _state(word: str) -> str | None:
    """Return the state that a word stands for, None if it is unknown."""
    if word in NOT_MEASURED or word in set(TrialState):
        return word
    if word in _OK:
        return TrialState.OK.value
    if word in ("0", "0.0", "no", "false"):
        return TrialState.LAUNCH_ERROR.value
    return next((state.value for parts, state in _FAILURES if any(part in word for part in parts)), None)


def times(column: pd.Series[Any], unit_s: float, failed: NDArray[np.bool_]) -> tuple[Floats, NDArray[np.object_]]:
    """Return the times of a column in seconds, NaN for failures, and the states that texts in their place stand for.

    Nothing, NaN or a text that tells of a failure stands for one. Rows that have `failed` may have anything.
    """
    codes, values = distinct(column)
    number_s, states = _read(values)
    time_s = unit_s * number_s
    wrong = (states == "") | (time_s < SHORTEST_S) | (time_s > LONGEST_S)
    rows = np.flatnonzero(wrong[codes] & ~failed)
    if len(rows):
        value = printable(repr(values[codes[rows[0]]]), longest=60)
        raise DatasetError(
            f"a time is a positive and finite number, but {column.name!r} has {value} in row {rows[0] + 1}"
            f"{'' if len(rows) == 1 else f' ({len(rows):,} rows are like that)'}; leave the time of a failed "
            "configuration empty, or write `failed` into a column `status`"
        )
    return time_s[codes], np.where(failed, TrialState.LAUNCH_ERROR.value, states[codes])


def known_times(column: pd.Series[Any], unit_s: float) -> Floats:
    """Return the times of a column in seconds, 0 for everything that is no time."""
    codes, values = distinct(column)
    time_s = unit_s * _read(values)[0]
    return np.where((time_s >= SHORTEST_S) & (time_s <= LONGEST_S), time_s, 0.0)[codes]


def _read(values: Sequence[object]) -> tuple[Floats, NDArray[np.object_]]:
    """Return the numbers, NaN for other values, and the states: empty for what is neither a number nor a failure."""
    numbers = np.array([value if type(value) in (int, float) else math.nan for value in values], dtype=np.float64)
    states = np.where(np.isnan(numbers), TrialState.LAUNCH_ERROR.value, TrialState.OK.value).astype(object)
    for position, value in enumerate(values):
        if type(value) is bool:
            states[position] = ""
        elif type(value) is str:
            numbers[position], states[position] = _time(value.strip().lower()[:LONGEST_LABEL])
    return numbers, states


def _time(word: str) -> tuple[float, str]:
    if _NUMBER.fullmatch(word):
        return float(word), TrialState.OK.value
    if word in _NO_TIME:
        return math.nan, TrialState.LAUNCH_ERROR.value
    state = _state(word)
    return math.nan, "" if state in (None, TrialState.OK) else str(state)
