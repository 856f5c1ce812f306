"""The winner's folder, always complete: a writer that dies leaves the old folder or the new one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltune.errors import DiskFullError
from mltune.files.atomic import replace_folder_atomically
from mltune.files.reading import reason
from mltune.winner.document import describe
from mltune.winner.examples import fill_templates
from mltune.winner.source import header_files, kernel_source

if TYPE_CHECKING:
    from mltune.winner.winner import Winner

DOCUMENT = "winner.json"
"""The file that every winner's folder holds."""


def write_winner(folder: Path, winner: Winner) -> None:
    """Write a folder with everything that a user of C++ or CuPy needs, in place of an existing one.

    It contains ``kernel.cu`` with its headers, ``kernel.cubin``, ``winner.json``, ``README.txt`` and the examples of
    the problem kind; for a winner without machine code (in replay) only ``winner.json``, with the reason. See
    docs/reference/winner.md. The parent of the folder is created if necessary.

    Raises
    ------
    DiskFullError
        The folder cannot be written, for example because the disk is full. An existing one is unchanged.
    """
    write_folder(folder, winner_files(winner, datetime.now(UTC).isoformat(timespec="seconds")))


def winner_files(winner: Winner, date: str) -> dict[str, bytes]:
    """Return the files of a winner's folder by name; ``date`` is the time of writing."""
    if winner.lacks_code:
        return {DOCUMENT: _json(describe(winner, {}, date))}
    sources = {"kernel.cu": kernel_source(winner, date), **header_files(winner.kernel)}
    files = {name: text.encode() for name, text in sources.items()} | {"kernel.cubin": winner.build.cubin}
    document = describe(winner, files, date)
    return {**files, **fill_templates(winner, document), DOCUMENT: _json(document)}


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder of files in place of an existing one; see :func:`replace_folder_atomically`.

    Raises
    ------
    DiskFullError
        The folder cannot be written. An existing one is unchanged.
    """
    try:
        replace_folder_atomically(folder, files)
    except OSError as error:
        raise DiskFullError(
            f"the winner must be written as a whole, but {folder} cannot be: {reason(error)}; make room on the disk "
            "and repeat the command: no trial is measured again, and an existing folder is unchanged."
        ) from error


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=2).encode() + b"\n"
