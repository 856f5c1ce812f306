"""The script by which Alembic brings a database to a version, on the connection that it is given."""

from __future__ import annotations

from alembic import context

from mltune.records.database_schema import SCHEMA, metadata

context.configure(
    connection=context.config.attributes["connection"], target_metadata=metadata, version_table_schema=SCHEMA
)
with context.begin_transaction():
    context.run_migrations()
