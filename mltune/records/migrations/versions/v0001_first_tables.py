"""The first tables: runs, trials, facts, seconds and reference timings."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB, UUID

revision = "0001"
down_revision = None

SCHEMA = "mltune"


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "runs",
        sa.Column("id", UUID(as_uuid=True), primary_key=True),
        sa.Column("header", sa.Text(), nullable=False),
        _checksum(),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("directory", sa.Text(), nullable=False),
        sa.Column("writer", UUID(as_uuid=True)),
        sa.Column("last_write", UUID(as_uuid=True)),
        schema=SCHEMA,
    )
    op.create_table(
        "trials",
        _run(primary_key=True),
        sa.Column("sequence", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("batch", sa.BigInteger(), nullable=False),
        sa.Column("index", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("proposed_by", sa.Text(), nullable=False),
        sa.Column("audited", sa.BigInteger(), nullable=False),
        sa.Column("expected", sa.Double()),
        sa.Column("finished_at", sa.Double()),
        sa.Column("elapsed_s", sa.Double()),
        sa.Column("gate", sa.Text()),
        sa.Column("predicted", sa.Double()),
        sa.Column("optimistic", sa.Double()),
        sa.Column("build_state", sa.Text()),
        sa.Column("build_detail", sa.Text()),
        sa.Column("registers", sa.BigInteger()),
        sa.Column("spill_bytes", sa.BigInteger()),
        sa.Column("stack_bytes", sa.BigInteger()),
        sa.Column("shared_bytes", sa.BigInteger()),
        sa.Column("code_bytes", sa.BigInteger()),
        sa.Column("compile_s", sa.Double()),
        sa.Column("cached", sa.BigInteger()),
        sa.Column("measurement_state", sa.Text()),
        sa.Column("measurement_detail", sa.Text()),
        sa.Column("samples_s", sa.Text()),
        sa.Column("median_s", sa.Double()),
        sa.Column("noise", sa.Double()),
        sa.Column("stopped_early", sa.BigInteger()),
        sa.Column("error", sa.Double()),
        sa.Column("verify_s", sa.Double()),
        sa.Column("time_s", sa.Double()),
        sa.Column("sm_clock_hz", sa.Double()),
        sa.Column("temperature_c", sa.Double()),
        sa.Column("power_w", sa.Double()),
        sa.Column("throttle_reasons", sa.BigInteger()),
        sa.Column("discarded", sa.BigInteger()),
        sa.Column("configuration", JSONB(), nullable=False),
        _checksum(),
        sa.UniqueConstraint("run", "number"),
        schema=SCHEMA,
    )
    for name, kind in (("facts", sa.Text()), ("seconds", sa.Double())):
        op.create_table(
            name,
            _position(),
            _run(nullable=False),
            sa.Column("name", sa.Text(), nullable=False),
            sa.Column("value", kind, nullable=False),
            _checksum(),
            sa.UniqueConstraint("run", "name"),
            schema=SCHEMA,
        )
    op.create_table(
        "reference_timings",
        _position(),
        _run(nullable=False, index=True),
        sa.Column("after", sa.BigInteger(), nullable=False),
        sa.Column("elapsed_s", sa.Double(), nullable=False),
        sa.Column("median_s", sa.Double(), nullable=False),
        sa.Column("noise", sa.Double()),
        sa.Column("sm_clock_hz", sa.Double()),
        sa.Column("temperature_c", sa.Double()),
        sa.Column("power_w", sa.Double()),
        sa.Column("throttle_reasons", sa.BigInteger()),
        _checksum(),
        schema=SCHEMA,
    )


def _run(**options: Any) -> sa.Column[Any]:
    return sa.Column("run", UUID(as_uuid=True), sa.ForeignKey(f"{SCHEMA}.runs.id", ondelete="CASCADE"), **options)


def _checksum() -> sa.Column[Any]:
    return sa.Column("checksum", sa.BigInteger(), nullable=False)


def _position() -> sa.Column[Any]:
    return sa.Column("position", sa.BigInteger(), sa.Identity(always=True), primary_key=True)
