"""Runs in a database: a list of all of them, and a directory on this host for each."""

from __future__ import annotations

import contextlib
import datetime
import shlex
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import DOUBLE_PRECISION

from mltune.errors import RunDirectoryError
from mltune.files.folders import cache_folder
from mltune.files.text import printable
from mltune.records import database
from mltune.records.columns import LONGEST_S, SHORTEST_S
from mltune.records.database_schema import runs, trials
from mltune.records.database_tables import header_of, locked_runs, size_of
from mltune.records.header import RunHeader
from mltune.records.rows import MOST_SIZE, UNREADABLE
from mltune.records.trial import TrialState

_FEWEST_DIGITS = 4
_LONGEST = 500


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run in a database, with the owner, host and directory of the process that opened it last for writing.

    Anybody who writes to the database may have made the row: a wrong header or date is None.
    """

    run: uuid.UUID
    header: RunHeader | None
    owner: str
    host: str
    directory: str
    created_at: datetime.datetime | None
    trials: int
    best_s: float | None
    running: bool


def list_runs(url: str) -> list[StoredRun]:
    """Return the runs in a database, the newest first; the user has named this database."""
    url = database.parse_url(url)
    of_each = (
        sa.select(
            trials.c.run,
            sa.func.count().label("trials"),
            sa.func.min(trials.c.median_s)
            .filter(trials.c.state == str(TrialState.OK), trials.c.median_s.between(SHORTEST_S, LONGEST_S))
            .label("best_s"),
        )
        .group_by(trials.c.run)
        .subquery()
    )
    texts = (sa.func.left(runs.c[name], _LONGEST).label(name) for name in ("owner", "host", "directory"))
    header = sa.case((size_of(runs) <= MOST_SIZE, runs.c.header)).label("header")
    created = sa.cast(sa.extract("epoch", runs.c.created_at), DOUBLE_PRECISION).label("created")
    statement = (
        sa.select(runs.c.id, header, runs.c.checksum, *texts, created, of_each.c.trials, of_each.c.best_s)
        .join(of_each, of_each.c.run == runs.c.id, isouter=True)
        .order_by(runs.c.created_at.desc(), runs.c.id)
    )
    with _opened(url) as connection:
        rows = connection.execute(statement).all()
        written = locked_runs(connection, [row.id for row in rows])
    return [
        StoredRun(
            row.id,
            _header(row.header, row.checksum),
            printable(row.owner, 100),
            printable(row.host, 100),
            printable(row.directory, _LONGEST),
            _moment(row.created),
            row.trials or 0,
            row.best_s,
            row.id in written,
        )
        for row in rows
    ]


def directory_of(address: str) -> Path:
    """Return a directory in the user's cache for a run in a database, such as ``postgresql://host/name#4f1c``.

    The digits are the first ones of the run's number; where none or several have them, it raises a RunDirectoryError.
    """
    url, _, digits = address.rpartition("#")
    url = database.parse_url(url)
    with _opened(url) as connection:
        identifiers = list(connection.scalars(sa.select(runs.c.id)))
    prefix = digits.lower().replace("-", "")
    fitting = [run for run in identifiers if len(prefix) >= _FEWEST_DIGITS and run.hex.startswith(prefix)]
    if len(fitting) != 1:
        raise RunDirectoryError(
            f"{printable(digits, 50)!r} names {len(fitting)} runs of the database; give the first digits of the number "
            f"of one, {_FEWEST_DIGITS} or more, and list them: mltune show {printable(shlex.quote(url), 200)}."
        )
    try:
        directory = cache_folder() / "runs" / str(fitting[0])
    except OSError as error:
        raise RunDirectoryError(f"there is no directory of this host for a run in a database: {error}.") from error
    database.Pointer(url, fitting[0]).write(directory)
    return directory


@contextlib.contextmanager
def _opened(url: str) -> Iterator[sa.Connection]:
    """Yield a connection to a database that the user has named."""
    with database.database_errors(url):
        database.prepare(url, patience_s=0.0)
        database.remember(url)
        with database.connect(url) as connection, connection.begin():
            yield connection


def _moment(seconds: float) -> datetime.datetime | None:
    """Return a moment; None where it has no date: the database knows infinity and years before 1 and after 9999."""
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    except (ValueError, OverflowError):
        return None


def _header(text: str, seal: int) -> RunHeader | None:
    try:
        return header_of(text, seal)
    except UNREADABLE:
        return None
