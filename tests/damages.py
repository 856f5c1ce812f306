"""Damages to the store of one run: every kind that a disk, a mistake or a stranger may cause.

Each entry of :data:`DAMAGES` changes the directory of a finished run in place. After some of them the run can still be
read, because the damage is noticed or repaired; after the others it must be set aside.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mltune.records.directory import FILE
from mltune.records.rows import checksum

Damage = Callable[[Path], None]


def _bytes(edit: Callable[[bytes], bytes]) -> Damage:
    """Return a damage of the bytes of the file."""

    def damage(directory: Path) -> None:
        path = directory / FILE
        path.write_bytes(edit(path.read_bytes()))

    return damage


def _overwritten(at: int, new: bytes) -> Damage:
    return _bytes(lambda image: image[:at] + new + image[at + len(new) :])


def _sql(*statements: str) -> Damage:
    """Return a damage by SQL, which leaves the checksums as they are."""

    def damage(directory: Path) -> None:
        with contextlib.closing(sqlite3.connect(directory / FILE)) as connection:
            for statement in statements:
                connection.execute(statement)
            connection.commit()

    return damage


def _forged(table: str, column: str, value: object, where: str = "1") -> Damage:
    """Return a damage of one cell, or of one in every row, with checksums that fit."""

    def damage(directory: Path) -> None:
        with contextlib.closing(sqlite3.connect(directory / FILE)) as connection:
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (value,))  # noqa: S608
            for rowid, *row in connection.execute(f"SELECT rowid, * FROM {table}").fetchall():  # noqa: S608
                cells = tuple(row[1:-1] if table == "trials" else row[:-1])
                connection.execute(f"UPDATE {table} SET checksum = ? WHERE rowid = ?", (checksum(cells), rowid))  # noqa: S608
            connection.commit()

    return damage


def _beside(suffix: str, content: bytes = b"garbage" * 1000) -> Damage:
    """Return a damage by a file beside the store."""
    return lambda directory: (directory / f"{FILE}{suffix}").write_bytes(content) and None


def _in_place(make: Callable[[Path], object]) -> Damage:
    """Return a damage that puts something else in place of the store."""

    def damage(directory: Path) -> None:
        (directory / FILE).unlink()
        make(directory / FILE)

    return damage


_header = partial(_forged, "header", "value")

DAMAGES: dict[str, Damage] = {
    "an empty file": _bytes(lambda image: b""),
    "cut off in the file's header": _bytes(lambda image: image[:50]),
    "cut off after the first page": _bytes(lambda image: image[:4096]),
    "half of it cut off": _bytes(lambda image: image[: len(image) // 2]),
    "its last page cut off": _bytes(lambda image: image[:-4096]),
    "only zeros": _bytes(lambda image: bytes(len(image))),
    "the second page zeroed": _overwritten(4096, bytes(4096)),
    "random bytes": _bytes(lambda image: os.urandom(len(image))),
    "another magic number": _overwritten(0, b"MySQL format 3\0\0"),
    "another page size": _overwritten(16, b"\xff\xff"),
    "a changed schema": _bytes(lambda image: image.replace(b"CREATE TABLE trials", b"CREATE TABLE tr\0als")),
    "a changed byte in a record": _bytes(lambda image: image.replace(b"replay", b"rePlay", 1)),
    "the trials dropped": _sql("DROP TABLE trials"),
    "the facts dropped": _sql("DROP TABLE facts"),
    "a column dropped": _sql("ALTER TABLE trials DROP COLUMN median_s"),
    "a column renamed": _sql("ALTER TABLE trials RENAME COLUMN median_s TO mean_s"),
    "a trial deleted": _sql("DELETE FROM trials WHERE number = 3"),
    "another table of a known name": _sql("DROP TABLE facts", "CREATE TABLE facts AS SELECT * FROM trials"),
    "a view in place of a table": _sql("DROP TABLE facts", "CREATE VIEW facts AS SELECT name, value FROM header"),
    "a trigger": _sql("CREATE TRIGGER t AFTER INSERT ON trials BEGIN DELETE FROM trials; END"),
    "another application": _sql("PRAGMA application_id = 7"),
    "a newer format": _sql("PRAGMA user_version = 99"),
    "a time that is text": _forged("trials", "median_s", "soon", "number = 1"),
    "an infinite time": _forged("trials", "median_s", float("inf"), "number = 1"),
    "a negative time": _forged("trials", "median_s", -1.0, "number = 1"),
    "a time of nothing": _forged("trials", "median_s", 1e-320, "number = 1"),
    "an unknown state": _forged("trials", "state", "splendid", "number = 1"),
    "a blob for a text": _forged("trials", "detail", b"\xff\xfe", "number = 1"),
    "samples nested deeply": _forged("trials", "samples_s", "[" * 50_000, "number = 1"),
    "a huge parameter": _sql("UPDATE trials SET p_block_size_x = 4611686018427387904"),
    "a huge number of a trial": _forged("trials", "number", 2**62, "number = 1"),
    "no seed": _sql("DELETE FROM header WHERE name = 'seed'"),
    "a seed that is text": _header('"zero"', "name = 'seed'"),
    "parameters that are a list": _header("[]", "name = 'parameters'"),
    "parameters twice": _header('{"a": [1], "a": [2]}', "name = 'parameters'"),
    "no problem": _header("{}", "name = 'problem'"),
    "a device of nonsense": _header('{"name": NaN}', "name = 'device'"),
    "deep settings": _header('{"a": ' + "[" * 50_000, "name = 'settings'"),
    "an impossible declaration": _forged("facts", "value", json.dumps({"number": 3}), "name = 'declaration'"),
    "a deep declaration": _forged("facts", "value", "[" * 50_000, "name = 'declaration'"),
    "seconds that are negative": _forged("seconds", "value", -1e300),
    "garbage in the write-ahead log": _beside("-wal"),
    "garbage in the journal": _beside("-journal"),
    "a hot journal of garbage": _beside("-journal", b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + b"\xff" * 8000),
    "garbage in the shared memory": _beside("-shm"),
    "a directory in place of the file": _in_place(Path.mkdir),
    "a FIFO in place of the file": _in_place(os.mkfifo),
    "a link in place of the file": _in_place(lambda path: path.symlink_to("/etc/passwd")),
    "a link to nothing": _in_place(lambda path: path.symlink_to(path.with_name("nothing"))),
    "a FIFO as write-ahead log": lambda directory: os.mkfifo(directory / f"{FILE}-wal"),
    "nothing may be read": lambda directory: (directory / FILE).chmod(0),
    "a file in place of the folder": lambda directory: (shutil.rmtree(directory), directory.write_bytes(b""))[0],
}
"""What may happen to a store, by name."""
