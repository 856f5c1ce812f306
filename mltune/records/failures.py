"""Errors of stores in words, the same for both dialects."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from mltune.errors import (
    DamagedRunError,
    DatabaseLostError,
    DiskFullError,
    MltuneError,
    RunDirectoryError,
    StoreError,
)
from mltune.files.text import printable

UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""Exceptions of a reader whose store holds what mltune never writes."""

_LONGEST = 500  # an error may quote a store

Kind = Literal["damaged", "duplicate", "full", "lost", "unusable"]


def store_failure(kind: Kind, place: object, error: object) -> MltuneError:
    """Return the error of a store in a file or a database that cannot be read or written."""
    text = printable(error, _LONGEST).strip()
    if kind == "damaged":
        return DamagedRunError(
            f"{place} must be an undamaged store of mltune, but {text}; restore a copy, or choose another directory."
        )
    if kind == "duplicate":
        return StoreError(f"a trial's number must be new to its run, but {place} refused: {text}.")
    law = f"every trial must be recorded, but {place} cannot be used: {text}"
    if kind == "full":
        return DiskFullError(
            f"{law}; the trials recorded before are safe: make room on the disk, then repeat the command to go on."
        )
    return DatabaseLostError(f"{law}.") if kind == "lost" else StoreError(f"{law}.")


def elsewhere(directory: Path, place: str) -> RunDirectoryError:
    """Return the error of a run that is not in the database that was named."""
    return RunDirectoryError(
        f"a run stays where it was begun, but the records of {directory} are in {printable(place, 200)}; choose "
        "another directory, or leave out --store."
    )
