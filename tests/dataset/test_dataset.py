"""Datasets: size, precision, and the refusal of malformed files."""

import dataclasses
import hashlib
import io
import json
import os
import resource
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mltune.dataset.dataset import (
    dataset_from_records,
    export_run,
    find_datasets,
    list_datasets,
    load_dataset,
    load_manifest,
    write_dataset,
)
from mltune.device.known import H200
from mltune.errors import DatasetError
from mltune.kernel.bundle import Kernel
from mltune.kernel.parts import KernelSource, KernelSpace
from mltune.problem.gemm import parse_problem
from mltune.records.header import RunHeader
from mltune.records.store import Store
from mltune.records.trial import Build, Measurement, Skip, TrialRecord, TrialState

PROBLEM = parse_problem("sgemm", trans="NT", m=4096, n=4096, k=4096)


def header(parameters: int = 18) -> RunHeader:
    return RunHeader(
        kernel="toy",
        source_hash="ab" * 32,
        parameters={f"P_{index}": (1, 2, 4, 8, 16, 32) for index in range(parameters)},
        problem=PROBLEM.to_json(),
        device=H200.to_json(),
        seed=3,
        versions={"mltune": "0.1.0", "nvrtc": "13.0"},
        created_at=1_700_000_000.0,
    )


def trials(count: int, parameters: int = 18, seed: int = 0) -> list[TrialRecord]:
    """Trials of all states, their times as a GPU's clock gives them: with 32 ns between ticks, in binary32."""
    rng = np.random.default_rng(seed)
    names = [f"P_{index}" for index in range(parameters)]
    return [trial(number, names, rng) for number in range(count)]


def trial(number: int, names: list[str], rng: np.random.Generator) -> TrialRecord:
    digits = [number // 6**place % 6 for place in range(min(6, len(names)))]
    digits += list(rng.integers(0, 6, len(names) - len(digits)))
    configuration = {name: 1 << int(digit) for name, digit in zip(names, digits, strict=True)}
    state = list(TrialState)[int(rng.integers(0, 8))] if rng.random() < 0.1 else TrialState.OK
    common = {"number": number, "batch": number // 24, "index": number, "configuration": configuration, "state": state}
    if state == TrialState.SKIPPED:
        return TrialRecord(**common, skip=Skip("before_compile", -1.0, -0.5))
    failed_build = state == TrialState.COMPILE_ERROR or (state == TrialState.TIMEOUT and rng.random() < 0.5)
    if failed_build:
        return TrialRecord(**common, build=Build(state, "error: too much of something", compile_s=rng.random()))
    build = Build(
        TrialState.OK,
        registers=int(rng.integers(24, 256)),
        spill_bytes=int(rng.integers(0, 400)) * 4,
        stack_bytes=0,
        shared_bytes=int(rng.integers(1, 200)) * 1024,
        code_bytes=int(rng.integers(1000, 9000)) * 16,
        compile_s=float(rng.lognormal(-1, 0.5)),
    )
    if state not in (TrialState.OK, TrialState.UNSTABLE):
        detail = "the kernel was late" if state == TrialState.TIMEOUT else "the result is wrong"
        return TrialRecord(**common, build=build, measurement=Measurement(state, detail, error=float("inf")))
    seconds = rng.lognormal(-5.0, 1.0) * (1 + 0.0015 * rng.standard_normal(int(rng.integers(3, 13))))
    samples = (np.round(seconds / 32e-9) * 32e-6).astype(np.float32).astype(np.float64) * 1e-3
    measurement = Measurement(
        state,
        samples_s=tuple(samples.tolist()),
        median_s=float(np.median(samples)),
        noise=float(rng.random() * 0.01),
        stopped_early=bool(rng.random() < 0.5),
        error=float(rng.random()),
        verify_s=float(rng.random() * 0.01),
        time_s=float(rng.random() * 0.1),
        sm_clock_hz=float(rng.integers(100, 133)) * 15e6,
        temperature_c=float(rng.integers(30, 70)),
        power_w=float(rng.integers(100_000, 700_000)) / 1000,
        throttle_reasons=int(rng.integers(0, 2)) * 4,
    )
    return TrialRecord(**common, build=build, measurement=measurement)


@pytest.fixture
def written(tmp_path):
    dataset = dataset_from_records(trials(300, 5), header(5), name="sweep", kind="random", reference_median_s=0.0027)
    return write_dataset(dataset, tmp_path / "toy")


def close(left: float | None, right: float | None, share: float) -> bool:
    return left == right or (left is not None and right is not None and abs(left - right) <= share * abs(right))


def test_what_is_written_is_read(written, tmp_path):
    loaded = load_dataset(tmp_path / "toy" / "sweep.json")
    assert loaded.manifest == written.manifest
    assert loaded.table.equals(written.table)
    assert loaded.manifest.problem == PROBLEM
    assert loaded.manifest.device == H200
    assert loaded.manifest.created == "2023-11-14T22:13:20+00:00"
    assert loaded.manifest.reference_median_s == 0.0027
    assert sum(loaded.manifest.counts.values()) == loaded.manifest.rows == len(loaded)
    for path in (tmp_path / "toy" / "sweep", tmp_path / "toy" / "sweep.parquet", str(tmp_path / "toy" / "sweep.json")):
        assert load_manifest(path) == written.manifest
    assert sorted(os.listdir(tmp_path / "toy")) == ["sweep.json", "sweep.parquet"]


def test_every_measured_trial_comes_back_to_the_precision_of_measurement(tmp_path):
    records = [record for record in trials(300, 5) if record.build is not None]
    write_dataset(dataset_from_records(trials(300, 5), header(5), name="a", kind="random"), tmp_path)
    dataset = load_dataset(tmp_path / "a.json")
    assert list(dataset.columns) == [f"P_{index}" for index in range(5)]
    assert dataset.states.tolist() == [record.state for record in records]
    for row, (record, build, measurement) in enumerate(
        zip(records, dataset.builds(), dataset.measurements(), strict=True)
    ):
        assert {name: column[row] for name, column in dataset.columns.items()} == record.configuration
        assert dataclasses.replace(build, compile_s=0.0) == dataclasses.replace(record.build, compile_s=0.0)
        assert close(build.compile_s, record.build.compile_s, 2**-12)
        assert (measurement is None) == (record.measurement is None)
        for field in dataclasses.fields(Measurement) if measurement else ():
            found, known = getattr(measurement, field.name), getattr(record.measurement, field.name)
            if field.name == "samples_s":
                assert all(close(*pair, 1e-6) for pair in zip(found, known, strict=True))
            elif isinstance(known, float):
                assert close(found, known, 1e-6 if field.name == "median_s" else 2**-12), field.name
            else:
                assert found == known
    states = {measurement.state for measurement in dataset.measurements() if measurement}
    assert states == set(TrialState) - {TrialState.SKIPPED, TrialState.COMPILE_ERROR}


def test_the_best_is_the_fastest_that_is_ok(written):
    medians = np.where(written.states == "ok", written.numbers("median_s"), np.inf)
    row = int(np.argmin(medians))
    best = written.manifest.best
    assert best is not None
    assert best.median_s == medians[row]
    assert best.configuration == {name: column[row] for name, column in written.columns.items()}
    assert np.isnan(written.numbers("median_s")[written.states == "wrong_result"]).all()
    frame = written.to_dataframe()
    assert frame["state"].tolist() == written.states.tolist()
    assert {"median_s", "compile_s", "verify_s", "timing_s"} <= set(frame), "the time of the kernel is the median alone"
    assert "time_s" not in frame


@pytest.mark.system
def test_a_row_takes_well_under_a_hundred_bytes(tmp_path):
    dataset = dataset_from_records(trials(5_000), header(), name="big", kind="random")
    write_dataset(dataset, tmp_path)
    assert (tmp_path / "big.parquet").stat().st_size < 50 * 5_000
    assert (tmp_path / "big.json").stat().st_size < 10_000


def test_a_run_is_exported_without_what_it_skipped(tmp_path):
    records = trials(100, 4)
    with Store.open(tmp_path / "run-1", header(4)) as store:
        store.append(*records)
        store.set_fact("reference_median_s", 0.0027)
    dataset = load_dataset(export_run(tmp_path / "run-1", tmp_path))
    assert dataset.manifest.name == "run-1"
    assert dataset.manifest.kind == "search"
    assert dataset.manifest.reference_median_s == 0.0027
    assert dataset.manifest.rows == sum(record.state != TrialState.SKIPPED for record in records)
    assert "skipped" not in dataset.manifest.counts
    with pytest.raises(DatasetError, match="has no measured configurations"):
        dataset_from_records([], header(4), name="none", kind="random")


def test_a_dataset_in_which_nothing_ran_has_no_best(tmp_path):
    failed = [record for record in trials(300, 5) if record.state == TrialState.COMPILE_ERROR]
    write_dataset(dataset_from_records(failed, header(5), name="failed", kind="random"), tmp_path)
    dataset = load_dataset(tmp_path / "failed.json")
    assert dataset.manifest.best is None
    assert dataset.measurements() == [None] * len(failed)


def test_listing_and_finding(written, tmp_path):
    other = dataset_from_records(trials(600, 5), header(5), name="another", kind="complete")
    write_dataset(other, tmp_path / "toy")
    assert [manifest.name for manifest in list_datasets(tmp_path)] == ["another", "sweep"]
    assert [manifest.name for manifest in find_datasets("toy", PROBLEM, tmp_path)] == ["another", "sweep"]
    assert find_datasets("gemm_simt", PROBLEM, tmp_path) == []
    assert find_datasets("toy", dataclasses.replace(PROBLEM, m=64, ldc=64, lda=64), tmp_path) == []
    with pytest.raises(DatasetError, match="'no_such' is no dataset"):
        load_dataset("no_such")
    with pytest.raises(DatasetError, match=r"there is no dataset .*no_such: a dataset is"):
        load_dataset(tmp_path / "toy" / "no_such")


def test_names_stay_in_their_folder_and_nothing_is_overwritten_unasked(written, tmp_path):
    for name in ("../escape", "a/b", "", ".hidden", "UPPER", "x" * 101):
        with pytest.raises(DatasetError, match="the name cannot be"):
            dataset_from_records(trials(9, 3), header(3), name=name, kind="random")
    with pytest.raises(DatasetError, match="exists; choose another name"):
        write_dataset(written, tmp_path / "toy")
    write_dataset(written, tmp_path / "toy", overwrite=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(DatasetError, match="of the dataset cannot be written"):
        write_dataset(written, tmp_path / "file")


def test_the_kernel_must_be_its_own(written):
    parameters = {f"P_{index}": (1,) for index in reversed(range(5))}
    kernel = Kernel(
        name="toy",
        problem="recorded",
        source=KernelSource(sha256="ab" * 32),
        space=KernelSpace(parameters=parameters),
    )
    assert written.manifest.check_kernel(kernel) == ""
    changed = replace(kernel, source=KernelSource(sha256="cd" * 32))
    assert "another version of the source" in written.manifest.check_kernel(changed)
    assert (
        written.manifest.check_kernel(replace(kernel, source=KernelSource(sha256="cd" * 32, same_as=("ab" * 32,))))
        == ""
    )
    with pytest.raises(DatasetError, match="differ in NEW"):
        written.manifest.check_kernel(replace(kernel, space=KernelSpace(parameters=parameters | {"NEW": (1,)})))
    with pytest.raises(DatasetError, match="is of toy, not of other"):
        written.manifest.check_kernel(replace(kernel, name="other"))


def put(folder, column, value, kind=None):
    """Change one column of the written dataset and keep its hash right: what a malicious file would do."""
    path = folder / "toy" / "sweep.parquet"
    table = pq.read_table(path)
    values = table[column].to_pylist() if column in table.schema.names else [None] * table.num_rows
    values[7] = value
    field = pa.field(column, kind or table.schema.field(column).type)
    position = table.schema.get_field_index(column)
    changed = pa.array(values, field.type)
    table = table.append_column(field, changed) if position < 0 else table.set_column(position, field, changed)
    replace_table(folder, table)


def replace_table(folder, table, **manifest):
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    (folder / "toy" / "sweep.parquet").write_bytes(buffer.getvalue())
    change_manifest(folder, sha256=hashlib.sha256(buffer.getvalue()).hexdigest(), **manifest)


def change_manifest(folder, **changes):
    path = folder / "toy" / "sweep.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("column", "value", "kind", "message"),
    [
        ("median_s", -1.0, None, r"`median_s` cannot be -1.0, as in row 7: it must be from 1e-12 to 1e\+09 s"),
        ("median_s", float("nan"), None, "`median_s` cannot be .* must be from"),
        ("median_s", float("inf"), None, "`median_s` cannot be .* must be from"),
        ("median_s", 1e-12, None, "`median_s` cannot be .* must be from"),  # as float32 it is less
        ("compile_s", 1e15, None, r"t: `compile_s` cannot be .*, as in row 7: it must be from 0 to 1e\+09 s"),
        ("throttle_reasons", 2**53 + 1, None, "`throttle_reasons` cannot be .* must be from"),
        ("samples_s", [0.1, 1e13], None, r"a sample in `samples_s` .* it must be from 1e-12 to 1e\+09 s"),
        ("noise", float("inf"), None, "`noise` cannot be .* must be finite"),
        ("error", float("nan"), None, "`error` cannot be nan.* must be at least 0"),
        ("registers", -1, None, "`registers` cannot be .* must be from 0 to"),
        ("temperature_c", float("nan"), None, "`temperature_c` cannot be .* must be finite"),
        ("samples_s", [0.1, 0.0], None, "a sample in `samples_s`"),
        ("samples_s", [0.1, None], None, "a sample in `samples_s`"),
        ("samples_s", None, None, "`samples_s` cannot be None.* must be known"),
        ("state", "splendid", None, "`state` cannot be .* must be one of"),
        ("state", "skipped", None, "`state` cannot be .* must be one of"),
        ("state", None, None, "`state` cannot be .* must be known"),
        ("build_state", "crashed", None, "`build_state` cannot be .* must be ok or the state"),
        ("P_0", 3, None, "`P_0` cannot be .*: it must be one of"),
        ("P_0", None, None, "`P_0` cannot be None.*: it must be known"),
        ("extra", 1, pa.int64(), r"the unknown columns \['extra'\]"),
        ("registers", None, pa.string(), "registers: string, not int64"),
    ],
)
@pytest.mark.sampled(3, nightly=99)
def test_impossible_tables_are_refused(written, tmp_path, column, value, kind, message):
    if kind == pa.string():
        path = tmp_path / "toy" / "sweep.parquet"
        table = pq.read_table(path)
        position = table.schema.get_field_index(column)
        replace_table(tmp_path, table.set_column(position, column, table[column].cast(pa.string())))
    else:
        put(tmp_path, column, value, kind)
    with pytest.raises(DatasetError, match=message):
        load_dataset(tmp_path / "toy" / "sweep.json")


def test_an_ok_trial_has_a_time(written, tmp_path):
    assert written.states[7] == "ok"
    put(tmp_path, "median_s", None)
    with pytest.raises(DatasetError, match="of an ok trial cannot be None"):
        load_dataset(tmp_path / "toy" / "sweep.json")


def test_missing_rows_columns_doubles_and_other_bytes_are_refused(written, tmp_path):
    path = tmp_path / "toy" / "sweep.parquet"
    table = pq.read_table(path)
    for changed, manifest, message in (
        (table.drop_columns(["noise"]), {}, r"lacks \['noise'\]"),
        (table.slice(1), {}, "rows"),
        (pa.concat_tables([table, table.slice(0, 1)]), {"rows": table.num_rows + 1}, "occurs twice"),
        (table, {"counts": {"ok": table.num_rows}}, "the counts or the best"),
    ):
        good = path.with_suffix(".json").read_text()
        replace_table(tmp_path, changed, **manifest)
        with pytest.raises(DatasetError, match=message):
            load_dataset(path)
        path.with_suffix(".json").write_text(good)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DatasetError, match="not that of its manifest"):
        load_dataset(path)
    change_manifest(tmp_path, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    with pytest.raises(DatasetError, match="cannot be read as a Parquet file"):
        load_dataset(path)


def test_a_table_that_unfolds_to_gigabytes_is_refused(written, tmp_path):
    table = pq.read_table(tmp_path / "toy" / "sweep.parquet")
    rows = np.zeros(100_000, dtype=np.int32)
    details = pa.DictionaryArray.from_arrays(rows, ["x" * 1_000_000])  # 100 GB
    large = table.take(rows)
    large = large.set_column(large.schema.get_field_index("detail"), "detail", details)
    buffer = io.BytesIO()
    pq.write_table(large, buffer, store_schema=False)
    assert len(buffer.getvalue()) < 1_000_000
    (tmp_path / "toy" / "sweep.parquet").write_bytes(buffer.getvalue())
    change_manifest(tmp_path, sha256=hashlib.sha256(buffer.getvalue()).hexdigest(), rows=len(rows))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DatasetError, match="MB of memory"):
        load_dataset(tmp_path / "toy" / "sweep.json")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 500_000  # KiB


def test_texts_are_utf8(written, tmp_path):
    table = pq.read_table(tmp_path / "toy" / "sweep.parquet")
    rows = table.num_rows
    offsets = pa.py_buffer(np.arange(rows + 1, dtype=np.int32))
    wrong = pa.Array.from_buffers(pa.string(), rows, [None, offsets, pa.py_buffer(b"\xff" * rows)])
    replace_table(tmp_path, table.set_column(table.schema.get_field_index("detail"), "detail", wrong))
    with pytest.raises(DatasetError, match="UTF8"):
        load_dataset(tmp_path / "toy" / "sweep.json")


@pytest.mark.parametrize("suffix", ["json", "parquet"])
def test_only_regular_files_are_opened(written, tmp_path, suffix):
    path = tmp_path / "toy" / f"sweep.{suffix}"
    path.rename(tmp_path / "elsewhere")
    os.mkfifo(path)
    with pytest.raises(DatasetError, match="FIFO"):
        load_dataset(path)
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DatasetError, match="is a link to"):
        load_dataset(path)


def test_an_unknown_name_gets_the_nearest_one():
    with pytest.raises(DatasetError, match="did you mean 'h200-sgemm-nt-4096-random'") as refusal:
        load_dataset("h200-sgem-nt-4096-random")
    assert str(refusal.value).count("h200") == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"surprise": 1}, "surprise is not a known key"),
        ({"kind": "lucky"}, "kind cannot be 'lucky': it must be 'random', 'complete', 'pruned' or 'search'"),
        ({"format": 2}, "`format` is .*, not 1"),
        ({"rows": 10**9}, "`rows` cannot be"),
        ({"sha256": "../../etc/passwd"}, "64 hex digits"),
        ({"reference_median_s": -1.0}, "its times cannot be"),
        ({"reference_median_s": 1e-320}, "its times cannot be"),
        ({"source": "https://\x1b[2J"}, "has control characters"),
        ({"versions": {"\x07": "1"}}, "has control characters"),
        ({"parameters": {f"P{index}": [1] for index in range(201)}}, "1 to 200"),
        ({"device": {**H200.to_json(), "l2_bytes": -1}}, "0 <= l2_bytes <= 1e.18 must hold"),
        ({"device": {**H200.to_json(), "clock_hz": 1e300}}, r"1e\+18 must hold"),
        ({"seed": 10**30}, "it may have 64"),
        ({"surprise\x1b": 1}, "has control characters"),
        ({"parameters": {}}, "it has 0 parameters"),
        ({"parameters": {"1p": [1]}}, "is no parameter, which has"),
        ({"parameters": {"p": [1], "P": [1]}}, "differ only in case"),
        ({"device": {**H200.to_json(), "clock_hz": 0.0}}, r"1e\+18 must hold"),
        ({"device": {**H200.to_json(), "fma_per_clock": [0.0, 1.0]}}, r"1e\+18 must hold"),
        ({"device": {**H200.to_json(), "warp_size": 0}}, r"1e\+18 must hold"),
        ({"device": {**H200.to_json(), "measured": {"launch_s": {"median": 0, "spread": 0}}}}, "positive median"),
        ({"device": {**H200.to_json(), "measured": {"warp_speed": {"median": 9, "spread": 0}}}}, "measured"),
        ({"name": "other"}, "is not named after it"),
        ({"problem": {"precision": "q"}}, "no manifest|precision"),
        ({"device": {"name": "GPU"}}, r"device\.compute_capability is missing"),
    ],
)
@pytest.mark.sampled(9, nightly=99)
def test_malformed_manifests_are_refused(written, tmp_path, changes, message):
    change_manifest(tmp_path, **changes)
    with pytest.raises(DatasetError, match=message):
        list_datasets(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", "[" * 100_000, '"\xff"', " " * 4_000_001])
def test_what_is_no_manifest_is_refused(tmp_path, text):
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "x.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(DatasetError):
        list_datasets(tmp_path)
