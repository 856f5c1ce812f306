"""Columns of tables from strangers, read as parameters, times and states."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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

_NO_TIME = frozenset({"", "nan", "na", "n/a", "none", "null", "-"})
_STEMS = {
    TrialState.COMPILE_ERROR: "compile compiling compilation build",
    TrialState.TIMEOUT: "timeout",
    TrialState.WRONG_RESULT: "verification validation verify correctness result",
    TrialState.CRASHED: "crash",
    TrialState.LAUNCH_ERROR: "runtime launch computation execution kernel memory",
}
_WORDS = {
    TrialState.OK: "ok|correct|success|successful|valid|passed|pass|true|1|1.0|no error",
    TrialState.COMPILE_ERROR: "compile|compilation|build|not compiled|failed to compile",
    TrialState.TIMEOUT: "timeout|timed out|time out",
    TrialState.WRONG_RESULT: "wrong|incorrect|correctness|mismatch|wrong result|incorrect result|wrong results|"
    "incorrect results|result mismatch",
    TrialState.CRASHED: "crash|crashed",
    TrialState.LAUNCH_ERROR: "fail|failed|failure|error|invalid|runtime|constraints|invalid config|aborted|killed|"
    "device limits exceeded|illegal memory access|out of memory|0|0.0|no|false",
}
_STATES = {
    **{
        phrase: state
        for state, stems in _STEMS.items()
        for stem in stems.split()
        for ends in ("error", "failed", "failure", "fail", "failed config", "exception")
        for phrase in (f"{stem} {ends}", f"{ends} {stem}")
    },
    **{phrase: state for state, phrases in _WORDS.items() for phrase in phrases.split("|")},
    "": TrialState.OK,
}
"""States by whole phrases: those of CSV files, T4, KTT's statuses and Kernel Tuner's types of errors."""

_FAILURE_TIMES = (1e20, float(np.finfo(np.float32).max), float(np.finfo(np.float64).max))
"""Numbers that tuners write as the time of a failure: Kernel Tuner, CLTune and others."""

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_TRUTH = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Layout:
    """The roles of the columns of a table; None where the format or a default name tells.

    `time_unit` is ``"s"``, ``"ms"``, ``"us"`` or ``"ns"``, of JSON only where the file names none; `aggregate` merges
    rows with the same parameters that differ in other columns; `section` has the fields that select one section of
    CLBlast's database; `partial` reads the whole entries of a file that was cut off.
    """

    parameters: tuple[str, ...] | None = None
    time_column: str | None = None
    status: str | None = None
    time_unit: str | None = None
    aggregate: bool = False
    section: Mapping[str, str] = field(default_factory=dict)
    partial: bool = False


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
                raise DatasetError(f"{name!r} is missing in row {row}; every row of a table has all parameters")
            raise DatasetError(
                f"{name!r} has {len(value):,} characters in row {row}; a parameter has at most {LONGEST_LABEL}"
            )
    ordered = sorted(set(values), key=lambda value: (isinstance(value, str), value))  # numbers before texts
    coded = code_ordered(ordered)
    places = {value: place for place, value in enumerate(ordered)}
    return np.array([coded.integers[places[value]] for value in values], dtype=np.int64)[codes], coded.labels


def states(column: pd.Series[Any]) -> tuple[NDArray[np.object_], tuple[str, ...]]:
    """Return the state of each row from its status, and the words that were not known and do not count as failures.

    Rows without an outcome have a word of :data:`NOT_MEASURED`.
    """
    states, unknown = [], []
    codes, values = distinct(column)
    for value in values:
        word = "" if value is None else str(value).strip()[:LONGEST_LABEL]
        state = state_of(word)
        if state is None:
            unknown.append(printable(word, longest=40))
        states.append(state or TrialState.OK.value)
    return np.array(states, dtype=object)[codes], tuple(unknown)


def state_of(text: str) -> str | None:
    """Return the state that a text stands for, None if it is unknown; what follows a colon is a detail."""
    word = text.strip().lower()
    if word in NOT_MEASURED or word in set(TrialState):
        return word
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text.split(":")[0])
    state = _STATES.get(" ".join(re.split(r"[\s_-]+", words.strip().lower())))
    return None if state is None else state.value


def is_failure_time(value: object) -> bool:
    """Return whether a number stands for a failure: 1e20, or the largest number of 32 or 64 bits."""
    return isinstance(value, int | float) and any(
        math.isclose(value, failure, rel_tol=1e-5) for failure in _FAILURE_TIMES
    )


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
            f"{column.name!r} has the time {value} in row {rows[0] + 1}"
            f"{'' if len(rows) == 1 else f' ({len(rows):,} rows are like that)'}; a time is positive and finite. Leave "
            "the time of a failed configuration empty, or write `failed` into a column `status`"
        )
    return time_s[codes], np.where(failed, TrialState.LAUNCH_ERROR.value, states[codes])


def known_times(column: pd.Series[Any], unit_s: float) -> Floats:
    """Return the times of a column in seconds, 0 for everything that is no time."""
    codes, values = distinct(column)
    time_s = unit_s * _read(values)[0]
    return np.where((time_s >= SHORTEST_S) & (time_s <= LONGEST_S), time_s, 0.0)[codes]


def _read(values: Sequence[object]) -> tuple[Floats, NDArray[np.object_]]:
    """Return the numbers, NaN for other values, and the states: empty for what is neither a number nor a failure."""
    numbers = np.array(
        [value if type(value) in (int, float) and not is_failure_time(value) else math.nan for value in values],
        dtype=np.float64,
    )
    states = np.where(np.isnan(numbers), TrialState.LAUNCH_ERROR.value, TrialState.OK.value).astype(object)
    for position, value in enumerate(values):
        if type(value) is bool:
            states[position] = ""
        elif type(value) is str:
            numbers[position], states[position] = _time(value.strip()[:LONGEST_LABEL])
    return numbers, states


def _time(word: str) -> tuple[float, str]:
    if _NUMBER.fullmatch(word) and not is_failure_time(float(word)):
        return float(word), TrialState.OK.value
    if _NUMBER.fullmatch(word) or word.lower() in _NO_TIME:
        return math.nan, TrialState.LAUNCH_ERROR.value
    state = state_of(word)
    return math.nan, "" if state in (None, TrialState.OK) else str(state)
