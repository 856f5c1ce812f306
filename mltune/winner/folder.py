"""The winner's folder, always complete: a writer that dies leaves the old folder or the new one."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltune.errors import DiskFullError
from mltune.winner.document import describe
from mltune.winner.examples import fill_templates
from mltune.winner.source import kernel_source

if TYPE_CHECKING:
    from mltune.winner.winner import Winner

DOCUMENT = "winner.json"
"""The file that every winner's folder holds."""

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of Linux's fcntl.h and fs.h


def write_winner(folder: Path, winner: Winner) -> None:
    """Write a folder with everything that a user of C++ or CuPy needs, in place of an existing one.

    It contains ``kernel.cu``, ``kernel.cubin``, ``winner.json``, ``README.txt`` and the examples of the problem kind;
    for a winner without machine code (in replay) only ``winner.json``, with the reason. See the documentation of
    winners.

    Parameters
    ----------
    folder : pathlib.Path
        The folder; its parent is created if necessary.
    winner : Winner

    Raises
    ------
    DiskFullError
        The folder cannot be written, for example because the disk is full. An existing one is unchanged.
    """
    write_folder(folder, winner_files(winner, datetime.now(UTC).isoformat(timespec="seconds")))


def winner_files(winner: Winner, date: str) -> dict[str, bytes]:
    """Return the files of a winner's folder by name.

    Parameters
    ----------
    winner : Winner
    date : str
        Time of writing.
    """
    if winner.lacks_code:
        return {DOCUMENT: _json(describe(winner, {}, date))}
    files = {"kernel.cu": kernel_source(winner, date).encode(), "kernel.cubin": winner.build.cubin}
    document = describe(winner, files, date)
    return {**files, **fill_templates(winner, document), DOCUMENT: _json(document)}


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder of files; one that is there is replaced in one step, where the file system can.

    The files are written into a folder beside it, ``.NAME.new``, which then takes its place. Where two folders cannot
    be exchanged in one step (over NFS), the old one is first renamed ``.NAME.old``: a writer that is killed between the
    two renames leaves it there, and the next call puts it back before anything else.
    One process at a time may write a folder.

    Parameters
    ----------
    folder : pathlib.Path
    files : mapping of str to bytes
        Contents by name.

    Raises
    ------
    DiskFullError
        It cannot be written; what stood there before still does.
    """
    new, old = (folder.with_name(f".{folder.name}.{kind}") for kind in ("new", "old"))
    try:
        if old.exists() and not folder.exists():
            old.rename(folder)
        _remove(new)
        _remove(old)
        new.mkdir(parents=True)
        for name, content in files.items():
            _write(new / name, content)
        if folder.exists() and not _exchange(new, folder):
            folder.rename(old)
        if not folder.exists():
            new.rename(folder)
        _remove(new)
        _remove(old)
    except OSError as error:
        shutil.rmtree(new, ignore_errors=True)
        raise DiskFullError(
            f"the winner must be written as a whole, but {folder} cannot be: {error}; make room on the disk and repeat "
            "the command: no trial is measured anew, and what stood there before still does."
        ) from error


def _write(path: Path, content: bytes) -> None:
    """Write a file through to the disk: a full one is noticed here, not after the folder has taken its place."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step, as Linux can; Python cannot ask for it. False where nothing was done."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None:
        return False
    return bool(rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0)


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=2).encode() + b"\n"
