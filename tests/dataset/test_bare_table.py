import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mltune.dataset.bare_table import BareTable, read_table
from mltune.errors import DatasetError
from mltune.kernel.space import TableSpace
from mltune.learn.features import Features
from mltune.measure.replay import ReplayBuilder

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


def outcomes(table: BareTable) -> list[tuple[dict[str, object], str, float]]:
    """Return configuration, state and milliseconds of every row."""
    dataset = table.dataset
    rows = [
        table.describe(dict(zip(dataset.columns, row, strict=True)))
        for row in zip(*(column.tolist() for column in dataset.columns.values()), strict=True)
    ]
    return list(zip(rows, dataset.states.tolist(), (1e3 * dataset.numbers("median_s")).round(5).tolist(), strict=True))


def test_a_csv(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, CONVOLUTION), ["block", "tile"], "time_ms")
    assert table.kernel.all_parameters == {"block": (16, 32), "tile": (1, 2)}
    assert not table.codes
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


def test_it_is_replayed_like_any_dataset_and_has_features(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, CONVOLUTION), ["block", "tile"], "time_ms")
    dataset = table.dataset
    assert TableSpace(dataset.columns).count == 4
    assert ReplayBuilder(dataset).submit({"block": 32, "tile": 2}).result().state == "compile_error"
    table.kernel.check_problem(dataset.manifest.problem)
    features = Features(table.kernel, dataset.manifest.problem, dataset.manifest.device)
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
    table = read_table(written(tmp_path, f"a,{header}\n1,2\n"), ["a"], header, time_unit=unit)
    assert table.dataset.numbers("median_s")[0] == pytest.approx(median_s, rel=1e-6)


@pytest.mark.parametrize("time", ["nan", "inf", "-1", "0", "", "CompilationFailedConfig", "1e-300", "1e300"])
def test_what_is_no_time_is_a_failure(tmp_path: Path, time: str) -> None:
    table = read_table(written(tmp_path, f"a,time_ms\n1,{time}\n2,1\n"), ["a"], "time_ms")
    assert table.dataset.states.tolist()[0] == ("compile_error" if "Compil" in time else "launch_error")


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
    table = read_table(written(tmp_path, text), ["a"], "t_ms", status="how")
    assert table.dataset.states.tolist() == [state, "ok"]


def test_rows_that_were_not_measured_are_left_out(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, "a,t_ms,status\n1,,not_measured\n2,1,ok\n"), ["a"], "t_ms")
    assert table.dataset.columns["a"].tolist() == [2]


def test_values_that_are_no_integers_become_codes_in_sorted_order(tmp_path: Path) -> None:
    text = "f,s,b,i,t_ms\n0.5,None,True,3.0,1\n0.25,fast,False,-1,2\n1.0,None,True,3.0,3\n"
    table = read_table(written(tmp_path, text), ["f", "s", "b", "i"], "t_ms")
    assert table.codes == {"f": (0.25, 0.5, 1.0), "s": ("None", "fast")}
    assert {name: column.tolist() for name, column in table.dataset.columns.items()} == {
        "f": [1, 0, 2],
        "s": [0, 1, 0],
        "b": [1, 0, 1],
        "i": [3, -1, 3],
    }
    assert table.describe({"f": 2, "s": 1, "b": 0, "i": 3}) == {"f": 1.0, "s": "fast", "b": 0, "i": 3}


def test_columns_may_have_any_name(tmp_path: Path) -> None:
    names = ["state", "tile size", "TILE_SIZE", "1st", "größe", "median_s"]
    text = f"{','.join(names)},t_ms\n{','.join('123456')},7\n"
    table = read_table(written(tmp_path, text), names, "t_ms")
    assert [column.tolist() for column in table.dataset.columns.values()] == [[1], [2], [3], [4], [5], [6]]
    assert tuple(table.kernel.all_parameters) == tuple(table.dataset.columns)


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
    assert table.codes == {"mode": ("a", "b")}
    np.testing.assert_allclose(table.dataset.numbers("median_s")[[0, 3]], [1.5e-3, 0.25], rtol=1e-6)
    assert table.dataset.numbers("compile_s")[0] == pytest.approx(0.02, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "parameters", "time", "law"),
    [
        ("a,t_ms\n1,2\n", ["b"], "t_ms", "has no b"),
        ("a,t_ms\n1,2\n", ["a"], "time", "has no time"),
        ("a,t\n1,2\n", ["a"], "t", "--time-unit"),
        ("a,t_ms\n1,2\n", ["a", "a"], "t_ms", "each once"),
        ("a,t_ms\n1,2\n", [], "t_ms", "1 to 200 parameters"),
        ("a,t_ms\n1,2\n", ["a"], None, "--time"),
        ("a,t_ms\n1,2\n", ["a", "t_ms"], "t_ms", "one role"),
        ("a,a,t_ms\n1,2,3\n", ["a"], "t_ms", "distinct names"),
        ("a,t_ms\n,2\n", ["a"], "t_ms", "'a' is missing"),
        ("a,t_ms\n", ["a"], "t_ms", "rows"),
        ("", ["a"], "t_ms", "CSV"),
        ("a,t_ms,status\n1,,not_measured\n", ["a"], "t_ms", "at least one measured"),
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
    with pytest.raises(DatasetError, match="nested"):
        read_table(tmp_path / "nested.parquet", ["a"], "t_ms")


def test_too_many_rows_are_refused_before_they_are_read(tmp_path: Path) -> None:
    pd.DataFrame({"a": np.zeros(1_000_001, dtype=np.int8), "t_ms": 1.0}).to_parquet(tmp_path / "large.parquet")
    with pytest.raises(DatasetError, match="1000001"):
        read_table(tmp_path / "large.parquet", ["a"], "t_ms")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200), suffix=st.sampled_from([".csv", ".parquet", ".json"]))
def test_whatever_a_file_holds_it_is_a_table_or_refused(tmp_path: Path, data: bytes, suffix: str) -> None:
    path = tmp_path / f"file{suffix}"
    path.write_bytes((b"a,t_ms\n" if suffix == ".csv" else b"") + data)
    try:
        table = read_table(path, ["a"], "t_ms")
    except DatasetError:
        return
    assert len(table.dataset) >= 1


_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
