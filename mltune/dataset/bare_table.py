"""Reader of bare tables: timings in a CSV, Parquet or JSON file as a dataset for replay and comparison.

A bare table holds only parameters and times. Its kernel has no resources, its problem no number of operations and its
device no facts, so times are compared only with each other.
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
from mltune.dataset.formats import read_raw
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
"""States of rows without an outcome, which are left out."""

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
    """A bare table as a dataset and its kernel.

    Attributes
    ----------
    kernel : Kernel
        Its parameters are those of the table; it has no restrictions, resources and source.
    dataset : Dataset
        In memory only: its manifest has no hash.
    codes : mapping of str to tuple
        For each parameter with values other than integers, the values of the codes 0, 1, ...
    """

    kernel: Kernel
    dataset: Dataset
    codes: Mapping[str, tuple[object, ...]]

    def describe(self, configuration: Mapping[str, int]) -> dict[str, object]:
        """Return a configuration with the values of the table in place of codes."""
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

    A configuration has failed if its status says so, or if its time is missing, not a number, or not positive. Rows
    that were not measured are left out. Several rows of one configuration are repeated measurements: it is ``ok`` if
    any of them is, and its time is their median.

    Parameters
    ----------
    path : str or pathlib.Path
        A ``.csv`` or ``.parquet`` file, or a ``.json`` file: a cache of Kernel Tuner, or results in T4, the exchange
        format of the autotuning community. JSON files define their own parameters, times and states.
    parameters : sequence of str, optional
        The columns of the parameters; required except for JSON. Values that are not integers (floats, text, booleans)
        become codes in sorted order.
    time : str, optional
        The column of the times; required except for JSON.
    time_unit : {"s", "ms", "us", "ns"}, optional
        Unit of the times; by default the suffix of the column's name, as in ``time_ms``.
    status : str, optional
        The column of the states; ``status`` by default, if it exists.
    compile_time : str, optional
        The column of the compile times; by default ``compile_s``, ``compile_ms``, ``compile_us`` or ``compile_ns``.

    Raises
    ------
    DatasetError
        The file or a column does not exist, the file is malformed or too large, or no row was measured.
    """
    path = Path(path)
    raw = read_raw(path, parameters, time, status, compile_time)
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
    """Return the length of a unit in seconds; by default that of the suffix of the column's name."""
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
    """Return a column as numbers, NaN for other values."""
    import pandas as pd

    return np.asarray(pd.to_numeric(column, errors="coerce"), dtype=np.float64)


def _states(column: pd.Series[Any], *, failures_only: bool) -> NDArray[np.object_]:
    """Return the state of every row, from its status or from a text in place of its time."""
    import pandas as pd

    if failures_only:
        column = column.where(pd.to_numeric(column, errors="coerce").isna())
    words = column.astype("string").str.strip().str.lower().fillna("").str.slice(0, _LONGEST_WORD)
    codes, distinct = pd.factorize(words)
    return np.array([_state(str(word)) for word in distinct], dtype=object)[codes]


def _state(word: str) -> str:
    """Return the state that a word stands for; a word of :data:`NOT_MEASURED` is returned as it is."""
    if word in NOT_MEASURED or word in set(TrialState):
        return word
    if word in _OK:
        return TrialState.OK.value
    found = (state for parts, state in _FAILURES if any(part in word for part in parts))
    return next(found, TrialState.LAUNCH_ERROR).value


def _columns(frame: pd.DataFrame, path: Path) -> tuple[dict[str, NDArray[np.int64]], dict[str, tuple[object, ...]]]:
    """Return the configurations as integers, under legal names, and the values of the codes."""
    columns, codes = {}, {}
    for given, name in _legal_names([str(column) for column in frame]).items():
        if frame[given].isna().any():
            raise DatasetError(f"every row of a table must hold all parameters, but {given!r} is missing in {path}.")
        columns[name], values = _integers(frame[given])
        if values is not None:
            codes[name] = values
    return columns, codes


def _legal_names(given: Sequence[str]) -> dict[str, str]:
    """Return a legal parameter name for each column: its own where possible."""
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
    """Return a column as integers; other values become codes, their positions in sorted order."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column.dtype):
        values = column.to_numpy(dtype=np.float64)
        if (np.abs(values) < _EXACT_INTEGER).all() and (values == np.rint(values)).all():
            return values.astype(np.int64), None
    try:
        distinct, codes = np.unique(column.to_numpy(), return_inverse=True)
    except TypeError:  # values of different types cannot be ordered
        distinct, codes = np.unique(column.astype(str).to_numpy().astype(str), return_inverse=True)
    return codes.astype(np.int64), tuple(value.item() if hasattr(value, "item") else value for value in distinct)


def _distinct(
    columns: dict[str, NDArray[np.int64]],
    states: NDArray[np.object_],
    time_s: NDArray[np.float64],
    compile_s: NDArray[np.float64],
) -> tuple[dict[str, NDArray[np.int64]], Outcomes]:
    """Merge the rows of each configuration, in the order of first occurrence."""
    import pandas as pd

    frame = pd.DataFrame(columns)
    groups = frame.groupby(list(columns), sort=False).ngroup().to_numpy()
    ok = states == TrialState.OK.value
    # the state is that of the first row that is ok, else of the first row
    order = np.lexsort((np.arange(len(groups)), ~ok, groups))
    first = order[np.flatnonzero(np.diff(groups[order], prepend=-1))]
    median_s = pd.Series(np.where(ok, time_s, np.nan)).groupby(groups).median().to_numpy()
    outcomes = Outcomes(states=states[first], median_s=median_s, compile_s=compile_s[first])
    return {name: column[first] for name, column in columns.items()}, outcomes
