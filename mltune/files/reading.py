"""Readers of files that strangers may have put in place: regular files, JSON and TOML, all with limits.

The path to the directory that a user names may lead through links, because the user made them. Its content may come
from somebody else: a link there would lead the program out of the directory.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from mltune.files.text import printable

_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY  # opening a FIFO does not wait for its other end
_REASONS = {
    errno.EACCES: "permission is denied",
    errno.EEXIST: "there is a file where a folder must be",
    errno.ENAMETOOLONG: "its name is too long",
    errno.ENOENT: "there is no such file or folder",
    errno.ENOTDIR: "there is a file where a folder must be",
}


class RefusedFileError(OSError):
    """A file is refused: it is no regular file, lies behind a link, is larger than allowed, or is not UTF-8 text."""


def open_regular(path: Path | str, flags: int = os.O_RDONLY, *, inside: Path | None = None) -> int:
    """Open a regular file, behind no link below ``inside`` if that is given, and return its descriptor."""
    path = Path(path)
    if inside is not None:
        _check_no_link(path, inside)
        flags |= os.O_NOFOLLOW
    with contextlib.suppress(FileNotFoundError):
        _check_is_regular(os.stat(path), path)  # before it is opened: that can have effects on a device
    descriptor = os.open(path, flags | _FLAGS, 0o666)
    try:
        _check_is_regular(os.fstat(descriptor), path)
    except RefusedFileError:
        os.close(descriptor)
        raise
    return descriptor


def check_folder(path: Path, *, inside: Path, create: bool = False) -> None:
    """Check that a folder exists behind no link below ``inside``; with ``create`` make missing folders."""
    if create:
        inside.mkdir(parents=True, exist_ok=True)
    _check_no_link(path, inside)
    if create:
        path.mkdir(parents=True, exist_ok=True)
    with os.scandir(path):
        pass


@contextlib.contextmanager
def opened_file(path: Path | str, limit: int, *, inside: Path | None = None) -> Iterator[BinaryIO]:
    """Open a regular file of at most ``limit`` bytes for reading, as :func:`open_regular` does; refuse any other."""
    with os.fdopen(open_regular(path, inside=inside), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise RefusedFileError(f"{path} has {size} bytes, of which at most {limit} are read")
        yield file


def read_file(path: Path | str, limit: int, *, inside: Path | None = None) -> bytes:
    """Read a regular file of at most ``limit`` bytes (:func:`opened_file`); one that grows is refused, too."""
    with opened_file(path, limit, inside=inside) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(min(size, limit) + 1)  # as many bytes are reserved
        if len(data) > size:  # it grows, or has no size, as those in /proc
            data += file.read(limit + 1 - len(data))
    if len(data) > limit:
        raise RefusedFileError(f"{path} has more than {limit} bytes, the most that are read")
    return data


def read_text(path: Path | str, limit: int, *, inside: Path | None = None) -> str:
    """Read a regular file of UTF-8 text; errors are those of :func:`opened_file`."""
    try:
        return read_file(path, limit, inside=inside).decode("utf-8")
    except UnicodeDecodeError as error:
        raise RefusedFileError(f"{path} is not text in UTF-8 at byte {error.start}") from None


def read_source(path: Path | str, limit: int, *, inside: Path | None = None) -> str:
    """Read the text of a source (:func:`read_text`) without its byte order mark; one with a zero byte is refused."""
    text = read_text(path, limit, inside=inside)
    if "\0" in text:
        raise RefusedFileError(f"{path} is not text: it has a zero byte")
    return text.removeprefix("\ufeff")


def stamp_of(path: Path) -> tuple[int, ...] | None:
    """Return what tells one content of a file from another; None where there is no file."""
    with contextlib.suppress(OSError):
        status = path.stat()
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
    return None


def reason(error: Exception) -> str:
    """Return why a file or folder cannot be used, in words, for a message that names it."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return _REASONS.get(error.errno or 0, error.strerror[:1].lower() + error.strerror[1:])


@contextlib.contextmanager
def raising(kind: Callable[[str], Exception], law: str, *caught: type[Exception]) -> Iterator[None]:
    """Raise an error of another kind for those that are caught, OSErrors by default: the law, and the reason."""
    errors = caught or (OSError,)
    try:
        yield
    except errors as error:
        raise kind(f"{law}: {reason(error)}.") from error


def kind_of(path: Path) -> str:
    """Return the kind of a file in words, that of a link with its target; empty if there is nothing.

    >>> kind_of(Path("/dev/zero")), kind_of(Path("/dev/fd")), kind_of(Path("/no/such/file"))
    ('a character device', 'a link to /proc/self/fd', '')
    """
    try:
        mode = path.lstat().st_mode
        return f"a link to {printable(os.readlink(path))}" if stat.S_ISLNK(mode) else _kind(mode)
    except (FileNotFoundError, NotADirectoryError):
        return ""


def _check_no_link(path: Path, inside: Path) -> None:
    at = inside
    for part in path.relative_to(inside).parts:
        at = at / part
        if at.is_symlink():
            raise RefusedFileError(f"{at} is {kind_of(at)}, and no link is followed there")


def _check_is_regular(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise RefusedFileError(f"{path} is {_kind(status.st_mode)}, and only regular files are opened")


def _kind(mode: int) -> str:
    return {
        stat.S_IFREG: "a regular file",
        stat.S_IFDIR: "a directory",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a character device",
        stat.S_IFBLK: "a block device",
    }.get(stat.S_IFMT(mode), "of an unknown kind")


DEEPEST = 32
"""Largest depth of tables and lists in a document."""

_LARGEST_INTEGER = 2**63
_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![\w-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{DEEPEST}}}")


def parse_json(data: bytes | str, object_of: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Parse JSON; deep nesting, an integer of more than 64 bits or a repeated key is a ValueError, too.

    ``object_of`` makes an object of its pairs, such as one in which a key may be repeated.
    """
    try:
        with _naming_long_integers():
            return _checked(json.loads(data, object_pairs_hook=object_of or _object))
    except RecursionError:
        raise _too_deep() from None


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; errors are those of :func:`parse_json`."""
    if _LONG_KEY.search(text):  # the parser needs seconds and gigabytes for them
        raise _too_deep()
    try:
        with _naming_long_integers():
            document: dict[str, Any] = _checked(tomllib.loads(text))
        return document
    except RecursionError:
        raise _too_deep() from None


@contextlib.contextmanager
def _naming_long_integers() -> Iterator[None]:
    """Replace Python's advice about integers of more than 4300 digits by mltune's law."""
    try:
        yield
    except ValueError as error:
        if "integer string conversion" in str(error):
            raise ValueError("an integer has thousands of digits; it may have 64 bits") from None
        raise


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of pairs; a repeated key would lose a value."""
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a key of an object occurs twice; keys differ")
    return document


def _checked(document: Any) -> Any:
    """Return a document after checking its depth and its integers."""
    level = [document]
    for _ in range(DEEPEST):
        below: list[Any] = []
        for value in level:
            parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
            for part in parts:
                kind = type(part)  # a hundred million parts take seconds
                if kind is dict or kind is list:
                    below.append(part)
                elif kind is int and not -_LARGEST_INTEGER <= part < _LARGEST_INTEGER:
                    raise ValueError(f"an integer has {part.bit_length()} bits; it may have 64 bits")
        if not below:
            return document
        level = below
    raise _too_deep()


def _too_deep() -> ValueError:
    return ValueError(f"the document has more than {DEEPEST} levels")
