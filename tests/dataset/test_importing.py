"""Timings of others become datasets that are replayed, compared on and read like recorded ones."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mltune.comparison.comparison import CompareCall
from mltune.comparison.simulation import RecordingSource
from mltune.dataset.cells import Layout
from mltune.dataset.dataset import datasets_in, load_dataset, write_dataset
from mltune.dataset.importing import Imported, import_table
from mltune.dataset.replay import recorded_kernel
from mltune.device.facts import Measured
from mltune.device.known import UNKNOWN, known_devices
from mltune.errors import DatasetError, UsageError
from mltune.kernel.bundle import Kernel
from mltune.kernel.expressions import parse
from mltune.kernel.parts import KernelSpace, Restriction
from mltune.kernel.reader import load_kernel
from mltune.problem.gemm import parse_problem
from mltune.problem.recorded import RecordedProblem

CSV = "block,mode,time_ms,status,benchmark_ms\n16,a,2.5,ok,70\n32,a,,ok,\n16,b,1.5,ok,40\n32,b,9,fail_compile,\n"
CACHE = {
    "kernel_name": "k",
    "tune_params_keys": ["block", "mode"],
    "cache": {
        "16,a": {"block": 16, "mode": "a", "time": 2.5, "compile_time": 100.0, "benchmark_time": 70.0},
        "32,a": {"block": 32, "mode": "a", "time": "RuntimeFailedConfig"},
        "16,b": {"block": 16, "mode": "b", "time": 1.5, "compile_time": 50.0, "benchmark_time": 40.0},
        "32,b": {"block": 32, "mode": "b", "time": "CompilationFailedConfig"},
    },
}
T4 = {
    "results": [
        {
            "configuration": {"block": int(key.split(",")[0]), "mode": key[-1]},
            "invalidity": {"16": "correct", "32,a": "runtime", "32,b": "compile"}[key if key[0] == "3" else "16"],
            "times": {"benchmark": entry.get("benchmark_time", 0), "compilation": entry.get("compile_time", 0)},
            "measurements": [{"name": "time", "value": entry["time"], "unit": "ms"}] if key[0] == "1" else [],
        }
        for key, entry in CACHE["cache"].items()
    ]
}
TUNER = {
    "kernel_family": "xgemm_1",
    "precision": "32",
    "device": "Tesla K40m",
    "results": [
        {"kernel": "Xgemm", "time": 2.5, "parameters": {"KWG": 16, "PRECISION": 32, "VWM": 1}},
        {"kernel": "Xgemm", "time": 1.5, "parameters": {"KWG": 32, "PRECISION": 32, "VWM": 2}},
    ],
}
DATABASE = {
    "sections": [
        {
            "device": device,
            "kernel": "Xgemm",
            "kernel_family": "xgemm",
            "precision": precision,
            "parameter_names": ["KWG", "VWM"],
            "results": [["16,1", time], ["32,2", 1.5]],
        }
        for device, precision, time in (("Tesla K40m", "32", 2.5), ("Tesla K40m", "64", 5), ("Hawaii", "32", 3))
    ]
}
COLUMNS = Layout(("block", "mode"), "time_ms")
TOY = Kernel(
    name="toy",
    problem="recorded",
    space=KernelSpace(
        parameters={"mode": (0, 1, 2), "block": (16, 32, 64)},
        labels={"mode": ("b", "a", "c")},
        restrictions=(Restriction(parse("block <= most_threads"), "too large"),),
    ),
)
PROBLEM = RecordedProblem("toy", values={"most_threads": 64})


def written(folder: Path, content: object, name: str = "theirs.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def imported(path: Path, **changes: object) -> Imported:
    arguments = {"kernel": "toy", "problem": PROBLEM, "device": known_devices()["a100"]}
    return import_table(path, **(arguments | changes))


def outcomes(found: Imported) -> dict[tuple, tuple]:
    """Return state, time, and cost of timing in milliseconds, by configuration."""
    dataset = found.dataset
    rows = zip(*(column.tolist() for column in dataset.columns.values()), strict=True)
    described = [dataset.manifest.labelled(dict(zip(dataset.columns, row, strict=True))) for row in rows]
    milliseconds = zip(
        *((1e3 * dataset.numbers(name)).round(1).tolist() for name in ("median_s", "time_s")), strict=True
    )
    return {
        (row["block"], row["mode"]): (state, str(time), cost)
        for row, state, (time, cost) in zip(described, dataset.states.tolist(), milliseconds, strict=True)
    }


EXPECTED = {
    (16, "a"): ("ok", "2.5", 70.0),
    (32, "a"): ("launch_error", "nan", 0.0),
    (16, "b"): ("ok", "1.5", 40.0),
    (32, "b"): ("compile_error", "nan", 0.0),
}


@pytest.mark.parametrize(
    ("content", "name", "layout"),
    [(CSV, "theirs.csv", COLUMNS), (CACHE, "theirs.json", None), (T4, "theirs.json", None)],
    ids=["csv", "cache", "t4"],
)
@pytest.mark.parametrize("kernel", ["toy", TOY], ids=["no bundle", "bundle"])
def test_every_format_gives_the_same_dataset(tmp_path: Path, content, name, layout, kernel) -> None:
    found = imported(written(tmp_path, content, name), kernel=kernel, layout=layout)
    assert outcomes(found) == EXPECTED
    assert found.account == "4 rows, 4 distinct, 2 failed"


def test_parquet_gives_the_same_dataset(tmp_path: Path) -> None:
    written(tmp_path, CSV, "theirs.csv")
    pd.read_csv(tmp_path / "theirs.csv").to_parquet(tmp_path / "theirs.parquet")
    assert outcomes(imported(tmp_path / "theirs.parquet", layout=COLUMNS)) == EXPECTED


def test_it_is_read_again_from_its_files(tmp_path: Path) -> None:
    found = imported(written(tmp_path, CACHE))
    manifest = write_dataset(found.dataset, tmp_path / "out").manifest
    again = load_dataset(tmp_path / "out/theirs.json")
    assert again.manifest == manifest
    assert again.table.equals(found.dataset.table)
    assert manifest.labels == {"mode": ("a", "b")}
    assert (manifest.source, manifest.kind, manifest.device.name) == ("theirs.json", "search", "NVIDIA A100-SXM4-80GB")


def test_it_keeps_what_was_measured_of_the_device(tmp_path: Path) -> None:
    device = dataclasses.replace(known_devices()["a100"], measured={"fp32_flops": Measured(1.9e13, 0.01)})
    write_dataset(imported(written(tmp_path, CACHE), device=device).dataset, tmp_path / "out")
    assert load_dataset(tmp_path / "out/theirs.json").manifest.device.measured == device.measured


def test_positions_are_those_of_the_kernel(tmp_path: Path) -> None:
    found = imported(written(tmp_path, CACHE), kernel=TOY)
    assert found.dataset.manifest.parameters == {"mode": (0, 1), "block": (16, 32)}
    assert found.dataset.manifest.labels == TOY.space.labels
    assert found.dataset.manifest.check_kernel(TOY) == ""


def test_integers_may_be_labels_of_a_kernel(tmp_path: Path) -> None:
    kernel = Kernel(
        name="toy", problem="recorded", space=KernelSpace(parameters={"a": (0, 1, 2)}, labels={"a": (0.5, 4.0, 1.0)})
    )
    path = written(tmp_path, "a,t_ms\n4,1\n1,2\n", "t.csv")
    found = imported(path, kernel=kernel, layout=Layout(("a",), "t_ms"))
    assert found.dataset.columns["a"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("row", "law"),
    [
        ({"block": 16, "mode": "d", "time": 1}, r"mode has the values \['d'\]; .* in toy are \['b', 'a', 'c'\]"),
        ({"block": 17, "mode": "a", "time": 1}, r"block has the values \[17\]"),
        (
            {"block": 64, "mode": "a", "time": 1},
            "1 configurations that ran .*, such as .*'block': 64.*`block <= most_threads` does not hold",
        ),
    ],
)
def test_what_does_not_fit_the_kernel_is_refused(tmp_path: Path, row, law) -> None:
    cache = CACHE | {"cache": {**CACHE["cache"], "x": row}}
    problem = RecordedProblem("toy", values={"most_threads": 32})
    with pytest.raises(DatasetError, match=law):
        imported(written(tmp_path, cache), kernel=TOY, problem=problem)


def test_a_failure_that_the_restrictions_exclude_is_left_out(tmp_path: Path) -> None:
    cache = CACHE | {"cache": {**CACHE["cache"], "x": {"block": 64, "mode": "a", "time": "InvalidConfig"}}}
    problem = RecordedProblem("toy", values={"most_threads": 32})
    found = imported(written(tmp_path, cache), kernel=TOY, problem=problem)
    assert outcomes(found) == EXPECTED
    assert found.notices[1:] == ("1 failed configurations that the restrictions exclude were left out",)


def test_other_parameters_than_those_of_the_kernel_are_refused(tmp_path: Path) -> None:
    cache = {"tune_params_keys": ["a"], "cache": {"1": {"a": 1, "time": 1}}}
    with pytest.raises(DatasetError, match="there is no parameter mode, block; the table has a"):
        imported(written(tmp_path, cache), kernel=TOY)
    with pytest.raises(DatasetError, match="has the parameters block; toy has mode, block"):
        imported(written(tmp_path, CACHE), kernel=TOY, layout=Layout(("block",), aggregate=True))


def test_a_problem_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="of kind recorded"):
        imported(written(tmp_path, CACHE), kernel=TOY, problem=parse_problem("sgemm"))


@pytest.mark.parametrize("name", ["", "../evil", "a b", "x" * 101, "\x1b[2J"])
def test_a_kernel_without_a_bundle_has_a_plain_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(DatasetError, match="cannot name a kernel"):
        imported(written(tmp_path, CACHE), kernel=name)


def test_clblasts_tuner_output(tmp_path: Path) -> None:
    dataset = imported(written(tmp_path, TUNER)).dataset
    assert {name: column.tolist() for name, column in dataset.columns.items()} == {"KWG": [16, 32], "VWM": [1, 2]}
    np.testing.assert_allclose(dataset.numbers("median_s"), [2.5e-3, 1.5e-3], rtol=1e-6)


def test_a_section_of_clblasts_database(tmp_path: Path) -> None:
    path = written(tmp_path, DATABASE)
    dataset = imported(path, layout=Layout(section={"device": "Tesla K40m", "precision": "64"})).dataset
    np.testing.assert_allclose(dataset.numbers("median_s"), [5e-3, 1.5e-3], rtol=1e-6)
    assert dataset.columns["VWM"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({}, "has 3 sections, .* with --section NAME=VALUE: device: Hawaii, Tesla K40m; precision: 32, 64"),
        ({"device": "Tesla K40m"}, "2 of 3 sections have device=Tesla K40m, .*: precision: 32, 64"),
        ({"device": "K40"}, "0 of 3 sections have .*device: Hawaii, Tesla K40m; kernel: Xgemm"),
    ],
)
def test_the_message_says_how_sections_differ(tmp_path: Path, section, words) -> None:
    with pytest.raises(DatasetError, match=words):
        imported(written(tmp_path, DATABASE), layout=Layout(section=section))


@pytest.mark.parametrize(
    "content",
    [
        {"sections": []},
        {"sections": 3},
        {"sections": [{"parameter_names": ["a"], "results": [["1", 1], ["1,2", 1]]}]},
        {"sections": [{"parameter_names": ["a"], "results": []}]},
        {"sections": [{"parameter_names": ["a", "b"], "results": [["1", 1]]}]},
        {"sections": [{"parameter_names": ["a"], "results": [["1", "fast"]]}]},
        {"results": [{"parameters": 3, "time": 1}]},
        {"results": [{"parameters": {"a": 1}}]},
        {"results": [{"parameters": {"a": 1}, "time": -1}]},
        {"results": [{"parameters": {"a": [1]}, "time": 1}]},
    ],
)
def test_malformed_results_of_clblast_are_refused(tmp_path: Path, content: object) -> None:
    with pytest.raises(DatasetError, match=r"theirs\.json"):
        imported(written(tmp_path, content))


def test_sections_are_for_clblast_only(tmp_path: Path) -> None:
    for path, layout in ((written(tmp_path, CACHE), Layout()), (written(tmp_path, CSV, "theirs.csv"), COLUMNS)):
        with pytest.raises(DatasetError, match="sections were named"):
            imported(path, layout=Layout(layout.parameters, layout.time_column, section={"a": "b"}))


def test_it_is_compared_on_by_its_folder(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_dataset(imported(written(tmp_path, CACHE), name=name).dataset, tmp_path / "out")
    (tmp_path / "out/notes.json").write_text("{}")
    assert [path.stem for path in datasets_in(tmp_path / "out")] == ["one", "two"]
    names = f"{tmp_path / 'out'},convolution_w6600"
    request = CompareCall(strategies="random", datasets=names, evaluations=2, seeds=1).request()
    assert [Path(source.name).stem for source in request.sources] == ["one", "two", "convolution_w6600"]
    recording = request.sources[0].load()
    assert recording.optimum_s == pytest.approx(1.5e-3, rel=1e-5)
    assert sorted(recording.run_s.round(4).tolist()) == [0.0, 0.0, 0.04, 0.07]
    assert "there is no kernel 'toy' here" in recording.notices[0]


def test_a_folder_without_datasets_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="has no datasets"):
        datasets_in(tmp_path)


def test_a_kernel_without_a_bundle_has_its_parameters_alone(tmp_path: Path) -> None:
    gemm = parse_problem("sgemm", size=1024)
    dataset = imported(written(tmp_path, CACHE), problem=gemm, kernel="not_here").dataset
    kernel, notice = recorded_kernel(dataset.manifest)
    kernel.check_problem(gemm)
    assert kernel.space.labelled({"block": 16, "mode": 1}) == {"block": 16, "mode": "b"}
    assert "only the parameters are known" in notice
    write_dataset(dataset, tmp_path / "out")
    assert RecordingSource(str(tmp_path / "out/theirs.json")).load().kernel == kernel


def test_a_kernel_with_a_bundle_is_that_bundle() -> None:
    manifest = load_dataset("convolution_w6600").manifest
    assert recorded_kernel(manifest) == (load_kernel("convolution"), "")


def test_labels_of_a_stranger_are_checked(tmp_path: Path) -> None:
    write_dataset(imported(written(tmp_path, CACHE), device=UNKNOWN).dataset, tmp_path / "out")
    path = tmp_path / "out/theirs.json"
    manifest = json.loads(path.read_text())
    for labels, law in (
        ({"mode": ["a"]}, "positions in their list"),
        ({"tile": ["a", "b"]}, "is no parameter"),
        ({"mode": ["a", "a"]}, "distinct"),
        ({"mode": ["a", "b" * 201]}, "at most 200 characters"),
        ({"mode": ["a", float("inf")]}, "finite numbers"),
        ({"mode": ["a", "\x1b[2J"]}, "control characters"),
        ({"mode": 3}, "labels"),
    ):
        path.write_text(json.dumps(manifest | {"labels": labels}))
        with pytest.raises(DatasetError, match=law):
            load_dataset(path)


def test_a_table_of_that_name_in_the_folder_is_not_replaced(tmp_path: Path) -> None:
    found = imported(written(tmp_path, CACHE))
    (tmp_path / "theirs.parquet").write_text("mine")
    for path in (tmp_path / "theirs.json", tmp_path / "theirs.parquet"):
        with pytest.raises(DatasetError, match=f"{path.name} exists"):
            write_dataset(found.dataset, tmp_path)
        path.unlink()
