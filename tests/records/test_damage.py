"""A store is read exactly as it was written, or not at all; and in every state that a kill can leave it in."""

import contextlib
import json
import os
import random
import shutil
import sqlite3
import struct
from pathlib import Path

import pytest
from test_store import HEADER, trial

from mltune.errors import DamagedRunError, MltuneError
from mltune.records.declaration import Reference
from mltune.records.directory import FILE
from mltune.records.store import Store
from mltune.records.trial import TrialState

RECORDS = [trial(number, detail=f"detail {number}") for number in range(40)]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Return the directory of a finished run."""
    with Store.open(tmp_path / "run", HEADER) as store:
        store.append(*RECORDS)
        store.set_seconds({"search": 1.5})
        store.set_fact("limit", {"trials": 40})
        store.append_reference(Reference(3, 1.5, 2e-3, 0.01, None, None, None, None))
    return tmp_path / "run"


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """Return the directory of a run as a kill leaves it: its last trials are in the file beside the store."""
    with Store.open(tmp_path / "going on", HEADER) as store:
        store.append(*RECORDS[:20])
        store.append(*RECORDS[20:])
        shutil.copytree(tmp_path / "going on", tmp_path / "killed")
    return tmp_path / "killed"


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def everything(directory: Path) -> object:
    with Store.read_only(directory) as store:
        return list(store.records()), store.seconds(), store.facts(), store.references(), store.header.to_json()


def change(directory: Path, *statements: str) -> None:
    connection = sqlite3.connect(directory / FILE)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def test_a_flipped_bit_is_noticed_or_changes_nothing(written):
    before, image = everything(written), (written / FILE).read_bytes()
    rng = random.Random(1)  # noqa: S311
    refused = 0
    for _ in range(150):
        at = rng.randrange(len(image))
        (written / FILE).write_bytes(image[:at] + bytes([image[at] ^ 1 << rng.randrange(8)]) + image[at + 1 :])
        try:
            assert everything(written) == before, f"byte {at}"
        except DamagedRunError:
            refused += 1
    assert refused > 10


def test_a_truncated_or_overwritten_store_is_refused(written):
    image = (written / FILE).read_bytes()
    for length in (1, 17, 100, 4096, 5000, len(image) - 4096):
        (written / FILE).write_bytes(image[:length])
        with pytest.raises(DamagedRunError, match=r"is a damaged store of mltune:"):
            everything(written)
        with pytest.raises(DamagedRunError):
            Store.open(written, HEADER)
        assert (written / FILE).read_bytes() == image[:length]
    (written / FILE).write_bytes(image[:8192] + b"\xa5" * (len(image) - 8192))
    with pytest.raises(DamagedRunError) as caught:
        everything(written)
    assert "room" not in str(caught.value)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER INSERT ON trials BEGIN DELETE FROM trials WHERE number = 3; END",
        "CREATE VIEW v AS SELECT * FROM trials",
        "CREATE TABLE more (a)",
        "CREATE INDEX i ON trials (detail)",
        "ALTER TABLE trials ADD COLUMN more INTEGER GENERATED ALWAYS AS (zeroblob(1000)) VIRTUAL",
        "ALTER TABLE facts RENAME TO fact",
        "DROP TABLE seconds",
        "PRAGMA application_id = 5",
        "PRAGMA user_version = 2",
    ],
)
def test_other_tables_than_those_of_a_store_are_refused(written, statement):
    change(written, statement)
    with pytest.raises(DamagedRunError):
        Store.read_only(written)
    with pytest.raises(DamagedRunError):
        Store.open(written)


def test_a_view_in_place_of_a_table_is_not_evaluated(written):
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x AS name, x AS value FROM c"
    change(written, "DROP TABLE header", f"CREATE VIEW header AS {endless}")
    with pytest.raises(DamagedRunError, match="tables"):
        Store.read_only(written)


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("UPDATE trials SET median_s = 1e-320 WHERE number = 7", "trial 7 has changed"),
        ("UPDATE trials SET checksum = checksum + 1 WHERE number = 7", "trial 7 has changed"),
        ("DELETE FROM trials WHERE number = 7", "trial 8 in the order of recording is missing"),
        ("UPDATE seconds SET value = 2", "row 1 of seconds has changed"),
        ("UPDATE header SET value = '2' WHERE name = 'seed'", "row 6 of header has changed"),
    ],
)
def test_a_changed_row_is_refused(written, statement, reason):
    change(written, statement)
    with pytest.raises(DamagedRunError, match=reason):
        everything(written)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("median_s", 1e-320),
        ("median_s", "fast"),
        ("samples_s", "[1, -1]"),
        ("samples_s", "[" * 100_000),
        ("state", "excellent"),
        ("gate", "before_lunch"),
        ("p_BLK_M", 2**62),
        ("p_BLK_M", 17),
        ("number", -1),
        ("registers", 2.5),
        ("audited", None),
        ("elapsed_s", float("inf")),
        ("detail", b"\x00"),
    ],
)
def test_a_value_that_no_trial_has_is_refused_by_name_even_with_a_valid_checksum(written, column, value):
    from mltune.records.rows import checksum

    connection = sqlite3.connect(written / FILE, isolation_level=None)
    connection.execute(f"UPDATE trials SET {column} = ? WHERE sequence = 3", [value])  # noqa: S608
    (row,) = connection.execute("SELECT * FROM trials WHERE sequence = 3").fetchall()
    connection.execute("UPDATE trials SET checksum = ? WHERE sequence = 3", [checksum(row[1:-1])])
    connection.close()
    number = -1 if column == "number" else 2
    with pytest.raises(DamagedRunError, match=rf"trial {number}: `{column.removeprefix('p_')}` is "):
        everything(written)


@pytest.mark.parametrize("field", list(HEADER.to_json()))
@pytest.mark.parametrize("value", [None, -1.5, "\x1b[2J", [[]], {"a": [10**400]}], ids=str)
def test_a_header_with_a_field_of_another_type_is_refused_or_plain(written, field, value):
    from mltune.records.rows import sealed

    if (field, value) in (("kernel", "\x1b[2J"), ("source_hash", "\x1b[2J")):
        return  # text: whoever prints it makes it printable
    connection = sqlite3.connect(written / FILE, isolation_level=None)
    row = sealed((field, json.dumps(value)))
    connection.execute("INSERT OR REPLACE INTO header VALUES (?, ?, ?)", row)
    connection.close()
    with pytest.raises(DamagedRunError) as caught:
        everything(written)
    assert str(caught.value).isprintable()


def test_a_reader_changes_nothing_after_a_kill_and_the_run_goes_on(killed):
    before = content(killed)
    assert f"{FILE}-wal" in before
    with Store.read_only(killed) as store:
        assert store.records() == RECORDS
        assert store.notice == ""
    assert content(killed) == before
    with Store.open(killed, HEADER) as store:
        assert store.records() == RECORDS
        store.append(trial(40))
    assert set(content(killed)) == {FILE, "run.lock"}
    with Store.read_only(killed) as store:
        assert store.records() == [*RECORDS, trial(40)]


def test_a_reader_reads_what_a_kill_left_without_the_shared_memory(killed):
    (killed / f"{FILE}-shm").unlink()
    with Store.read_only(killed) as store:
        assert store.records() == RECORDS


def test_a_journal_that_names_another_file_deletes_nothing(written, tmp_path):
    """SQLite deletes the super-journal that a rollback journal names."""
    victim = tmp_path / "victim"
    victim.write_text("content")
    name = str(victim).encode()
    magic = bytes.fromhex("d9d505f920a163d7")
    end = name + struct.pack(">II", len(name), sum(name)) + magic
    header = magic + struct.pack(">IIIII", 0, 7, 1, 512, 4096)
    (written / f"{FILE}-journal").write_bytes(header.ljust(512, b"\0") + struct.pack(">I", 1 << 18) + end)
    for attempt in (Store.read_only, Store.open):
        with pytest.raises(DamagedRunError, match="lies beside it"):
            attempt(written)
    assert victim.read_text() == "content"


def test_a_missing_file_beside_the_store_is_noticed(killed):
    (killed / f"{FILE}-wal").unlink()
    with Store.read_only(killed) as store:
        assert len(store) == 0
        assert "run.sqlite-wal is missing" in store.notice
    with Store.open(killed, HEADER) as store:
        assert "run.sqlite-wal is missing" in store.notice
    with Store.open(killed, HEADER) as store:
        assert store.notice == ""


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal"])
@pytest.mark.parametrize("kind", ["link", "fifo", "directory", "device"])
def test_sqlite_opens_only_regular_files(written, tmp_path, suffix, kind):
    path, canary = written / f"{FILE}{suffix}", tmp_path / "canary"
    shutil.copy(written / FILE, canary)
    before = canary.read_bytes()
    path.unlink(missing_ok=True)
    if kind == "link":
        path.symlink_to(canary)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    for attempt in (Store.read_only, Store.open, lambda directory: Store.open(directory, HEADER)):
        with pytest.raises(DamagedRunError, match="in a run directory it must be"):
            attempt(written)
    assert canary.read_bytes() == before


def test_garbage_beside_the_store_changes_nothing(written):
    before = everything(written)
    for suffix in ("-wal", "-journal", "-shm"):
        (written / f"{FILE}{suffix}").write_bytes(random.Random(2).randbytes(70_000))  # noqa: S311
        with contextlib.suppress(DamagedRunError):
            assert everything(written) == before
        (written / f"{FILE}{suffix}").unlink()


def test_a_store_that_is_too_large_is_not_opened(written):
    os.truncate(written / FILE, 10 << 30)
    with pytest.raises(MltuneError, match=r"has .* bytes; it may have"):
        Store.read_only(written)


def test_records_are_columns(written):
    with Store.read_only(written) as store:
        trials = store.records()
    assert trials.column("median_s").tolist() == [0.2] * 40
    assert trials.parameter("BLK_M").tolist() == [32] * 40
    assert [record.number for record in trials[3:5]] == [3, 4]
    assert trials[-1] == RECORDS[-1]
    assert trials.in_state(TrialState.OK).all()
    assert [record.number for record in trials.fastest(2)] == [0, 1]
