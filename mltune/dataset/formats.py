"""Readers of CSV, Parquet and the JSON files of tuners as raw columns.

Readers run in a process with limits on memory and time (:mod:`mltune.process.bounded`); what can be checked before
something is allocated is checked before.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mltune.dataset.cells import Layout, typed
from mltune.dataset.manifest import MAX_PARAMETERS, MAX_ROWS
from mltune.dataset.tuner_files import read_results
from mltune.errors import DatasetError
from mltune.files.reading import read_file, reason
from mltune.files.text import did_you_mean, printable

if TYPE_CHECKING:
    import pandas as pd

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

_MAX_METADATA = 10_000_000


@dataclass(frozen=True, eq=False)
class RawTable:
    """The columns of a table by their roles; those of `further` have none.

    `time` has texts in place of some times; its name ends in the unit, unless `time_unit` is it. `notices` tell of
    choices that were made for the user.
    """

    parameters: tuple[pd.Series[Any], ...]
    time: pd.Series[Any]
    status: pd.Series[Any] | None
    compile_time: pd.Series[Any] | None
    benchmark_time: pd.Series[Any] | None
    further: tuple[pd.Series[Any], ...]
    time_unit: str | None = None
    notices: tuple[str, ...] = ()


def read_raw(path: Path, layout: Layout) -> RawTable:
    """Read the columns of a file in the format of its suffix; see :func:`mltune.dataset.importing.read_table`."""
    suffix = path.suffix.lower()
    readers = {".csv": _csv, ".parquet": _parquet}
    if suffix not in (*readers, ".json"):
        raise DatasetError(f"{path} is no table: it is a .csv, .parquet or .json file")
    if layout.parameters is not None:
        _check_parameters(layout.parameters)
    if layout.section and suffix != ".json":
        raise DatasetError(f"{path} is no .json file, but sections were named; only CLBlast's database has some")
    try:
        data = read_file(path, MAX_BYTES)
    except OSError as error:
        raise DatasetError(f"the table cannot be read: {reason(error)}") from error
    if suffix == ".json":
        return _json(data, layout)
    if layout.partial and suffix == ".csv" and not data.endswith(b"\n"):
        data = data[: data.rfind(b"\n") + 1]
    columns = readers[suffix](data)
    if not layout.parameters or not layout.time_column:
        raise DatasetError(
            f"no columns of {path} were named, which has {_listed(columns)}; name them: --parameters A,B,C and "
            "--time-column T"
        )
    return _with_roles(columns, layout.parameters, layout.time_column, layout)


def _with_roles(
    columns: Mapping[str, pd.Series[Any]], parameters: Sequence[str], time: str, layout: Layout
) -> RawTable:
    """Return the table of the columns that the user named, and of columns with default names."""
    named = [*parameters, time, *([] if layout.status is None else [layout.status])]
    if len(set(named)) != len(named):
        raise DatasetError(f"a column was named twice among {', '.join(map(printable, named))}, but it has one role")
    missing = next((name for name in named if name not in columns), None)
    if missing is not None:
        raise DatasetError(
            f"{printable(missing)!r} is no column of the table, which has {_listed(columns)}"
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
        layout.time_unit,
    )


def _listed(columns: Iterable[str]) -> str:
    names = [printable(name, longest=40) for name in columns]
    return ", ".join(names[:50]) + (", ..." if len(names) > 50 else "")


def _check_parameters(parameters: Sequence[str]) -> None:
    if len(set(parameters)) != len(parameters) or not 1 <= len(parameters) <= MAX_PARAMETERS:
        raise DatasetError(
            f"{len(parameters)} parameters were named: {_listed(map(str, parameters)) or 'none'}; a table has 1 to "
            f"{MAX_PARAMETERS}, each once"
        )


def _check_size(rows: int, names: Sequence[str]) -> None:
    if not 1 <= rows <= MAX_ROWS or len(names) > MAX_COLUMNS or rows * len(names) > MAX_CELLS:
        raise DatasetError(
            f"the table has {rows:,} rows and {len(names):,} columns; it may have 1 to {MAX_ROWS:,} rows, "
            f"{MAX_COLUMNS:,} columns and {MAX_CELLS:,} cells"
        )
    if len(set(names)) != len(names):
        raise DatasetError(f"a name of a column occurs twice among {_listed(names)}; the names of columns are distinct")


def _csv(data: bytes) -> dict[str, pd.Series[Any]]:
    import pyarrow as pa
    from pyarrow.csv import ConvertOptions, ParseOptions, ReadOptions, read_csv

    ends = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n"))
    longest = int(np.diff(ends, prepend=-1, append=len(data)).max())
    if longest > MAX_LINE or len(ends) > MAX_ROWS + 1:
        raise DatasetError(
            f"the CSV file has {len(ends):,} lines, the longest of {longest:,} bytes; it may have {MAX_ROWS:,} rows, "
            f"each of {MAX_LINE:,} bytes"
        )
    try:
        text = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", newline="")
        heading = data[: data.find(b"\n") + 1] or data
        delimiter = ";" if b";" in heading and b"," not in heading else ","
        names = next(csv.reader(text, delimiter=delimiter), [])
        _check_size(1, names)
        table = read_csv(
            pa.BufferReader(data),
            ReadOptions(use_threads=False, block_size=4 * MAX_LINE, skip_rows=1, column_names=names),
            ParseOptions(delimiter=delimiter, newlines_in_values=True),
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
    return DatasetError(f"the table cannot be read as {kind}: {printable(error, longest=300)}")


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
                f"{printable(name)!r} has a {type(value).__name__} in row {row}; a table holds numbers, texts and "
                "truth values"
            )
    return pd.Series(values, name=name, dtype=object)


def _json(data: bytes, layout: Layout) -> RawTable:
    """Read the JSON file of a tuner, with times in milliseconds."""
    try:
        results = read_results(data, layout)
        names = list(results.parameters if layout.parameters is None else layout.parameters)
        notices = [] if layout.parameters else [f"the parameters are those of the file: {_listed(names)}"]
        _check_parameters(names)
        _check_size(len(results.configurations), names)
        if missing := [name for name in names if name not in results.parameters]:
            raise DatasetError(f"there is no parameter {_listed(missing)}; the table has {_listed(results.parameters)}")
        every = {
            name: _column([configuration[name] for configuration in results.configurations], name)
            for name in dict.fromkeys([*names, *results.parameters])
        }
        time, status, compile_time, benchmark_time = map(list, zip(*results.outcomes, strict=True))
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise _malformed("a JSON file of a tuner", error) from error
    return RawTable(
        tuple(every[name] for name in names),
        _column(time, "time_ms"),
        _column(status, STATUS),
        _column(compile_time, "compile_ms"),
        _column(benchmark_time, "benchmark_ms"),
        tuple(column for name, column in every.items() if name not in names),
        notices=(*notices, *results.notices),
    )
