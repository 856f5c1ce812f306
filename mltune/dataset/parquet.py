"""The table of a dataset: its columns, the constraints on them, and its Parquet file."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mltune.errors import DatasetError
from mltune.files.reading import raising, read_file
from mltune.files.text import printable
from mltune.kernel.coding import number_rows
from mltune.process.bounded import BoundsExceededError, call_bounded
from mltune.records.columns import COLUMNS, SHORTEST_S
from mltune.records.header import LARGEST
from mltune.records.trial import Measurement, TrialRecord, TrialState

LONGEST_S = 1e9
"""Most seconds of anything in a dataset: beyond it, rates and ratios have no meaning. Stores have wider bounds."""

MAX_FILE_BYTES = 64_000_000
_MAX_TABLE_BYTES = 256_000_000
_MAX_VALUES = 20_000_000
_MAX_DETAIL = 500

_BUILD_INTS = ("registers", "spill_bytes", "stack_bytes", "shared_bytes", "code_bytes")
_OUTCOMES = (
    *("state", "build_state", "detail", *_BUILD_INTS, "compile_s", "samples_s", "median_s", "noise", "stopped_early"),
    *("error", "verify_s", "time_s", "sm_clock_hz", "temperature_c", "power_w", "throttle_reasons"),
)
TIME_BITS = 20
"""Significant bits of median times and samples."""
BITS = 12
"""Significant bits of all other floats."""
_STATES = {state.value for state in TrialState} - {TrialState.SKIPPED.value}

_KNOWN = ("compile_s", "verify_s", "time_s", "stopped_early", "samples_s", "state", "build_state", "detail")
"""Columns without null, like the parameters."""


_Law = tuple[str, Callable[[NDArray[Any]], NDArray[np.bool_]]]


def _from(lowest: float, highest: float, unit: str = "") -> _Law:
    def holds(values: NDArray[Any]) -> NDArray[np.bool_]:
        exact = values.astype(np.float64) if values.dtype.kind == "f" else values  # 1e-12 as float32 is less
        return np.asarray((exact >= lowest) & (exact <= highest))

    return f"be from {lowest:g} to {highest:g}{unit}", holds


_LAWS: Mapping[str, _Law] = {
    "median_s": _from(SHORTEST_S, LONGEST_S, " s"),
    "error": ("be at least 0", lambda values: values >= 0),
    **dict.fromkeys(("compile_s", "verify_s", "time_s"), _from(0.0, LONGEST_S, " s")),
    **dict.fromkeys((*_BUILD_INTS, "throttle_reasons"), _from(0, LARGEST)),
    **dict.fromkeys(
        ("noise", "sm_clock_hz", "power_w"),
        ("be finite and at least 0", lambda values: np.isfinite(values) & (values >= 0)),
    ),
    "temperature_c": ("be finite", np.isfinite),
}


def schema(parameters: Sequence[str]) -> Any:
    """Return the columns of a dataset and their types, a ``pyarrow.Schema``.

    They are parameters, ``state`` of the trial, ``build_state``, ``detail``, and
    :data:`~mltune.records.columns.COLUMNS`.
    """
    import pyarrow as pa

    samples = pa.list_(pa.field("element", pa.float32()))
    types = {int: pa.int64(), float: pa.float32(), bool: pa.bool_(), tuple: samples}
    outcomes = {name: types.get(COLUMNS[name].kind, pa.string()) for name in _OUTCOMES}
    taken = sorted(outcomes.keys() & set(parameters))
    if taken:
        raise DatasetError(f"{taken[0]!r} cannot name a parameter: it is another column of a dataset; rename it.")
    return pa.schema({name: pa.int64() for name in parameters} | outcomes)


def arrow_table(columns: Mapping[str, Any], parameters: Sequence[str]) -> Any:
    """Create a table with the columns of :func:`schema` from those that are known; the others are null, as is NaN.

    Times are rounded to 20 significant bits (one part in a million, a thousandth of the noise of timing), all other
    floats to 12, which makes files smaller.
    """
    import pyarrow as pa

    fields = schema(parameters)
    arrays = []
    for field in fields:
        cells = columns.get(field.name)
        if cells is None:
            array = pa.nulls(len(columns["state"]), field.type)
        elif field.name == "samples_s":
            offsets = np.concatenate([[0], np.cumsum([len(samples) for samples in cells])]).astype(np.int32)
            values = rounded(np.array([*chain.from_iterable(cells)], dtype=np.float64), TIME_BITS)
            array = pa.ListArray.from_arrays(offsets, pa.array(values), type=field.type)
        elif pa.types.is_floating(field.type):
            values = rounded(np.asarray(cells, dtype=np.float64), TIME_BITS if field.name == "median_s" else BITS)
            array = pa.array(values, field.type, from_pandas=True)
        else:
            array = pa.array(cells, field.type)
        arrays.append(array)
    return pa.table(arrays, schema=fields)


def values_of(column: Any, unknown: float = math.nan) -> NDArray[Any]:
    """Return a column of numbers or conditions; PyArrow's ``to_numpy`` imports pandas, which takes half a second."""
    import pyarrow as pa

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_boolean(array.type):
        return np.asarray(values_of(array.cast("int8"), unknown) != 0)
    dtype = np.dtype(array.type.to_pandas_dtype())
    _, data = array.buffers()
    values: NDArray[Any] = np.frombuffer(data or b"", dtype)[array.offset : array.offset + len(array)]
    return np.where(values_of(array.is_valid()), values, unknown) if array.null_count else values


def check_table(table: Any, parameters: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Check the values of a table with the columns of :func:`schema`, called ``where`` in messages."""
    for name in (*parameters, *_KNOWN):
        _require(values_of(table[name].is_valid()), f"`{name}`", "be known", table[name], where)
    codes = []
    for name, values in parameters.items():
        column = values_of(table[name])
        _require(np.isin(column, values), f"`{name}`", f"be one of {list(values)[:50]}", column, where)
        codes.append(np.searchsorted(np.sort(values), column))
    for name, (law, holds) in _LAWS.items():
        valid = values_of(table[name].is_valid())
        numbers = values_of(table[name], unknown=1)
        _require(holds(numbers) | ~valid, f"`{name}`", law, numbers, where)
    law, holds = _LAWS["median_s"]
    samples = table["samples_s"].combine_chunks()
    if samples.values.null_count or not holds(values_of(samples.flatten())).all():
        raise DatasetError(f"{where}: a sample in `samples_s` is unknown or out of range: it must {law}.")
    _check_states(table, where)
    number, representative = number_rows(codes, [len(values) for values in parameters.values()])
    twice = np.flatnonzero(representative[number] != np.arange(len(number)))
    if len(twice):
        configuration = {name: table[name][int(twice[0])].as_py() for name in parameters}
        raise DatasetError(f"{where}: the configuration {configuration} occurs twice.")


def write_parquet(table: Any) -> bytes:
    """Return the Parquet file of a table, with strong compression."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    floats = [field.name for field in table.schema if pa.types.is_floating(field.type)]
    exact = [field.name for field in table.schema if field.name not in (*floats, "samples_s", "stopped_early")]
    buffer = io.BytesIO()
    pq.write_table(
        table,
        buffer,
        compression="zstd",
        compression_level=19,
        use_dictionary=exact,
        use_byte_stream_split=[*floats, "samples_s.list.element"],
        row_group_size=max(1, table.num_rows),
        store_schema=False,
    )
    return buffer.getvalue()


def read_parquet(path: Path, sha256: str, rows: int, parameters: Sequence[str], inside: Path | None = None) -> Any:
    """Read a Parquet file with a given hash, size and columns; no link below ``inside`` is followed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with raising(DatasetError, f"{path}, the table of the dataset, cannot be read"):
        data = read_file(path, MAX_FILE_BYTES, inside=inside)
    digest = hashlib.sha256(data).hexdigest()
    if digest != sha256:
        raise DatasetError(f"{path} has the sha256 {digest}, not that of its manifest, {sha256}; fetch it anew.")
    try:
        file = pq.ParquetFile(io.BytesIO(data))
        _check_layout(file, rows, schema(parameters), path)
        table = file.read(use_threads=False)
        table.validate(full=True)  # among other things, text is UTF-8
        _check_size(table, path)
        return table.combine_chunks()
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        text = printable(error, longest=300)
        raise DatasetError(f"{path} cannot be read as a Parquet file: {text}.") from error


def read_strangers_parquet(path: Path, sha256: str, rows: int, parameters: Sequence[str]) -> Any:
    """Read a Parquet file that anybody may have made, with limits on memory and time; see :func:`read_parquet`."""
    with raising(DatasetError, f"{path} cannot be read", BoundsExceededError):
        return call_bounded(
            f"{__name__}:read_parquet",
            *(path, sha256, rows, tuple(parameters), path.parent),
            imports=("pyarrow.parquet",),
        )


def _check_size(table: Any, path: Path) -> None:
    if table.nbytes > _MAX_TABLE_BYTES:
        raise DatasetError(f"{path} has {table.nbytes} bytes in memory; a table has at most {_MAX_TABLE_BYTES}.")


def _check_layout(file: Any, rows: int, expected: Any, path: Path) -> None:
    """Check columns and sizes in the metadata of a file, before decompression."""
    metadata = file.metadata
    types = {field.name: field.type for field in file.schema_arrow}
    unknown = [name for name in types if name not in expected.names]
    missing = [name for name in expected.names if name not in types]
    if unknown or missing or file.schema_arrow.names != expected.names:
        raise DatasetError(
            f"{path} has the unknown columns {unknown} and lacks {missing}; a dataset of its parameters has "
            f"{expected.names}, in this order."
        )
    pairs = [(field, types[field.name]) for field in expected]
    wrong = [f"{field.name}: {kind}, not {field.type}" for field, kind in pairs if not field.type.equals(kind)]
    if wrong:
        raise DatasetError(f"{path} has columns of wrong types: {'; '.join(wrong)}.")
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    values = max((group.column(index).num_values for group in groups for index in range(group.num_columns)), default=0)
    unpacked = sum(group.total_byte_size for group in groups)
    if metadata.num_rows != rows or values > _MAX_VALUES or unpacked > _MAX_TABLE_BYTES:
        raise DatasetError(
            f"{path} has {metadata.num_rows} rows, up to {values} values in a column and {unpacked} bytes unpacked; it "
            f"must have {rows} rows, at most {_MAX_VALUES} values and {_MAX_TABLE_BYTES} bytes."
        )


def _check_states(table: Any, where: str) -> None:
    states = np.asarray(table["state"].to_pylist(), dtype=object)
    builds = np.asarray(table["build_state"].to_pylist(), dtype=object)
    law = f"be one of {', '.join(sorted(_STATES))}"
    _require(np.isin(states, list(_STATES)), "`state`", law, states, where)
    _require(np.isin(builds, list(_STATES)), "`build_state`", law, builds, where)
    ok, timed = TrialState.OK.value, values_of(table["median_s"].is_valid())
    _require((builds == ok) | (builds == states), "`build_state`", "be ok or the state of the trial", builds, where)
    _require(np.asarray(timed | (states != ok)), "`median_s` of an ok trial", "be known", table["median_s"], where)


def _require(holds: NDArray[np.bool_], name: str, law: str, values: Any, where: str) -> None:
    if not holds.all():
        row = int(np.argmin(holds))
        value = values[row]
        value = value.as_py() if hasattr(value, "as_py") else getattr(value, "tolist", lambda: value)()
        raise DatasetError(f"{where}: {name} cannot be {value!r}, as in row {row}: it must {law}.")


def trial_columns(records: Sequence[TrialRecord]) -> dict[str, list[Any]]:
    """Return the columns of trials with a build; without a measurement they have the cells of an empty one."""
    rows = [_row(record) for record in records]
    return {name: [row[name] for row in rows] for name in rows[0]}


def _row(record: TrialRecord) -> dict[str, Any]:
    """Return the cells of a record by column."""
    build, measurement = record.build, record.measurement or Measurement(record.state)
    assert build is not None  # noqa: S101 - required of the caller
    detail = (measurement.detail if record.measurement else build.detail) or record.detail
    return {
        **record.configuration,
        **{field.name: getattr(measurement, field.name) for field in dataclasses.fields(Measurement)},
        **{name: getattr(build, name) for name in (*_BUILD_INTS, "compile_s")},
        "state": record.state.value,
        "build_state": build.state.value,
        "detail": detail.encode("utf-8", "backslashreplace").decode()[:_MAX_DETAIL],
    }


def rounded(values: NDArray[np.float64], bits: int) -> NDArray[np.float32]:
    """Round to a number of significant bits."""
    mantissa, exponent = np.frexp(values)
    scale = float(1 << bits)
    return np.ldexp(np.rint(mantissa * scale) / scale, exponent).astype(np.float32)
