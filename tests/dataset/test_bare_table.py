import json
import os
import re
import resource
import time
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mltune.cost.features import Features
from mltune.dataset.cells import Layout
from mltune.dataset.importing import Imported, contents_of, read_contents, read_table
from mltune.dataset.replay import ReplayBuilder, bare_kernel
from mltune.errors import DatasetError
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.space import TableSpace

CONVOLUTION = "block,tile,time_ms,status\n16,1,2.5,ok\n32,1,nan,ok\n16,2,1.5,ok\n32,2,9,fail_compile\n"
CACHE = {
    "kernel_name": "k",
    "tune_params_keys": ["block"],
    "cache": {
        "16,1": {"block": 16, "time": 1.5, "compile_time": 100.0, "times": [1.5]},
        "32,1": {"block": 32, "time": "CompilationFailedConfig"},
        "64,1": {"block": 64, "time": "RuntimeFailedConfig"},
    },
}
T4 = {
    "schema_version": "1.0.0",
    "results": [
        {
            "configuration": {"block": 16, "mode": "a"},
            "invalidity": "correct",
            "times": {"compilation": 20.0},
            "measurements": [{"name": "time", "value": 1.5, "unit": "ms"}],
            "objectives": ["time"],
        },
        {"configuration": {"block": 32, "mode": "b"}, "invalidity": "compile", "measurements": [], "times": {}},
        {"configuration": {"block": 64, "mode": "b"}, "invalidity": "correctness"},
        {
            "configuration": {"block": 128, "mode": "b"},
            "measurements": [{"name": "time", "value": 0.25, "unit": "s"}],
        },
    ],
}


def written(folder: Path, text: str, name: str = "table.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def outcomes(table: Imported) -> list[tuple[dict[str, object], str, float]]:
    """Return configuration, state and milliseconds of every row."""
    dataset = table.dataset
    rows = [
        table.dataset.manifest.labelled(dict(zip(dataset.columns, row, strict=True)))
        for row in zip(*(column.tolist() for column in dataset.columns.values()), strict=True)
    ]
    return list(zip(rows, dataset.states.tolist(), (1e3 * dataset.numbers("median_s")).round(5).tolist(), strict=True))


def test_a_csv(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, CONVOLUTION), ["block", "tile"], "time_ms")
    assert table.dataset.manifest.parameters == {"block": (16, 32), "tile": (1, 2)}
    assert not table.dataset.manifest.labels
    assert [(row["block"], row["tile"], state) for row, state, _ in outcomes(table)] == [
        (16, 1, "ok"),
        (32, 1, "launch_error"),
        (16, 2, "ok"),
        (32, 2, "compile_error"),
    ]
    best = table.dataset.manifest.best
    assert best is not None
    assert best.configuration == {"block": 16, "tile": 2}


def test_a_parquet_file_is_read_as_the_same_csv(tmp_path: Path) -> None:
    path = written(tmp_path, CONVOLUTION)
    pd.read_csv(path).to_parquet(tmp_path / "table.parquet")
    tables = [
        read_table(tmp_path / name, ["block", "tile"], "time_ms").dataset for name in ("table.csv", "table.parquet")
    ]
    assert tables[0].table.equals(tables[1].table)


def test_the_columns_of_a_parquet_file_may_be_an_index_decimals_and_texts(tmp_path: Path) -> None:
    decimals = [Decimal("0.5"), Decimal("0.25"), Decimal("0.5")]
    frame = pd.DataFrame({"a": [4, 1, 2], "b": decimals, "c": [None, "x", "x"], "t_ms": [1.0, 2.0, 3.0]})
    frame["t_ms"] = frame["t_ms"].astype("float16")
    frame.set_index("a").to_parquet(tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet", ["a", "b"], "t_ms")
    assert table.dataset.manifest.parameters == {"a": (1, 2, 4), "b": (0, 1)}
    assert table.dataset.manifest.labels == {"b": (0.25, 0.5)}
    with pytest.raises(DatasetError, match="'c' is missing in row 1"):
        read_table(tmp_path / "t.parquet", ["c"], "t_ms", aggregate=True)


def test_it_is_replayed_like_any_dataset_and_has_features(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, CONVOLUTION), ["block", "tile"], "time_ms")
    dataset = table.dataset
    assert TableSpace(dataset.columns).count == 4
    assert ReplayBuilder(dataset).submit({"block": 32, "tile": 2}).result().state == "compile_error"
    bare_kernel(dataset.manifest).check_problem(dataset.manifest.problem)
    features = Features(PlacedKernel(bare_kernel(dataset.manifest), dataset.manifest.problem, dataset.manifest.device))
    assert np.isfinite(features.before(dataset.columns)).all()
    assert not features.has_prior


@pytest.mark.parametrize(
    ("header", "unit", "median_s"),
    [
        ("time_s", None, 2.0),
        ("time_us", None, 2e-6),
        ("run.ns", None, 2e-9),
        ("time (ms)", None, 2e-3),
        ("ms", None, 2e-3),
        ("duration", "us", 2e-6),
        ("time_ms", "s", 2.0),
    ],
)
def test_the_unit_of_a_time(tmp_path: Path, header: str, unit: str | None, median_s: float) -> None:
    layout = Layout(("a",), header, time_unit=unit)
    contents = read_contents(written(tmp_path, f"a,{header}\n1,2\n"), layout)
    assert contents.outcomes.median_s[0] == pytest.approx(median_s, rel=1e-6)


@pytest.mark.parametrize(
    ("time", "state"),
    [
        ("", "launch_error"),
        ("nan", "launch_error"),
        ("N/A", "launch_error"),
        ("CompilationFailedConfig", "compile_error"),
        ("RuntimeFailedConfig", "launch_error"),
        ("timed out", "timeout"),
    ],
)
def test_no_time_and_the_name_of_an_error_are_a_failure(tmp_path: Path, time: str, state: str) -> None:
    table = read_table(written(tmp_path, f"a,time_ms\n1,{time}\n2,1\n"), ["a"], "time_ms")
    assert table.dataset.states.tolist() == [state, "ok"]
    assert table.account == "2 rows, 2 distinct, 1 failed"


@pytest.mark.parametrize("time", ["inf", "-inf", "-1", "0", "1e-300", "1e+300", "fast", "1.5 ms", "True", "0x1f", "ok"])
def test_what_cannot_be_a_time_is_refused_with_its_row(tmp_path: Path, time: str) -> None:
    text = f"a,time_ms,status\n1,{time},failed\n2,1,ok\n3,{time},ok\n"
    with pytest.raises(DatasetError, match=f"{re.escape(time)}'? in row 3"):
        read_table(written(tmp_path, text), ["a"], "time_ms")
    read_table(written(tmp_path, text.replace(f"3,{time},ok", f"3,{time},failed")), ["a"], "time_ms")


def six_columns(rows: int = 2000) -> str:
    """Return a table of six parameters."""
    rng = np.random.default_rng(0)
    values = rng.integers(0, 4, (rows, 6)).tolist()
    times = ["" if row[0] == 0 else f"{0.1 + sum(row) + row[5] ** 2}" for row in values]
    body = (f"{','.join(map(str, row))},{time}\n" for row, time in zip(values, times, strict=True))
    return "a,b,c,d,e,f,time_ms\n" + "".join(body)


def test_forgotten_parameters_are_refused_unless_the_rows_are_to_be_merged(tmp_path: Path) -> None:
    path = written(tmp_path, six_columns())
    with pytest.raises(DatasetError, match=r"c, d, e, f also vary: are they parameters\?.*--aggregate"):
        read_table(path, ["a", "b"], "time_ms")
    merged = read_table(path, ["a", "b"], "time_ms", aggregate=True)
    rows = six_columns().splitlines()[1:]
    assert merged.account == f"2,000 rows, 16 distinct, {sum(row.startswith('0') for row in rows)} failed"
    assert "2,000 rows repeat 16 configurations" in merged.notices[0]
    assert "12 have times that differ by more than a factor of 2" in merged.notices[1]
    whole = read_table(path, list("abcdef"), "time_ms")
    assert whole.dataset.manifest.rows > 1000


def test_rows_that_both_succeeded_and_failed_are_told(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, "a,t_ms\n1,1.0\n1,\n2,1.0\n2,1.1\n"), ["a"], "t_ms")
    repeated, contradictory = table.notices
    assert "4 rows repeat 2 configurations" in repeated
    assert "up to 1.1" in repeated
    assert "1 configurations both succeeded and failed, 0 have" in contradictory


def test_measurements_may_vary_where_parameters_may_not(tmp_path: Path) -> None:
    text = "a,gflops,t_ms\n1,10.25,1.0\n1,10.5,1.1\n2,20.125,0.5\n"
    assert read_table(written(tmp_path, text), ["a"], "t_ms").account == "3 rows, 2 distinct, 0 failed"


def test_states_that_are_not_known_are_told_and_are_no_failures(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, "a,t_ms,status\n1,1,purple\x1b[2J\n2,1,ok\n"), ["a"], "t_ms")
    assert table.dataset.states.tolist() == ["ok", "ok"]
    assert table.notices == ("the states 'purple [2J' are not known, and do not count as failures",)


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("ok", "ok"),
        ("Correct", "ok"),
        ("fail_compile", "compile_error"),
        ("timeout", "timeout"),
        ("incorrect result", "wrong_result"),
        ("InvalidConfig", "launch_error"),
        ("unstable", "unstable"),
    ],
)
def test_the_words_of_a_status(tmp_path: Path, status: str, state: str) -> None:
    text = f"a,t_ms,how,status\n1,2,{status},timeout\n2,1,ok,timeout\n"
    contents = read_contents(written(tmp_path, text), Layout(("a",), "t_ms", "how"))
    assert contents.outcomes.states.tolist() == [state, "ok"]


def test_rows_that_were_not_measured_are_left_out(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, "a,t_ms,status\n1,,not_measured\n2,1,ok\n"), ["a"], "t_ms")
    assert table.dataset.columns["a"].tolist() == [2]


def test_values_that_are_no_integers_become_codes_in_sorted_order(tmp_path: Path) -> None:
    text = "f,s,b,i,t_ms\n0.5,None,True,3.0,1\n0.25,fast,False,-1,2\n1.0,None,True,3.0,3\n"
    table = read_table(written(tmp_path, text), ["f", "s", "b", "i"], "t_ms")
    assert table.dataset.manifest.labels == {"f": (0.25, 0.5, 1.0), "s": ("None", "fast")}
    assert {name: column.tolist() for name, column in table.dataset.columns.items()} == {
        "f": [1, 0, 2],
        "s": [0, 1, 0],
        "b": [1, 0, 1],
        "i": [3, -1, 3],
    }
    assert table.dataset.manifest.labelled({"f": 2, "s": 1, "b": 0, "i": 3}) == {"f": 1.0, "s": "fast", "b": 0, "i": 3}


def test_columns_may_have_any_name(tmp_path: Path) -> None:
    names = ["state", "tile size", "TILE_SIZE", "1st", "größe", "median_s"]
    text = f"{','.join(names)},t_ms\n{','.join('123456')},7\n"
    table = read_table(written(tmp_path, text), names, "t_ms")
    assert [column.tolist() for column in table.dataset.columns.values()] == [[1], [2], [3], [4], [5], [6]]
    assert tuple(table.dataset.manifest.parameters) == tuple(table.dataset.columns)


def test_rows_of_one_configuration_are_repeated_measurements(tmp_path: Path) -> None:
    text = "a,t_ms,status\n1,9,ok\n2,5,ok\n1,3,ok\n1,4,ok\n1,1,timeout\n3,1,timeout\n3,1,fail_compile\n"
    table = read_table(written(tmp_path, text), ["a"], "t_ms")
    assert [(row["a"], state) for row, state, _ in outcomes(table)] == [(1, "ok"), (2, "ok"), (3, "timeout")]
    np.testing.assert_allclose(table.dataset.numbers("median_s")[:2], [4e-3, 5e-3], rtol=1e-6)


@pytest.mark.parametrize("end", ["", "unfinished"])
def test_a_cache_of_kernel_tuner(tmp_path: Path, end: str) -> None:
    text = json.dumps(CACHE)
    path = written(tmp_path, text[:-2] + "," if end else text, "cache.json")
    table = read_table(path)
    assert table.dataset.columns["block"].tolist() == [16, 32, 64]
    assert table.dataset.states.tolist() == ["ok", "compile_error", "launch_error"]
    assert table.dataset.numbers("compile_s")[0] == pytest.approx(0.1, rel=1e-3)
    assert table.dataset.numbers("median_s")[0] == pytest.approx(1.5e-3, rel=1e-6)


def test_results_in_t4(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, json.dumps(T4), "results.json"))
    assert table.dataset.states.tolist() == ["ok", "compile_error", "wrong_result", "ok"]
    assert table.dataset.manifest.labels == {"mode": ("a", "b")}
    np.testing.assert_allclose(table.dataset.numbers("median_s")[[0, 3]], [1.5e-3, 0.25], rtol=1e-6)
    assert table.dataset.numbers("compile_s")[0] == pytest.approx(0.02, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "parameters", "time", "law"),
    [
        ("a,t_ms\n1,2\n", ["b"], "t_ms", "'b' is no column of the table, which has a, t_ms"),
        ("block,t_ms\n1,2\n", ["blok"], "t_ms", "did you mean 'block'"),
        ("a,t_ms\n1,2\n", ["a"], "time", "'time' is no column"),
        ("a,t\n1,2\n", ["a"], "t", "t_ms"),
        ("a,t_ms\n1,2,3\n", ["a"], "t_ms", "Expected 2 columns, got 3"),
        ("a,t_ms\n1\n", ["a"], "t_ms", "Expected 2 columns, got 1"),
        (f"a,t_ms\n{'x' * 201},2\n", ["a"], "t_ms", "has at most 200"),
        ("a,t_ms\n1,2\n", ["a", "a"], "t_ms", "each once"),
        ("a,t_ms\n1,2\n", [], "t_ms", "1 to 200"),
        ("a,t_ms\n1,2\n", ["a"], None, "--time-column"),
        ("a,t_ms\n1,2\n", ["a", "t_ms"], "t_ms", "one role"),
        ("a,a,t_ms\n1,2,3\n", ["a"], "t_ms", "are distinct"),
        ("a,t_ms\n,2\n", ["a"], "t_ms", "'a' is missing"),
        ("a,t_ms\n", ["a"], "t_ms", "rows"),
        ("", ["a"], "t_ms", "CSV"),
        ("a,t_ms,status\n1,,not_measured\n", ["a"], "t_ms", "has at least one"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(
    tmp_path: Path, text: str, parameters: list[str], time: str | None, law: str
) -> None:
    with pytest.raises(DatasetError, match=law):
        read_table(written(tmp_path, text), parameters, time)


def test_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    for name in ("table.xlsx", "missing.csv", "missing.json"):
        with pytest.raises(DatasetError, match=name):
            read_table(tmp_path / name, ["a"], "t_ms")
    pd.DataFrame({"a": [[1], [2]], "t_ms": [1.0, 2.0]}).to_parquet(tmp_path / "nested.parquet")
    with pytest.raises(DatasetError, match="'a' is no column of the table, which has t_ms"):
        read_table(tmp_path / "nested.parquet", ["a"], "t_ms")
    os.mkfifo(tmp_path / "fifo.csv")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "zero.parquet").symlink_to("/dev/zero")
    for name, kind in (("fifo.csv", "FIFO"), ("folder.json", "directory"), ("zero.parquet", "device")):
        with pytest.raises(DatasetError, match=kind):
            read_table(tmp_path / name, ["a"], "t_ms")


def test_too_many_rows_are_refused_before_they_are_read(tmp_path: Path) -> None:
    pd.DataFrame({"a": np.zeros(1_000_001, dtype=np.int8), "t_ms": 1.0}).to_parquet(tmp_path / "large.parquet")
    with pytest.raises(DatasetError, match="1,000,001"):
        read_table(tmp_path / "large.parquet", ["a"], "t_ms")


@pytest.mark.system
def test_text_that_is_repeated_in_a_dictionary_is_not_unfolded(tmp_path: Path) -> None:
    long = pa.DictionaryArray.from_arrays(np.zeros(100_000, dtype=np.int32), ["x" * 1_000_000])  # 100 GB
    pq.write_table(pa.table({"a": np.arange(100_000), "b": long, "t_ms": np.ones(100_000)}), tmp_path / "t.parquet")
    assert len(read_table(tmp_path / "t.parquet", ["a"], "t_ms").dataset) == 100_000
    with pytest.raises(DatasetError, match="has at most 200"):
        read_table(tmp_path / "t.parquet", ["b"], "t_ms", aggregate=True)


def test_text_of_a_parquet_file_is_utf8(tmp_path: Path) -> None:
    buffers = [None, pa.py_buffer(np.array([0, 2, 4], dtype=np.int32)), pa.py_buffer(b"\xff\xfe\xc3\x28")]
    wrong = pa.Array.from_buffers(pa.string(), 2, buffers)
    pq.write_table(pa.table({"a": wrong, "t_ms": [1.0, 2.0]}), tmp_path / "t.parquet")
    with pytest.raises(DatasetError, match="UTF8"):
        read_table(tmp_path / "t.parquet", ["a"], "t_ms")


@pytest.mark.parametrize(
    ("name", "text", "law"),
    [
        ("row.csv", "," * 3_000_000, "each of 1,000,000 bytes"),
        ("header.csv", "," * 900_000 + "\n", "1 to 1,000,000 rows, 2,000 columns"),
        ("rows.csv", "a,t_ms\n" + "\n" * 2_000_000, "it may have 1,000,000 rows"),
        ("memory.json", "[" + "[]," * 20_000_000 + "[]]", "MB of memory"),
        ("deep.json", "[" * 2_000_000, "32 levels"),
        ("twice.json", '{"cache": {"1": {"a": 1, "a": 2, "time": 1}}}', "occurs twice"),
        ("huge.json", '{"tune_params_keys": ["a"], "cache": {"1": {"a": 1, "time": ' + "9" * 5000 + "}}}", "integer"),
        ("time.json", '{"tune_params_keys": ["a"], "cache": {"1": {"a": 1, "time": -1}}}', "-1 in row 1"),
        ("inf.json", '{"tune_params_keys": ["a"], "cache": {"1": {"a": 1, "time": 1e999}}}', "inf in row 1"),
        ("list.json", '{"tune_params_keys": ["a"], "cache": {"1": {"a": [], "time": 1}}}', "a list in row 1"),
        ("dict.json", '{"tune_params_keys": ["a"], "cache": {"1": {"a": 1, "time": {}}}}', "a dict in row 1"),
    ],
    ids=lambda text: text[:40],  # a process gets the name of the test in its environment, which has little room
)
@pytest.mark.sampled(5, nightly=99)
def test_a_file_that_needs_too_much_is_refused(tmp_path: Path, name: str, text: str, law: str) -> None:
    started, memory = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DatasetError, match=law) as refusal:
        read_table(written(tmp_path, text, name), ["a"], "t_ms")
    assert len(str(refusal.value)) < 1000
    assert time.process_time() - started < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 500_000  # KiB


def test_messages_hold_no_control_characters(tmp_path: Path) -> None:
    for text in ("\x1b[2J,t_ms\n1,2\n", "a,t_ms\n1,\x1b[2J\n", "a\x1b,a\x1b,t_ms\n1,2,3\n"):
        with pytest.raises(DatasetError) as refusal:
            read_table(written(tmp_path, text), ["a"], "t_ms")
        assert str(refusal.value).isprintable()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200), suffix=st.sampled_from([".csv", ".parquet", ".json"]))
def test_whatever_a_file_holds_it_is_a_table_or_refused(tmp_path: Path, data: bytes, suffix: str) -> None:
    path = tmp_path / f"file{suffix}"
    path.write_bytes((b"a,t_ms\n" if suffix == ".csv" else b"") + data)
    try:
        contents = contents_of(path, Layout(("a",), "t_ms", aggregate=True))  # without the process around it
    except DatasetError:
        return
    assert len(contents.columns["a"]) >= 1


_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(st.text(max_size=3), st.fixed_dictionaries({"a": _ANYTHING, "time": _ANYTHING}), max_size=3)
    | _ANYTHING,
    st.booleans(),
)
def test_whatever_a_document_holds_it_is_a_table_or_refused(tmp_path: Path, entries: object, cache: bool) -> None:
    results = {"results": [{"configuration": entries, "measurements": entries, "times": entries}]}
    document = {"tune_params_keys": ["a"], "cache": entries} if cache else results
    try:
        table = read_table(written(tmp_path, json.dumps(document), "file.json"))
    except DatasetError:
        return
    assert len(table.dataset) >= 1
