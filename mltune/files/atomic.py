"""Atomic writing of files, folders and lines: readers see the old content or the new, also after a crash.

Nothing is written or removed through a link (:mod:`mltune.files.reading`). Only what this process has made under random
names, or what a list with hashes says is mltune's (:mod:`mltune.files.owned`), is removed.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from mltune.files.owned import FolderProduct, ForeignFileError, Product, check_replaceable, foreign_in
from mltune.files.reading import RefusedFileError, check_folder, kind_of, open_regular, read_file

_log = logging.getLogger(__name__)

_RENAME_EXCHANGE = 2  # from Linux's fs.h
_HERE = -100  # AT_FDCWD: paths are those of the process


def write_file_atomically(path: Path, data: bytes, *, inside: Path | None = None, durable: bool = True) -> None:
    """Write a file in a folder that may be missing; an existing file is replaced only once the new one is complete.

    No link below ``inside`` (by default the file's folder) is followed. A ``durable`` file is on the disk at the
    return, so that a full disk is noticed and a crash leaves no empty file.
    """
    check_folder(path.parent, inside=inside or path.parent, create=True)
    partial = path.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        with _naming(path):
            _write(partial, data, durable)
            partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def write_product(path: Path, data: bytes, product: Product, *, overwrite: bool = False) -> None:
    """Write a file atomically in place of one that mltune wrote, or with ``overwrite`` of any file."""
    if not overwrite:
        check_replaceable({path: product})
    write_file_atomically(path, data)


def write_described(path: Path, data: bytes, description: Path, text: bytes) -> None:
    """Write a file, and a description that holds its SHA-256: a kill leaves the old two or the new two."""
    sha256 = hashlib.sha256(data).hexdigest()
    coming = _coming(path, sha256)
    if os.path.lexists(coming) and described_file(path, sha256, len(data)) != coming:
        raise ForeignFileError(f"{coming} does not have the hash of its name, and is not replaced; move it")
    write_file_atomically(coming, data)
    write_file_atomically(description, text)
    with _naming(path):
        coming.replace(path)


def described_file(path: Path, sha256: str, limit: int) -> Path:
    """Return the file that a description belongs to, also if its writer was killed before it had its name."""
    coming = _coming(path, sha256)
    with contextlib.suppress(OSError):
        if hashlib.sha256(read_file(coming, limit, inside=path.parent)).hexdigest() == sha256:
            return coming
    return path


def _coming(path: Path, sha256: str) -> Path:
    """Return the name of a file with some content before it has its own name."""
    return path.with_name(f".{path.name}.{sha256[:16]}.new")


def append_line(path: Path, line: bytes) -> None:
    """Append a line in one write, after an end for an incomplete line; lines of concurrent processes stay whole."""
    descriptor = open_regular(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, inside=path.parent)
    try:
        size = os.fstat(descriptor).st_size
        incomplete = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        line = (b"\n" if incomplete else b"") + line + b"\n"
        with _naming(path):
            if os.write(descriptor, line) < len(line):
                raise OSError(f"{path} holds only a part of a line")
    finally:
        os.close(descriptor)


def replace_folder_atomically(
    path: Path,
    files: Mapping[str, bytes],
    product: FolderProduct | None = None,
    *,
    inside: Path | None = None,
    overwrite: bool = False,
) -> Path | None:
    """Write a folder of files; an existing folder is replaced in one step where the file system supports that.

    The files are first written to a folder with a random name beside the target. Where two folders cannot be exchanged
    in one step (over NFS), the old one gets a random name first. A writer that is killed may leave such folders,
    ``.NAME.<16 hex digits>.new`` or ``.old``: the next call logs a warning that names them. One process at a time may
    write a folder.

    ``files`` are by path in the folder, ``FOLDER/NAME``. A folder of the kind ``product`` is replaced if mltune wrote
    every file in it; with ``overwrite`` anything else gets another name, which is returned. Otherwise it raises a
    :class:`~mltune.files.owned.ForeignFileError`. On an error an existing folder is unchanged.
    """
    check_folder(path.parent, inside=inside or path.parent, create=True)
    fact = foreign_in(path, product) if product is not None else kind_of(path) and f"{path} exists"
    if fact and not overwrite:
        raise ForeignFileError(f"{fact}, and only a folder whose files mltune wrote is replaced; move it")
    _name_remains(path)
    mark = secrets.token_hex(8)
    new, old = (path.with_name(f".{path.name}.{mark}.{end}") for end in ("new", "old"))
    with _naming(path):
        _make_folder(new, files)
    _put(new, path, old)
    if product is None or fact or foreign_in(old, product):
        return _kept(path, old)
    _remove(old)
    return None


def _put(new: Path, path: Path, old: Path) -> None:
    """Give a new folder its name, and the holder of this name another one."""
    if os.path.lexists(path) and _exchange(new, path):
        new.rename(old)
        return
    is_moved = os.path.lexists(path)
    try:
        if is_moved:
            path.rename(old)
        new.rename(path)
    except OSError:
        if is_moved and not os.path.lexists(path):
            old.rename(path)
        shutil.rmtree(new, ignore_errors=True)
        raise


def _kept(path: Path, old: Path) -> Path | None:
    """Give the earlier content of a folder's place a visible name; None if there was none."""
    if not os.path.lexists(old):
        return None
    kept = path.with_name(old.name.removeprefix("."))
    old.rename(kept)
    return kept


def _name_remains(path: Path) -> None:
    """Log a warning that names the remains of killed writers of a folder; they are not removed."""
    name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}\.(new|old)")
    for remains in sorted(filter(name.fullmatch, os.listdir(path.parent))):
        _log.warning("a writer of %s was killed and left %s: look whether it is needed", path, path.parent / remains)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Let errors name the file to be written: those of a full disk name none, others a temporary one."""
    try:
        yield
    except OSError as error:
        if error.errno:
            error.filename, error.filename2 = os.fspath(path), None
        raise


def _make_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make a folder with files, also in folders of it, as a whole or not at all."""
    folder.mkdir()
    try:
        for name, content in files.items():
            if not {"", ".", ".."}.isdisjoint(name.split(os.sep)):
                raise RefusedFileError(f"the path {name!r} leads out of its folder")
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            _write(file, content, durable=True)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _write(path: Path, content: bytes, durable: bool) -> None:
    """Write a new file."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o666), "wb") as file:
        file.write(content)
        file.flush()
        if durable:
            os.fsync(file.fileno())


def _exchange(first: Path, other: Path) -> bool:
    """Exchange two folders with Linux's ``renameat2``, which Python lacks; return whether it did."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None:
        return False
    return bool(rename(_HERE, os.fsencode(first), _HERE, os.fsencode(other), _RENAME_EXCHANGE) == 0)


def _remove(folder: Path) -> None:
    """Remove a folder of regular files that mltune wrote; a link or a file that was added meanwhile stays."""
    for place, inner, names in os.walk(folder, topdown=False):
        for name in names:
            Path(place, name).unlink()
        for name in inner:
            Path(place, name).rmdir()
    with contextlib.suppress(FileNotFoundError):
        folder.rmdir()
