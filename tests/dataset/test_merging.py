"""Datasets are verified against their files and their kernel, and merged where they were measured alike."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pytest

from mltune.dataset.dataset import Dataset, load_dataset, write_dataset
from mltune.dataset.importing import Outcomes, foreign_dataset
from mltune.dataset.merging import merge_datasets
from mltune.dataset.verification import verify_dataset
from mltune.device.facts import Measured
from mltune.device.known import UNKNOWN, known_devices
from mltune.errors import DatasetError
from mltune.problem.recorded import RecordedProblem


def small(name: str, block: list[int], time_ms: list[float], **changes: object) -> Dataset:
    """Return a dataset; a negative time is a failure."""
    times = np.array(time_ms)
    outcomes = Outcomes(np.where(times > 0, "ok", "launch_error").tolist(), 1e-3 * times)
    facts = {"kind": "random", "kernel": "toy", "problem": RecordedProblem("toy"), "device": UNKNOWN, "source": name}
    facts |= {"parameters": {"block": [1, 2, 4, 8]}}
    return foreign_dataset({"block": np.array(block)}, outcomes, name=name, **(facts | changes))


def rows(dataset: Dataset) -> dict[int, tuple[str, float]]:
    times = (1e3 * dataset.numbers("median_s")).round(4).tolist()
    return {
        block: (state, time if state == "ok" else 0)
        for block, state, time in zip(dataset.columns["block"].tolist(), dataset.states.tolist(), times, strict=True)
    }


def test_rows_of_both_and_medians_of_repeated_ones() -> None:
    one = small("one", [1, 2, 4], [1, 2, -1])
    other = small("other", [2, 4, 8], [4, 3, 5])
    merged, notices = merge_datasets([one, other], "both")
    assert rows(merged) == {1: ("ok", 1), 2: ("ok", 3), 4: ("ok", 3), 8: ("ok", 5)}
    manifest = merged.manifest
    assert (manifest.name, manifest.rows, manifest.kind, manifest.source) == ("both", 4, "random", "one; other")
    assert "4 rows repeat 2 configurations" in notices[0]
    assert "1 configurations both succeeded and failed" in notices[1]


def test_the_median_of_three_is_not_that_of_pairs() -> None:
    datasets = [small(name, [1], [time]) for name, time in (("a", 1), ("b", 2), ("c", 9))]
    assert rows(merge_datasets(datasets, "all")[0]) == {1: ("ok", 2)}


def test_a_device_may_have_been_measured_for_one_of_them() -> None:
    device = dataclasses.replace(UNKNOWN, measured={"fp32_flops": Measured(1e9, 0.01)})
    merged, _ = merge_datasets([small("one", [1], [1], device=device), small("other", [2], [2])], "both")
    assert merged.manifest.device.measured == device.measured


def test_parts_of_a_recorded_dataset_give_it_back() -> None:
    whole = load_dataset("h200-dgemm-nt-4096-random")
    half = len(whole) // 2
    parts = [
        dataclasses.replace(whole, table=whole.table.slice(start, count))
        for start, count in ((0, half + 100), (half, len(whole) - half))
    ]
    merged, _ = merge_datasets(parts, "whole")
    names = [name for name in whole.table.column_names if name != "samples_s"]
    assert merged.table.select(names).equals(whole.table.select(names))
    samples = merged.table["samples_s"].to_pylist()
    expected = whole.table["samples_s"].to_pylist()
    assert samples[:half] == expected[:half]
    assert samples[half] == 2 * expected[half]
    assert merged.manifest.best == whole.manifest.best
    assert merged.manifest.source_hash == whole.manifest.source_hash


def test_what_was_chosen_differently_is_a_search() -> None:
    one = small("one", [1], [1])
    assert merge_datasets([one, small("b", [2], [1], kind="search")], "x")[0].manifest.kind == "search"
    assert merge_datasets([one, small("b", [2], [1], parameters={"block": [2]})], "x")[0].manifest.kind == "search"


@pytest.mark.parametrize(
    ("change", "law"),
    [
        ({"kernel": "other"}, "one and b .* differ in their kernel: toy and other"),
        ({"problem": RecordedProblem("toy", flops=7)}, "differ in their problem: {'flops': 1} and {'flops': 7}"),
        ({"device": known_devices()["a100"]}, "differ in their device"),
        ({"labels": {"block": tuple("abcdefghi")}}, "differ in their labels"),
    ],
)
def test_what_was_not_measured_alike_is_refused(change: dict, law: str) -> None:
    with pytest.raises(DatasetError, match=law):
        merge_datasets([small("one", [1], [1]), small("b", [2], [1], **change)], "x")


def test_one_dataset_is_not_merged() -> None:
    with pytest.raises(DatasetError, match="two or more"):
        merge_datasets([small("one", [1], [1])], "x")


def test_another_source_is_refused() -> None:
    one = small("one", [1], [1])
    other = dataclasses.replace(one, manifest=dataclasses.replace(one.manifest, source_hash="0" * 64))
    with pytest.raises(DatasetError, match="hash of the source"):
        merge_datasets([one, other], "x")


@pytest.mark.parametrize("name", ["convolution_rtx_a4000", "xgemm_rtx_3060_laptop", "h200-dgemm-nt-4096-random"])
def test_shipped_datasets_are_sound(name: str) -> None:
    found = verify_dataset(name)
    assert found.problems == ()
    assert found.rows == len(load_dataset(name))


def test_a_dataset_without_a_bundle_is_sound_with_a_notice(tmp_path: Path) -> None:
    write_dataset(small("one", [1], [1]), tmp_path)
    found = verify_dataset(tmp_path / "one.json")
    assert found.problems == ()
    assert "only the parameters are known" in found.notices[0]


def test_damage_is_found(tmp_path: Path) -> None:
    write_dataset(small("one", [1], [1]), tmp_path)
    table = tmp_path / "one.parquet"
    table.write_bytes(table.read_bytes() + b"x")
    assert "not that of its manifest" in verify_dataset(table).problems[0]
    assert "two.json does not exist" in verify_dataset(tmp_path / "two.json").problems[0]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            lambda table: table.slice(1),
            "it has 4,361 of 4,362 valid configurations",
        ),
        (lambda table: _with(table, "block_size_x", 7), r"block_size_x has the values \[7\], .* does not have"),
        (lambda table: _with(_with(table, "use_padding", 1), "use_shmem", 0), "configurations do not satisfy"),
    ],
)
def test_what_the_bundle_does_not_allow_is_found(tmp_path: Path, change, problem: str) -> None:
    whole = load_dataset("convolution_w6600")
    table = change(whole.table)
    parameters = {
        name: tuple(dict.fromkeys([*values, *pa.compute.unique(table[name]).to_pylist()]))
        for name, values in whole.manifest.parameters.items()
    }
    counts = {state: table["state"].to_pylist().count(state) for state in sorted(set(table["state"].to_pylist()))}
    manifest = dataclasses.replace(whole.manifest, rows=table.num_rows, parameters=parameters, counts=counts)
    write_dataset(Dataset(manifest, table), tmp_path)
    path = tmp_path / "convolution_w6600.json"
    assert re.search(problem, verify_dataset(path).problems[0])


def _with(table, name: str, value: int):
    """Return a table with another value in its last row."""
    column = [*table[name].to_pylist()[:-1], value]
    return table.set_column(table.schema.get_field_index(name), table.schema.field(name), pa.array(column, pa.int64()))
