"""Bare tables: timings of strangers, in a CSV, Parquet or JSON file, that replay and compare use as a dataset.

Nothing is known of such a table but parameters and times: its kernel has no resources, its problem no operations, its
device no facts. Times are then compared with each other only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mltune.dataset.dataset import Dataset
from mltune.dataset.foreign import Outcomes, foreign_dataset
from mltune.dataset.formats import ColumnNames, read_raw
from mltune.dataset.parquet import schema
from mltune.device.known import UNKNOWN
from mltune.errors import DatasetError
from mltune.kernel.bundle import Kernel
from mltune.problem.recorded import RecordedProblem
from mltune.records.trial import TrialState

if TYPE_CHECKING:
    import pandas as pd

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
"""Units of time, in seconds."""

NOT_MEASURED = frozenset({"not_measured", "not measured", "skipped", "unmeasured"})
"""States of rows that hold no outcome: they are left out."""

_OK = frozenset({"", "ok", "correct", "success", "valid", "passed", "pass", "true", "1", "1.0"})
_FAILURES = (
    (("compil", "build"), TrialState.COMPILE_ERROR),
    (("timeout", "timed out"), TrialState.TIMEOUT),
    (("wrong", "incorrect", "correctness", "verif", "mismatch"), TrialState.WRONG_RESULT),
    (("crash",), TrialState.CRASHED),
)
_EXACT_INTEGER = 2**53
_LONGEST_WORD = 200
_SHORTEST_S, _LONGEST_S = 1e-30, 1e30


@dataclass(frozen=True, eq=False)
class BareTable:
    """A stranger's table as a dataset and its kernel.

    Attributes
    ----------
    kernel : Kernel
        Without restrictions, resources and source; its parameters are those of the table.
    dataset : Dataset
        In memory only: its manifest has no hash.
    codes : mapping of str to tuple
        For each parameter whose values are no integers: the value that each code from 0 on stands for.
    """

    kernel: Kernel
    dataset: Dataset
    codes: Mapping[str, tuple[object, ...]]

    def describe(self, configuration: Mapping[str, int]) -> dict[str, object]:
        """Return a configuration with the values that stand in the table in place of their codes."""
        return {name: self.codes[name][value] if name in self.codes else value for name, value in configuration.items()}


def read_table(
    path: str | Path,
    parameters: Sequence[str] | None = None,
    time: str | None = None,
    *,
    time_unit: str | None = None,
    status: str | None = None,
    compile_time: str | None = None,
) -> BareTable:
    """Read a table of configurations and their times.

    A configuration has failed where its status says so, or its time is missing, no number, or not positive. Rows that
    were not measured are left out. Rows of one configuration are taken for repeated measurements of it: it ran if any
    of them did, in the median of their times, which is what a dataset holds of repeated samples.

    Parameters
    ----------
    path : str or pathlib.Path
        A ``.csv`` or ``.parquet`` file, or a ``.json`` file: a cache of Kernel Tuner, or results in T4, the exchange
        format of the autotuning community. Of JSON, the parameters, times and states are known.
    parameters : sequence of str, optional
        The columns of the parameters; needed but for JSON. Values that are no integers (floats, text, booleans) become
        codes in sorted order.
    time : str, optional
        The column of the times; needed but for JSON.
    time_unit : {"s", "ms", "us", "ns"}, optional
        Unit of the times; by default what the column's name ends in, as in ``time_ms``.
    status : str, optional
        The column of the states; by default ``status``, if there is one.
    compile_time : str, optional
        The column of the compile times; by default ``compile_ms`` or its like in another unit, if there is one.

    Raises
    ------
    DatasetError
        There is no such file or column, the file is malformed or too large, or nothing in it was measured.
    """
    path = Path(path)
    raw = read_raw(path, ColumnNames(parameters, time, status, compile_time))
    states = _states(raw.time if raw.status is None else raw.status, failures_only=raw.status is None)
    time_s = _numbers(raw.time) * _unit(raw.time, time_unit, path)
    compile_s = np.zeros(len(states))
    if raw.compile_time is not None:
        compile_s = _numbers(raw.compile_time) * _unit(raw.compile_time, None, path)
    measured = ~np.isin(states, list(NOT_MEASURED))
    if not measured.any():
        raise DatasetError(f"a table must hold at least one measured configuration, but {path} has none.")
    timed = (time_s > _SHORTEST_S) & (time_s < _LONGEST_S)
    states[(states == TrialState.OK.value) & ~timed] = TrialState.LAUNCH_ERROR.value
    columns, codes = _columns(raw.parameters[measured], path)
    columns, outcomes = _distinct(columns, states[measured], time_s[measured], compile_s[measured])
    name = re.sub(r"[^a-z0-9_-]+", "-", path.stem.lower()).strip("-_")[:60] or "table"
    values = {parameter: tuple(np.unique(column).tolist()) for parameter, column in columns.items()}
    kernel = Kernel(name=name, problem=RecordedProblem.kind, parameters=values)
    dataset = foreign_dataset(
        columns,
        outcomes,
        name=name,
        kind="search",
        kernel=kernel.name,
        problem=RecordedProblem(re.sub(r"^[^a-z]+", "", name) or "table"),
        device=UNKNOWN,
        source=str(path),
    )
    return BareTable(kernel, dataset, codes)


def _unit(column: pd.Series[Any], unit: str | None, path: Path) -> float:
    """Return the seconds of a unit: the one that is given, or else the one that a column's name ends in."""
    name = str(column.name)
    if unit is None:
        suffix = re.search(r"(?:^|[_\s([.-])(s|ms|us|ns)[)\]]?$", name)
        unit = suffix[1] if suffix else None
    if unit is None or unit not in SECONDS:
        raise DatasetError(
            f"a time has a unit ({', '.join(SECONDS)}), but the name of the column {name!r} of {path} does not end "
            f"in one; say --time-unit ms."
        )
    return SECONDS[unit]


def _numbers(column: pd.Series[Any]) -> NDArray[np.float64]:
    """Return numbers; NaN for what is none."""
    import pandas as pd

    return np.asarray(pd.to_numeric(column, errors="coerce"), dtype=np.float64)


def _states(column: pd.Series[Any], *, failures_only: bool) -> NDArray[np.object_]:
    """Return the state of every row: what its status says, or the text that stands in place of its time."""
    import pandas as pd

    if failures_only:
        column = column.where(pd.to_numeric(column, errors="coerce").isna())
    words = column.astype("string").str.strip().str.lower().fillna("").str.slice(0, _LONGEST_WORD)
    codes, distinct = pd.factorize(words)
    return np.array([_state(str(word)) for word in distinct], dtype=object)[codes]


def _state(word: str) -> str:
    """Return the state that a word in a table means, or the word itself when nothing was measured."""
    if word in NOT_MEASURED or word in set(TrialState):
        return word
    if word in _OK:
        return TrialState.OK.value
    found = (state for parts, state in _FAILURES if any(part in word for part in parts))
    return next(found, TrialState.LAUNCH_ERROR).value


def _columns(frame: pd.DataFrame, path: Path) -> tuple[dict[str, NDArray[np.int64]], dict[str, tuple[object, ...]]]:
    """Return the configurations as integers, under names that a dataset may have, and what their codes mean."""
    columns, codes = {}, {}
    for given, name in _legal_names([str(column) for column in frame]).items():
        if frame[given].isna().any():
            raise DatasetError(f"every row of a table must hold all parameters, but {given!r} is missing in {path}.")
        columns[name], values = _integers(frame[given])
        if values is not None:
            codes[name] = values
    return columns, codes


def _legal_names(given: Sequence[str]) -> dict[str, str]:
    """Return for each column a name that a parameter of a dataset may have: mostly its own."""
    names: dict[str, str] = {}
    taken = {name.lower() for name in schema(()).names}
    for column in given:
        name = re.sub(r"\W", "_", column, flags=re.ASCII).lstrip("_0123456789")[:50] or "parameter"
        while name.lower() in taken:
            name += "_"
        taken.add(name.lower())
        names[column] = name
    return names


def _integers(column: pd.Series[Any]) -> tuple[NDArray[np.int64], tuple[object, ...] | None]:
    """Return a column of integers: its own, or the positions of its values among them all in order."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column.dtype):
        values = column.to_numpy(dtype=np.float64)
        if (np.abs(values) < _EXACT_INTEGER).all() and (values == np.rint(values)).all():
            return values.astype(np.int64), None
    try:
        distinct, codes = np.unique(column.to_numpy(), return_inverse=True)
    except TypeError:  # values of several types have no order of their own
        distinct, codes = np.unique(column.astype(str).to_numpy().astype(str), return_inverse=True)
    return codes.astype(np.int64), tuple(value.item() if hasattr(value, "item") else value for value in distinct)


def _distinct(
    columns: dict[str, NDArray[np.int64]],
    states: NDArray[np.object_],
    time_s: NDArray[np.float64],
    compile_s: NDArray[np.float64],
) -> tuple[dict[str, NDArray[np.int64]], Outcomes]:
    """Join the rows of each configuration, in the order of their first."""
    import pandas as pd

    frame = pd.DataFrame(columns)
    groups = frame.groupby(list(columns), sort=False).ngroup().to_numpy()
    ok = states == TrialState.OK.value
    # of the rows of a configuration, the first that ran stands for it, or else the first
    order = np.lexsort((np.arange(len(groups)), ~ok, groups))
    first = order[np.flatnonzero(np.diff(groups[order], prepend=-1))]
    median_s = pd.Series(np.where(ok, time_s, np.nan)).groupby(groups).median().to_numpy()
    outcomes = Outcomes(states=states[first], median_s=median_s, compile_s=compile_s[first])
    return {name: column[first] for name, column in columns.items()}, outcomes
