"""The migrations of the database, in the layout of Alembic: each a file that later versions never change."""
