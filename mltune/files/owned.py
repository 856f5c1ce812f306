"""Products: the files and folders that mltune writes, how each is recognised, and when one may be replaced.

By the rule of docs/reference/files.md, a file is replaced if its content says that mltune wrote it, or if it is empty;
a folder, if a document in it lists every file with its hash; everything else only with the user's consent.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mltune.files.reading import RefusedFileError, kind_of, opened_file, parse_json, read_file, reason
from mltune.files.text import printable

MOST_BYTES = 1 << 30
"""Largest file that is examined, bytes."""

_MOST_DOCUMENT_BYTES = 1 << 26
_HEAD, _TAIL = 1 << 12, 1 << 16


class ForeignFileError(RefusedFileError):
    """A file or folder that mltune did not write is in the place of one to be written."""


@dataclass(frozen=True, slots=True)
class Product:
    """A kind of file that mltune writes, and its name with an article for messages.

    A file of this kind matches the regular expression ``mark`` in its first 4 KiB, or with ``is_at_end`` in its last 64
    KiB; or, in place of a mark, it is a JSON object with the ``keys``.
    """

    name: str
    mark: bytes = b""
    is_at_end: bool = False
    keys: frozenset[str] = frozenset()

    def is_in(self, path: Path) -> bool:
        """Return whether a regular file is of this kind, or empty; an unreadable one raises an OSError."""
        if self.keys:
            data = read_file(path, _MOST_DOCUMENT_BYTES, inside=path.parent)
            return not data or _has_keys(data, self.keys)
        with opened_file(path, MOST_BYTES, inside=path.parent) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - _TAIL) if self.is_at_end else 0)
            return not size or bool(re.search(self.mark, file.read(_TAIL if self.is_at_end else _HEAD)))


@dataclass(frozen=True, slots=True)
class FolderProduct:
    """A folder that mltune writes, with a document of the hashes of its files; before 0.3 without the ``texts``."""

    name: str
    document: str
    keys: frozenset[str]
    texts: Mapping[str, bytes] = field(default_factory=dict)

    def hashes(self, document: bytes) -> dict[str, str]:
        """Return the hashes in a document by the paths of files; ValueError for a document of another kind."""
        hashes = parse_json(document)["sha256"] if _has_keys(document, self.keys | {"sha256"}) else None
        if not isinstance(hashes, dict):
            raise ValueError(f"it is not the document of {self.name}")
        return {name: str(value) for name, value in hashes.items()}

    def own(self, files: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the files of a folder that mltune wrote; ValueError if the document is missing or of another kind."""
        if self.document not in files:
            raise ValueError(f"there is no {self.document}")
        hashes = self.hashes(files[self.document])
        return {
            name: data
            for name, data in files.items()
            if name == self.document
            or (hashlib.sha256(data).hexdigest() == hashes[name] if name in hashes else self._is_text(name, data))
        }

    def _is_text(self, name: str, data: bytes) -> bool:
        return name in self.texts and bool(re.search(self.texts[name], data[:_HEAD]))


GENERATOR = '<meta name="generator" content="mltune">'
"""The line in the head of a page that identifies it."""

COMMENT = "<!-- written by mltune -->"
"""The first line of a text in Markdown."""

CREATOR = "mltune"
"""The creator or the software in the metadata of a figure."""

PARQUET_KEY = b"mltune.product"
"""The key in the metadata of a Parquet file."""

_OLD_PAGE = "· mltune(?: report)?</title>"  # of versions before 0.3, as the expression of old texts
_OLD_TEXT = r"# Search strategies on recorded timings\n|# [^\n]*\n\n[^\n]*report of [^\n]*\.\n\d+ of \d+ problem"

PAGE = Product("a page of mltune", f"{GENERATOR}|{_OLD_PAGE}".encode())
TEXT = Product("a text of mltune", rf"\A(?:{COMMENT}|{_OLD_TEXT})".encode())
FIGURE = Product("a figure of mltune", rb"<dc:title>mltune</dc:title>|tEXtSoftware\x00mltune")
ROWS = Product("a table of a comparison", PARQUET_KEY, is_at_end=True)
JUNIT = Product("a verdict of mltune gate", b'<testsuite name="mltune gate"')
STUDY = Product("a study of mltune", rb'"user_attr": ?\{"kernel": ?".*\n.*"user_attr": ?\{"problem": ?"')
EVENTS = Product("a log of mltune", rb'\A\{"at": "(?:[^"\n]*", "event": "|[^"\n]*\Z)')
LOCK = Product("a lock of mltune", rb"\A(\d{1,20}( \S{1,255} [\d.]+)?\n?)?\Z")
FOUND = Product("the winners of shapes", rb'\A\{"facts": \{|\n\{"facts": \{')
REPORT = Product("the winners of a report", keys=frozenset({"format", "title", "run", "mltune", "winners"}))
SUMMARY = Product(
    "the summary of a comparison", keys=frozenset({"evaluations", "datasets", "strategies", "significance", "versions"})
)
FACTS = Product("the facts of a GPU", keys=frozenset({"devices", "libraries", "problems", "unmeasured"}))
MODEL = Product("the card of a model", keys=frozenset({"kernel", "parameters", "members", "sha256"}))
ARRAY = Product("the regressors of a model", rb"\A\x93NUMPY")
WINNER = FolderProduct(
    "a winner",
    "winner.json",
    frozenset({"format", "label", "kernel", "configuration"}),
    {
        "README.txt": rb"\A.*: the fastest version of the kernel .* that mltune .* found, ",
        "example.py": rb"\A# .* Needs CuPy",
        "example.cpp": rb"\A// .*, through the CUDA driver alone\.",
    },
)
LIBRARY = FolderProduct("a library", "library.json", frozenset({"format", "abi", "name", "configurations"}))


def foreign(path: Path, product: Product) -> str:
    """Return a description of a file that mltune did not write in the place of a product; empty if there is none."""
    kind = kind_of(path)
    if kind != "a regular file":
        return kind and f"{printable(path, 300)} is {kind}"
    try:
        return "" if product.is_in(path) else f"{printable(path, 300)} is not {product.name}"
    except (OSError, ValueError) as error:
        return f"{printable(path, 300)} is not {product.name}: {printable(reason(error), 300)}"


def check_replaceable(files: Mapping[Path, Product]) -> None:
    """Check that mltune wrote the files in the places of new ones; else raise a :class:`ForeignFileError`."""
    for path, product in files.items():
        if fact := foreign(path, product):
            raise ForeignFileError(
                f"{fact}, and a file that mltune did not write is not replaced; move it, name another place, or give "
                "--overwrite"
            )


def foreign_in(folder: Path, product: FolderProduct) -> str:
    """Return a description of what mltune did not write, or was changed, in a folder; empty if all is mltune's."""
    kind = kind_of(folder)
    if kind != "a directory":
        return kind and f"{printable(folder, 300)} is {kind}"
    if not any(folder.iterdir()):
        return ""
    at = folder / product.document
    try:
        hashes = product.hashes(read_file(at, _MOST_DOCUMENT_BYTES, inside=folder))
        folders = {parent for name in hashes for parent in (folder / name).parents}
        for place, inner, names in os.walk(folder, onerror=_raise):
            for at in (Path(place, name) for name in sorted(inner)):
                if at not in folders or at.is_symlink():
                    return f"{printable(at, 300)} is {kind_of(at)} that is not in the list of {product.document}"
            for at in (Path(place, name) for name in sorted(names)):
                if fact := _foreign_file(at, folder, product, hashes):
                    return f"{printable(at, 300)} {fact}"
    except (OSError, ValueError, LookupError, TypeError) as error:
        return f"{printable(at, 300)}: {printable(reason(error), 300)}"
    return ""


def _foreign_file(at: Path, folder: Path, product: FolderProduct, hashes: Mapping[str, str]) -> str:
    name = at.relative_to(folder).as_posix()
    if name in hashes:
        return "" if sha256_of(at, inside=folder) == hashes[name] else "was changed"
    is_own = name == product.document or (name in product.texts and Product(name, product.texts[name]).is_in(at))
    return "" if is_own else f"is not in the list of {product.document}"


def _raise(error: OSError) -> None:
    raise error


def sha256_of(path: Path, *, inside: Path) -> str:
    """Return the SHA-256 of a regular file; errors are those of :func:`mltune.files.reading.opened_file`."""
    with opened_file(path, MOST_BYTES, inside=inside) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def _has_keys(data: bytes, keys: frozenset[str]) -> bool:
    document: Any = parse_json(data)
    return isinstance(document, dict) and keys <= document.keys()
