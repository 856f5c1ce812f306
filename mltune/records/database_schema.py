"""The tables of a database that holds the runs of many people: all in the PostgreSQL schema ``mltune``.

A change needs a migration (:mod:`mltune.records.migrations`), which a test compares with these tables.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import DOUBLE_PRECISION, JSONB, UUID

from mltune.records.columns import COLUMNS
from mltune.records.declaration import Reference

SCHEMA = "mltune"
"""The PostgreSQL schema of all tables."""

_TYPES: dict[type, Any] = {int: sa.BigInteger, float: DOUBLE_PRECISION, str: sa.Text}

metadata = sa.MetaData(schema=SCHEMA)


def _run(**options: Any) -> sa.Column[Any]:
    return sa.Column("run", UUID(as_uuid=True), sa.ForeignKey(f"{SCHEMA}.runs.id", ondelete="CASCADE"), **options)


def _checksum() -> sa.Column[Any]:
    return sa.Column("checksum", sa.BigInteger, nullable=False)


def _position() -> sa.Column[Any]:
    return sa.Column("position", sa.BigInteger, sa.Identity(always=True), primary_key=True)


runs = sa.Table(
    "runs",
    metadata,
    sa.Column("id", UUID(as_uuid=True), primary_key=True),
    sa.Column("header", sa.Text, nullable=False),
    _checksum(),
    sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("directory", sa.Text, nullable=False),
    sa.Column("writer", UUID(as_uuid=True)),
    sa.Column("last_write", UUID(as_uuid=True)),
)
"""One row a run: owner, host, directory and token (``writer``) are of the process that opened it last for writing."""

trials = sa.Table(
    "trials",
    metadata,
    _run(primary_key=True),
    sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
    *(sa.Column(name, _TYPES[column.cells.type], nullable=not column.needed) for name, column in COLUMNS.items()),
    sa.Column("configuration", JSONB, nullable=False),
    _checksum(),
    sa.UniqueConstraint("run", "number"),
)
"""The columns of :data:`mltune.records.columns.COLUMNS`, and the values of the parameters by name."""

_NAMED = {
    name: sa.Table(
        name,
        metadata,
        _position(),
        _run(nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("value", kind, nullable=False),
        _checksum(),
        sa.UniqueConstraint("run", "name"),
    )
    for name, kind in (("facts", sa.Text), ("seconds", DOUBLE_PRECISION))
}

_references = sa.Table(
    "reference_timings",
    metadata,
    _position(),
    _run(nullable=False, index=True),
    *(
        sa.Column(name, sa.BigInteger if "int" in type_ else DOUBLE_PRECISION, nullable="None" in type_)
        for name, type_ in ((field.name, str(field.type)) for field in dataclasses.fields(Reference))
    ),
    _checksum(),
)

small_tables: dict[str, sa.Table] = _NAMED | {"reference_timings": _references}
"""All tables but the runs and the trials."""
