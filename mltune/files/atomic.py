"""Atomic replacement of files and folders: readers see the old content or the new, also after a crash.

Nothing is written or removed through a link (:mod:`mltune.files.opening`): a link in place of the file or folder is
itself replaced.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

from mltune.files.opening import RefusedFileError, open_folder

_RENAME_EXCHANGE = 2  # from Linux's fs.h


def write_file_atomically(path: Path, data: bytes, *, inside: Path | None = None, durable: bool = True) -> None:
    """Write a file; an existing file is replaced only once the new one is complete.

    Parameters
    ----------
    path : pathlib.Path
        Its folder is created if it is missing.
    data : bytes
    inside : pathlib.Path, optional
        A directory on the way to the file, by default its folder: no link below it is followed.
    durable : bool
        Whether to wait until the file is on the disk, so that a full disk is noticed and a crash leaves no empty file.

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
    partial = f".{secrets.token_hex(8)}.partial"
    with open_folder(path.parent, inside=inside or path.parent, create=True) as folder:
        try:
            _write(partial, data, folder, durable)
            os.replace(partial, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(partial, dir_fd=folder)
            raise


def replace_folder_atomically(path: Path, files: Mapping[str, bytes], *, inside: Path | None = None) -> None:
    """Write a folder of files; an existing folder is replaced in one step where the file system supports that.

    The files are first written to a folder ``.NAME.new`` beside the target. Where two folders cannot be exchanged in
    one step (over NFS), the old one is renamed ``.NAME.old`` first; if the writer is killed between the two renames,
    the next call restores the old folder. One process at a time may write a folder.

    Parameters
    ----------
    path : pathlib.Path
        The folder in which it lies is created if it is missing.
    files : mapping of str to bytes
        By name; that of a file in a folder of the folder is ``FOLDER/NAME``.
    inside : pathlib.Path, optional
        As for :func:`write_file_atomically`.

    Raises
    ------
    OSError
        The folder cannot be written. An existing folder is unchanged.
    """
    name, new, old = path.name, f".{path.name}.new", f".{path.name}.old"
    with open_folder(path.parent, inside=inside or path.parent, create=True) as parent:
        try:
            if _exists(old, parent) and not _exists(name, parent):
                _rename(old, name, parent)
            _remove(new, parent)
            _remove(old, parent)
            _make_folder(new, files, parent)
            if _exists(name, parent) and not _exchange(new, name, parent):
                _rename(name, old, parent)
            if not _exists(name, parent):
                _rename(new, name, parent)
            _remove(new, parent)
            _remove(old, parent)
        except OSError:
            with contextlib.suppress(OSError):
                _remove(new, parent)
            raise


def _make_folder(name: str, files: Mapping[str, bytes], parent: int) -> None:
    """Make a folder with some files, which may lie in folders of it."""
    below: dict[str, dict[str, bytes]] = {}
    for file, content in files.items():
        if not {"", ".", ".."}.isdisjoint(file.split(os.sep)):
            raise RefusedFileError(f"the path of a file in a folder stays in the folder, but this is {file!r}")
        *first, rest = file.split(os.sep, 1)
        below.setdefault("".join(first), {})[rest] = content
    os.mkdir(name, dir_fd=parent)
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        for file, content in below.pop("", {}).items():
            _write(file, content, folder, durable=True)
        for part, inner in below.items():
            _make_folder(part, inner, folder)
    finally:
        os.close(folder)


def _write(name: str, content: bytes, folder: int, durable: bool) -> None:
    """Write a new file in a folder."""
    if os.sep in name:
        raise RefusedFileError(f"the name of a file in a folder has no {os.sep}, but this is {name!r}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, 0o666, dir_fd=folder), "wb") as file:
        file.write(content)
        file.flush()
        if durable:
            os.fsync(file.fileno())


def _exchange(one: str, other: str, folder: int) -> bool:
    """Exchange two folders with Linux's ``renameat2``, which Python does not offer; return whether that was done."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None:
        return False
    return bool(rename(folder, os.fsencode(one), folder, os.fsencode(other), _RENAME_EXCHANGE) == 0)


def _rename(old: str, new: str, folder: int) -> None:
    os.rename(old, new, src_dir_fd=folder, dst_dir_fd=folder)


def _exists(name: str, folder: int) -> bool:
    return _mode(name, folder) is not None


def _mode(name: str, folder: int) -> int | None:
    """Return the type of a file, of a link itself, or None where there is nothing."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None


def _remove(name: str, folder: int) -> None:
    """Remove a file, a link, or a folder with everything in it."""
    mode = _mode(name, folder)
    if mode is not None and stat.S_ISDIR(mode):
        shutil.rmtree(name, dir_fd=folder)
    elif mode is not None:
        os.unlink(name, dir_fd=folder)
