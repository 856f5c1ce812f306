"""Atomic writing of files, folders and lines: readers see the old content or the new, also after a crash.

Nothing is written or removed through a link (:mod:`mltune.files.reading`): a link in place of the file or folder is
itself replaced.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from mltune.files.reading import RefusedFileError, check_folder, open_regular, read_file

_RENAME_EXCHANGE = 2  # from Linux's fs.h
_HERE = -100  # AT_FDCWD: paths are those of the process


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

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "winners.json"
    >>> write_file_atomically(path, b"{}")
    >>> path.read_bytes()
    b'{}'
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


def write_described(path: Path, data: bytes, description: Path, text: bytes) -> None:
    """Write a file, and a description of it that holds its SHA-256: a kill leaves the old two or the new two.

    Readers open what :func:`described_file` returns.
    """
    coming = _coming(path)
    write_file_atomically(coming, data)
    write_file_atomically(description, text)
    with _naming(path):
        coming.replace(path)


def described_file(path: Path, sha256: str, limit: int) -> Path:
    """Return the file that a description belongs to; the writer may have been killed before it had its name."""
    with contextlib.suppress(OSError):
        if hashlib.sha256(read_file(_coming(path), limit, inside=path.parent)).hexdigest() == sha256:
            return _coming(path)
    return path


def _coming(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")


def append_line(path: Path, line: bytes) -> None:
    """Append a line in one write; after an incomplete line, which a full disk may leave, begin a new one.

    Lines of processes that append at the same time are whole.
    """
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
    check_folder(path.parent, inside=inside or path.parent, create=True)
    new, old = path.with_name(f".{path.name}.new"), path.with_name(f".{path.name}.old")
    try:
        if os.path.lexists(old) and not os.path.lexists(path):
            old.rename(path)
        _remove(new)
        _remove(old)
        with _naming(path):
            _make_folder(new, files)
        if os.path.lexists(path) and not _exchange(new, path):
            path.rename(old)
        if not os.path.lexists(path):
            new.rename(path)
        _remove(new)
        _remove(old)
    except OSError:
        with contextlib.suppress(OSError):
            _remove(new)
        raise


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Let errors name the file that was to be written: those of a full disk name none, others a temporary one."""
    try:
        yield
    except OSError as error:
        if error.errno:
            error.filename, error.filename2 = os.fspath(path), None
        raise


def _make_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make a folder with some files, which may lie in folders of it."""
    folder.mkdir()
    for name, content in files.items():
        if not {"", ".", ".."}.isdisjoint(name.split(os.sep)):
            raise RefusedFileError(f"the path of a file in a folder stays in the folder, but this is {name!r}")
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        _write(file, content, durable=True)


def _write(path: Path, content: bytes, durable: bool) -> None:
    """Write a new file."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o666), "wb") as file:
        file.write(content)
        file.flush()
        if durable:
            os.fsync(file.fileno())


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders with Linux's ``renameat2``, which Python does not offer; return whether that was done."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None:
        return False
    return bool(rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _RENAME_EXCHANGE) == 0)


def _remove(path: Path) -> None:
    """Remove a file, a link, or a folder with everything in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
