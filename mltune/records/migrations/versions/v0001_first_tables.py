"""The first version of the tables. It changes nothing: a new database gets the newest tables at once."""

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Change nothing."""
