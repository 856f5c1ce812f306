"""Readers of CSV, Parquet, Kernel Tuner caches, T4 and CLBlast results as raw columns.

CLBlast's formats are those that `PrintTimingsToFileAsJSON` of its tuners writes, and `compress_database` of its
database scripts: configurations that ran and were right, with times in milliseconds. Readers run in a process with
limits on memory and time (:mod:`mltune.process.bounded`); what can be checked before something is allocated is checked
before.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mltune.dataset.cells import typed
from mltune.dataset.manifest import MAX_PARAMETERS, MAX_ROWS
from mltune.errors import DatasetError
from mltune.files.reading import parse_json, read_file, reason
from mltune.files.text import did_you_mean, printable

if TYPE_CHECKING:
    import pandas as pd

Outcome = tuple[object, str, object, object]
"""Time, state, compile time and benchmark time of a configuration, milliseconds; None where unknown."""

_PRECISION = "PRECISION"
_MOST_SHOWN = 20


def is_clblast(document: Mapping[str, Any]) -> bool:
    """Return whether a JSON document is CLBlast's database or the output of one of its tuners."""
    results = document.get("results")
    return "sections" in document or (
        isinstance(results, list) and bool(results) and isinstance(results[0], dict) and "parameters" in results[0]
    )


def read_clblast(
    document: Mapping[str, Any], section: Mapping[str, str]
) -> tuple[list[str], list[dict[str, Any]], list[Outcome]]:
    """Return the parameters of a section but PRECISION, the same in all rows, its configurations and their outcomes."""
    if "sections" not in document:
        rows = document["results"]
        entries = [{name: value for name, value in entry["parameters"].items() if name != _PRECISION} for entry in rows]
        times = [entry["time"] for entry in rows]
    else:
        chosen = _chosen(document["sections"], section)
        names = [str(name) for name in chosen["parameter_names"]]
        texts = [str(values).split(",") for values, _ in chosen["results"]]
        columns = [typed(column) for column in zip(*texts, strict=True)]
        entries = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
        times = [time for _, time in chosen["results"]]
    return [*entries[0]] if entries else [], entries, [(time, "ok", None, None) for time in times]


def _chosen(sections: list[dict[str, Any]], fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the one section that has some fields."""
    fitting = [
        section for section in sections if all(str(section.get(name)) == value for name, value in fields.items())
    ]
    if len(fitting) == 1:
        return fitting[0]
    among = fitting or sections
    texts = [name for name in among[0] if name not in ("results", "parameter_names")] if among else []
    values = {name: sorted({str(section.get(name)) for section in among}) for name in texts}
    differing = "; ".join(
        f"{name}: {', '.join(printable(value, 60) for value in texts_of_name[:_MOST_SHOWN])}"
        for name, texts_of_name in values.items()
        if len(texts_of_name) > 1 or not fitting
    )
    choice = ", ".join(f"{name}={value}" for name, value in fields.items())
    facts = (
        f"{len(fitting)} of {len(sections)} have {printable(choice, 300)}" if fields else f"there are {len(sections)}"
    )
    raise DatasetError(
        f"one section of the database is imported, chosen with --section NAME=VALUE, but {facts}; "
        f"{printable(differing, longest=2000)}"
    )


MAX_BYTES = 200_000_000
"""Largest file."""

MAX_COLUMNS = 2_000
"""Largest number of columns of a CSV or Parquet file."""

MAX_CELLS = 10_000_000
"""Largest number of cells of a CSV or Parquet file."""

MAX_LINE = 1_000_000
"""Longest line of a CSV file, bytes."""

STATUS = "status"
"""Default name of the column of states."""

COMPILE_TIMES = ("compile_s", "compile_ms", "compile_us", "compile_ns")
"""Default names of the column of compile times."""

BENCHMARK_TIMES = ("benchmark_s", "benchmark_ms", "benchmark_us", "benchmark_ns")
"""Default names of the column of the times that benchmarking took, all runs together."""

_T4_STATES = {"correct": "ok", "timeout": "timeout", "compile": "compile", "correctness": "wrong"}
_MILLISECONDS = {"s": 1e3, "seconds": 1e3, "us": 1e-3, "microseconds": 1e-3, "ns": 1e-6, "nanoseconds": 1e-6}
_MAX_METADATA = 10_000_000


@dataclass(frozen=True, slots=True)
class Layout:
    """The roles of the columns of a table; None where the format or a default name tells.

    `time_unit` is ``"s"``, ``"ms"``, ``"us"`` or ``"ns"``; `aggregate` merges rows with the same parameters that differ
    in other columns; `section` has the fields that select one section of CLBlast's database.
    """

    parameters: tuple[str, ...] | None = None
    time: str | None = None
    status: str | None = None
    time_unit: str | None = None
    aggregate: bool = False
    section: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class RawTable:
    """The columns of a table by their roles; those of `further` have none.

    `time` has texts in place of some times; its name ends in the unit, unless the user gives it. `notice` tells of a
    choice that was made for the user.
    """

    parameters: tuple[pd.Series[Any], ...]
    time: pd.Series[Any]
    status: pd.Series[Any] | None
    compile_time: pd.Series[Any] | None
    benchmark_time: pd.Series[Any] | None
    further: tuple[pd.Series[Any], ...]
    notice: str = ""


def read_raw(path: Path, layout: Layout) -> RawTable:
    """Read the columns of a file in the format of its suffix; see :func:`mltune.dataset.importing.read_table`."""
    suffix = path.suffix.lower()
    readers = {".csv": _csv, ".parquet": _parquet}
    if suffix not in (*readers, ".json"):
        raise DatasetError(f"a table is a .csv, .parquet or .json file, got {path}")
    if layout.parameters is not None:
        _check_parameters(layout.parameters)
    if layout.section and suffix != ".json":
        raise DatasetError(f"only CLBlast's database has sections, but {path} is no .json file")
    try:
        data = read_file(path, MAX_BYTES)
    except OSError as error:
        raise DatasetError(f"a table must be readable, but {path} is not: {reason(error)}") from error
    if suffix == ".json":
        return _json(data, layout)
    columns = readers[suffix](data)
    if not layout.parameters or not layout.time:
        raise DatasetError(
            f"the columns of a table are named with --parameters A,B,C and --time T; {path} has {_listed(columns)}"
        )
    return _with_roles(columns, layout.parameters, layout.time, layout)


def _with_roles(
    columns: Mapping[str, pd.Series[Any]], parameters: Sequence[str], time: str, layout: Layout
) -> RawTable:
    """Return the table of the columns that the user named, and of columns with default names."""
    named = [*parameters, time, *([] if layout.status is None else [layout.status])]
    if len(set(named)) != len(named):
        raise DatasetError(f"a column of a table has one role, got {', '.join(map(printable, named))}")
    missing = next((name for name in named if name not in columns), None)
    if missing is not None:
        raise DatasetError(
            f"the columns of a table must be there, but there is no {printable(missing)!r} among {_listed(columns)}"
            f"{did_you_mean(missing, columns)}"
        )
    free = [name for name in columns if name not in named]

    def column_of(*defaults: str) -> pd.Series[Any] | None:
        name = next((name for name in defaults if name in free), None)
        if name is None:
            return None
        free.remove(name)
        return columns[name]

    return RawTable(
        tuple(columns[name] for name in parameters),
        columns[time],
        columns[layout.status] if layout.status else column_of(STATUS),
        column_of(*COMPILE_TIMES),
        column_of(*BENCHMARK_TIMES),
        tuple(columns[name] for name in free),
    )


def _listed(columns: Iterable[str]) -> str:
    names = [printable(name, longest=40) for name in columns]
    return ", ".join(names[:50]) + (", ..." if len(names) > 50 else "")


def _check_parameters(parameters: Sequence[str]) -> None:
    if len(set(parameters)) != len(parameters) or not 1 <= len(parameters) <= MAX_PARAMETERS:
        raise DatasetError(
            f"a table has 1 to {MAX_PARAMETERS} parameters, each once, got {len(parameters)}: "
            f"{_listed(map(str, parameters))}"
        )


def _check_size(rows: int, names: Sequence[str]) -> None:
    if not 1 <= rows <= MAX_ROWS or len(names) > MAX_COLUMNS or rows * len(names) > MAX_CELLS:
        raise DatasetError(
            f"a table has 1 to {MAX_ROWS:,} rows, at most {MAX_COLUMNS:,} columns and at most {MAX_CELLS:,} cells, "
            f"but this one has {rows:,} rows and {len(names):,} columns"
        )
    if len(set(names)) != len(names):
        raise DatasetError(f"the columns of a table have distinct names, got {_listed(names)}")


def _csv(data: bytes) -> dict[str, pd.Series[Any]]:
    import pyarrow as pa
    from pyarrow.csv import ConvertOptions, ParseOptions, ReadOptions, read_csv

    ends = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n"))
    longest = int(np.diff(ends, prepend=-1, append=len(data)).max())
    if longest > MAX_LINE or len(ends) > MAX_ROWS + 1:
        raise DatasetError(
            f"a CSV file has at most {MAX_ROWS:,} rows, each of at most {MAX_LINE:,} bytes, but this one has "
            f"{len(ends):,} lines, and the longest has {longest:,} bytes"
        )
    try:
        text = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", newline="")
        names = next(csv.reader(text), [])
        _check_size(1, names)
        table = read_csv(
            pa.BufferReader(data),
            ReadOptions(use_threads=False, block_size=4 * MAX_LINE, skip_rows=1, column_names=names),
            ParseOptions(newlines_in_values=True),
            ConvertOptions(column_types=dict.fromkeys(names, pa.dictionary(pa.int32(), pa.string()))),
        )
    except (ValueError, csv.Error, pa.ArrowException) as error:
        raise _malformed("a CSV file with a header, encoded in UTF-8", error) from error
    _check_size(table.num_rows, names)
    return {name: _typed(column) for name, column in _columns(table).items()}


def _parquet(data: bytes) -> dict[str, pd.Series[Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    limits = {"thrift_string_size_limit": _MAX_METADATA, "thrift_container_size_limit": 100_000}
    try:
        file = pq.ParquetFile(io.BytesIO(data), **limits)
        fields = {field.name: field.type for field in file.schema_arrow}
        _check_size(file.metadata.num_rows, file.schema_arrow.names)
        texts = [name for name, kind in fields.items() if _is_text(kind)]
        names = [name for name, kind in fields.items() if _is_text(kind) or _is_number(kind)]
        # texts are left in dictionaries, as they are in the file, and are not repeated for each row
        table = pq.ParquetFile(io.BytesIO(data), read_dictionary=texts, **limits).read(names, use_threads=False)
        table.validate(full=True)  # among other things, text is UTF-8
        _check_size(table.num_rows, names)
        rare = {name for name in names if pa.types.is_decimal(fields[name]) or pa.types.is_float16(fields[name])}
        kinds = {name: pa.float64() if name in rare else table[name].type for name in names}
        return _columns(table.cast(pa.schema(kinds)))
    except MemoryError:
        raise
    except (ValueError, OSError, pa.ArrowException) as error:
        raise _malformed("a Parquet file", error) from error


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_dictionary(kind))


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    checks = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)
    return any(check(kind) for check in checks)


def _malformed(kind: str, error: Exception) -> DatasetError:
    return DatasetError(f"the table must be {kind}, but cannot be read: {printable(error, longest=300)}")


def _columns(table: Any) -> dict[str, pd.Series[Any]]:
    """Return the columns of a table of Arrow; texts stay in dictionaries, so that each is kept once."""
    frame = table.unify_dictionaries().to_pandas(ignore_metadata=True)  # an index of pandas is a column as well
    return {str(name): column for name, column in frame.items()}


def _typed(texts: pd.Series[Any]) -> pd.Series[Any]:
    """Return a column of texts as the numbers or truth values that they are."""
    import pandas as pd

    distinct = texts.cat.categories.tolist()
    typed_values = typed(distinct)
    if typed_values == distinct:  # a million different texts are not numbered twice
        return texts
    values = np.array([*typed_values, None], dtype=object)
    return pd.Series(values[texts.cat.codes], name=texts.name, dtype=object)


def _column(values: Sequence[object], name: str) -> pd.Series[Any]:
    """Return a column of values of JSON."""
    import pandas as pd

    for row, value in enumerate(values, 1):
        if not isinstance(value, str | int | float | None):
            raise DatasetError(
                f"a table holds numbers, texts and truth values, but {printable(name)!r} has a {type(value).__name__} "
                f"in row {row}"
            )
    return pd.Series(values, name=name, dtype=object)


def _json(data: bytes, layout: Layout) -> RawTable:
    """Read a Kernel Tuner cache, T4 results or CLBlast's results, in milliseconds."""
    try:
        document = _document(data)
        if layout.section and "sections" not in document:
            raise DatasetError("only CLBlast's database has sections, but this file holds something else")
        if isinstance(document.get("cache"), dict):
            parameters = [str(name) for name in document["tune_params_keys"]]
            entries = [*document["cache"].values()]
            outcomes = [_cached(entry) for entry in entries]
        elif is_clblast(document):
            parameters, entries, outcomes = read_clblast(document, layout.section)
        else:
            entries = [result["configuration"] for result in document["results"]]
            parameters = [*entries[0]] if entries else []
            outcomes = [_t4(result) for result in document["results"]]
        names = list(parameters if layout.parameters is None else layout.parameters)
        _check_parameters(names)
        _check_size(len(entries), names)
        if missing := [name for name in names if name not in parameters]:
            raise DatasetError(
                f"the parameters must be there, but {_listed(missing)} are not among {_listed(parameters)}"
            )
        every = {
            name: _column([entry[name] for entry in entries], name) for name in dict.fromkeys([*names, *parameters])
        }
        time, status, compile_time, benchmark_time = map(list, zip(*outcomes, strict=True))
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise _malformed("a cache of Kernel Tuner, results in T4 or results of CLBlast", error) from error
    return RawTable(
        tuple(every[name] for name in names),
        _column(time, "time_ms"),
        _column(status, STATUS),
        _column(compile_time, "compile_ms"),
        _column(benchmark_time, "benchmark_ms"),
        tuple(column for name, column in every.items() if name not in names),
        "" if layout.parameters else f"the parameters are those of the file: {_listed(names)}",
    )


def _document(data: bytes) -> dict[str, Any]:
    """Parse JSON; Kernel Tuner writes the closing braces of a cache only at its end."""
    try:
        document = parse_json(data)
    except json.JSONDecodeError:
        document = parse_json(data.rstrip().rstrip(b",") + b"}}")
    if not isinstance(document, dict):
        raise TypeError(f"a JSON object was expected, not {type(document).__name__}")
    return document


def _cached(entry: Mapping[str, Any]) -> Outcome:
    """Return what a cache entry holds; a failure has the name of an error in place of its time."""
    time = entry["__error__"] if "__error__" in entry else entry["time"]
    return time, "ok", _number(entry.get("compile_time")), _number(entry.get("benchmark_time"))


def _t4(result: Mapping[str, Any]) -> Outcome:
    """Return what a T4 result holds."""
    measured = {str(measurement["name"]): measurement for measurement in result.get("measurements") or ()}
    objective = str((result.get("objectives") or ["time"])[0])
    measured_time = measured.get("time") or measured.get(objective) or {}
    value = measured_time.get("value")
    number = _number(value)
    times = result.get("times") or {}
    invalidity = str(result.get("invalidity", "correct"))
    time = value if number is None else number * _MILLISECONDS.get(str(measured_time.get("unit")), 1.0)
    compile_ms = _number(times.get("compilation", times.get("compilation_time")))
    return time, _T4_STATES.get(invalidity, invalidity), compile_ms, _number(times.get("benchmark"))


def _number(value: object) -> float | None:
    """Return a number of a JSON document, None for other values."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
