"""Connections to the SQLite file of a store, in every state that a run or a kill can leave it in.

The directory was checked before (:func:`mltune.records.directory.check_directory`): its files are regular ones.

A store is in WAL mode for its whole life: new records go to ``run.sqlite-wal`` first, and move to ``run.sqlite`` when
the run ends. A reader changes nothing in the directory of a run that does not go on.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

from mltune.files.atomic import write_file_atomically
from mltune.records.directory import FILE, in_use

MAX_BYTES = 3 << 28
"""Largest store that is opened: room for about a million trials."""

_MAX_CELL_BYTES = 1 << 20
_BESIDE = ("-wal", "-journal")
_BUSY_S = 30.0
_NAMES_ANOTHER = bytes.fromhex("d9d505f920a163d7")  # sqlite.org/fileformat2.html, 3


def create_file(directory: Path, fill: Callable[[sqlite3.Connection], None]) -> None:
    """Create the file of a store, complete or not at all.

    ``fill`` creates the tables through a connection. A directory that cannot be written raises an OSError.
    """
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        fill(connection)
        image = bytearray(connection.serialize())
    # Both version numbers of SQLite's file format: the file is in WAL mode from the start (sqlite.org/fileformat2.html,
    # 1.3.3). To switch to it later would take a rollback journal, and a kill could leave that behind.
    image[18:20] = bytes([2, 2])
    write_file_atomically(directory / FILE, bytes(image))


def connect(directory: Path) -> sqlite3.Connection:
    """Connect to the store of a run for writing; what a kill left behind is recovered by the first statement.

    A file that is too large, or one beside it, raises a ValueError.
    """
    _check_sizes(directory)
    if _size(directory / f"{FILE}-journal"):
        raise ValueError(f"{FILE}-journal lies beside it, which only versions before 0.2 wrote")
    connection = _connection(directory / FILE, "mode=rw")
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


@contextlib.contextmanager
def connected_for_reading(directory: Path) -> Iterator[sqlite3.Connection]:
    """Connect to the store of a run for reading.

    While a process writes to it, its files are read together with that process. Otherwise the file is read as it is;
    if a killed process left records beside it, a private copy is recovered and read. Errors are those of
    :func:`connect`.
    """
    _check_sizes(directory)
    if in_use(directory):
        with contextlib.closing(_connection(directory / FILE, "mode=ro")) as connection:
            try:
                connection.execute("SELECT 1 FROM sqlite_master").fetchone()
            except sqlite3.OperationalError:  # the directory cannot be written: SQLite coordinates through a file in it
                pass
            else:
                yield connection
                return
    elif not any(_size(directory / f"{FILE}{suffix}") for suffix in _BESIDE):
        with contextlib.closing(_connection(directory / FILE, "mode=ro&immutable=1")) as connection:
            yield connection
        return
    with tempfile.TemporaryDirectory(prefix="mltune-") as folder:
        for suffix in ("", *_BESIDE):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(directory / f"{FILE}{suffix}", Path(folder) / f"{FILE}{suffix}")
        _check_journal(Path(folder) / f"{FILE}-journal")
        with contextlib.closing(_connection(Path(folder) / FILE, "mode=rw")) as connection:
            yield connection


def wal_is_missing(directory: Path) -> bool:
    """Return whether there is no write-ahead log, which SQLite keeps beside a store in use."""
    return not os.path.lexists(directory / f"{FILE}-wal")


def _connection(path: Path, options: str) -> sqlite3.Connection:
    location = f"file:{quote(str(path.absolute()))}?{options}"
    connection = sqlite3.connect(location, uri=True, timeout=_BUSY_S, isolation_level=None)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_CELL_BYTES)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    return connection


def _check_sizes(directory: Path) -> None:
    """Check that the files that SQLite would open are within the limit."""
    for suffix in ("", *_BESIDE, "-shm"):
        size = _size(directory / f"{FILE}{suffix}")
        if size > MAX_BYTES:
            raise ValueError(f"{FILE}{suffix} may have {MAX_BYTES} bytes, but it has {size}")


def _check_journal(path: Path) -> None:
    """Refuse a journal that names a super-journal: SQLite would open and delete the file of that name."""
    if path.exists() and path.read_bytes().endswith(_NAMES_ANOTHER):
        raise ValueError(f"{path.name} names another file")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
