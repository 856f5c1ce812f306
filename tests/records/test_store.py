"""The store of a run: records are read back exactly, and survive crashes and full disks."""

import math
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mltune.errors import RunDirectoryError, StoreError
from mltune.records.directory import FILE
from mltune.records.header import LARGEST
from mltune.records.store import Store
from mltune.records.trial import GATES, Build, Measurement, Skip, TrialRecord, TrialState
from mltune.testing import StoreContract
from mltune.testing.stores import HEADER, trial

COUNT = st.integers(0, LARGEST)
WHOLE = st.integers(-LARGEST, LARGEST)
NUMBER = st.floats(allow_nan=False)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
SECONDS = st.floats(min_value=0.0, max_value=1e12)
MEDIAN = st.floats(1e-12, 1e12)
TEXT = st.text(max_size=30)
STATE = st.sampled_from(TrialState)


def maybe(strategy):
    return st.none() | strategy


SKIPS = st.builds(Skip, st.sampled_from(GATES), FINITE, FINITE)
BUILDS = st.builds(Build, STATE, TEXT, st.just(b""), *[maybe(WHOLE)] * 5, SECONDS, st.booleans())
MEASUREMENTS = st.builds(
    Measurement,
    state=STATE,
    detail=TEXT,
    samples_s=st.lists(SECONDS, max_size=5).map(tuple),
    median_s=maybe(MEDIAN),
    stopped_early=st.booleans(),
    verify_s=SECONDS,
    time_s=SECONDS,
    discarded=COUNT,
    throttle_reasons=maybe(WHOLE),
    **dict.fromkeys(("noise", "error", "sm_clock_hz", "temperature_c", "power_w"), maybe(NUMBER)),
)
RECORDS = st.lists(
    st.builds(
        TrialRecord,
        number=COUNT,
        batch=COUNT,
        index=COUNT,
        configuration=st.fixed_dictionaries({n: st.sampled_from(v) for n, v in HEADER.parameters.items()}),
        state=STATE,
        detail=TEXT,
        proposed_by=TEXT,
        skip=maybe(SKIPS),
        audited=st.booleans(),
        build=maybe(BUILDS),
        measurement=maybe(MEASUREMENTS),
        predicted=maybe(FINITE),
        finished_at=FINITE,
        elapsed_s=SECONDS,
    ),
    max_size=4,
    unique_by=lambda record: record.number,
)


class TestStore(StoreContract):
    @pytest.fixture(autouse=True)
    def kept_in(self, database):
        self.database = database

    def open(self, directory, header=None):
        return Store.open(directory, header, self.database)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=RECORDS)
def test_records_come_back_exactly_and_in_order(records, tmp_path_factory, database):
    directory = tmp_path_factory.mktemp("run")
    with Store.open(directory, HEADER, database) as store:
        store.append(*records)
        assert store.records() == records
    with Store.open(directory) as store:
        assert store.records() == records
        assert [record.finished_at for record in store.records()] == [record.finished_at for record in records]
        assert [type(record.state) for record in store.records()] == [TrialState] * len(records)


def test_nan_becomes_unknown_and_strange_text_and_numpy_values_are_kept(tmp_path, database):
    import numpy as np

    measurement = Measurement(TrialState.WRONG_RESULT, error=math.inf, noise=math.nan, verify_s=math.nan)
    with Store.open(tmp_path, HEADER, database) as store:
        configuration = {"BLK_M": np.int64(16), "STATE": np.int64(0)}
        store.append(trial(np.int64(0), configuration=configuration, detail="\udc80 \0 end", measurement=measurement))
        (found,) = store.records()
    assert found.measurement is not None
    assert found.measurement.error == math.inf
    assert found.measurement.noise is None
    assert math.isnan(found.measurement.verify_s)
    assert found.detail == "\\udc80 \0 end"
    assert found.configuration == {"BLK_M": 16, "STATE": 0}


def test_the_same_command_resumes_and_another_header_is_refused(tmp_path, database):
    with Store.open(tmp_path, HEADER, database) as store:
        store.append(trial(0))
    with Store.open(tmp_path, replace(HEADER, created_at=9.0), database) as store:
        assert store.header.created_at == 5.0
        assert len(store) == 1
    for changed, message in (
        (replace(HEADER, seed=2), "seed is 1, not 2"),
        (replace(HEADER, problem={"precision": "s", "m": 64}), r"problem\.m is 4096, not 64"),
        (replace(HEADER, settings={}), r"settings\.batch is 24, not None"),
        (replace(HEADER, parameters={"STATE": (0, 1), "BLK_M": (16, 32, 64)}), "order of the parameters"),
    ):
        with pytest.raises(RunDirectoryError, match=message):
            Store.open(tmp_path, changed, database)
    with Store.open(tmp_path) as store:
        assert store.header == HEADER


def test_another_dataset_is_named_before_what_follows_from_it(tmp_path, database):
    replayed = replace(HEADER, settings={"target": "replay:a", "dataset_sha256": "12" * 32})
    Store.open(tmp_path, replayed, database).close()
    for found, kernel, message in (
        ({"target": "replay:b\x1b", "dataset_sha256": "34" * 32}, "other", "the dataset is a, not b "),
        ({"target": "gpu"}, "other", "the device is a, not gpu"),
        ({"target": "replay:a", "dataset_sha256": "34" * 32}, "toy", "the dataset a had another content.* is 3434"),
        ({"target": "replay:a", "dataset_sha256": "12" * 32}, "other", "the kernel is toy, not other"),
    ):
        changed = replace(replayed, settings=found, kernel=kernel, parameters={"BLK_M": (16,)})
        with pytest.raises(RunDirectoryError, match=message) as refusal:
            Store.open(tmp_path, changed, database)
        assert str(refusal.value).isprintable()


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ("none", "34" * 32, r"with no pretrained model \(--prior none\)"),
        ("34" * 32, "none", "with the pretrained model whose sha256 is 3434.*--prior"),
        ("34" * 32, "12" * 32, "with another pretrained model whose sha256 is 3434.*--prior"),
    ],
)
def test_another_model_is_refused_in_words(tmp_path, before, now, words, database):
    Store.open(tmp_path, replace(HEADER, settings={"prior": before}), database).close()
    with pytest.raises(RunDirectoryError, match=words):
        Store.open(tmp_path, replace(HEADER, settings={"prior": now}), database)


def test_a_run_that_began_before_datasets_had_a_hash_on_record_is_resumed(tmp_path, database):
    Store.open(tmp_path, replace(HEADER, settings={"target": "replay:a"}), database).close()
    with Store.open(
        tmp_path, replace(HEADER, settings={"target": "replay:a", "dataset_sha256": "34" * 32}), database
    ) as store:
        assert "dataset_sha256" not in store.header.settings


def test_one_writer_and_any_reader(tmp_path, database):
    with Store.open(tmp_path, HEADER, database) as store:
        with pytest.raises(RunDirectoryError, match=f"in use by process {os.getpid()}"):
            Store.open(tmp_path, HEADER, database)
        with Store.read_only(tmp_path) as reader:
            store.append(trial(0))
            assert reader.records() == [trial(0)]
            with pytest.raises(StoreError):
                reader.append(trial(1))
    assert not (tmp_path / f"{FILE}-wal").exists()


def test_a_finished_run_reads_from_a_medium_that_cannot_be_written(tmp_path, monkeypatch):
    with Store.open(tmp_path / "a run?#%", HEADER) as store:
        store.append(trial(0))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with Store.read_only(tmp_path / "a run?#%") as store:
        assert store.records() == [trial(0)]


@pytest.mark.parametrize("name", ["BLK\0M", "\ud800"])
def test_the_name_of_a_parameter_can_be_that_of_a_column(name, tmp_path, database):
    with pytest.raises(StoreError, match="cannot name a parameter: a name is text of UTF-8 without NUL"):
        Store.open(tmp_path / "run", replace(HEADER, parameters={name: (1, 2)}), database)
    assert not (tmp_path / "run").exists()


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunDirectoryError, match="is no run directory"):
        Store.open(tmp_path)
    with pytest.raises(RunDirectoryError, match="is no run directory"):
        Store.read_only(tmp_path / "missing")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match="a run directory is a folder"):
        Store.open(tmp_path / "file", HEADER)
    (tmp_path / FILE).write_text("certainly no database, " * 100)
    with pytest.raises(RunDirectoryError, match="not a database"):
        Store.open(tmp_path, HEADER)
    (tmp_path / FILE).unlink()
    foreign = sqlite3.connect(tmp_path / FILE)
    foreign.execute("CREATE TABLE trials (number INTEGER)")
    foreign.close()
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(RunDirectoryError, match="no store of mltune"):
        Store.open(tmp_path, HEADER)
    assert (tmp_path / FILE).read_bytes() == before


def test_a_batch_is_all_or_nothing(tmp_path, database):
    with Store.open(tmp_path, HEADER, database) as store:
        store.append(trial(0))
        with pytest.raises(StoreError, match="has a trial of the same number"):
            store.append(trial(1), trial(0))
        with pytest.raises(StoreError, match="those of the run are"):
            store.append(trial(1, configuration={"BLK_M": 1}))
        with pytest.raises(StoreError, match="is not recorded"):
            store.append(trial(2**63))
        store.append(trial(1))
        assert [record.number for record in store.records()] == [0, 1]


PROCESS = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
from mltune.testing.stores import HEADER, trial
from mltune.records.store import Store
from mltune.errors import StoreError
"""


def process(body: str, *arguments: object) -> subprocess.Popen[str]:
    here = Path(__file__).resolve().parent
    code = PROCESS.format(path=[str(here), str(here.parents[1])]) + textwrap.dedent(body)
    command = [sys.executable, "-c", code, *map(str, arguments)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, text=True, **pipes)


def test_kill_9_loses_nothing_that_was_appended(tmp_path, database):
    child = process(
        """
        store = Store.open(Path(sys.argv[1]), HEADER, sys.argv[2])
        for number in range(10**9):
            store.append(trial(number))
            print(number, flush=True)
        """,
        tmp_path,
        database,
    )
    assert child.stdout is not None
    printed = -1
    for line in child.stdout:
        printed = int(line)
        if printed == 150:
            with pytest.raises(RunDirectoryError, match=f"process {child.pid}"):
                Store.open(tmp_path, HEADER, database)
            child.send_signal(signal.SIGKILL)
    child.communicate()
    assert child.returncode == -signal.SIGKILL
    with Store.open(tmp_path, HEADER, database) as store:
        numbers = [record.number for record in store.records()]
        assert printed >= 150
        assert len(numbers) - 1 in (printed, printed + 1)
        assert store.records() == [trial(number) for number in numbers]
        store.append(trial(len(numbers)))


FULL = """
import resource
store = Store.open(Path(sys.argv[1]), HEADER)
if sys.argv[2] == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
number = 0
try:
    while number < 100_000:
        store.append(trial(number, detail="x" * 500))
        number += 1
except StoreError as error:
    print(error)
if sys.argv[2] == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
else:
    (Path(sys.argv[1]) / "ballast").unlink()
assert len(store) == number, (len(store), number)
store.append(trial(number))
store.close()
print(number)
"""


def check_full(directory: Path, kind: str) -> None:
    child = process(FULL, directory, kind)
    out, err = child.communicate()
    assert child.returncode == 0, err
    message, count = out.splitlines()
    assert "a trial is not recorded" in message
    assert "make room on the disk" in message
    with Store.open(directory) as store:
        assert [record.number for record in store.records()] == list(range(int(count) + 1))
    assert int(count) > 20


def test_a_file_that_may_not_grow_loses_nothing(tmp_path):
    check_full(tmp_path / "run", "limit")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small tmpfs")
def test_a_full_disk_loses_nothing(tmp_path):
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1200k", "tmpfs", str(tmp_path)], capture_output=True)
    if mounted.returncode:
        pytest.skip("cannot mount a tmpfs here")
    try:
        (tmp_path / "ballast").write_bytes(bytes(200_000))
        check_full(tmp_path, "disk")
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
