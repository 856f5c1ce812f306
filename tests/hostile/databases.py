"""Hostile rows of a database that many people write: of its list of runs, and of the records of a run.

Where there is a PostgreSQL server the rows are in it; elsewhere the same values are in the file of a run.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, Any
from unittest import mock

from tests.hostile.cases import Place
from tests.hostile.stores import change_cell, change_document, edited
from tests.hostile.values import NUMBERS, change, scalar, to_json, value

if TYPE_CHECKING:
    import psycopg

DATABASE = "database"
"""The file with the URL of the database: among the honest inputs where there is one, and in an input that is in it."""

ROWS: Mapping[str, tuple[str, Any]] = {
    "created_at = 'infinity'": ("created_at", None),
    "created_at = '-infinity'": ("created_at", None),
    "created_at = '0044-03-15 BC'": ("created_at", None),
    "created_at = '20000-01-01'": ("created_at", None),
    "header = 'x'": ("header", None),
    "header = repeat('[', 20000000)": ("header", None),
    "owner = repeat('x', 20000000)": ("header", None),
    "owner = E'\\x1b[31m', host = '', directory = repeat('y', 1000000)": ("directory", "y" * 500),
}
"""Changes of a row of the list of runs, and what is read of it: an attribute of the listed run, and its value."""

MOMENTS = ("infinity", "-infinity", "4713-01-01 BC", "0044-03-15 BC", "0001-01-01", "9999-12-31", "10000-01-01", "294276-12-31", "epoch")  # fmt: skip
TABLES = ("runs", "runs", "trials", "trials", "trials", "facts", "seconds", "reference_timings")


def random_rows(place: Place) -> None:
    """Change one to four rows; then make their checksums right, as anybody can, or leave them."""
    rng = place.rng
    if not (place.base / DATABASE).exists():
        with edited(place, seal=rng.random() < 0.8) as database:
            for _ in range(rng.choice((1, 1, 2, 4))):
                rng.choice((change_cell, change_cell, change_document))(database, rng)
        return
    import psycopg

    url = (place.base / DATABASE).read_text()
    run = honest_run(place, url)
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(rng.choice((1, 1, 2, 4))):
            with contextlib.suppress(psycopg.Error, UnicodeError):  # the schema forbids it, or the encoding
                if rng.random() < 0.1:
                    connection.execute(f"UPDATE mltune.runs SET {rng.choice(list(ROWS))} WHERE id = %s", (run,))
                else:
                    change_row(connection, run, rng)
        if rng.random() < 0.8:
            reseal(connection, run)


def honest_run(place: Place, url: str) -> uuid.UUID:
    """Write an honest run into a database, which its user has named, in place of all that is there."""
    import psycopg

    from mltune.records.database import Pointer
    from mltune.records.store import Store

    run = place.named / "run"
    with contextlib.suppress(psycopg.Error), psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DELETE FROM mltune.runs")
    with (
        mock.patch.dict(os.environ, XDG_DATA_HOME=str(place.folder / "home" / "data")),
        Store.read_only(place.base / "store") as honest,
        Store.open(run, honest.header, url) as store,
        store.at_once(),
    ):
        store.append(*honest.records())
        store.set_seconds(honest.seconds())
        for name, fact in honest.documents().items():
            store.set_fact(name, fact)
    place.write(DATABASE, url)
    return Pointer.read(run).run


def change_row(connection: psycopg.Connection, run: uuid.UUID, rng: Random) -> None:
    """Write a hostile value into a cell of the run, in one row or in all."""
    name = rng.choice(TABLES)
    mine = "id" if name == "runs" else "run"
    types = (
        "SELECT column_name, udt_name FROM information_schema.columns WHERE table_schema = 'mltune' AND table_name = %s"
    )
    column, kind = rng.choice(sorted(connection.execute(types, (name,)).fetchall()))
    rows = connection.execute(
        f"SELECT ctid::text, {column}::text FROM mltune.{name} WHERE {mine} = %s", (run,)
    ).fetchall()
    if not rows or column == mine:
        return
    row, text = rng.choice(rows)
    cell = _cell(kind, text, rng)
    where = f"{mine} = %s" if rng.random() < 0.2 else f"{mine} = %s AND ctid = '{row}'::tid"
    connection.execute(f"UPDATE mltune.{name} SET {column} = %s::text::{kind} WHERE {where}", (cell, run))


def _cell(kind: str, text: str | None, rng: Random) -> str | None:
    """Return the text of a hostile value of a type of PostgreSQL; of a document, one of other meaning."""
    if rng.random() < 0.1:
        return None
    if kind in ("text", "jsonb"):
        with contextlib.suppress(ValueError, TypeError, RecursionError):
            return to_json(change(json.loads(text), rng) if rng.random() < 0.7 else value(rng))
        return str(scalar(rng))
    if kind == "uuid":
        return str(uuid.UUID(int=rng.getrandbits(128)))
    if kind == "timestamptz":
        return rng.choice(MOMENTS)
    numbers = (
        NUMBERS if kind == "float8" else [one for one in NUMBERS if isinstance(one, int) and -(2**63) <= one < 2**63]
    )
    return str(rng.choice(numbers))


def reseal(connection: psycopg.Connection, run: uuid.UUID) -> None:
    """Make the checksums of the rows of a run right, as far as they can be read."""
    from mltune.records.columns import COLUMNS
    from mltune.records.database_schema import small_tables
    from mltune.records.rows import UNREADABLE, checksum

    (header,) = connection.execute("SELECT header FROM mltune.runs WHERE id = %s", (run,)).fetchone() or ("",)
    connection.execute("UPDATE mltune.runs SET checksum = %s WHERE id = %s", (checksum((header,)), run))
    columns = {name: [one.name for one in table.columns][2:-1] for name, table in small_tables.items()}
    for name, found in {**columns, "trials": [*COLUMNS, "configuration"]}.items():
        names = ", ".join(f'"{column}"' for column in found)
        query = f"SELECT ctid, {names} FROM mltune.{name} WHERE run = %s"
        with contextlib.suppress(ValueError):  # more digits than Python reads: the table keeps its checksums
            rows = connection.execute(query, (run,)).fetchall()
            for row, *cells in rows:
                with contextlib.suppress(*UNREADABLE):  # no header, no configuration
                    if name == "trials":
                        cells += [cells[-1][parameter] for parameter in json.loads(header)["parameters"]]
                        del cells[len(COLUMNS)]
                    connection.execute(
                        f"UPDATE mltune.{name} SET checksum = %s WHERE ctid = %s::tid", (checksum(tuple(cells)), row)
                    )
