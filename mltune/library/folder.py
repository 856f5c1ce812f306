"""The folder of a library: written whole, read with all hashes compared."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mltune.errors import DiskFullError, LibraryError, MltuneWarning
from mltune.files.atomic import replace_folder_atomically
from mltune.files.owned import LIBRARY, foreign_in
from mltune.files.reading import parse_json, raising, read_file, reason
from mltune.files.text import printable
from mltune.files.validation import validated
from mltune.library.content import Content
from mltune.library.document import ABI, FORMAT, HASH, READABLE, LibraryDocument, hash_of
from mltune.library.source import c_files

DOCUMENT = "library.json"
_MAX_BYTES = 1 << 28
"""Most bytes of all files: the machine code of 255 configurations as C source, some 100 kB each, and compiled."""

_MAX_DOCUMENT_BYTES = 1 << 22
"""Most bytes of a document: the trees of a hundred configurations are 3 MB."""

_MAX_CODE_CHARACTERS = 1 << 24  # of some 6 MB of machine code
_COMPILE_S = 600.0
_COMPILERS = ("cc", "gcc", "clang")
_FLAGS = ("-O3", "-ffp-contract=off", "-shared", "-fPIC")
"""Options of the compiler; it may not round a product and a sum at once, as NumPy does not."""

_WORDS = re.compile(rb"0x[0-9a-f]{1,16}(?:, 0x[0-9a-f]{1,16})*+")


def write_library(folder: Path, content: Content, *, overwrite: bool = False) -> dict[str, Any]:
    """Write the folder of a library in place of an existing library, and return its document.

    The shared object is among the files where there is a C compiler. With `overwrite` a folder of anything else gets
    another name, which a warning tells; without, it raises a LibraryError, as does a source that the compiler refuses.
    After a DiskFullError an existing folder is unchanged.
    """
    files = c_files(content)
    built = compiled(content.name, files)
    shared = f"lib{content.name}.so"
    files |= {} if built is None else {shared: built}
    document = {
        "format": FORMAT,
        "abi": ABI,
        **content.to_json(),
        "shared_object": None if built is None else shared,
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
    }
    document[HASH] = hash_of(document)
    _check(document)
    check_place(folder, overwrite=overwrite)
    files |= {DOCUMENT: (json.dumps(document, indent=1) + "\n").encode()}
    with raising(DiskFullError, f"the folder of the library, {folder}, cannot be written"):
        kept = replace_folder_atomically(folder, files, LIBRARY, overwrite=overwrite)
    if kept is not None:
        warnings.warn(f"{folder} was not only a library of mltune; it is kept as {kept}.", MltuneWarning, stacklevel=2)
    return document


def check_place(folder: Path, *, overwrite: bool = False) -> None:
    """Refuse a folder that holds anything but a library, file by file as its list of hashes says."""
    if folder.name in ("", ".."):
        raise LibraryError(f"{printable(folder, 300)} has no name of its own, which the folder of a library needs.")
    try:
        fact = "" if overwrite else foreign_in(folder, LIBRARY)
    except OSError as error:
        fact = reason(error)
    if fact:
        raise LibraryError(
            f"{fact}, and only a library that mltune wrote is replaced; name another folder, or keep this one under "
            "another name with --overwrite."
        )


def compiled(name: str, files: Mapping[str, bytes]) -> bytes | None:
    """Return the shared object of a library; None where there is no C compiler."""
    compiler = next((path for name_of_compiler in _COMPILERS if (path := shutil.which(name_of_compiler))), None)
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as scratch:
        for file in (f"{name}.h", f"{name}.c"):
            (Path(scratch) / file).write_bytes(files[file])
        shared = Path(scratch) / f"lib{name}.so"
        command = [compiler, *_FLAGS, f"{name}.c", "-o", shared.name, "-ldl", "-lm"]
        try:
            subprocess.check_output(command, cwd=scratch, stderr=subprocess.STDOUT, timeout=_COMPILE_S)  # noqa: S603
        except subprocess.CalledProcessError as error:
            fact = printable(error.output.decode(errors="replace"), 500)
            raise LibraryError(f"{compiler} cannot compile the library: {fact}.") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise LibraryError(f"{compiler} cannot compile the library: {error!s:.300}.") from error
        return shared.read_bytes()


def _check(document: Mapping[str, Any]) -> None:
    """Refuse a document that no reader accepts."""
    try:
        validated(LibraryDocument, document)
    except ValueError as error:
        raise LibraryError(f"the document of the library cannot be read: {error}.") from error
    size = len(json.dumps(document, indent=1)) + 1
    if size > _MAX_DOCUMENT_BYTES:
        raise LibraryError(
            f"the document of the library has {size} bytes; it may have {_MAX_DOCUMENT_BYTES}: build it with a smaller "
            "`most`."
        )


def machine_code(folder: Path, document: LibraryDocument, number: int) -> bytes:
    """Return a configuration's machine code from the library's C source; a LibraryError where that is another one."""
    file = folder / f"{document.name}.c"
    fact = f"no machine code can be read from {printable(file, 300)}, the library's C source"
    begin = f"\nstatic const uint64_t cubin_{document.configurations[number].cubin}[] = {{".encode()
    with raising(LibraryError, fact, OSError, ValueError):
        source = _hashed(file, document, _MAX_BYTES)
        start = source.find(begin) + len(begin)
        end = source.find(b"};", start, start + _MAX_CODE_CHARACTERS)
        if begin not in source or end < 0 or not _WORDS.fullmatch(source, start, end):
            raise ValueError(f"it lacks that of configuration {number}, or that has more than 64 bits a word")
        return b"".join(int(word, 16).to_bytes(8, "little") for word in source[start:end].split(b","))


def read_document(folder: Path) -> LibraryDocument:
    """Read a library's document, and no other file; a LibraryError where it differs from its own hash."""
    try:
        content = parse_json(read_file(folder / DOCUMENT, _MAX_DOCUMENT_BYTES, inside=folder))
        if isinstance(content, dict) and not (content.get("format") in READABLE and content.get("abi") == ABI):
            raise ValueError(
                f"it has format {printable(content.get('format'), 20)} and ABI {printable(content.get('abi'), 20)}, "
                f"and this mltune reads format {FORMAT} and ABI {ABI}; build it again"
            )
        document = validated(LibraryDocument, content)
        if document.document_sha256 != hash_of(content):
            raise ValueError(f"it is damaged: its SHA-256 is not its {HASH}")
        return document
    except (OSError, ValueError) as error:
        raise _refused(folder / DOCUMENT, reason(error)) from error


def read_library(folder: Path) -> tuple[LibraryDocument, bytes]:
    """Read the document and the shared object of a library; a LibraryError where the hash of any file differs."""
    document, file = read_document(folder), folder
    shared, remaining = b"", _MAX_BYTES
    try:
        size = 0
        for name in document.sha256:
            file = folder / name
            size += file.lstat().st_size
        if size > _MAX_BYTES:
            file = folder
            raise ValueError(f"its files have {size} bytes in sum; they may have {_MAX_BYTES}")
        for name in document.sha256:
            file = folder / name
            data = _hashed(file, document, remaining)
            remaining -= len(data)
            shared = data if name == document.shared_object else shared
    except (OSError, ValueError) as error:
        raise _refused(file, reason(error)) from error
    if not shared:
        raise _refused(
            folder,
            "it has no shared object among its hashed files, because there was no C compiler; compile it, as the "
            f"first lines of {document.name}.c say, and use it from C, or build the library where there is one",
        )
    return document, shared


def _hashed(file: Path, document: LibraryDocument, limit: int) -> bytes:
    """Return the content of a file of a library; a ValueError where it is not that of the document."""
    data = read_file(file, limit, inside=file.parent)
    if hashlib.sha256(data).hexdigest() != document.sha256[file.name]:
        raise ValueError(f"it is damaged: its SHA-256 is not the one in {DOCUMENT}")
    return data


def _refused(file: Path, fact: str) -> LibraryError:
    return LibraryError(f"{printable(file, 300)}: {fact}; a library is a folder that `mltune library build` wrote.")
