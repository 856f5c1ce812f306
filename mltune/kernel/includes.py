"""Headers that a source includes, directly or through each other, as texts by name.

A compile process opens no file: NVRTC is given headers as texts, and finds one by the name in ``#include`` alone,
whichever file includes it.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from mltune.files.reading import RefusedFileError, read_text, reason
from mltune.files.text import printable

MAX_HEADERS = 3000
"""Most headers that a source includes."""

MAX_NAMES = 10_000
"""Most different names in ``#include`` that are looked for."""

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^>"\n]{1,200})[>"]', re.MULTILINE)

Find = Callable[[str, str, bool], tuple[str, str] | None]
"""From the path of the including file, the name there and whether it is in quotes, to path and text, or None."""


@dataclass(frozen=True, slots=True)
class Include:
    """A header, the name by which a file includes it, and the path of that file."""

    name: str
    file: str
    path: str
    text: str


def included(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names that a text includes, each after its mark: a quote, or ``<``."""
    return ((match[1], match[2]) for match in _INCLUDE.finditer(text))


def walk_includes(
    texts: Mapping[str, str], find: Find, names: Callable[[str], Iterator[tuple[str, str]]] = included
) -> Iterator[Include]:
    """Yield what some texts include, directly or through headers; names that are not found are left out."""
    files, paths = [*texts.items()], set(texts)
    visited: set[tuple[str, ...]] = set()
    for file, content in files:  # grows
        for mark, name in names(content):
            question = (posixpath.dirname(file), mark, name)
            if question in visited:
                continue
            if len(visited) == MAX_NAMES:
                return
            visited.add(question)
            header = find(file, name, mark == '"')
            if header is None:
                continue
            yield Include(name, file, *header)
            if header[0] not in paths:
                paths.add(header[0])
                files.append(header)


@dataclass(frozen=True, slots=True)
class Headers:
    """The headers of a source by the name with which each is included, and the paths of those that have another name.

    A second name of a header has a text that includes the first, so that ``#pragma once`` holds.
    """

    texts: Mapping[str, str]
    paths: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class IncludeFolders:
    """Folders with headers, by their path in the kernel's folder: nothing outside them is read.

    The path of a header matches `law`. Below `inside`, which holds all folders, no link is followed; None follows
    links.
    """

    source: str
    folders: Mapping[str, Path]
    inside: Path | None
    law: re.Pattern[str]
    most_bytes: int

    def headers(self, text: str, listed: Mapping[str, str]) -> Headers:
        """Return the headers that a source includes, directly or not."""
        read, texts = dict(listed), dict(listed)
        headers = {name: Include(name, "", name, text) for name, text in listed.items()}
        names = {name: name for name in listed}
        for header in walk_includes({self.source: text, **listed}, lambda *include: self._find(read, *include)):
            other = headers.setdefault(header.name, header)
            if other.path != header.path:
                raise ValueError(_ambiguous(other, header))
            first = names.setdefault(header.path, header.name)
            texts[header.name] = header.text if first == header.name else f'#include "{first}"\n'
        return Headers(texts, {name: header.path for name, header in headers.items() if name != header.path})

    def _find(self, read: dict[str, str], file: str, name: str, quoted: bool) -> tuple[str, str] | None:
        """Find a header beside the file that includes it in quotes, among those listed, then in the folders."""
        places = [posixpath.dirname(file)] if quoted and file else []
        listed = [""] if name in read else []
        for place in dict.fromkeys([*places, *listed, *self.folders]):
            path = posixpath.normpath(posixpath.join(place, name))
            if path in read or self._read(path, read):
                return path, read[path]
        return None

    def _read(self, path: str, read: dict[str, str]) -> bool:
        """Read a header below one of the folders; return whether there is one."""
        header = PurePosixPath(path)
        label = next((folder for folder in self.folders if header.is_relative_to(folder)), None)
        if label is None or not self.law.fullmatch(path):
            return False
        relative = header.relative_to(label)
        if not os.path.lexists(f"{self.folders[label]}/{relative}"):  # most names, and far quicker than to open it
            return False
        file = self.folders[label] / relative
        try:
            text = read_text(file, self.most_bytes - sum(map(len, read.values())), inside=self.inside)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            fact = str(error) if isinstance(error, RefusedFileError) else f"{file}: {reason(error)}"
            raise ValueError(f"a header must be readable text: {printable(fact, 400)}") from error
        if "\0" in text:
            raise ValueError(f"a header must be text, but {printable(file, 300)} has a zero byte")
        if len(read) == MAX_HEADERS:
            raise ValueError(f"a source includes at most {MAX_HEADERS} headers, directly or not")
        read[path] = text.removeprefix("\ufeff")
        return True


def _ambiguous(first: Include, other: Include) -> str:
    facts = " and ".join(
        f"{printable(header.path, 120)} in {printable(header.file, 120) or 'the source'}" for header in (first, other)
    )
    law = "NVRTC finds a header by its name in #include alone"
    return f"{law}, but {printable(first.name, 120)!r} is {facts}; include one as FOLDER/NAME"
