"""Hostile stores: damaged bytes, foreign SQLite files, values that no run has written, and what lies beside them."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any

from tests.hostile.cases import Place, add, corpus
from tests.hostile.values import ESCAPE, MARK, XSS, Raw, change, damaged, deep, encoded, scalar, to_json

STORES = ("store", "golden-run")
FILE = "run/run.sqlite"
NESTED = Raw("[" * 100_000 + "]" * 100_000)


@contextmanager
def edited(place: Place, base: str = "store", *, seal: bool = True) -> Iterator[sqlite3.Connection]:
    """Copy an honest run, and let its store be edited with SQL; then make its checksums right, as anybody can."""
    path = place.copy(base, "run") / "run.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = DELETE")
        yield database
        if seal:
            reseal(database)
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    mark_as_wal(path)


def reseal(database: sqlite3.Connection) -> None:
    """Make the checksums of all rows right."""
    from mltune.records.rows import checksum

    for table in tables(database):
        names = columns(database, table)
        if "checksum" not in names:
            continue
        first = 1 if names[0] == "sequence" else 0
        try:
            rows = database.execute(f'SELECT rowid, * FROM "{table}"').fetchall()
            sums = [(checksum(tuple(row[1 + first : -1])), row[0]) for row in rows]
            database.executemany(f'UPDATE "{table}" SET checksum = ? WHERE rowid = ?', sums)
        except sqlite3.Error:  # a table that SQLite cannot read or write any more
            continue


def tables(database: sqlite3.Connection) -> list[str]:
    found = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    return sorted(name for (name,) in found)


def columns(database: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]


def random_store(place: Place) -> None:
    """Damage bytes, or change cells, documents, tables and settings."""
    rng = place.rng
    how = rng.choice(
        ("bytes", "bytes", "beside", "cells", "cells", "cells", "documents", "documents", "schema", "writer")
    )
    base = rng.choice(STORES)
    if how == "bytes":
        path = place.copy(base, "run") / "run.sqlite"
        path.write_bytes(damaged(path.read_bytes(), rng))
    elif how == "beside":
        path = place.copy(base, "run") / "run.sqlite"
        suffix = rng.choice(("-wal", "-journal", "-shm", "-wal", "-journal"))
        path.with_name(path.name + suffix).write_bytes(beside(suffix, path, rng))
        if suffix == "-wal" and rng.random() < 0.7:
            mark_as_wal(path)
    elif how == "writer":
        written_by_the_store(place)
    else:
        with edited(place, base, seal=rng.random() < 0.8) as database:
            for _ in range(rng.choice((1, 1, 2, 4))):
                {"cells": change_cell, "documents": change_document, "schema": change_schema}[how](database, rng)


def mark_as_wal(path: Path) -> None:
    """Say in the header of an SQLite file that it is in WAL mode."""
    with path.open("r+b") as file:
        file.seek(18)
        file.write(b"\x02\x02")


def beside(suffix: str, path: Path, rng: Random) -> bytes:
    """Return a log, journal or index that does not belong to a store."""
    data = path.read_bytes()
    if suffix == "-wal":
        header = struct.pack(">IIIIII", 0x377F0682, 3007000, 4096, 0, rng.getrandbits(32), rng.getrandbits(32))
        good = header + struct.pack(">II", *wal_checksum(header, 0, 0))
        return rng.choice((good, good + rng.randbytes(4120), header, rng.randbytes(5000), b"", data))
    if suffix == "-journal":
        magic = bytes.fromhex("d9d505f920a163d7")
        head = magic + struct.pack(">IIIII", rng.choice((0, 1, 5, 0xFFFFFFFF)), 7, 3, 512, rng.choice((4096, 512, 1)))
        return rng.choice((head.ljust(512, b"\0") + rng.randbytes(8208), head, rng.randbytes(3000), magic, b"\1", data))
    return rng.choice((rng.randbytes(32768), bytes(32768), b"", rng.randbytes(100)))


def wal_checksum(data: bytes, one: int, two: int) -> tuple[int, int]:
    """Return the checksum of SQLite's write-ahead log, for native words in little-endian order."""
    words = struct.unpack(f"<{len(data) // 4}I", data)
    for position in range(0, len(words), 2):
        one = (one + words[position] + two) & 0xFFFFFFFF
        two = (two + words[position + 1] + one) & 0xFFFFFFFF
    return one, two


def change_cell(database: sqlite3.Connection, rng: Random) -> None:
    """Write a hostile value into a cell, of one row or of all."""
    table = rng.choice([*tables(database), "trials", "trials", "trials"])
    names = columns(database, table)
    if not names:
        return
    column = rng.choice(names)
    value = scalar(rng)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        value = str(value)
    if isinstance(value, str):
        value = rng.choice((value.encode("utf-8", "replace").decode(), encoded(value), encoded(value)[:1000]))
    cell = "CAST(? AS TEXT)" if isinstance(value, bytes) and rng.random() < 0.5 else "?"
    one = "" if rng.random() < 0.2 else "WHERE rowid = (SELECT rowid FROM {0} ORDER BY random() LIMIT 1)"
    rows = [row for (row,) in database.execute(f'SELECT rowid FROM "{table}"')]
    if not rows:
        return
    where = f"WHERE rowid = {rng.choice(rows)}" if one else ""
    try:
        database.execute(f'UPDATE "{table}" SET "{column}" = {cell} {where}', (value,))
    except sqlite3.Error:  # the schema forbids it: an honest SQLite would not write it either
        return


def change_document(database: sqlite3.Connection, rng: Random) -> None:
    """Change the meaning of a JSON text in a cell: of the header, a fact, or samples."""
    found = []
    for table in tables(database):
        for column in columns(database, table):
            rows = database.execute(f'SELECT rowid, "{column}" FROM "{table}" WHERE typeof("{column}") = \'text\'')
            for row, text in rows.fetchall()[:40]:
                try:
                    found.append((table, column, row, json.loads(text)))
                except ValueError:
                    continue
    if found:
        interesting = [one for one in found if isinstance(one[3], dict | list)] or found
        table, column, row, document = rng.choice(interesting)
        text = to_json(change(document, rng)).encode("utf-8", "replace").decode()
        database.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = ?', (text, row))


def change_schema(database: sqlite3.Connection, rng: Random) -> None:
    """Change tables, settings, or what SQLite does by itself."""
    table = rng.choice(tables(database) or ["trials"])
    names = columns(database, table) or ["number"]
    column, other = rng.choice(names), rng.choice(names)
    statement = rng.choice(
        (
            f'DROP TABLE "{table}"',
            f'DELETE FROM "{table}"',
            f'ALTER TABLE "{table}" RENAME TO "moved"',
            f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "{column}x"',
            f'ALTER TABLE "{table}" DROP COLUMN "{column}"',
            f'ALTER TABLE "{table}" ADD COLUMN "more" TEXT DEFAULT \'{XSS}\'',
            f'ALTER TABLE "{table}" ADD COLUMN "sum" GENERATED ALWAYS AS (randomblob(100000000)) VIRTUAL',
            f'CREATE VIEW "view_{rng.randrange(99)}" AS SELECT * FROM "{table}"',
            f'CREATE TRIGGER t AFTER INSERT ON "{table}" BEGIN DELETE FROM trials WHERE number > 5; END',
            f"CREATE TRIGGER t AFTER INSERT ON \"{table}\" BEGIN SELECT RAISE(ABORT, '{ESCAPE}'); END",
            f'CREATE INDEX i ON "{table}" ("{column}", "{other}" COLLATE NOCASE) WHERE "{column}" IS NOT NULL',
            f'CREATE TABLE "{ESCAPE} {XSS}" (a)',
            "CREATE VIRTUAL TABLE v USING fts5(a)",
            f'INSERT INTO "{table}" SELECT * FROM "{table}"',
            f'CREATE TABLE copy AS SELECT * FROM "{table}"',
            f"PRAGMA user_version = {rng.choice((0, 1, 2, 3, 4, 99, -1, 2**31 - 1))}",
            f"PRAGMA application_id = {rng.choice((0, 1, -1))}",
        )
    )
    try:
        database.execute(statement)
    except sqlite3.Error:
        return


def written_by_the_store(place: Place) -> None:
    """Write hostile records, facts and headers with mltune's own store, as anybody can: its checksums are right."""
    from dataclasses import fields, replace

    from mltune.errors import MltuneError
    from mltune.records.store import Store

    rng = place.rng
    with Store.read_only(place.base / "store") as honest:
        header, records = honest.header, list(honest.records())
        facts = {
            name: honest.documents().get(name) for name in ("declaration", "limit", "stopping", "reference_median_s")
        }
    if rng.random() < 0.5:
        name = rng.choice([field.name for field in fields(header)])
        before = getattr(header, name)
        changed = change({"a": before}, rng)
        header = replace(header, **{name: _plain(changed.get("a") if isinstance(changed, dict) else changed)})
    for _ in range(rng.choice((0, 1, 1, 3))):
        number = rng.randrange(len(records))
        record = records[number]
        part = rng.choice(("build", "measurement", ""))
        target = getattr(record, part) if part else record
        name = rng.choice([field.name for field in fields(target) if field.name != "configuration"])
        changed = replace(target, **{name: _plain(scalar(rng))})
        records[number] = replace(record, **{part: changed}) if part else changed
    for name in facts:
        if rng.random() < 0.3:
            changed = change({"a": facts[name]}, rng)
            facts[name] = _plain(changed.get("a") if isinstance(changed, dict) else changed)
    try:
        with Store.open(place.named / "run", header) as store:
            store.append(*records)
            for name, fact in facts.items():
                store.set_fact(name, fact)
    except (MltuneError, ValueError, TypeError, OverflowError, AttributeError, ArithmeticError):  # refused: not written
        change_after_refusal(place)


def change_after_refusal(place: Place) -> None:
    """Where the store refuses to write a value, write another one past it."""
    if not (place.named / FILE).exists():
        place.copy("store", "run.new")
        (place.named / "run").mkdir(exist_ok=True)
        os.replace(place.named / "run.new" / "run.sqlite", place.named / FILE)
    with closing(sqlite3.connect(place.named / FILE, isolation_level=None)) as database:
        change_cell(database, place.rng)


def _plain(value: Any) -> Any:
    """Return a value in which texts are left in place of what JSON does not have."""
    return json.loads(to_json(value), strict=False) if not _has_raw(value) else None


def _has_raw(value: Any) -> bool:
    if isinstance(value, dict | list | tuple):
        return any(map(_has_raw, value.values() if isinstance(value, dict) else value))
    return isinstance(value, Raw) or (isinstance(value, int) and abs(value) > 10**4000)


def _sql(name: str, *statements: str, base: str = "store", commands: tuple[str, ...] = ()) -> None:
    """Add a case: an honest store after some statements."""

    def build(place: Place) -> None:
        with edited(place, base) as database:
            database.execute("PRAGMA writable_schema = ON")
            for statement in statements:
                database.execute(_with_checksum(statement))

    add("store", name, build, *commands)


def _with_checksum(statement: str) -> str:
    """Return an INSERT of rows that have no checksum yet, with one."""
    statement = re.sub(r"^(INSERT [\w ]+) VALUES (.*)$", r"\1 SELECT *, 0 FROM (VALUES \2)", statement, flags=re.DOTALL)
    return re.sub(r"^(INSERT INTO header SELECT .*, value)", r"\1, 0", statement)


ENDLESS = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT"
_sql("view-of-trials", "ALTER TABLE trials RENAME TO hidden", "CREATE VIEW trials AS SELECT * FROM hidden")
_sql("view-of-trials-without-end", "ALTER TABLE trials RENAME TO hidden",
     f"CREATE VIEW trials AS {ENDLESS} hidden.* FROM r JOIN hidden ON 1")  # fmt: skip
_sql("view-of-header-without-end", "DROP TABLE header",
     f"CREATE VIEW header AS {ENDLESS} 'n' || x AS name, '1' AS value, x AS rowid FROM r")  # fmt: skip
_sql("view-of-facts-of-a-gigabyte", "DROP TABLE facts",
     "CREATE VIEW facts AS SELECT 'limit' AS name, hex(zeroblob(900000000)) AS value")  # fmt: skip
_sql("view-of-seconds-without-end", "DROP TABLE seconds",
     f"CREATE VIEW seconds AS {ENDLESS} 'n' || x AS name, 1.0 AS value, x AS rowid FROM r")  # fmt: skip
_sql("trigger-that-deletes", "CREATE TRIGGER t AFTER INSERT ON trials BEGIN DELETE FROM trials WHERE number < 9; END")
_sql("trigger-on-seconds", "CREATE TRIGGER t AFTER INSERT ON seconds BEGIN DELETE FROM trials WHERE number < 9; END",
     commands=("resume", "show"))  # fmt: skip
_sql("trigger-without-end", "CREATE TRIGGER t AFTER INSERT ON trials BEGIN INSERT INTO facts "
     f"{ENDLESS} 'n' || x, '1' FROM r; END", commands=("resume",))  # fmt: skip
_sql("trigger-of-a-gigabyte", "CREATE TRIGGER t AFTER INSERT ON seconds BEGIN INSERT OR REPLACE INTO facts VALUES "
     "('x', hex(zeroblob(900000000))); END", commands=("resume",))  # fmt: skip
_sql("text-that-is-not-utf-8", "UPDATE trials SET detail = CAST(x'ff00fe41' AS TEXT)")
_sql("header-that-is-not-utf-8", "UPDATE header SET value = CAST(x'22ff22' AS TEXT) WHERE name = 'kernel'")
_sql("a-blob-for-a-number", "UPDATE trials SET median_s = x'00ff'")
_sql("a-text-for-a-number", "UPDATE trials SET median_s = 'soon'")
_sql("numbers-as-infinities", "UPDATE trials SET median_s = 9e999, elapsed_s = -9e999, noise = 9e999")
_sql("median-of-a-denormal", "UPDATE trials SET median_s = 1e-320")
_sql("median-of-1e308", "UPDATE trials SET median_s = 1e308")
_sql("one-median-of-a-denormal", "UPDATE trials SET median_s = 1e-320 WHERE number = 3")
_sql("integers-at-their-bounds", 'UPDATE trials SET "index" = 9223372036854775807, batch = -9223372036854775808')
_sql("numbers-below-zero", "UPDATE trials SET number = -1 - number")
_sql("numbers-of-2-to-the-62", "UPDATE trials SET number = 4611686018427387904 + number")
_sql(
    "finished-in-the-year-40000",
    "UPDATE trials SET finished_at = 1.2e12, elapsed_s = 1e300",
)
_sql(
    "created-in-the-year-40000",
    "UPDATE header SET value = '1e300' WHERE name = 'created_at'",
)
_sql(
    "created-before-the-epoch",
    "UPDATE header SET value = '-1e18' WHERE name = 'created_at'",
)
_sql("unknown-state", f"UPDATE trials SET state = '{ESCAPE}'")
_sql("escapes-in-details", f"UPDATE trials SET state = 'crashed', detail = '{ESCAPE}{XSS}', proposed_by = '{ESCAPE}'")  # fmt: skip
_sql("escapes-in-the-header", f"UPDATE header SET value = '\"\\u001b]0;x\\u0007{XSS}\"' WHERE name = 'kernel'")  # fmt: skip
_sql("escapes-in-the-device", "UPDATE header SET value = json_set(value, '$.name', '\x1b[2J\x9b31mGPU " + XSS + "') "
     "WHERE name = 'device'")  # fmt: skip
_sql("escapes-in-the-versions", "UPDATE header SET value = json_object('\x1b[2J', '\x1b[2J" + XSS + "') WHERE name = 'versions'")  # fmt: skip
_sql("escapes-in-the-settings", "UPDATE header SET value = json_object('target', 'replay:\x1b[2J" + XSS + "') "
     "WHERE name = 'settings'")  # fmt: skip
_sql("escapes-in-the-stopping-reason", "INSERT OR REPLACE INTO facts VALUES ('stopping', "
     "json_object('reason', '\x1b[2J\x1b]0;x\x07" + XSS + "'))")  # fmt: skip
_sql("escapes-in-the-seconds", "INSERT INTO seconds VALUES ('\x1b[2J" + XSS + "', 3.0)")
_sql("a-device-of-nothing", "UPDATE header SET value = json_set(value, '$.sm_count', 0, '$.clock_hz', 0.0) "
     "WHERE name = 'device'")  # fmt: skip
_sql("a-device-of-everything", "UPDATE header SET value = json_set(value, '$.sm_count', 9223372036854775807, "
     "'$.clock_hz', 1e308, '$.memory_bytes_per_s', 1e-320) WHERE name = 'device'")  # fmt: skip
_sql("a-problem-of-2-to-the-60", "UPDATE header SET value = json_set(value, '$.m', 1152921504606846976, "
     "'$.n', 1152921504606846976) WHERE name = 'problem'")  # fmt: skip
_sql("a-problem-of-nothing", "UPDATE header SET value = json_set(value, '$.m', 0, '$.k', 0) WHERE name = 'problem'")  # fmt: skip
_sql("a-problem-of-4000-digits", "UPDATE header SET value = json_set(value, '$.m', json('" + "9" * 4000 + "')) "
     "WHERE name = 'problem'")  # fmt: skip
_sql("a-kernel-that-is-a-path", "UPDATE header SET value = '\"../../../canary\"' WHERE name = 'kernel'")  # fmt: skip
_sql("a-parameter-of-2-to-the-80", "UPDATE header SET value = json_set(value, '$.BLK_M', json('[1208925819614629174706176]')) "
     "WHERE name = 'parameters'")  # fmt: skip
_sql("parameters-of-0-values", "UPDATE header SET value = json_set(value, '$.BLK_M', json('[]')) WHERE name = 'parameters'")  # fmt: skip
_sql("no-parameters", "UPDATE header SET value = '{}' WHERE name = 'parameters'")
_sql("a-header-nested-deeply", f"UPDATE header SET value = '{NESTED.text}' WHERE name = 'settings'")
_sql("a-fact-nested-deeply", f"INSERT OR REPLACE INTO facts VALUES ('declaration', '{NESTED.text}')")
_sql("a-fact-of-5000-digits", f"INSERT OR REPLACE INTO facts VALUES ('limit', '{{\"trials\": {'9' * 5000}}}')")
_sql("a-fact-that-is-no-json", "INSERT OR REPLACE INTO facts VALUES ('declaration', 'no json')")
_sql("facts-of-other-types", "INSERT OR REPLACE INTO facts VALUES ('declaration', '[1]'), ('limit', '\"x\"'), "
     "('stopping', '3'), ('reference_median_s', '{}')")  # fmt: skip
_sql(
    "a-declaration-as-of-a-text",
    "UPDATE facts SET value = json_set(value, '$.as_of', 'soon') WHERE name = 'declaration'",
)
_sql("a-declaration-as-of-half-a-trial", "UPDATE facts SET value = json_set(value, '$.as_of', 1.5) "
     "WHERE name = 'declaration'")  # fmt: skip
_sql("seconds-of-a-text", "UPDATE seconds SET value = 'soon' WHERE name = 'total'")
_sql("seconds-of-infinity", "UPDATE seconds SET value = 9e999 WHERE name = 'total'")
_sql("seconds-below-zero", "UPDATE seconds SET value = -1e300")
_sql("a-declaration-of-nobody", "INSERT OR REPLACE INTO facts VALUES ('declaration', "
     "'{\"number\": 7, \"finalists\": []}')")  # fmt: skip
_sql(
    "samples-nested-deeply",
    f"UPDATE trials SET samples_s = '{NESTED.text}' WHERE number = 1",
)
_sql("samples-of-texts", "UPDATE trials SET samples_s = '[\"a\", null, {}]'")
_sql("samples-that-are-a-table", "UPDATE trials SET samples_s = '{\"a\": 1}'")
_sql("samples-of-nan", "UPDATE trials SET samples_s = '[NaN, Infinity, -Infinity, 1e999]'")
_sql("samples-of-10-megabytes", "UPDATE trials SET samples_s = '[' || substr(replace(hex(zeroblob(2000000)), '00', '1.5, '), 1, "
     "9999996) || '1]' WHERE number = 2")  # fmt: skip
_sql("a-detail-of-100-megabytes", "UPDATE trials SET state = 'crashed', detail = hex(zeroblob(50000000)) WHERE number = 1")  # fmt: skip
_sql(
    "two-tables-swapped",
    "ALTER TABLE facts RENAME TO x",
    "ALTER TABLE header RENAME TO facts",
    "ALTER TABLE x RENAME TO header",
)
_sql("a-table-less", "DROP TABLE seconds")
_sql("no-references", "DROP TABLE reference_timings", base="golden-run")
_sql("references-of-other-columns", "DROP TABLE reference_timings", "CREATE TABLE reference_timings (a, b)",
     "INSERT INTO reference_timings SELECT 1, 2", base="golden-run")  # fmt: skip
_sql("references-of-texts", "UPDATE reference_timings SET median_s = 'x', elapsed_s = 'y'", base="golden-run")
_sql("the-trials-of-another-root", "UPDATE sqlite_master SET rootpage = 2 WHERE name = 'trials'")
_sql("a-root-beyond-the-file", "UPDATE sqlite_master SET rootpage = 2000000000 WHERE name = 'trials'")
_sql("an-index-on-the-root-of-its-table", "UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master "
     "WHERE name = 'trials') WHERE type = 'index'")  # fmt: skip
_sql("a-schema-that-is-no-sql", "UPDATE sqlite_master SET sql = 'CREATE TABLE trials (' WHERE name = 'trials'")
_sql("a-schema-with-a-function", "UPDATE sqlite_master SET sql = replace(sql, 'sequence INTEGER', "
     "'x AS (load_extension(''/tmp/x'')), sequence INTEGER') WHERE name = 'trials'")  # fmt: skip
_sql("columns-with-escapes", f'ALTER TABLE trials ADD COLUMN "{ESCAPE}" TEXT')
_sql("format-99", "PRAGMA user_version = 99")
_sql("format-0", "PRAGMA user_version = 0")
_sql("format-below-0", "PRAGMA user_version = -5")
_sql("format-1", "PRAGMA user_version = 1")
_sql("another-application", "PRAGMA application_id = 1")
_sql("no-trials", "DELETE FROM trials")
_sql("no-header", "DELETE FROM header")
_sql("a-header-twice", "INSERT INTO header SELECT name || 'x', value FROM header")
_sql("a-header-too-much", f"INSERT INTO header VALUES ('{ESCAPE}', '1')")
_sql("only-failures", "UPDATE trials SET state = 'crashed', median_s = NULL")
_sql("all-skipped", "UPDATE trials SET state = 'skipped', gate = 'before_compile', predicted = 9e999, optimistic = -9e999")  # fmt: skip
_sql("predictions-without-bounds", "UPDATE trials SET expected = 1e308, gate = 'after_compile', predicted = -1e308, "
     "optimistic = 1e308")  # fmt: skip


@corpus("store")
def _encoded_in_utf_16(place: Place) -> None:
    place.copy("store", "run")
    honest = sqlite3.connect(place.base / "store" / "run.sqlite")
    dump = "\n".join(honest.iterdump())
    application, version = (
        honest.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
    )
    honest.close()
    path = place.named / FILE
    path.unlink()
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA encoding = 'UTF-16le'")
        database.executescript(dump)
        database.execute(f"PRAGMA application_id = {application}")
        database.execute(f"PRAGMA user_version = {version}")


def _bytes(name: str, content: Callable[[bytes], bytes], *commands: str) -> None:
    def build(place: Place) -> None:
        path = place.copy("store", "run") / "run.sqlite"
        path.write_bytes(content(path.read_bytes()))

    add("store", name, build, *commands)


_bytes("empty", lambda data: b"")
_bytes("one-byte", lambda data: b"S")
_bytes("only-the-magic", lambda data: data[:16])
_bytes("only-the-first-page", lambda data: data[:4096])
_bytes("half", lambda data: data[: len(data) // 2])
_bytes("first-page-of-zeros", lambda data: bytes(4096) + data[4096:])
_bytes("last-page-of-zeros", lambda data: data[:-4096] + bytes(4096))
_bytes("all-pages-but-the-first-of-zeros", lambda data: data[:4096] + bytes(len(data) - 4096))
_bytes("reading-version-9", lambda data: data[:18] + b"\x09\x09" + data[20:])
_bytes("pages-of-64-kilobytes", lambda data: data[:16] + b"\x00\x01" + data[18:])
_bytes("pages-of-3-bytes", lambda data: data[:16] + b"\x00\x03" + data[18:])
_bytes("four-billion-pages", lambda data: data[:28] + b"\xff\xff\xff\xff" + data[32:])
_bytes("a-freelist-beyond-the-file", lambda data: data[:32] + b"\x7f\xff\xff\xff\x7f\xff\xff\xff" + data[40:])
_bytes("an-elf", lambda data: b"\x7fELF" + data[4:])
_bytes("text", lambda data: f"{ESCAPE}\n".encode() * 100)
_bytes("twice", lambda data: data + data)


@corpus("store")
def _sparse_10_gigabytes(place: Place) -> None:
    os.truncate(place.copy("store", "run") / "run.sqlite", 10 * 2**30)


@corpus("store")
def _sparse_10_gigabytes_of_nothing(place: Place) -> None:
    os.truncate(place.write(FILE, b""), 10 * 2**30)


def _hot_journal(path: Path, *, page: int = 2, super_journal: bytes = b"") -> None:
    """Write a valid rollback journal beside a store: one page, which any reader must put back first."""
    data = path.read_bytes()
    size = 65536 if data[16:18] == b"\0\1" else int.from_bytes(data[16:18], "big")
    nonce = 12345
    old = data[(page - 1) * size : page * size]
    total = nonce + sum(old[position] for position in range(size - 200, 0, -200))
    header = bytes.fromhex("d9d505f920a163d7") + struct.pack(">IIIII", 1, nonce, len(data) // size, 512, size)
    journal = header.ljust(512, b"\0") + struct.pack(">I", page) + old + struct.pack(">I", total & 0xFFFFFFFF)
    if super_journal:
        end = struct.pack(">II", len(super_journal), sum(super_journal) & 0xFFFFFFFF)
        locking_page = 2**30 // size + 1
        journal += struct.pack(">I", locking_page) + super_journal + end + bytes.fromhex("d9d505f920a163d7")
    path.with_name(path.name + "-journal").write_bytes(journal)


@corpus("store", "show", "load_run", "report", "dashboard", "follow", "resume")
def _hot_journal_of_a_page(place: Place) -> None:
    _hot_journal(place.copy("store", "run") / "run.sqlite")


@corpus("store", "resume", "show")
def _hot_journal_before_a_resume(place: Place) -> None:
    _hot_journal(place.copy("store", "run") / "run.sqlite")


@corpus("store", "resume", "show", "report")
def _hot_journal_with_a_super_journal_elsewhere(place: Place) -> None:
    path = place.copy("store", "run") / "run.sqlite"
    _hot_journal(path, super_journal=os.fsencode(place.canary / "secret.txt"))


@corpus("store", "show", "resume", "show")
def _journal_of_garbage(place: Place) -> None:
    place.copy("store", "run")
    place.write(FILE + "-journal", b"\xd9\xd5" + place.rng.randbytes(9000))


@corpus("store", "show", "load_run", "resume", "show")
def _log_of_garbage(place: Place) -> None:
    mark_as_wal(place.copy("store", "run") / "run.sqlite")
    place.write(FILE + "-wal", place.rng.randbytes(9000))


@corpus("store", "show", "load_run", "resume", "show")
def _log_of_another_store(place: Place) -> None:
    """The records of another run are in the log beside a store."""
    path = place.copy("store", "run") / "run.sqlite"
    mark_as_wal(path)
    other = place.folder / "other.sqlite"
    other.write_bytes((place.base / "golden-run" / "run.sqlite").read_bytes())
    with closing(sqlite3.connect(other)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("UPDATE trials SET detail = 'other'")
        database.commit()
        place.write(FILE + "-wal", Path(f"{other}-wal").read_bytes())


@corpus("store", "show", "resume", "show")
def _index_of_a_log_of_garbage(place: Place) -> None:
    mark_as_wal(place.copy("store", "run") / "run.sqlite")
    place.write(FILE + "-shm", place.rng.randbytes(32768))


@corpus("store", "show", "resume", "show")
def _in_wal_mode_without_a_log(place: Place) -> None:
    mark_as_wal(place.copy("store", "run") / "run.sqlite")


@corpus("store", "load_run", "show", "report", "dashboard")
def _a_hundred_thousand_references(place: Place) -> None:
    with edited(place, "golden-run") as database:
        count = len(columns(database, "reference_timings"))
        database.execute("BEGIN")
        row = [1.0] * count
        database.executemany(f"INSERT INTO reference_timings VALUES ({', '.join('?' * count)})", [row] * 100_000)
        database.execute("COMMIT")


@corpus("store", *("show", "show_json", "load_run", "follow", "export", "dashboard", "report", "resume"))
def _a_run_of_100000_trials(place: Place) -> None:
    """A run of days, with right checksums."""
    with edited(place, seal=False) as database:
        from mltune.records.rows import checksum

        rows = database.execute("SELECT * FROM trials ORDER BY sequence").fetchall()
        names = columns(database, "trials")
        at = names.index("number")
        database.execute("DELETE FROM trials")
        database.execute("BEGIN")
        marks = ", ".join("?" * len(names))

        def numbered() -> Iterator[tuple[Any, ...]]:
            for number in range(100_000):
                cells = list(rows[number % len(rows)][1:-1])
                cells[at - 1] = number
                yield (number + 1, *cells, checksum(tuple(cells)))

        database.executemany(f"INSERT INTO trials VALUES ({marks})", numbered())
        database.execute("COMMIT")


@corpus("store", "load_run", "show", "report")
def _ten_thousand_parameters(place: Place) -> None:
    with edited(place, "golden-run") as database:
        names = json.dumps({f"P{number}": [1, 2] for number in range(10_000)})
        database.execute("UPDATE header SET value = ? WHERE name = 'parameters'", (names,))


@corpus("store", "load_run", "show", "report", "dashboard")
def _a_parameter_of_a_million_values(place: Place) -> None:
    with edited(place, "golden-run") as database:
        (text,) = database.execute("SELECT value FROM header WHERE name = 'parameters'").fetchone()
        database.execute(
            "UPDATE header SET value = ? WHERE name = 'parameters'",
            (json.dumps(json.loads(text) | {"BLK_M": list(range(1_000_000))}),),
        )


@corpus("store", "load_run", "show", "report")
def _a_header_of_60_megabytes(place: Place) -> None:
    with edited(place, "golden-run") as database:
        text = json.dumps({"a": "x" * 60_000_000})
        database.execute("UPDATE header SET value = ? WHERE name = 'settings'", (text,))


@corpus("store", "load_run", "show", "report")
def _a_header_that_unfolds(place: Place) -> None:
    """Thirty megabytes of brackets: each becomes an object of 56 bytes or more."""
    with edited(place, "golden-run") as database:
        text = "[" + "[],{}," * 5_000_000 + "0]"
        database.execute("UPDATE header SET value = ? WHERE name = 'settings'", (text,))


assert MARK
assert deep
