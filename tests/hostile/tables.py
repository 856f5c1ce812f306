"""Hostile tables and datasets: CSV, Parquet, JSON of Kernel Tuner and T4, and manifests."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mltune.device.known import H200
from tests.hostile.base import CACHE, T4
from tests.hostile.cases import Place, add, corpus
from tests.hostile.values import ESCAPE, NUMBERS, TEXTS, Raw, change, damaged, deep, encoded, scalar, to_json

HEAD = "a,b,time_ms"
ROWS = 40


def random_table(place: Place) -> None:
    """Change cells, columns or bytes of a table in CSV or Parquet."""
    rng = place.rng
    if rng.random() < 0.5:
        random_csv(place)
    else:
        table = parquet_table(rng)
        data = parquet(table, **layout(rng))
        place.write("table.parquet", damaged(data, rng) if rng.random() < 0.4 else data)


def random_csv(place: Place) -> None:
    rng = place.rng
    rows = [[str(a), str(b), str(1 + a * b / 7)] for a in range(8) for b in range(5)]
    names = ["a", "b", "time_ms"]
    for _ in range(rng.choice((1, 1, 2, 5, 40))):
        row = rng.randrange(len(rows) + 1)
        if row == len(rows):
            names[rng.randrange(3)] = rng.choice((*TEXTS, "a", "time_ms", "status"))
        else:
            rows[row][rng.randrange(len(rows[row]))] = csv_cell(scalar(rng), rng)
    if rng.random() < 0.2:
        names.append(rng.choice(("status", "compile_ms", "a")))
        rows = [[*row, csv_cell(scalar(rng), rng)] for row in rows]
    if rng.random() < 0.2:
        rows[rng.randrange(len(rows))] = rows[0][: rng.randrange(3)] + ["1"] * rng.choice((0, 1, 10))
    ends = rng.choice(("\n", "\n", "\r\n", "\r", "\n\n"))
    data = encoded(ends.join([",".join(names), *(",".join(row) for row in rows)]) + ends)
    place.write("table.csv", damaged(data, rng) if rng.random() < 0.3 else data)


def csv_cell(value: Any, rng: Random) -> str:
    text = "" if value is None else str(value) if not (isinstance(value, int) and abs(value) > 10**400) else "9" * 1000
    return rng.choice((text, '"' + text.replace('"', '""') + '"', '"' + text))


TYPES: tuple[Callable[[], pa.Array], ...] = (
    lambda: pa.array(range(ROWS), pa.int8()),
    lambda: pa.array([2**63 + number for number in range(ROWS)], pa.uint64()),
    lambda: pa.array([float("nan")] * ROWS),
    lambda: pa.array([1e308, -1e308, 5e-324, float("inf")] * (ROWS // 4)),
    lambda: pa.array([None] * ROWS, pa.null()),
    lambda: pa.array([None] * ROWS, pa.int64()),
    lambda: pa.array([True, None] * (ROWS // 2)),
    lambda: pa.array([ESCAPE, "é", "", "1"] * (ROWS // 4)),
    lambda: pa.array([b"\xff\x00"] * ROWS, pa.binary()),
    lambda: pa.array([b"abc"] * ROWS, pa.binary(3)),
    lambda: pa.array([b"\xff\xfe"] * ROWS, pa.binary()).cast(pa.string(), safe=False),
    lambda: pa.array([[1, 2]] * ROWS),
    lambda: pa.array([{"x": 1}] * ROWS),
    lambda: pa.array([[("k", 1)]] * ROWS, pa.map_(pa.string(), pa.int64())),
    lambda: pa.array([0, 1000] * (ROWS // 2), pa.timestamp("ns")),
    lambda: pa.array([0, 2**42] * (ROWS // 2), pa.timestamp("s")),
    lambda: pa.array([0, 1] * (ROWS // 2), pa.date32()),
    lambda: pa.array([0, 1] * (ROWS // 2), pa.time64("us")),
    lambda: pa.array([0, 1] * (ROWS // 2), pa.duration("s")),
    lambda: pa.array([1, 10**37] * (ROWS // 2), pa.decimal128(38)),
    lambda: pa.array([1, 10**70] * (ROWS // 2), pa.decimal256(76)),
    lambda: pa.array(np.ones(ROWS, np.float16)),
    lambda: pa.array(["x", "y"] * (ROWS // 2)).dictionary_encode(),
    lambda: pa.array([1.5, 2.5] * (ROWS // 2)).dictionary_encode(),
    lambda: pa.array(["x" * 70_000] * ROWS, pa.large_string()),
)
"""Columns of every type that Parquet files may have."""


def parquet_table(rng: Random) -> pa.Table:
    """Return a table of which one or more columns have another type or name."""
    names = ["a", "b", "time_ms"]
    columns = [
        pa.array([row // 8 for row in range(ROWS)]),
        pa.array([row % 8 for row in range(ROWS)]),
        pa.array([1.0 + row for row in range(ROWS)]),
    ]
    for _ in range(rng.choice((1, 1, 2))):
        columns[rng.randrange(3)] = rng.choice(TYPES)()
    if rng.random() < 0.3:
        names.append(rng.choice(("status", "compile_s", "a", ESCAPE, "")))
        columns.append(rng.choice(TYPES)())
    if rng.random() < 0.2:
        names[rng.randrange(3)] = rng.choice(("", "a", ESCAPE, "A", "time_ms"))
    return pa.Table.from_arrays(columns, names)


def layout(rng: Random) -> dict[str, Any]:
    return {
        "compression": rng.choice(("none", "zstd", "snappy", "gzip", "brotli", "lz4")),
        "use_dictionary": rng.choice((True, False)),
        "row_group_size": rng.choice((1, 7, ROWS)),
        "data_page_version": rng.choice(("1.0", "2.0")),
        "store_schema": rng.choice((True, False)),
        "version": rng.choice(("1.0", "2.6")),
    }


def parquet(table: pa.Table, **options: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, **options)
    return buffer.getvalue()


def random_cache(place: Place) -> None:
    """Change the meaning or the bytes of a cache of Kernel Tuner, or of T4 results."""
    rng = place.rng
    document = rng.choice((CACHE, T4))
    if rng.random() < 0.25:
        place.write("table.json", damaged(json.dumps(document).encode(), rng))
    else:
        place.write("table.json", to_json(change(document, rng)))


def random_dataset(place: Place) -> None:
    """Change the manifest or the table of a dataset; the hash is made right again, as anybody can."""
    rng = place.rng
    manifest, table = dataset(place.base)
    how = rng.choice(("manifest", "manifest", "table", "cells", "cells", "bytes", "manifest bytes"))
    data = parquet(table, **layout(rng)) if rng.random() < 0.3 else parquet(table)
    if how == "manifest":
        manifest = change(manifest, rng)
    elif how in ("table", "cells"):
        names = table.column_names
        for _ in range(rng.choice((1, 1, 3))):
            position = rng.randrange(len(names))
            column = other_cells(table.column(position), rng) if how == "cells" else other_column(len(table), rng)
            table = table.set_column(position, rng.choice((names[position],) * 9 + (ESCAPE,)), column)
        data = parquet(table)
    elif how == "bytes":
        data = damaged(data, rng)
    if isinstance(manifest, dict) and "sha256" in manifest and how != "manifest":
        manifest["sha256"] = hashlib.sha256(data).hexdigest()
    text = encoded(to_json(manifest))
    place.write("recorded.json", damaged(text, rng) if how == "manifest bytes" else text)
    place.write("recorded.parquet", data)


def dataset(base: Path) -> tuple[dict[str, Any], pa.Table]:
    """Return the manifest and the table of the honest dataset."""
    return json.loads((base / "dataset" / "recorded.json").read_text()), pq.read_table(
        base / "dataset" / "recorded.parquet"
    )


def other_column(rows: int, rng: Random) -> pa.Array:
    column = rng.choice(TYPES)()
    return pa.concat_arrays([column] * (rows // len(column) + 1)).slice(0, rows)


def other_cells(column: pa.ChunkedArray, rng: Random) -> pa.Array:
    """Return a column of the same type with some hostile values."""
    cells = column.to_pylist()
    for _ in range(rng.choice((1, 1, 3, len(cells)))):
        row = rng.randrange(len(cells))
        kind = column.type
        if pa.types.is_string(kind):
            cells[row] = rng.choice([text for text in TEXTS if text.isascii()] + ["ok", "timeout", "skipped"])
        elif pa.types.is_list(kind):
            cells[row] = rng.choice(([], [float("nan")], [1e38] * 3, [0.0], [-1.0], [None], [1e-40]))
        elif pa.types.is_boolean(kind):
            cells[row] = None
        else:
            cells[row] = rng.choice([number for number in NUMBERS if abs(number) < 2**62 or number != number] + [None])
            if cells[row] is not None and pa.types.is_integer(kind):
                cells[row] = int(cells[row]) if cells[row] == cells[row] else 0
            elif cells[row] is not None:
                cells[row] = float(cells[row])
    return pa.array(cells, column.type)


def write_dataset(place: Place, manifest: dict[str, Any], data: bytes) -> None:
    manifest = {**manifest, "sha256": hashlib.sha256(data).hexdigest()}
    place.write("recorded.json", to_json(manifest))
    place.write("recorded.parquet", data)


def _csv(name: str, content: bytes | str | Callable[[], bytes | str]) -> None:
    add(
        "table",
        f"csv-{name}",
        lambda place: place.write("table.csv", content() if callable(content) else content) and None,
    )


HONEST = "\n".join([HEAD, *(f"{a},{b},{1 + a * b / 7}" for a in range(8) for b in range(5))]) + "\n"
_csv("empty", "")
_csv("one-byte", "a")
_csv("only-a-header", HEAD)
_csv("only-line-breaks", "\n" * 1000)
_csv("a-row-of-60-megabytes-of-commas", lambda: HEAD + "\n" + "," * 60_000_000 + "\n")
_csv("a-header-of-60-megabytes-of-commas", lambda: "," * 60_000_000 + "\n1,2,3\n")
_csv("a-second-row-of-60-megabytes-of-commas", lambda: HONEST + "," * 60_000_000 + "\n")
_csv("a-cell-of-60-megabytes", lambda: HEAD + "\n1,2," + "x" * 60_000_000 + "\n")
_csv("a-parameter-of-60-megabytes", lambda: HEAD + "\n" + "x" * 60_000_000 + ",2,3\n")
_csv("a-quote-that-never-ends", lambda: HEAD + '\n"' + "1,2,3\n" * 5_000_000)
_csv("a-quote-that-never-ends-in-the-header", lambda: 'a,"b' + "\n1,2,3" * 5_000_000)
_csv("190-megabytes-of-short-rows", lambda: HEAD + "\n" + "1,2,3\n" * 31_000_000)
_csv("a-million-rows-of-distinct-text", lambda: HEAD + "\n" + "\n".join(f"t{n},u{n},{n}" for n in range(1_000_000)))
_csv(
    "wide-rows-of-10000-columns",
    lambda: HEAD + "," + ",".join(f"c{n}" for n in range(10_000)) + ("\n" + "1," * 10_003) * 500,
)
_csv("nul", HONEST.replace("1", "\0"))
_csv("not-utf-8", HONEST.encode() + b"\xff\xfe,1,2\n")
_csv("utf-16", HONEST.encode("utf-16"))
_csv("a-byte-order-mark", "\ufeff" + HONEST)
_csv("columns-twice", HONEST.replace(HEAD, "a,a,time_ms"))
_csv("columns-of-escapes", HONEST.replace(HEAD, f"{ESCAPE},b,time_ms"))
_csv("missing-columns-of-escapes", HONEST.replace(HEAD, f"{ESCAPE},{ESCAPE}x,time"))
_csv("escapes", HONEST.replace("7,", f"{ESCAPE},"))
_csv("integers-of-5000-digits", HEAD + "\n" + f"{'9' * 5000},1,1\n" * 3)
_csv("times-of-5000-digits", HEAD + "\n" + f"1,1,{'9' * 5000}\n" * 3)
_csv("times-of-nan", HEAD + "\n" + "".join(f"{n},1,nan\n" for n in range(9)))
_csv("times-of-infinity", HEAD + "\n" + "".join(f"{n},1,{'-' * (n % 2)}inf\n" for n in range(9)))
_csv("times-below-0", HEAD + "\n" + "".join(f"{n},1,-{n}\n" for n in range(9)))
_csv("times-of-text", HEAD + "\n" + "".join(f"{n},1,x{n}\n" for n in range(9)))
_csv("times-of-denormals", HEAD + "\n" + "".join(f"{n},1,{n + 1}e-320\n" for n in range(20)))
_csv("times-of-1e308", HEAD + "\n" + "".join(f"{n},1,1e308\n" for n in range(20)))
_csv("times-of-1e29", HEAD + "\n" + "".join(f"{n},1,{n + 1}e29\n" for n in range(20)))
_csv("times-of-1e-26", HEAD + "\n" + "".join(f"{n},1,{n + 1}e-26\n" for n in range(20)))
_csv("one-row", HEAD + "\n1,1,1\n")
_csv("one-configuration", HEAD + "\n" + "1,1,1\n" * 30)
_csv("contradictions", HEAD + "\n" + "".join(f"1,1,{10.0**n}\n" for n in range(20)))
_csv("parameters-of-infinity", HEAD + "\n" + "inf,1,1\n-inf,2,1\n" * 20)
_csv("parameters-of-1e308", HEAD + "\n" + "".join(f"{n}e307,{n},1\n" for n in range(10)))
_csv("parameters-of-lists", HEAD + "\n" + '"[1, 2]",1,1\n"{}",2,1\n' * 20)
_csv("formulas", HEAD + "\n" + "=cmd|'/c calc'!A0,@SUM(1),1\n" * 20)
_csv("an-escape-alone-in-a-row", HONEST + "\x1b\n")


def _json(name: str, content: str | bytes | Callable[[], str | bytes]) -> None:
    add(
        "Kernel Tuner cache",
        name,
        lambda place: place.write("table.json", content() if callable(content) else content) and None,
    )


def _cache(name: str, /, **changes: Any) -> None:
    _json(name, to_json(CACHE | changes))


_json("empty", "")
_json("a-bracket", "{")
_json("null", "null")
_json("nested-deeply", "[" * 100_000 + "]" * 100_000)
_json("nested-deeply-without-end", '{"cache":' * 100_000)
_json("190-megabytes-of-brackets", lambda: '{"cache": {}, "x": [' + "[]," * 63_000_000 + "0]}")
_json("100-megabytes-of-entries", lambda: '{"tune_params_keys": ["a"], "cache": {' + ",".join(
    f'"{n}":{{"a":{n},"time":1}}' for n in range(3_000_000)) + "}}")  # fmt: skip
_json("a-text-of-190-megabytes", lambda: '{"cache": "' + "x" * 190_000_000 + '"}')
_json(
    "a-number-of-a-megabyte", '{"cache": {"1": {"a": ' + "9" * 1_000_000 + ', "time": 1}}, "tune_params_keys": ["a"]}'
)
_json("braces-missing", json.dumps(CACHE)[:-2] + ",")
_json("the-same-key-twice", json.dumps(CACHE)[:-1] + ', "cache": {}}')
_json("utf-16", json.dumps(CACHE).encode("utf-16"))
_json("not-utf-8", json.dumps(CACHE).encode().replace(b"A GPU", b"\xff\xfe"))
_cache("parameters-that-are-missing", tune_params_keys=["a", "b", "c"])
_cache("no-parameters", tune_params_keys=[])
_cache("parameters-twice", tune_params_keys=["a", "a"])
_cache("parameters-of-escapes", tune_params_keys=[ESCAPE], cache={"1": {ESCAPE: 1, "time": 1.0}})
_cache("parameters-that-are-no-texts", tune_params_keys=[1, None, {}])
_cache("parameters-that-are-a-text", tune_params_keys="ab")
_cache("an-empty-cache", cache={})
_cache("entries-that-are-lists", cache={"1": [1, 2]})
_cache("times-that-are-lists", cache={"1": {"a": 1, "b": 1, "time": [1.0]}})
_cache("times-of-other-types", cache={str(n): {"a": n, "b": 1, "time": t} for n, t in enumerate(
    (None, True, {}, "", "x", ESCAPE, float("nan"), float("inf"), -1, 2**2000, Raw("1e999"), "1e999", "٣"))})  # fmt: skip
_cache(
    "values-of-lists", cache={str(n): {"a": v, "b": 1, "time": 1.0} for n, v in enumerate(([1], [2], {"x": 1}, None))}
)
_cache("values-of-mixed-types", cache={str(n): {"a": v, "b": 1, "time": 1.0 + n} for n, v in enumerate(
    (1, "1", 1.5, True, "é", ESCAPE, 2**60, -(2**80), 1e308))})  # fmt: skip
_cache(
    "values-of-nan",
    cache={str(n): {"a": v, "b": 1, "time": 1.0} for n, v in enumerate((float("nan"), float("inf"), 1))},
)
_cache("values-that-are-lone-surrogates", cache={str(n): {"a": "\ud800", "b": n, "time": 1.0} for n in range(20)})
_cache("values-nested-deeply", cache={"1": {"a": Raw("[" * 900 + "]" * 900), "b": 1, "time": 1.0}})
_cache("only-failures", cache={str(n): {"a": n, "b": 1, "time": "CompilationFailedConfig"} for n in range(20)})
_json(
    "t4-without-measurements",
    to_json({"results": [{"configuration": {"a": n}, "measurements": None} for n in range(9)]}),
)
_json("t4-with-other-types", to_json({"results": [
    {"configuration": {"a": n}, "measurements": m, "times": t, "invalidity": i, "objectives": o}
    for n, (m, t, i, o) in enumerate((([1], 3, None, 3), ({}, [], [], {}), ([{"name": "time"}], "x", 1, ["x"]), ("abc", 1, {}, "t")))
]}))  # fmt: skip
_json("t4-that-is-a-list", "[1]")
_json("t4-results-that-are-a-table", '{"results": {"a": 1}}')
_json("t4-with-no-results", '{"results": []}')
_json("t4-configurations-that-differ", to_json({"results": [{"configuration": {"a": 1}}, {"configuration": {"b": 1}}]}))
_json("t4-with-units-that-are-none", to_json({"metadata": {"timeunit": ["ms"]}, **T4}))
_json("t4-with-measurements-of-other-units", to_json({"results": [
    {"configuration": {"a": n}, "measurements": [{"name": "time", "value": v, "unit": u}], "correctness": c}
    for n, (v, u, c) in enumerate((
        (1, "ms", 1), (2, ["ms"], 1), (3, "GFLOP/s", 1), (4, ESCAPE, 1), (5, "", float("nan")), (1e308, "hours", "yes")
    ))
]}))  # fmt: skip
for _number, _unit in enumerate(("furlongs", "J", 3, None, {}, ESCAPE, "x" * 100_000)):
    _json(f"ktt-with-another-unit-{_number}", to_json({
        "Metadata": {"TimeUnit": _unit},
        "Results": [{"Configuration": [{"Name": "a", "Value": 1}], "Status": "Ok", "TotalDuration": 1.5}],
    }))  # fmt: skip
_json("ktt-with-other-types", to_json({"Metadata": 3, "Results": [
    {"Configuration": c, "Status": s, "TotalDuration": t}
    for c, s, t in ((3, "Ok", 1), ([{}], "Ok", 1), ([{"Name": [], "Value": {}}], [], 1), ([], None, float("nan")))
]}))  # fmt: skip
_json("t1-in-place-of-results", to_json({"ConfigurationSpace": {}, "KernelSpecification": []}))
_json("t4-that-is-cut-off", to_json(T4)[:-60])
_json("clblast-parameters-that-differ", to_json({"results": [
    {"parameters": {name: n}, "time": 1.0} for n, name in enumerate(("GEMMK", "KREG", ESCAPE, "absent"))
]}))  # fmt: skip
_json("t4-configurations-of-lists", to_json({"results": [{"configuration": [1, 2]}]}))


def _parquet(name: str, make: Callable[[], bytes | pa.Table], **options: Any) -> None:
    def build(place: Place) -> None:
        made = make()
        place.write("table.parquet", made if isinstance(made, bytes) else parquet(made, **options))

    add("table", f"parquet-{name}", build)


def _of(rows: int, **columns: Any) -> pa.Table:
    """Return an honest table with some other columns."""
    honest: dict[str, Any] = {"a": np.arange(rows) // 8, "b": np.arange(rows) % 8, "time_ms": 1.0 + np.arange(rows)}
    return pa.table(honest | columns)


def _dictionary(rows: int, length: int) -> pa.Array:
    """Return rows that all refer to one long text: they unfold to their product."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array(["x" * length]))


_parquet("a-dictionary-that-unfolds-to-8-gigabytes", lambda: _of(8_000, a=_dictionary(8_000, 1_000_000)))
_parquet("a-dictionary-that-unfolds-to-100-gigabytes", lambda: _of(1_000_000, b=_dictionary(1_000_000, 100_000)))
_parquet("a-dictionary-for-times-that-unfolds", lambda: _of(8_000, time_ms=_dictionary(8_000, 1_000_000)))
_parquet("a-dictionary-for-states-that-unfolds", lambda: _of(8_000, status=_dictionary(8_000, 1_000_000)))
_parquet(
    "a-dictionary-without-the-schema-of-arrow", lambda: _of(8_000, a=_dictionary(8_000, 1_000_000)), store_schema=False
)
_parquet("a-million-rows-of-one-value", lambda: _of(1_000_000, a=np.zeros(1_000_000, np.int64)))
_parquet("ten-million-rows", lambda: _of(10_000_000, a=np.zeros(10_000_000, np.int8), b=np.zeros(10_000_000, np.int8),
         time_ms=np.ones(10_000_000)))  # fmt: skip
_parquet(
    "zeros-that-unfold",
    lambda: _of(1_000_000, a=pa.array(["\0" * 1000] * 1_000_000)),
    compression="zstd",
    use_dictionary=False,
)
_parquet("text-that-is-not-utf-8", lambda: pa.table({"a": pa.array([b"\xff\xfe"] * 9).cast(pa.string(), safe=False),
         "b": pa.array(range(9)), "time_ms": pa.array([1.0] * 9)}))  # fmt: skip
_parquet("no-rows", lambda: _of(0))
_parquet("no-columns", lambda: pa.table({}))
_parquet("10000-columns", lambda: _of(ROWS, **{f"c{n}": np.zeros(ROWS, np.int8) for n in range(10_000)}))
_parquet("10000-row-groups", lambda: _of(10_000), row_group_size=1)
_parquet("columns-nested-deeply", lambda: _of(1, a=pa.array([deep(60)])))
_parquet("metadata-of-50-megabytes", lambda: _of(ROWS).replace_schema_metadata({"x": "y" * 50_000_000}))
_parquet("metadata-of-pandas-that-is-no-json", lambda: _of(ROWS).replace_schema_metadata({"pandas": "{" * 1000}))
_parquet("metadata-of-pandas-with-an-index", lambda: _of(ROWS).replace_schema_metadata(
    {"pandas": json.dumps({"index_columns": ["a"], "columns": [], "column_indexes": []})}))  # fmt: skip
_parquet("metadata-of-pandas-with-other-types", lambda: _of(ROWS).replace_schema_metadata({"pandas": json.dumps(
    {"index_columns": [{"kind": "range", "start": 0, "stop": 10**12, "step": 1, "name": ESCAPE}], "columns": [
        {"name": "a", "field_name": "a", "pandas_type": "object", "numpy_type": "datetime64[ns, Evil/Zone]", "metadata": {}}],
     "column_indexes": [], "creator": {}, "pandas_version": "9"})}))  # fmt: skip
_parquet("a-schema-of-arrow-that-is-garbage", lambda: parquet(_of(ROWS)).replace(b"ARROW:schema", b"ARROW:schemb"))
for _position, _type in enumerate(TYPES):
    _parquet(f"parameters-of-type-{_position:02}", lambda made=_type: _of(ROWS, a=made()))
    _parquet(f"times-of-type-{_position:02}", lambda made=_type: _of(ROWS, time_ms=made()))


def thrift_numbers(data: bytes, rng: Random, count: int) -> bytes:
    """Replace variable-length numbers in the footer of a Parquet file by huge ones."""
    length = int.from_bytes(data[-8:-4], "little")
    body, footer = data[: -8 - length], bytearray(data[-8 - length : -8])
    for _ in range(count):
        at = rng.randrange(len(footer))
        footer[at : at + 1] = rng.choice(
            (b"\xff\xff\xff\xff\x7f", b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x80\xc8\xaf\xa0\x25")
        )
    return body + bytes(footer) + len(footer).to_bytes(4, "little") + b"PAR1"


def _lying(rows: int) -> bytes:
    """Return a file whose footer says that it has more rows than it has."""
    data = parquet(_of(ROWS), compression="none", use_dictionary=False)
    length = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - length : -8]
    old, new = _varint(ROWS), _varint(rows)
    changed = footer.replace(b"\x16" + old, b"\x16" + new)
    return data[: -8 - length] + changed + len(changed).to_bytes(4, "little") + b"PAR1"


def _varint(number: int) -> bytes:
    """Return a 64-bit integer as Thrift's compact protocol writes it."""
    number, found = number << 1, bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


_parquet("a-footer-of-a-million-rows", lambda: _lying(1_000_000))
_parquet("a-footer-of-a-billion-rows", lambda: _lying(1_000_000_000))
_parquet("a-footer-of-four-gigabytes", lambda: parquet(_of(ROWS))[:-8] + b"\xff\xff\xff\xffPAR1")
_parquet("a-footer-of-nothing", lambda: parquet(_of(ROWS))[:-8] + b"\0\0\0\0PAR1")
_parquet("empty", lambda: b"")
_parquet("only-the-magic", lambda: b"PAR1PAR1")
_parquet("an-encrypted-footer", lambda: parquet(_of(ROWS))[:-4] + b"PARE")
_parquet("csv", lambda: HONEST.encode())


def _footer_asks_for_100_gigabytes(place: Place) -> None:
    place.write("table.parquet", thrift_numbers(parquet(_of(ROWS)), place.rng, 3))


for _number in range(12):
    add("table", f"parquet-numbers-in-the-footer-{_number:02}", _footer_asks_for_100_gigabytes)


@corpus("table")
def _a_page_header_that_asks_for_2_gigabytes(place: Place) -> None:
    """The uncompressed size in a page's header, and in the footer."""
    data = parquet(_of(1_000_000, a=np.zeros(1_000_000, np.int64)), compression="zstd", use_dictionary=False)
    place.write("table.parquet", data.replace(b"\x15\x00\x15", b"\x15\x00\x15\xfe\xff\xff\xff\x0f\x15"[:9], 1))


for _suffix in ("csv", "parquet", "json"):

    def _fifo(place: Place, suffix: str = _suffix) -> None:
        os.mkfifo(place.named / f"table.{suffix}")

    def _folder(place: Place, suffix: str = _suffix) -> None:
        (place.named / f"table.{suffix}").mkdir()

    def _device(place: Place, suffix: str = _suffix) -> None:
        (place.named / f"table.{suffix}").symlink_to("/dev/zero")

    def _sparse(place: Place, suffix: str = _suffix) -> None:
        os.truncate(place.write(f"table.{suffix}", b""), 10 * 2**30)

    def _sparse_small(place: Place, suffix: str = _suffix) -> None:
        os.truncate(place.write(f"table.{suffix}", HONEST), 190_000_000)

    for _name, _build in (("fifo", _fifo), ("folder", _folder), ("device", _device), ("of-10-gigabytes", _sparse),
                          ("of-190-megabytes-of-nul", _sparse_small)):  # fmt: skip
        add("table", f"{_suffix}-{_name}", _build)


def _dataset(name: str, /, *, edit: Callable[[pa.Table], pa.Table] = lambda table: table, **changes: Any) -> None:
    """Add a dataset with another table or with other values in its manifest."""

    def build(place: Place) -> None:
        manifest, table = dataset(place.base)
        write_dataset(place, {**manifest, **changes}, parquet(edit(table)))

    add("dataset", name, build)


def _with(name: str, make: Callable[[int], Any]) -> Callable[[pa.Table], pa.Table]:
    """Return an edit that replaces a column."""
    return lambda table: table.set_column(
        table.column_names.index(name), name, pa.array(make(len(table)), table[name].type)
    )


_dataset("honest")
_dataset("format-2", format=2)
_dataset("rows-that-lie", rows=5)
_dataset("a-million-rows-that-lie", rows=1_000_000)
_dataset("rows-of-2-to-the-70", rows=2**70)
_dataset("escapes-in-the-name", name=ESCAPE)
_dataset("escapes-in-the-kernel", kernel=ESCAPE)
_dataset("a-kernel-that-is-a-path", kernel="../../canary")
_dataset("a-kernel-that-is-an-absolute-path", kernel="/dev/zero")
_dataset("a-kernel-with-a-nul", kernel="a\0b")
_dataset("a-kernel-of-a-megabyte", kernel="k" * 1_000_000)
_dataset("escapes-in-the-source", source=ESCAPE, licence=ESCAPE, created=ESCAPE, versions={ESCAPE: ESCAPE})
_dataset("a-key-of-escapes", **{ESCAPE: 1})
_dataset("a-hash-of-escapes", source_hash=ESCAPE)
_dataset("counts-that-lie", counts={"ok": 10**30})
_dataset("counts-below-0", counts={"ok": -1})
_dataset("no-best", best=None)
_dataset("a-best-of-nothing", best={"configuration": {}, "median_s": 1e-320})
_dataset("times-of-denormals", reference_median_s=1e-320)
_dataset("times-of-1e308", reference_median_s=1e308)
_dataset("times-of-nan", reference_median_s=float("nan"))
_dataset("a-seed-of-2-to-the-4000", seed=2**4000)
_dataset("no-parameters", parameters={})
_dataset("parameters-of-nothing", parameters={"block_size_x": []})
_dataset("parameters-of-escapes", parameters={ESCAPE: [1]})
_dataset("parameters-of-a-million-values", parameters={"block_size_x": list(range(500_000))})
_dataset("ten-thousand-parameters", parameters={f"P{n}": [1] for n in range(10_000)})
_dataset("parameters-of-2-to-the-70", parameters={"block_size_x": [2**70]})
_dataset("a-problem-of-another-kind", problem={"kind": ESCAPE})
_dataset("a-problem-that-is-a-list", problem=[1])
_dataset("a-problem-nested-deeply", problem=Raw("[" * 50_000 + "]" * 50_000))
_dataset("a-problem-of-flops-of-2-to-the-200", problem={"kind": "recorded", "name": "x", "size": "1", "flops": 2**200,
         "arithmetic": "fp32", "values": {}})  # fmt: skip
_dataset("a-problem-with-values-of-escapes", problem={"kind": "recorded", "name": "x", "size": ESCAPE, "flops": 5,
         "arithmetic": "fp32", "values": {ESCAPE: 1}})  # fmt: skip
_dataset("a-device-of-escapes", device={"name": ESCAPE})
_dataset("a-device-that-is-a-text", device="GPU")
_dataset("a-device-with-warps-of-48-lanes", device={**H200.to_json(), "warp_size": 48})
_dataset("compiled-for-30-million-years", edit=_with("compile_s", lambda rows: np.full(rows, 1e15, np.float32)))
_dataset("medians-of-denormals", edit=_with("median_s", lambda rows: np.full(rows, 1e-44, np.float32)))
_dataset("medians-of-3e38", edit=_with("median_s", lambda rows: np.full(rows, 3e38, np.float32)))
_dataset("medians-missing", edit=_with("median_s", lambda rows: [None] * rows))
_dataset("states-of-escapes", edit=_with("state", lambda rows: [ESCAPE] * rows))
_dataset("states-of-skipped", edit=_with("state", lambda rows: ["skipped"] * rows))
_dataset("details-of-escapes", edit=_with("detail", lambda rows: [ESCAPE] * rows))
_dataset("one-configuration-many-times", edit=lambda table: pa.concat_tables([table.slice(0, 1)] * len(table)))
_dataset("columns-swapped", edit=lambda table: table.select(list(reversed(table.column_names))))
_dataset("a-column-more", edit=lambda table: table.append_column(ESCAPE, pa.array([1] * len(table))))
_dataset("a-column-less", edit=lambda table: table.drop_columns(["noise"]))
_dataset("details-that-unfold", edit=lambda table: table.set_column(
    table.column_names.index("detail"), "detail", _dictionary(len(table), 60_000_000)))  # fmt: skip
_dataset("details-of-a-megabyte-each", edit=_with("detail", lambda rows: ["x" * 1_000_000] * rows))
_dataset("samples-of-a-million-each", edit=_with("samples_s", lambda rows: [[1.0] * 500_000] * rows))
_dataset("details-that-are-not-utf-8", edit=lambda table: table.set_column(table.column_names.index("detail"), "detail",
         pa.array([b"\xff\xfe"] * len(table)).cast(pa.string(), safe=False)))  # fmt: skip
_dataset("states-that-are-not-utf-8", edit=lambda table: table.set_column(table.column_names.index("state"), "state",
         pa.array([b"\xff\xfe"] * len(table)).cast(pa.string(), safe=False)))  # fmt: skip


@corpus("dataset")
def _twenty_million_samples_in_a_dictionary(place: Place) -> None:
    """A thousand rows of a detail of a megabyte, as one entry of a dictionary: a file of some kilobytes."""
    manifest, table = dataset(place.base)
    rows = 1_000
    table = pa.concat_tables([table.slice(0, 1)] * rows)
    table = table.set_column(table.column_names.index("detail"), "detail", _dictionary(rows, 8_000_000))
    buffer = io.BytesIO()
    pq.write_table(table, buffer, store_schema=False, compression="zstd")
    write_dataset(place, {**manifest, "rows": rows}, buffer.getvalue())


@corpus("dataset", "load_dataset", "tune_dataset", "compare_dataset")
def _an_honest_sweep_of_400000_rows(place: Place) -> None:
    """Honest rows, many more than a sweep has."""
    manifest, table = dataset(place.base)
    rows = 400_000
    table = pa.concat_tables([table] * (rows // len(table) + 1)).slice(0, rows)
    names = list(manifest["parameters"])
    sizes = [1_000, 1_000] + [1] * (len(names) - 2)
    manifest["parameters"] = {name: list(range(size)) for name, size in zip(names, sizes, strict=True)}
    for name, column in zip(names, (np.arange(rows) // 1_000, np.arange(rows) % 1_000), strict=False):
        table = table.set_column(table.column_names.index(name), name, pa.array(column))
    for name in names[2:]:
        table = table.set_column(table.column_names.index(name), name, pa.array(np.zeros(rows, np.int64)))
    ok = table["state"].to_pylist()
    times = np.where(np.array(ok) == "ok", table["median_s"].to_numpy(), np.inf)
    best = int(np.argmin(times))
    manifest["best"] = {
        "configuration": {name: int(table[name][best].as_py()) for name in names},
        "median_s": float(times[best]),
    }
    manifest |= {"rows": rows, "counts": {state: ok.count(state) for state in sorted(set(ok))}}
    write_dataset(place, manifest, parquet(table))


@corpus("dataset")
def _a_footer_that_asks_for_100_gigabytes(place: Place) -> None:
    manifest, table = dataset(place.base)
    write_dataset(place, manifest, thrift_numbers(parquet(table), place.rng, 4))


def _dataset_file(name: str, build: Callable[[Place, Path, Path], None]) -> None:
    def build_both(place: Place) -> None:
        manifest, table = dataset(place.base)
        write_dataset(place, manifest, parquet(table))
        build(place, place.named / "recorded.json", place.named / "recorded.parquet")

    add("dataset", name, build_both)


def _instead(make: Callable[[Place, Path], None]) -> tuple[Callable[[Place, Path, Path], None], ...]:
    """Return two builders: one puts something in place of the manifest, one in place of the table."""

    def first(place: Place, manifest: Path, table: Path) -> None:
        manifest.unlink()
        make(place, manifest)

    def second(place: Place, manifest: Path, table: Path) -> None:
        table.unlink()
        make(place, table)

    return first, second


for _name, _make in {
    "fifo": lambda place, path: os.mkfifo(path),
    "folder": lambda place, path: path.mkdir(),
    "device": lambda place, path: path.symlink_to("/dev/zero"),
    "secret": lambda place, path: path.symlink_to(
        (place.folder / "elsewhere" if path.suffix == ".json" else place.canary)
        / "secret.json"  # the user names the former
    ),
    "missing": lambda place, path: None,
    "loop": lambda place, path: path.symlink_to(path.name),
    "sparse-file": lambda place, path: os.truncate(place.write(path.name, b"{}"), 10 * 2**30),
}.items():
    for _which, _build in zip(("manifest", "table"), _instead(_make), strict=True):
        _dataset_file(f"a-{_which}-that-is-a-{_name}", _build)


def _manifest(name: str, edit: Callable[[str], str]) -> None:
    _dataset_file(
        name, lambda place, manifest, table: place.write("recorded.json", edit(manifest.read_text())) and None
    )


_manifest("a-manifest-nested-deeply", lambda text: "[" * 100_000 + "]" * 100_000)
_manifest("a-manifest-with-a-key-twice", lambda text: text[:-1] + ', "rows": 3}')
_manifest("a-manifest-that-is-a-list", lambda text: "[1]")
_manifest("a-manifest-of-3-megabytes-of-brackets", lambda text: text[:-1] + ', "x": [' + "[]," * 1_000_000 + "0]}")
_manifest("a-manifest-with-a-number-of-5000-digits", lambda text: text[:-1] + f', "x": {"9" * 5000}}}')
_manifest("a-manifest-that-is-empty", lambda text: "")
