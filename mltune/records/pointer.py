"""The file in the directory of a run that names the database with its records: ``run.json``."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mltune.errors import DamagedRunError, RunDirectoryError
from mltune.files.atomic import write_file_atomically
from mltune.files.documents import parse_json
from mltune.files.reading import read_text, reason
from mltune.files.text import printable
from mltune.records.database import check_known, is_plain, parse_url
from mltune.records.directory import FILE, POINTER, not_writable
from mltune.records.store import damaged, elsewhere

_MOST_BYTES = 1 << 16


def database_of(directories: Iterable[Path], named: str = "") -> str:
    """Return the URL of the database that runs of a campaign share, those in it and those to come.

    Parameters
    ----------
    directories : iterable of pathlib.Path
        Of the runs that have begun.
    named : str
        That which the user asks for.

    Returns
    -------
    str
        Empty if their records are in files.

    Raises
    ------
    RunDirectoryError
        A run is elsewhere than in the database that is asked for, or in one that was never named here.
    UsageError
        The text is no URL of a PostgreSQL database.
    """
    url = parse_url(named) if named else ""
    for directory in directories:
        if not (directory / POINTER).exists():
            if url:
                raise elsewhere(directory, FILE)
            continue
        with contextlib.suppress(DamagedRunError):  # it is set aside
            found = Pointer.read(directory).database
            if url and found != url:
                raise elsewhere(directory, found)
            check_known(found, directory)
            return found
    return url


@dataclass(frozen=True, slots=True)
class Pointer:
    """Where the records of a run are.

    Attributes
    ----------
    database : str
        URL of the database, without a password.
    run : uuid.UUID
        Number of the run in it.
    """

    database: str
    run: uuid.UUID

    @classmethod
    def read(cls, directory: Path) -> Pointer:
        """Read the pointer of a run.

        Raises
        ------
        RunDirectoryError
            The file cannot be read.
        DamagedRunError
            It is no pointer.
        """
        path = directory / POINTER
        try:
            document = parse_json(read_text(path, _MOST_BYTES))
            if not isinstance(document, dict) or document.keys() != {"database", "run"}:
                raise ValueError("it names no database and run")
            url, run = str(document["database"]), uuid.UUID(str(document["run"]))
            if not is_plain(url):
                raise ValueError(f"its database is {printable(url, 200)}")
        except OSError as error:
            raise RunDirectoryError(f"a run directory must be readable, but {path} is not: {reason(error)}.") from error
        except ValueError as error:
            raise damaged(path, error) from error
        return cls(url, run)

    def write(self, directory: Path) -> None:
        """Write the pointer of a run, in a directory that is made if it is missing.

        Raises
        ------
        RunDirectoryError
            The directory cannot be written.
        """
        document = {"database": self.database, "run": str(self.run)}
        try:
            directory.mkdir(parents=True, exist_ok=True)
            write_file_atomically(directory / POINTER, f"{json.dumps(document, indent=1)}\n".encode())
        except OSError as error:
            raise not_writable(directory, error) from error
