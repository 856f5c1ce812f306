"""The migrations of the database, in the layout of Alembic: each a file that later versions never change.

A new database gets the newest tables at once (:mod:`mltune.records.database_schema`), without these steps.
"""
