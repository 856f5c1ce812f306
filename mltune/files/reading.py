"""Read files that may come from strangers: regular files only, up to a limit."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_REASONS = {
    errno.EACCES: "permission is denied",
    errno.EEXIST: "a file is in its place",
    errno.ENAMETOOLONG: "its name is too long",
    errno.ENOENT: "there is no such file or folder",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
}


class RefusedFileError(OSError):
    """A file is not read: it is no regular file, is larger than allowed, or is not UTF-8 text."""


def reason(error: Exception) -> str:
    """Return why a file or folder cannot be used, in words, for a message that names it.

    Examples
    --------
    >>> try:
    ...     open("no/such/file")
    ... except OSError as error:
    ...     print(reason(error))
    there is no such file or folder
    """
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return _REASONS.get(error.errno or 0, error.strerror[:1].lower() + error.strerror[1:])


@contextlib.contextmanager
def opened_file(path: Path | str, limit: int) -> Iterator[BinaryIO]:
    """Open a regular file for reading, without waiting for a writer as a FIFO would.

    Parameters
    ----------
    path : path-like
        A link to a regular file is followed: the user named it.
    limit : int
        Size that the file may have, bytes.

    Raises
    ------
    OSError
        The file cannot be opened; :class:`RefusedFileError` if it is not a regular file or is too large.

    Examples
    --------
    >>> with opened_file("/dev/zero", limit=100):
    ...     pass
    Traceback (most recent call last):
    mltune.files.reading.RefusedFileError: only regular files are read, but /dev/zero is a character device
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise RefusedFileError(f"only regular files are read, but {path} is {_kind(found.st_mode)}")
        if found.st_size > limit:
            raise RefusedFileError(f"at most {limit} bytes are read, but {path} has {found.st_size}")
    except OSError:
        os.close(descriptor)
        raise
    with os.fdopen(descriptor, "rb") as file:
        yield file


def read_file(path: Path | str, limit: int) -> bytes:
    """Read a regular file of at most ``limit`` bytes; errors are those of :func:`opened_file`.

    A file that grows while it is read is refused as well.
    """
    with opened_file(path, limit) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise RefusedFileError(f"at most {limit} bytes are read, but {path} has more")
    return data


def read_text(path: Path | str, limit: int) -> str:
    """Read a regular file of UTF-8 text; errors are those of :func:`opened_file`."""
    try:
        return read_file(path, limit).decode("utf-8")
    except UnicodeDecodeError as error:
        raise RefusedFileError(f"text is encoded in UTF-8, but {path} is not at byte {error.start}") from None


def _kind(mode: int) -> str:
    """Return the kind of a file that is not a regular one."""
    kinds = {
        stat.S_IFDIR: "a directory",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a character device",
        stat.S_IFBLK: "a block device",
    }
    return kinds.get(stat.S_IFMT(mode), "none")
