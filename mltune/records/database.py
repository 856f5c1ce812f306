"""PostgreSQL databases that hold the runs of many people: their URLs, connections, tables and versions.

The directory of a run in a database has a file ``run.json`` that names both.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shlex
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltune.errors import DamagedRunError, RunDirectoryError, StoreError, UsageError
from mltune.files.atomic import append_line, write_file_atomically
from mltune.files.folders import data_folder
from mltune.files.reading import parse_json, read_text, reason
from mltune.files.text import printable
from mltune.records.directory import FILE, POINTER, written_in
from mltune.records.rows import FailureKind, elsewhere, store_failure
from mltune.records.versions import import_package

if TYPE_CHECKING:
    import sqlalchemy as sa

VERSION = "0001"
"""The newest migration."""

PATIENCE_S = 60.0
"""Seconds that a run waits for a database that does not answer, for example while it is restarted."""

READER_PATIENCE_S = 2.0
"""Seconds that a reader waits; it can try again later."""

PASSWORDS = "MLTUNE_DATABASE_PASSWORDS"
"""Environment variable in which child processes get the passwords of databases, a JSON object by URL."""

_SECRET = ("password", "sslpassword")
_MOST_POINTER_BYTES = 1 << 16
_LOCK = 0x6D6C74756E65  # "mltune": held by the process that migrates
_MOST_KNOWN_BYTES = 1 << 20
_OPTIONS = "-c tcp_keepalives_idle=30 -c tcp_keepalives_interval=10 -c tcp_keepalives_count=3"
_KEEPALIVES = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
_NO_ROOM = "53100"  # SQLSTATE of a disk that is full
_LOST = ("08", "57P01", "57P02", "57P03")  # SQLSTATE of a connection that is lost, or a server that stops or starts


def parse_url(text: str) -> str:
    """Return the URL of a PostgreSQL database without its passwords, which connections to this URL alone use."""
    url, passwords = _parsed(text)
    if passwords:  # of this process and of those that it starts; they are kept nowhere
        os.environ[PASSWORDS] = json.dumps({**_passwords(), url: passwords})
    return url


def _passwords() -> dict[str, dict[str, str]]:
    """Return the passwords that this process knows, by URL."""
    return json.loads(os.environ.get(PASSWORDS, "{}"))  # type: ignore[no-any-return]


def _parsed(text: str) -> tuple[str, dict[str, str]]:
    """Return the URL of a database without its passwords, and these by their names as parameters of a connection."""
    from sqlalchemy.engine import URL, make_url
    from sqlalchemy.exc import ArgumentError

    law, shown = "write it as postgresql://user@host/name", printable(_without_password(text), 200)
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise UsageError(f"{shown} is no URL of a database; {law}.") from error
    if url.drivername not in ("postgresql", "postgres", "postgresql+psycopg"):
        raise UsageError(f"{shown} is of {printable(url.drivername, 30)}, not PostgreSQL; {law}.")
    passwords = {name: str(url.query[name]) for name in _SECRET if name in url.query}
    if url.password:
        passwords["password"] = str(url.password)
    query = {name: value for name, value in url.query.items() if name not in _SECRET}
    plain = URL.create("postgresql", url.username, None, url.host, url.port, url.database, query)
    return plain.render_as_string(), passwords


def _without_password(text: str) -> str:
    """Hide the text before the last ``@``, or else after the first colon of a host, and after a ``?``: a password."""
    shown = f"…@{text.rpartition('@')[2]}" if "@" in text else re.sub("(//[^:]*:).+", r"\1…", text)
    return f"{shown.partition('?')[0]}?…" if "?" in shown else shown


def known_file() -> Path:
    """Return the path of the list of databases that the user has named: ``$XDG_DATA_HOME/mltune/databases``."""
    return data_folder() / "databases"


def remember(url: str) -> None:
    """Note that the user has named a database: from now on a directory that names it may be opened."""
    if url not in _known():
        with contextlib.suppress(OSError):  # a home that cannot be written: named again the next time
            known_file().parent.mkdir(parents=True, exist_ok=True)
            append_line(known_file(), url.encode())


def check_known(url: str, directory: Path) -> None:
    """Raise a RunDirectoryError unless the user has named the database: a stranger's directory may name another."""
    if url not in _known():
        raise RunDirectoryError(
            f"{directory} names the database {printable(url, 200)}, which you have not named here, and is not opened; "
            f"if you trust it, list its runs first: mltune show {printable(shlex.quote(url), 200)}."
        )


def _known() -> list[str]:
    try:
        return read_text(known_file(), _MOST_KNOWN_BYTES).splitlines()
    except (OSError, ValueError):
        return []


@dataclass(frozen=True, slots=True)
class Pointer:
    """The place of a run: the URL of its database, without a password, and its number in it."""

    database: str
    run: uuid.UUID

    @classmethod
    def read(cls, directory: Path) -> Pointer:
        """Read the pointer of a run; a file that is no pointer raises a DamagedRunError."""
        path = directory / POINTER
        try:
            document = parse_json(read_text(path, _MOST_POINTER_BYTES))
            if not isinstance(document, dict) or document.keys() != {"database", "run"}:
                raise ValueError("it names no database and run")
            url, run = str(document["database"]), uuid.UUID(str(document["run"]))
            if _parsed(url) != (url, {}):
                raise ValueError(f"its database is {printable(_without_password(url), 200)}")
        except OSError as error:
            raise RunDirectoryError(f"{path} of the run directory cannot be read: {reason(error)}.") from error
        except (ValueError, UsageError) as error:
            raise store_failure("damaged", path, error) from error
        return cls(url, run)

    def write(self, directory: Path) -> None:
        """Write the pointer of a run into its directory, which is made if it is missing."""
        document = {"database": self.database, "run": str(self.run)}
        with written_in(directory):
            write_file_atomically(directory / POINTER, f"{json.dumps(document, indent=1)}\n".encode())


def database_of(directories: Iterable[Path], named: str = "") -> str:
    """Return the URL of the database that the runs of a campaign share, existing and new; empty if they are in files.

    A run that is not in the database that the user names, or in one never named, raises a
    RunDirectoryError.
    """
    url = parse_url(named) if named else ""
    for directory in directories:
        if not (directory / POINTER).exists():
            if url:
                raise elsewhere(directory, FILE)
            continue
        with contextlib.suppress(DamagedRunError):  # it is set aside
            database = Pointer.read(directory).database
            if url and database != url:
                raise elsewhere(directory, database)
            check_known(database, directory)
            return database
    return url


def engine(url: str) -> sa.Engine:
    """Return the connections of this process to a database; without the driver raise a UsageError."""
    return _engine(url, os.getpid(), tuple(_passwords().get(url, {}).items()))


@functools.cache
def _engine(url: str, process: int, passwords: tuple[tuple[str, str], ...]) -> sa.Engine:
    import sqlalchemy as sa

    import_package("psycopg", "a run in PostgreSQL", "mltune-gpu[postgres]")
    return sa.create_engine(
        sa.make_url(url).set(drivername="postgresql+psycopg"),
        isolation_level="REPEATABLE READ",
        pool_pre_ping=True,
        connect_args={
            "connect_timeout": 10,
            "application_name": "mltune",
            "options": _OPTIONS,
            **_KEEPALIVES,
            **dict(passwords),
        },
    )


def connect(url: str, *, patience_s: float | None = None) -> sa.Connection:
    """Return a new connection; try for `patience_s`, by default :data:`PATIENCE_S`, where no server answers."""
    from sqlalchemy.exc import DBAPIError

    deadline, pause_s = time.monotonic() + (PATIENCE_S if patience_s is None else patience_s), 0.1
    while True:
        try:
            return engine(url).connect()
        except DBAPIError as error:
            if not is_lost(error) or time.monotonic() + pause_s > deadline:
                raise
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 5.0)


def is_lost(error: Any) -> bool:
    """Return whether an error of SQLAlchemy says that the connection is lost, or that there is no server."""
    state = getattr(error.orig, "sqlstate", None)
    if state is None:
        refused = any(law in str(error.orig) for law in ("authentication failed", "does not exist", "no pg_hba"))
        return type(error).__name__ in ("OperationalError", "InterfaceError") and not refused
    return bool(state.startswith(_LOST))


@functools.cache
def prepare(url: str, *, patience_s: float | None = None) -> None:
    """Create or migrate the tables of a database, once in a process; one newer than this is a StoreError."""
    import sqlalchemy as sa

    with connect(url, patience_s=patience_s) as connection, connection.begin():
        if connection.scalar(sa.text("SHOW server_encoding")) != "UTF8":
            raise StoreError(f"{url} has another encoding than UTF8, which a database of mltune has.")
        if _version(connection) == VERSION:
            return
    with connect(url).execution_options(isolation_level="READ COMMITTED") as connection, connection.begin():
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        connection.execute(sa.text("CREATE SCHEMA IF NOT EXISTS mltune"))
        _migrate(connection, url)


def _migrate(connection: sa.Connection, url: str) -> None:
    """Bring the tables to the newest version; a new database gets them at once."""
    from alembic import command
    from alembic.config import Config

    from mltune.records.database_schema import metadata

    version = _version(connection)
    if version > VERSION:
        raise StoreError(
            f"{url} was made by a newer mltune: it is of version {printable(version, 30)}, and this program knows "
            f"{VERSION}; update mltune."
        )
    config = Config()
    config.set_main_option("script_location", "mltune.records:migrations")
    config.attributes["connection"] = connection
    if version:
        command.upgrade(config, "head")
    else:
        metadata.create_all(connection)
        command.stamp(config, "head")


def _version(connection: sa.Connection) -> str:
    """Return the version of the tables; empty if there are none."""
    import sqlalchemy as sa

    if connection.scalar(sa.text("SELECT to_regclass('mltune.alembic_version')")) is None:
        return ""
    return str(connection.scalar(sa.text("SELECT version_num FROM mltune.alembic_version")) or "")


@contextlib.contextmanager
def database_errors(url: str) -> Iterator[None]:
    """Convert errors of a database to the exceptions of mltune."""
    from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

    try:
        yield
    except IntegrityError as error:
        raise store_failure("duplicate", url, error.orig) from error
    except DBAPIError as error:
        full = getattr(error.orig, "sqlstate", None) == _NO_ROOM
        kind: FailureKind = "full" if full else "lost" if is_lost(error) else "unusable"
        raise store_failure(kind, url, error.orig or error) from error
    except SQLAlchemyError as error:
        raise store_failure("unusable", url, error) from error
