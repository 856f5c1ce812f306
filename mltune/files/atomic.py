"""Atomic replacement of files and folders: readers see the old content or the new, also after a crash."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # from Linux's fcntl.h and fs.h


def write_file_atomically(path: Path, data: bytes) -> None:
    """Write a file through to the disk; an existing file is replaced only once the new one is complete.

    Raises
    ------
    OSError
        The file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "winners.json"
    >>> write_file_atomically(path, b"{}")
    >>> path.read_bytes()
    b'{}'
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _write_through(partial, data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def replace_folder_atomically(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder of files; an existing folder is replaced in one step where the file system supports that.

    The files are first written to a folder ``.NAME.new`` beside the target. Where two folders cannot be exchanged in
    one step (over NFS), the old one is renamed ``.NAME.old`` first; if the writer is killed between the two renames,
    the next call restores the old folder. One process at a time may write a folder.

    Raises
    ------
    OSError
        The folder cannot be written. An existing folder is unchanged.
    """
    new, old = (folder.with_name(f".{folder.name}.{kind}") for kind in ("new", "old"))
    try:
        if old.exists() and not folder.exists():
            old.rename(folder)
        _remove(new)
        _remove(old)
        new.mkdir(parents=True)
        for name, content in files.items():
            _write_through(new / name, content)
        if folder.exists() and not _exchange(new, folder):
            folder.rename(old)
        if not folder.exists():
            new.rename(folder)
        _remove(new)
        _remove(old)
    except OSError:
        shutil.rmtree(new, ignore_errors=True)
        raise


def _write_through(path: Path, content: bytes) -> None:
    """Write a file and sync it, so that a full disk is noticed before the file takes its place."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders with Linux's ``renameat2``, which Python does not offer; return whether that was done."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None:
        return False
    return bool(rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0)


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)
