"""Headers that a source includes, directly or through each other, as texts by name.

A compile process opens no file: NVRTC is given headers as texts, and finds one by the name in ``#include`` alone,
whichever file includes it.
"""

from __future__ import annotations

import os
import posixpath
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from mltune.files.reading import RefusedFileError, read_source, reason
from mltune.files.text import printable

MAX_HEADERS = 3000
"""Most headers that a source includes."""

MAX_NAMES = 10_000
"""Most different names in ``#include`` that are looked for."""

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^>"\n]{1,200})[>"]', re.MULTILINE)

_COMMENT = re.compile(r"//(?:[^\\\n]|\\.|\\\n)*|/\*[\s\S]*?(?:\*/|\Z)|(\"(?:\\.|[^\"\\\n])*\")")
_FOR_HEADERS = re.compile(r"(CCCL|CUB|CUDA|CUTE|CUTLASS|LIBCUDACXX|NV|NVTX|THRUST)_\w+|N?DEBUG")
"""Macros that headers of the toolkit ask for."""

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
            text = read_source(file, self.most_bytes - sum(map(len, read.values())), inside=self.inside)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            fact = str(error) if isinstance(error, RefusedFileError) else f"{file}: {reason(error)}"
            raise ValueError(f"a header is no readable text: {printable(fact, 400)}") from error
        if len(read) == MAX_HEADERS:
            raise ValueError(f"the source includes more than {MAX_HEADERS} headers, directly or not")
        read[path] = text
        return True


def _ambiguous(first: Include, other: Include) -> str:
    facts = " and ".join(
        f"{printable(header.path, 120)} in {printable(header.file, 120) or 'the source'}" for header in (first, other)
    )
    return (
        f"{printable(first.name, 120)!r} is {facts}; NVRTC finds a header by its name alone: include one as FOLDER/NAME"
    )


def macro_places(text: str, own: Mapping[str, str], names: Iterable[str]) -> dict[str, int]:
    r"""Return the places in a text, behind its headers, where macros can be defined in place of its head.

    There a macro does not change the headers of the toolkit, which use many short names. A name that a text uses before
    it includes anything stays at its head, and so does one that its own headers use, or that headers may ask for. An
    `#include` in `#if` counts at its end.

    >>> macro_places("#include <mma.h>\n#if N > 1\n#include <x.h>\n#endif\n", {}, ["N", "M"])
    {'N': 17, 'M': 49}
    """
    movable = {name for name in names if not _FOR_HEADERS.fullmatch(name)}
    if 'R"' in text:  # raw texts may hold anything
        return {}
    own_words = {word for header in own.values() for word in re.findall(r"\w+", header)}
    first_uses: dict[str, int] = {}
    ends: list[int] = []
    depth, offset, is_after_include = 0, 0, False
    for line in _COMMENT.sub(_blanked, text).splitlines(keepends=True):
        directive = re.match(r"[ \t]*#[ \t]*(\w+)", line)
        word = directive[1] if directive else ""
        depth += word in ("if", "ifdef", "ifndef")
        depth -= word == "endif"
        include = _INCLUDE.match(line)
        is_after_include |= include is not None
        words = {*re.findall(r"\w+", line)} if include is None else own_words if include[2] in own else set()
        for name in words & movable:
            first_uses.setdefault(name, offset)
        offset += len(line)
        if is_after_include and depth == 0 and not line.rstrip().endswith("\\"):
            ends.append(offset)
            is_after_include = False
    before = {name: bisect_right(ends, first_uses.get(name, offset)) for name in names if name in movable}
    return {name: ends[count - 1] for name, count in before.items() if count}


def with_macros(text: str, definitions: str, places: Mapping[str, int], *, numbered: bool = True) -> str:
    r"""Return a text with lines that define macros at its head or at their places, and with its line numbers.

    >>> with_macros("#include <mma.h>\nint a[N];", "#define N 4\n#define M 2\n", {"N": 17}, numbered=False)
    '#define M 2\n#include <mma.h>\n#define N 4\nint a[N];'
    """
    head, moved = "", dict[int, str]()
    for line in definitions.splitlines(keepends=True):
        words = line.split(maxsplit=2)
        place = places.get(words[1]) if words[:1] == ["#define"] and len(words) > 1 else None
        if place is None:
            head += line
        else:
            moved[place] = moved.get(place, "") + line
    parts, at = [head, "#line 1\n" if numbered else ""], 0
    for place in sorted(moved):
        line_break = "" if text[:place].endswith("\n") else "\n"
        number = text.count("\n", 0, place) + 1
        parts += [text[at:place], line_break, moved[place], f"#line {number}\n" if numbered else ""]
        at = place
    return "".join([*parts, text[at:]])


def _blanked(match: re.Match[str]) -> str:
    """Return a comment as spaces, and a text in quotes as it is."""
    return match[0] if match[1] else re.sub(r"[^\n]", " ", match[0])
