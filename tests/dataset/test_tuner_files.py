"""Files of other tuners are imported with the right units, states and parameters, or refused in a sentence."""

import json
from pathlib import Path

import numpy as np
import pytest

from mltune.dataset.cells import Layout
from mltune.dataset.importing import Imported, import_table, read_table
from mltune.dataset.units import seconds_of
from mltune.device.known import UNKNOWN
from mltune.errors import DatasetError
from mltune.problem.recorded import RecordedProblem


def imported(folder: Path, content: object, name: str = "theirs.json", **layout: object) -> Imported:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    facts = {"kernel": "theirs", "problem": RecordedProblem("theirs"), "device": UNKNOWN}
    return import_table(path, layout=Layout(**layout), **facts)


def microseconds(table: Imported, column: str = "median_s") -> list[float]:
    """Return times with the digits that a dataset keeps."""
    digits = 5 if column == "median_s" else 3
    return [float(f"{1e6 * time_s:.{digits}g}") for time_s in table.dataset.numbers(column)]


def states(table: Imported) -> list[str]:
    return table.dataset.states.tolist()


def t4(*values: object, unit: object = "", timeunit: object = None, **changes: object) -> dict[str, object]:
    """Return results in T4 with a time for each of several configurations."""
    results = [
        {
            "configuration": {"block": 16 << number},
            "times": {"compilation_time": 2000.0},
            "invalidity": "correct",
            "correctness": 1,
            "measurements": [{"name": "time", "value": value, "unit": unit}],
            "objectives": ["time"],
            **changes,
        }
        for number, value in enumerate(values)
    ]
    return {"results": results} | ({} if timeunit is None else {"metadata": {"timeunit": timeunit}})


def measured(name: str, value: float, unit: str) -> dict[str, object]:
    return {"objectives": [name], "measurements": [{"name": name, "value": value, "unit": unit}]}


def ktt(*rows: dict[str, object], unit: object = "Microseconds") -> dict[str, object]:
    """Return results in KTT's own format."""
    results = [
        {
            "Configuration": [{"Name": "block", "Value": 16 << number, "ValueType": "UnsignedInt"}],
            "Status": "Ok",
            "TotalDuration": 96.256,
            "CompilationOverhead": 2000.0,
            **row,
        }
        for number, row in enumerate(rows)
    ]
    return {"Metadata": {} if unit is None else {"TimeUnit": unit}, "Results": results}


@pytest.mark.parametrize(
    ("unit", "length_s"),
    [
        ("Microseconds", 1e-6),
        ("microsecond", 1e-6),
        ("us", 1e-6),
        ("µs", 1e-6),
        ("μs", 1e-6),
        ("usec", 1e-6),
        ("MILLISECONDS", 1e-3),
        ("msec", 1e-3),
        ("miliseconds", 1e-3),
        (" ms ", 1e-3),
        ("[ms]", 1e-3),
        ("NS", 1e-9),
        ("nanosecond", 1e-9),
        ("picoseconds", 1e-12),
        ("Seconds", 1.0),
        ("sec", 1.0),
        ("minutes", 60.0),
        ("GFLOP/s", None),
        ("m", None),
        ("", None),
        ("J", None),
        (["ms"], None),
    ],
)
def test_a_unit_of_time_is_read_as_it_is_written(unit: object, length_s: float | None) -> None:
    assert seconds_of(unit) == length_s


@pytest.mark.parametrize(
    ("unit", "timeunit"),
    [("Microseconds", None), ("", "microseconds"), ("us", "milliseconds"), ("µs", None)],
)
def test_times_of_t4_have_the_unit_of_the_file(tmp_path: Path, unit: str, timeunit: str | None) -> None:
    table = imported(tmp_path, t4(96.256, 48.5, unit=unit, timeunit=timeunit))
    assert microseconds(table) == [96.256, 48.5]
    assert not any("unit" in notice for notice in table.notices)


@pytest.mark.parametrize(("unit", "timeunit"), [("Microseconds", None), ("", "Microseconds")])
def test_compile_times_of_t4_have_the_unit_of_the_file(tmp_path: Path, unit: str, timeunit: str | None) -> None:
    table = imported(tmp_path, t4(96.256, unit=unit, timeunit=timeunit))
    assert microseconds(table, "compile_s") == [2000.0]


def test_without_a_unit_the_rule_of_the_format_holds_and_is_told(tmp_path: Path) -> None:
    table = imported(tmp_path, t4(1.5))
    assert microseconds(table) == [1500.0]
    assert any("names no unit of its times: T4 of Kernel Tuner has milliseconds" in text for text in table.notices)
    assert microseconds(imported(tmp_path, t4(1.5), time_unit="us")) == [1.5]
    with pytest.raises(DatasetError, match="--time-unit is another than the unit that this file names"):
        imported(tmp_path, t4(1.5, unit="ms"), time_unit="us")


@pytest.mark.parametrize(
    ("name", "unit", "words"),
    [
        ("GFLOP/s", "GFLOP/s", "'GFLOP/s', a rate .more is better"),
        ("GFLOP/s", "", "'GFLOP/s', a rate .more is better"),
        ("performance", "gflops", "'gflops', a rate .more is better"),
        ("energy", "J", "'J', an energy .less is better"),
        ("nvml_energy", "Joules", "'Joules', an energy .less is better"),
        ("fitness", "", "result 1 has 'fitness', which is no time"),
        ("time", "GB/s", "'GB/s', a rate"),
        ("time", "parsecs", "has the unit 'parsecs'"),
    ],
)
def test_what_is_no_time_is_refused_by_its_name(tmp_path: Path, name: str, unit: str, words: str) -> None:
    with pytest.raises(DatasetError, match=words):
        imported(tmp_path, t4(900.0, **measured(name, 900.0, unit)))


def test_the_times_of_a_file_with_another_objective_are_imported_and_told(tmp_path: Path) -> None:
    both = [*measured("GFLOP/s", 900.0, "GFLOP/s")["measurements"], *measured("time", 2.0, "ms")["measurements"]]
    table = imported(tmp_path, t4(0, objectives=["GFLOP/s"], measurements=both))
    assert microseconds(table) == [2000.0]
    assert any("the objective of the file is GFLOP/s" in notice for notice in table.notices)


def test_the_objective_of_a_cache_that_is_no_time_is_told(tmp_path: Path) -> None:
    text = cache((16, 1.0)).replace("{", '{"objective": "GFLOP/s", ', 1)
    assert any("the objective of the file is GFLOP/s" in notice for notice in imported(tmp_path, text).notices)


@pytest.mark.parametrize(
    ("heading", "words"), [("GFLOP/s", "a rate"), ("energy_J", "an energy"), ("speed_gflops", "a rate")]
)
def test_a_column_that_is_no_time_is_refused_by_its_name(tmp_path: Path, heading: str, words: str) -> None:
    with pytest.raises(DatasetError, match=words):
        imported(tmp_path, f"a,{heading}\n1,2\n", "t.csv", parameters=("a",), time_column=heading)


@pytest.mark.parametrize("heading", ["time (Microseconds)", "Duration [µs]", "time_USEC", "microseconds"])
def test_the_name_of_a_column_ends_in_any_spelling_of_a_unit(tmp_path: Path, heading: str) -> None:
    table = imported(tmp_path, f"a,{heading}\n1,2\n", "t.csv", parameters=("a",), time_column=heading)
    assert microseconds(table) == [2.0]


def test_the_shortest_of_several_times_is_no_number_of_minutes(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="does not end in a unit"):
        imported(tmp_path, "a,time_min\n1,2\n", "t.csv", parameters=("a",), time_column="time_min")


def test_runtimes_alone_count_by_their_median(tmp_path: Path) -> None:
    changes = {"measurements": [], "times": {"runtimes": [5.0, 1.0, 2.0]}}
    assert microseconds(imported(tmp_path, t4(0, timeunit="microseconds", **changes))) == [2.0]


def test_a_correctness_of_zero_is_a_wrong_result(tmp_path: Path) -> None:
    assert states(imported(tmp_path, t4(1.0, unit="ms", correctness=0))) == ["wrong_result"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"correctness": "yes"}, "the correctness of result 1 is neither 0 nor 1"),
        ({"correctness": float("nan")}, "the correctness of result 1 is neither 0 nor 1"),
        ({"invalidity": ["correct"]}, "'invalidity' of result 1 is a list, not a text"),
        (
            {"measurements": [{"name": "time", "value": 1.0, "unit": ["ms"]}]},
            "the unit of result 1 is a list, not a text",
        ),
        ({"measurements": [{"name": "time", "value": 1.0, "unit": 3}]}, "the unit of result 1 is a int, not a text"),
        ({"measurements": [{"name": "time", "value": -1.0, "unit": "ms"}]}, "-1.0 in row 1"),
        ({"measurements": [{"name": "time", "value": 1e300, "unit": "ms"}]}, "1e.300 in row 1"),
        ({"measurements": [{"name": "time", "value": [1.0], "unit": "ms"}]}, "a list in row 1"),
        ({"measurements": [3]}, "result 1 is malformed"),
        ({"measurements": [{"value": 1.0}]}, "result 1 has no field 'name'"),
        ({"measurements": [], "times": {"runtimes": "fast"}}, "no list of numbers"),
        ({"configuration": [1]}, "the configuration of result 1 is no object"),
    ],
)
def test_hostile_values_in_t4_are_refused_in_a_sentence(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    with pytest.raises(DatasetError, match=words):
        imported(tmp_path, t4(1.0, **changes))


@pytest.mark.parametrize("timeunit", [3, ["ms"], {}, "furlongs", "GFLOP/s"])
def test_a_hostile_unit_of_a_file_is_refused(tmp_path: Path, timeunit: object) -> None:
    with pytest.raises(DatasetError, match="unit"):
        imported(tmp_path, t4(1.0, timeunit=timeunit))
    with pytest.raises(DatasetError, match="unit"):
        imported(tmp_path, ktt({}, unit=timeunit))


def test_units_of_their_own_are_mixed_but_times_with_and_without_a_unit_are_not(tmp_path: Path) -> None:
    results = [*t4(1.0, unit="ms")["results"], *t4(0, 2.0, unit="s")["results"][1:]]
    assert microseconds(imported(tmp_path, {"results": results})) == [1e3, 2e6]
    results = [*t4(1.0, unit="ms")["results"], *t4(0, 2.0)["results"][1:]]
    with pytest.raises(DatasetError, match="the time of result 2 has no unit, but others have; give --time-unit"):
        imported(tmp_path, {"results": results})


def configurations(table: Imported) -> list[dict[str, object]]:
    columns = table.dataset.columns
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [table.dataset.manifest.labelled(dict(zip(columns, row, strict=True))) for row in rows]


def test_rows_with_other_parameters_than_the_first_are_other_configurations(tmp_path: Path) -> None:
    rows = [
        {"time": 2.5, "parameters": {"GEMMK": 0, "KWG": 16, "PRECISION": 32}},
        {"time": 1.5, "parameters": {"GEMMK": 1, "KWG": 1, "KREG": 4, "PRECISION": 32}},
        {"time": 1.0, "parameters": {"GEMMK": 1, "KWG": 1, "KREG": 8, "PRECISION": 32}},
        {"time": 9.0, "parameters": {"KWG": 1, "KREG": 8, "PRECISION": 32}},
    ]
    table = imported(tmp_path, {"results": rows})
    assert table.account == "4 rows, 4 distinct, 0 failed"
    assert configurations(table) == [
        {"GEMMK": 0, "KWG": 16, "KREG": "absent"},
        {"GEMMK": 1, "KWG": 1, "KREG": 4},
        {"GEMMK": 1, "KWG": 1, "KREG": 8},
        {"GEMMK": "absent", "KWG": 1, "KREG": 8},
    ]
    assert microseconds(table) == [2500.0, 1500.0, 1000.0, 9000.0]
    assert any("not all configurations have GEMMK, KREG" in notice for notice in table.notices)


def test_a_value_that_would_stand_for_a_missing_parameter_is_refused(tmp_path: Path) -> None:
    rows = [{"time": 1.0, "parameters": {"a": 1, "b": "absent"}}, {"time": 2.0, "parameters": {"a": 1}}]
    with pytest.raises(DatasetError, match="has the value 'absent' in another one"):
        imported(tmp_path, {"results": rows})


def test_a_result_without_any_time_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"result 1 has neither the measurement 'time' nor 'times.runtimes'"):
        imported(tmp_path, t4(0, measurements=[]))


def test_a_number_and_its_text_are_different_values(tmp_path: Path) -> None:
    results = t4(1.0, 2.0, 3.0, unit="ms")["results"]
    for result, value in zip(results, (1, "1", "a"), strict=True):
        result["configuration"] = {"block": value}
    assert [row["block"] for row in configurations(imported(tmp_path, {"results": results}))] == [1, "1", "a"]


HEAD = '{"tune_params_keys": ["block"], "cache": {\n'
ENTRY = '"{block}": {{"block": {block}, "time": {time}}},\n'


def cache(*rows: tuple[int, object]) -> str:
    """Return an unfinished cache of Kernel Tuner."""
    return HEAD + "".join(ENTRY.format(block=block, time=json.dumps(time)) for block, time in rows)


def test_a_row_of_a_cache_without_a_parameter_is_named(tmp_path: Path) -> None:
    text = cache((16, 1.0)).replace('"block": 16, ', "") + "}}"
    for changed in (text.replace("},\n}}", "}}}"), text.replace("},\n}}", "}")):
        with pytest.raises(DatasetError, match="result 1 has no field 'block'"):
            imported(tmp_path, changed)
    with pytest.raises(DatasetError, match="the field 'tune_params_keys'"):
        imported(tmp_path, {"cache": {}})


@pytest.mark.parametrize(("times", "median_us"), [((1.0, 1.0, 1.0), 1000.0), ((1.0, 3.0, 2.0), 2000.0)])
def test_a_key_that_occurs_again_in_an_unfinished_cache_is_a_repeated_measurement(
    tmp_path: Path, times: tuple[float, ...], median_us: float
) -> None:
    table = imported(tmp_path, cache((32, 9.0), *((16, time) for time in times)))
    assert table.account == "4 rows, 2 distinct, 0 failed"
    assert microseconds(table) == [9000.0, median_us]


def test_a_file_that_was_cut_off_says_so_and_partial_imports_what_is_whole(tmp_path: Path) -> None:
    for text in (cache((16, 1.0), (32, 2.0), (64, 3.0)).rstrip(",\n")[:-5], json.dumps(t4(1.0, 2.0, 3.0))[:-90]):
        with pytest.raises(DatasetError, match=r"the file is cut off within an entry.*--partial"):
            imported(tmp_path, text)
        table = imported(tmp_path, text, partial=True)
        assert microseconds(table) == [1000.0, 2000.0]
        assert any("the file is cut off: its last" in notice for notice in table.notices)
    for partial in (False, True):
        with pytest.raises(DatasetError, match="before its first whole entry"):
            imported(tmp_path, cache((16, 1.0))[:-20], partial=partial)


def test_the_last_line_of_a_table_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    table = imported(tmp_path, "a,t_ms\n1,2.5\n2,1.", "t.csv", parameters=("a",), time_column="t_ms", partial=True)
    assert microseconds(table) == [2500.0]


def test_every_cut_of_a_file_is_told_or_imported(tmp_path: Path) -> None:
    text = json.dumps(ktt({}, {"Status": "CompilationFailed"}, {}))
    first = text.index('}, {"Configuration')
    for end in (*range(1, len(text) - 2, 13), len(text) - 1):
        with pytest.raises(DatasetError, match="cut off"):
            imported(tmp_path, text[:end])
        if end > first:
            assert 1 <= len(imported(tmp_path, text[:end], partial=True).dataset) <= 3


@pytest.mark.parametrize("word", ["compiled", "no error", "built", "kernel ran", "memory bound", "runtimes"])
def test_a_state_that_holds_a_part_of_a_failures_name_is_no_failure(tmp_path: Path, word: str) -> None:
    table = imported(tmp_path, f"a,t_ms,status\n1,2,{word}\n", "t.csv", parameters=("a",), time_column="t_ms")
    assert states(table) == ["ok"]
    assert any(word in notice for notice in table.notices) == (word != "no error")


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("CompilationFailed", "compile_error"),
        ("ComputationFailed", "launch_error"),
        ("ValidationFailed", "wrong_result"),
        ("DeviceLimitsExceeded", "launch_error"),
        ("compile error: ptxas died", "compile_error"),
        ("Build failed", "compile_error"),
        ("timed-out", "timeout"),
        ("verification error", "wrong_result"),
        ("out of memory", "launch_error"),
    ],
)
def test_whole_words_of_a_failure_are_one(tmp_path: Path, word: str, state: str) -> None:
    table = imported(tmp_path, f"a,t_ms,status\n1,2,{word}\n", "t.csv", parameters=("a",), time_column="t_ms")
    assert states(table) == [state]


@pytest.mark.parametrize(
    ("invalidity", "state"),
    [
        ("timeout", "timeout"),
        ("compile", "compile_error"),
        ("runtime", "launch_error"),
        ("correctness", "wrong_result"),
        ("constraints", "launch_error"),
    ],
)
def test_the_states_of_t4(tmp_path: Path, invalidity: str, state: str) -> None:
    assert states(imported(tmp_path, t4(1.0, invalidity=invalidity))) == [state]


def test_results_in_the_format_of_ktt(tmp_path: Path) -> None:
    rows = [{}, {"Status": "ValidationFailed"}, {"Status": "CompilationFailed", "TotalDuration": 1.8446744073709552e16}]
    table = imported(tmp_path, ktt(*rows))
    assert states(table) == ["ok", "wrong_result", "compile_error"]
    assert microseconds(table)[0] == 96.256
    assert microseconds(table, "compile_s")[0] == 2000.0
    assert table.dataset.columns["block"].tolist() == [16, 32, 64]
    table = imported(tmp_path, ktt({}, unit=None))
    assert microseconds(table) == [96256.0]
    assert any("KTT has milliseconds" in notice for notice in table.notices)


@pytest.mark.parametrize("field", ["Configuration", "Status", "TotalDuration"])
def test_a_field_that_is_missing_in_a_file_of_ktt_is_named(tmp_path: Path, field: str) -> None:
    document = ktt({}, {})
    del document["Results"][1][field]
    with pytest.raises(DatasetError, match=f"result 2 has no field '{field}'"):
        imported(tmp_path, document)


def test_texts_of_ktts_t4_are_the_numbers_that_they_stand_for(tmp_path: Path) -> None:
    document = t4(1.0, 2.0)
    document["metadata"] = {"autotuner": "KTT", "timeunit": "microseconds"}
    for result, block in zip(document["results"], ("32", "128"), strict=True):
        result["configuration"] = {"block": block}
    assert imported(tmp_path, document).dataset.columns["block"].tolist() == [32, 128]


def test_a_tuning_problem_in_t1_is_no_result(tmp_path: Path) -> None:
    document = {"ConfigurationSpace": {"TuningParameters": []}, "KernelSpecification": {"KernelName": "k"}}
    with pytest.raises(DatasetError, match="T1 describes a tuning problem and has no field 'results'"):
        imported(tmp_path, document)
    with pytest.raises(DatasetError, match=r"writes the fields General.*; a file has 'cache'"):
        imported(tmp_path, {"General": {}})
    with pytest.raises(DatasetError, match=r"it has no times, .*: a configuration file of vLLM or SGLang"):
        imported(tmp_path, {"triton_version": "3.5.1", "16": {"BLOCK_SIZE_M": 16}})


@pytest.mark.parametrize("failure", [1e20, 3.4028234663852886e38, 1.7976931348623157e308])
def test_the_number_of_a_failure_is_no_time(tmp_path: Path, failure: float) -> None:
    assert states(imported(tmp_path, cache((16, failure), (32, 1.0)))) == ["launch_error", "ok"]
    assert states(imported(tmp_path, t4(failure, 1.0, unit="us"))) == ["launch_error", "ok"]
    text = f"a,t_us\n1,{failure!r}\n2,1\n"
    assert states(imported(tmp_path, text, "t.csv", parameters=("a",), time_column="t_us")) == ["launch_error", "ok"]


def test_a_table_of_cltune_has_semicolons(tmp_path: Path) -> None:
    text = "name;time;threads;WG;\nconv;2.5;64;8;\nconv;1.5;64;16;\n"
    table = imported(tmp_path, text, "t.csv", parameters=("WG",), time_column="time", time_unit="ms", aggregate=True)
    np.testing.assert_allclose(table.dataset.numbers("median_s"), [2.5e-3, 1.5e-3], rtol=1e-6)


def test_a_bare_table_has_the_same_units(tmp_path: Path) -> None:
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps(t4(96.256, unit="Microseconds")))
    assert microseconds(read_table(path)) == [96.256]
