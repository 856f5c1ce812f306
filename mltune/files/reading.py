"""Readers of files that may come from strangers: regular files only, up to a limit."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from mltune.files.opening import RefusedFileError, open_regular

__all__ = ["RefusedFileError", "opened_file", "read_file", "read_text", "reason"]

_REASONS = {
    errno.EACCES: "permission is denied",
    errno.EEXIST: "there is a file where a folder must be",
    errno.ENAMETOOLONG: "its name is too long",
    errno.ENOENT: "there is no such file or folder",
    errno.ENOTDIR: "there is a file where a folder must be",
}


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
def opened_file(path: Path | str, limit: int, *, inside: Path | None = None) -> Iterator[BinaryIO]:
    """Open a regular file of at most ``limit`` bytes for reading; ``inside`` is that of :func:`open_regular`.

    A file that is no regular file, is too large, or lies behind a link raises a :class:`RefusedFileError`.

    Examples
    --------
    >>> with opened_file("/dev/zero", limit=100):
    ...     pass
    Traceback (most recent call last):
    mltune.files.opening.RefusedFileError: only regular files are opened, but /dev/zero is a character device
    """
    with os.fdopen(open_regular(path, inside=inside), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise RefusedFileError(f"at most {limit} bytes are read, but {path} has {size}")
        yield file


def read_file(path: Path | str, limit: int, *, inside: Path | None = None) -> bytes:
    """Read a regular file of at most ``limit`` bytes; errors are those of :func:`opened_file`.

    A file that grows while it is read is refused as well.
    """
    with opened_file(path, limit, inside=inside) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise RefusedFileError(f"at most {limit} bytes are read, but {path} has more")
    return data


def read_text(path: Path | str, limit: int, *, inside: Path | None = None) -> str:
    """Read a regular file of UTF-8 text; errors are those of :func:`opened_file`."""
    try:
        return read_file(path, limit, inside=inside).decode("utf-8")
    except UnicodeDecodeError as error:
        raise RefusedFileError(f"text is encoded in UTF-8, but {path} is not at byte {error.start}") from None
