"""Bundles at a revision in git: objects are read as they are, and nothing that the repository configures is run."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from mltune.errors import BundleError, UsageError
from mltune.files.text import printable
from mltune.kernel.bundle import Kernel
from mltune.kernel.reader import load_kernel

MAX_FILES = 20_000
"""Most files of a bundle in git."""

MAX_BYTES = 2**28
"""Most bytes of all files of a bundle in git."""

_MAX_LISTING_BYTES = 2**23
_MAX_HEADER_BYTES = 200  # of an object: its name, its type and its size
_MAX_ERROR_BYTES = 2**16
_MEMORY_BYTES = 2**30  # a small object may be the difference from a large one
_LISTING_S, _READING_S = 8.0, 60.0  # sizes are listed at once; a FIFO in a repository never ends

_GIT = ("git", "--no-pager", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
_ENVIRONMENT = {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "", "GIT_TERMINAL_PROMPT": "0"}  # older git fetches


@dataclass(frozen=True, slots=True)
class _File:
    """A file of a tree: its path, and the name and the size of its object."""

    path: str
    id: str
    size: int


def load_revision(name: str, folder: Path) -> Kernel:
    """Load the bundle ``REVISION:PATH`` from a copy in a new folder, in which links are texts and submodules lack."""
    try:
        _copy(_files(name), folder)
        return load_kernel(folder)
    except (OSError, ValueError, subprocess.SubprocessError, BundleError) as error:
        fact = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip() or str(error)
        raise UsageError(
            f"{printable(name, 300)} is no version: {printable(fact.replace(str(folder), name).rstrip('.'), 600)}. A "
            "version is a folder, a built-in kernel, a .cu file, or a bundle in git as REVISION:PATH."
        ) from error


def _files(name: str) -> list[_File]:
    """Return the files of a tree, links among them, within the limits."""
    files = []
    command = ("ls-tree", "-r", "-l", "-z", "--full-tree", "--", name)
    with _output_of(*command, most_bytes=_MAX_LISTING_BYTES, seconds=_LISTING_S) as listing:
        for line in filter(None, listing.read().split(b"\0")):
            facts, _, path = os.fsdecode(line).partition("\t")
            _, kind, id, size = facts.split()
            if kind == "blob":  # else a submodule
                if not size.isdecimal():
                    raise ValueError(f"the repository lacks the content of {path}; fetch it with git")
                files.append(_File(path, id, int(size)))
    total = sum(file.size for file in files)
    if len(files) > MAX_FILES or total > MAX_BYTES:
        fact = f"the bundle has {len(files)} files and {total} bytes in git"
        raise ValueError(f"{fact}; it may have {MAX_FILES} and {MAX_BYTES}")
    return files


def _copy(files: list[_File], folder: Path) -> None:
    """Write files into a new folder."""
    folder.mkdir()
    names = "".join(f"{file.id}\n" for file in files).encode()
    most_bytes = sum(file.size + _MAX_HEADER_BYTES for file in files)
    with _output_of("cat-file", "--batch", most_bytes=most_bytes, seconds=_READING_S, stdin=names) as contents:
        for file in files:
            header = contents.readline(_MAX_HEADER_BYTES).decode()
            if header != f"{file.id} blob {file.size}\n":
                raise ValueError(f"the content of {file.path} cannot be read: {header.strip()}")
            path = _path_below(folder, file.path)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as copy:
                copy.write(contents.read(file.size))
            contents.read(1)  # the end of the line


def _path_below(folder: Path, path: str) -> Path:
    """Return the path of a file, which a forged tree may lead out of the folder."""
    parts = path.split("/")
    if not {"", ".", ".."}.isdisjoint(parts):
        raise ValueError(f"git has a file at {path}, outside of the folder of the bundle")
    return folder.joinpath(*parts)


@contextmanager
def _output_of(*arguments: str, most_bytes: int, seconds: float, stdin: bytes = b"") -> Iterator[BinaryIO]:
    """Yield the output of a command of git that reads objects, within limits of bytes, memory and time."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as requests:
        requests.write(stdin)
        requests.seek(0)
        environment = {**os.environ, **_ENVIRONMENT}
        most_written = max(most_bytes, _MAX_ERROR_BYTES)
        limits = f"ulimit -f {most_written // 512} && ulimit -d {_MEMORY_BYTES // 1024}"  # before git begins
        with subprocess.Popen(  # noqa: S603 - what is named stands behind --: it is no option
            ["/bin/sh", "-c", f'{limits} && exec "$@"', "sh", *_GIT, *arguments],
            env=environment,
            stdin=requests,
            stdout=output,
            stderr=errors,
        ) as process:
            try:
                status = process.wait(seconds)
            except BaseException:
                process.kill()
                raise
        if status == -signal.SIGXFSZ:
            raise ValueError(f"git lists or reads more than {most_written} bytes of this bundle")
        errors.seek(0)
        output.seek(0)
        if status:
            raise subprocess.CalledProcessError(status, "git", stderr=errors.read(_MAX_ERROR_BYTES))
        yield output
