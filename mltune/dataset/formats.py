"""Readers of CSV, Parquet, Kernel Tuner caches and T4 results as raw columns, for untrusted files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltune.dataset.manifest import MAX_ROWS
from mltune.errors import DatasetError

if TYPE_CHECKING:
    import pandas as pd

MAX_COLUMNS = 200
"""Largest number of parameters."""

MAX_BYTES = 200_000_000
"""Largest file, and largest uncompressed size of the columns that are read."""

STATUS = "status"
"""Default name of the column of states."""

COMPILE_TIMES = ("compile_s", "compile_ms", "compile_us", "compile_ns")
"""Default names of the column of compile times."""

_T4_STATES = {"correct": "ok", "timeout": "timeout", "compile": "compile", "correctness": "wrong"}
_MILLISECONDS = {"s": 1e3, "seconds": 1e3, "us": 1e-3, "microseconds": 1e-3, "ns": 1e-6, "nanoseconds": 1e-6}


@dataclass(frozen=True, eq=False)
class RawTable:
    """The columns of a table.

    Attributes
    ----------
    parameters : pandas.DataFrame
        The columns of the parameters.
    time : pandas.Series
        Times, or texts in their place. The name of the column ends in the unit, unless the user gives the unit.
    status, compile_time : pandas.Series or None
        States and compile times, if any.
    """

    parameters: pd.DataFrame
    time: pd.Series[Any]
    status: pd.Series[Any] | None
    compile_time: pd.Series[Any] | None


def read_raw(
    path: Path, parameters: Sequence[str] | None, time: str | None, status: str | None, compile_time: str | None
) -> RawTable:
    """Read the columns of a file in the format of its suffix; see :func:`mltune.dataset.bare_table.read_table`.

    Raises
    ------
    DatasetError
        The file or a column does not exist, or the file is malformed or too large.
    """
    readers: Mapping[str, Callable[..., pd.DataFrame]] = {".csv": _csv, ".parquet": _parquet}
    suffix = path.suffix.lower()
    if suffix not in (*readers, ".json"):
        raise DatasetError(f"a table is a .csv, .parquet or .json file, got {path}.")
    if parameters is not None:
        _check_parameters(parameters, path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise DatasetError(f"a table must have at most {MAX_BYTES} bytes, but {path} has {path.stat().st_size}.")
        if suffix == ".json":
            return _json(path, parameters)
        if not parameters or not time:
            raise DatasetError(f"the columns of a table are named with --parameters A,B,C and --time T, for {path}.")
        others = [name for name in (time, status, compile_time) if name is not None]
        if set(others) & set(parameters) or len(set(others)) != len(others):
            raise DatasetError(f"a column of a table has one role, got {[*parameters, *others]} for {path}.")
        frame = readers[suffix](path, [*parameters, *others], (STATUS, *COMPILE_TIMES))
    except OSError as error:
        raise DatasetError(f"a table must be readable, but {path} is not: {error.strerror or error}.") from error
    _check_rows(len(frame), path)
    free = [str(name) for name in frame if name not in {*parameters, *others}]
    status = status or next((name for name in free if name == STATUS), None)
    compile_time = compile_time or next((name for name in free if name != STATUS), None)
    return RawTable(
        frame[[*parameters]],
        frame[time],
        None if status is None else frame[status],
        None if compile_time is None else frame[compile_time],
    )


def _check_parameters(parameters: Sequence[str], path: Path) -> None:
    if len(set(parameters)) != len(parameters) or not 1 <= len(parameters) <= MAX_COLUMNS:
        raise DatasetError(
            f"a table has 1 to {MAX_COLUMNS} parameters, each once, got {len(parameters)} for {path}: "
            f"{', '.join(map(str, parameters[:50]))}."
        )


def _check_rows(rows: int, path: Path) -> None:
    if not 1 <= rows <= MAX_ROWS:
        raise DatasetError(f"a table must have 1 to {MAX_ROWS} rows, but {path} has {rows}.")


def _selected(there: Sequence[str], wanted: Sequence[str], optional: Sequence[str], path: Path) -> list[str]:
    """Return the names of the columns to read."""
    if len(set(there)) != len(there):
        raise DatasetError(f"the columns of a table must have distinct names, but those of {path} do not.")
    missing = [name for name in wanted if name not in there]
    if missing:
        raise DatasetError(
            f"the columns of a table must be there, but {path} has no {', '.join(missing)}; "
            f"it has {', '.join(there[:50])}."
        )
    return list(dict.fromkeys([*wanted, *(name for name in optional if name in there)]))


def _csv(path: Path, wanted: Sequence[str], optional: Sequence[str]) -> pd.DataFrame:
    import pandas as pd

    try:
        there = [str(name) for name in pd.read_csv(path, header=None, nrows=1, dtype=str).iloc[0]]
        names = _selected(there, wanted, optional, path)
        # text stays text: a parameter may have the value "None" or "NA"; one row too many is enough for an error
        frame = pd.read_csv(
            path, usecols=names, nrows=MAX_ROWS + 1, keep_default_na=False, na_values=[""], low_memory=False
        )
    except (ValueError, IndexError, pd.errors.ParserError) as error:
        raise DatasetError(f"{path} must be a CSV file with a header, but is not: {str(error)[:300]}.") from error
    return frame


def _parquet(path: Path, wanted: Sequence[str], optional: Sequence[str]) -> pd.DataFrame:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            metadata = file.metadata
            _check_rows(metadata.num_rows, path)
            names = _selected(file.schema_arrow.names, wanted, optional, path)
            nested = [name for name in names if pa.types.is_nested(file.schema_arrow.field(name).type)]
            groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
            columns = [group.column(index) for group in groups for index in range(group.num_columns)]
            size = sum(one.total_uncompressed_size for one in columns if one.path_in_schema in names)
            if nested or size > MAX_BYTES:
                raise DatasetError(
                    f"the columns of a table hold single values, in all at most {MAX_BYTES} bytes, but {path} has "
                    f"{size} bytes and nested columns {nested}."
                )
            frame: pd.DataFrame = file.read(columns=names).to_pandas()
            return frame
    except (pa.ArrowException, ValueError) as error:
        raise DatasetError(f"{path} must be a Parquet file, but cannot be read: {str(error)[:300]}.") from error


def _json(path: Path, parameters: Sequence[str] | None) -> RawTable:
    """Read a Kernel Tuner cache or T4 results, in milliseconds."""
    import pandas as pd

    try:
        document = _document(path.read_text(encoding="utf-8"))
        if isinstance(document.get("cache"), dict):
            names = list(parameters or document["tune_params_keys"])
            entries = [*document["cache"].values()]
            outcomes = [_cached(entry) for entry in entries]
        else:
            results = document["results"]
            entries = [one["configuration"] for one in results]
            names = list(parameters or entries[0])
            outcomes = [_t4(one) for one in results]
        configurations = [[entry[name] for name in names] for entry in entries]
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise DatasetError(
            f"a JSON table is a cache of Kernel Tuner or results in T4, but {path} is neither: {error!r:.300}."
        ) from error
    _check_rows(len(entries), path)
    _check_parameters(names, path)
    frame = pd.DataFrame(outcomes, columns=["time_ms", STATUS, "compile_ms"])
    return RawTable(pd.DataFrame(configurations, columns=names), frame["time_ms"], frame[STATUS], frame["compile_ms"])


def _document(text: str) -> dict[str, Any]:
    """Parse JSON; Kernel Tuner writes the closing braces of a cache only at its end."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError:
        document = json.loads(text.rstrip().rstrip(",") + "}}")
    if not isinstance(document, dict):
        raise TypeError(f"a JSON object was expected, not {type(document).__name__}")
    return document


def _cached(entry: Mapping[str, Any]) -> tuple[float, str, float]:
    """Return time, state and compile time of a cache entry, whose time is a text for a failure."""
    time = entry["time"]
    return _number(time), time if isinstance(time, str) else "ok", _number(entry.get("compile_time"))


def _t4(result: Mapping[str, Any]) -> tuple[float, str, float]:
    """Return time, state and compile time of a T4 result."""
    measured = {str(one["name"]): one for one in result.get("measurements") or ()}
    objective = str((result.get("objectives") or ["time"])[0])
    found = measured.get("time") or measured.get(objective) or {}
    scale = _MILLISECONDS.get(str(found.get("unit")), 1.0)
    times = result.get("times") or {}
    invalidity = str(result.get("invalidity", "correct"))
    compile_ms = _number(times.get("compilation", times.get("compilation_time")))
    return scale * _number(found.get("value")), _T4_STATES.get(invalidity, invalidity), compile_ms


def _number(value: object) -> float:
    """Return a number of a JSON document, NaN for other values."""
    try:
        return float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return math.nan
