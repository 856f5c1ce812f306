"""Values that no honest file holds, and changes of documents and bytes; all from one random generator."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import dataclass
from random import Random
from typing import Any

MARK = "CANARY-7f3a9c"
"""The text in every canary; no output may hold it."""

XSS = "<img src=x onerror=alert(7)>"
"""Markup that no page may hold as it stands."""

ESCAPE = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x9b1m"
"""Escape sequences: the title of the terminal, a cleared screen, colours; the last one in one byte of C1."""


@dataclass(frozen=True, slots=True)
class Raw:
    """Text that is written into a document as it stands."""

    text: str


NUMBERS: tuple[Any, ...] = (
    0, -1, 1, -0.0, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**25, 2**1000, 2**4000,
    1e-320, 5e-324, 1e-300, 1e-9, 0.1, 1e9, 1e300, 1e308, math.inf, -math.inf, math.nan, -1e-3, 1e15 + 0.5,
)  # fmt: skip
TEXTS: tuple[str, ...] = (
    "", " ", "\0", "a\0b", "\n", "\r\n", "\t", ESCAPE, f"x{ESCAPE}y", "\x1b", "\x9b31m", "\x07", "\x08\x08\x08", "\x7f",
    "\ud800", "\udfff tail", "\u202egnp.exe", "\ufeff", "é" * 300, "🦀" * 50, "A\u0301" * 100, "\U0010ffff",
    "١٢٣", "1_000", "0x10", "1e999", "NaN", "Infinity", "-0", "true", "null", "None", "nan",
    "../../canary/secret.txt", "../canary", "/dev/zero", "/proc/self/environ", "~/.ssh/id_rsa", "file:///etc/passwd",
    XSS, f"'\">{XSS}", "]]>", "</script><script>alert(7)</script>", "javascript:alert(7)", "{{7*7}}", "{% for a in b %}",
    "[bold red]rich[/]", "[/]", "[link=http://x]y[/link]", ":smile:", "%s%n%x", "{0.__class__}", "{}", "$(id)", "`id`",
    "'; DROP TABLE trials; --", "__import__('os').system('id')", "a" * 5_000, "a," * 5_000, "con", ".", "..", "-rf",
)  # fmt: skip
SHAPES: tuple[Any, ...] = (
    None, True, False, [], {}, [[]], [None], {"": 1}, {"a": {"b": {"c": []}}}, [1, "1", 1.0], [[1, 2], [3]],
    Raw("[" * 40 + "]" * 40), Raw("9" * 5000), Raw("1e400"), Raw("-" + "9" * 400), ["x"] * 3000, list(range(2000)),
    {str(number): number for number in range(2000)},
)  # fmt: skip


def value(rng: Random) -> Any:
    """Return a hostile value: a number, a text or a shape."""
    return copy.deepcopy(rng.choice(rng.choice((NUMBERS, TEXTS, SHAPES))))


def scalar(rng: Random) -> Any:
    """Return a hostile number, text or None."""
    return rng.choice(rng.choice((NUMBERS, TEXTS, (None, True))))


def deep(levels: int, inner: Any = 1, *, table: bool = False) -> Any:
    """Return nested lists, or nested tables."""
    for _ in range(levels):
        inner = {"a": inner} if table else [inner]
    return inner


def places(document: Any) -> list[tuple[Any, Any]]:
    """Return every container of a document with each of its keys or positions."""
    found: list[tuple[Any, Any]] = []
    waiting = [document]
    while waiting:
        one = waiting.pop()
        keys = list(one) if isinstance(one, dict) else list(range(len(one))) if isinstance(one, list) else []
        found += [(one, key) for key in keys]
        waiting += [one[key] for key in keys]
    return found


def change(document: Any, rng: Random) -> Any:
    """Return a copy of a document with one to three changes of meaning."""
    document = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        there = places(document)
        if not there:
            return value(rng)
        container, key = rng.choice(there)
        _change_one(container, key, there, rng)
    return document


def _change_one(container: Any, key: Any, there: list[tuple[Any, Any]], rng: Random) -> None:
    kind = rng.choice(("value", "value", "value", "same type", "delete", "rename", "wrap", "swap", "repeat", "extra"))
    if kind == "delete":
        del container[key]
    elif kind == "rename" and isinstance(container, dict):
        container[rng.choice(TEXTS)] = container.pop(key)
    elif kind == "wrap":
        container[key] = rng.choice(
            ([container[key]], {"a": container[key]}, deep(rng.choice((3, 40)), container[key]))
        )
    elif kind == "swap":
        other, place = rng.choice(there)
        container[key], other[place] = copy.deepcopy(other[place]), copy.deepcopy(container[key])
    elif kind == "repeat" and isinstance(container[key], list) and container[key]:
        container[key] = container[key] * rng.choice((2, 50, 1000))
    elif kind == "extra" and isinstance(container[key], dict):
        container[key][rng.choice((*TEXTS, "name", "kind", "__class__"))] = value(rng)
    elif kind == "same type" and isinstance(container[key], str):
        container[key] = rng.choice((*TEXTS, container[key] + ESCAPE, container[key] * 1000))
    elif kind == "same type" and isinstance(container[key], int | float):
        container[key] = rng.choice((*NUMBERS, -container[key], container[key] * 10**9))
    else:
        container[key] = value(rng)


def to_json(document: Any) -> str:
    """Return a document as JSON, with its NaN, its lone surrogates and its :class:`Raw` texts."""
    if isinstance(document, Raw):
        return document.text
    if isinstance(document, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))}: {to_json(part)}" for key, part in document.items()) + "}"
    if isinstance(document, list | tuple):
        return "[" + ", ".join(map(to_json, document)) + "]"
    if isinstance(document, int) and not isinstance(document, bool) and abs(document) > 10**4000:
        return f"0x{document:x}"
    return json.dumps(document)


def to_toml(document: dict[str, Any]) -> str:
    """Return a document as TOML: tables of tables as sections, everything else inline."""
    lines: list[str] = []
    plain = {key: part for key, part in document.items() if not isinstance(part, dict) and not _is_tables(part)}
    lines += [f"{_toml_text(key)} = {_inline(part)}" for key, part in plain.items()]
    for key, part in document.items():
        for table in part if _is_tables(part) else [part] if isinstance(part, dict) else []:
            mark = ("[[", "]]") if _is_tables(part) else ("[", "]")
            lines.append(f"{mark[0]}{_toml_text(key)}{mark[1]}")
            lines += [f"{_toml_text(name)} = {_inline(inner)}" for name, inner in table.items()]
    return "\n".join(lines) + "\n"


def _is_tables(part: Any) -> bool:
    return isinstance(part, list) and bool(part) and all(isinstance(one, dict) for one in part)


def _inline(part: Any) -> str:
    if isinstance(part, Raw):
        return part.text
    if isinstance(part, dict):
        return "{" + ", ".join(f"{_toml_text(key)} = {_inline(inner)}" for key, inner in part.items()) + "}"
    if isinstance(part, list | tuple):
        return "[" + ", ".join(map(_inline, part)) + "]"
    if isinstance(part, bool):
        return str(part).lower()
    if isinstance(part, float):
        return {math.inf: "inf", -math.inf: "-inf"}.get(part, "nan" if math.isnan(part) else repr(part))
    if isinstance(part, int):
        return str(part)
    return "''" if part is None else _toml_text(part)


def _toml_text(text: Any) -> str:
    """Return a basic string; TOML has no lone surrogates, so they are left as they are."""
    letters = (f"\\u{ord(one):04x}" if ord(one) < 32 or one in '"\\\x7f' else one for one in str(text))
    return '"' + "".join(letters) + '"'


def encoded(text: str) -> bytes:
    """Return text as bytes; lone surrogates become bytes that are not UTF-8."""
    return text.encode("utf-8", "surrogatepass")


def damaged(data: bytes, rng: Random) -> bytes:
    """Return bytes with one to three damages: cut off, flipped, overwritten, inserted, doubled, or from elsewhere."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        if not found:
            return bytes(found)
        at = rng.choice((0, rng.randrange(len(found)), rng.randrange(len(found)), len(found) - 1))
        length = rng.choice((1, 1, 2, 4, 16, 100, 512, 4096))
        kind = rng.choice(
            ("cut", "flip", "flip", "flip", "random", "zero", "ones", "insert", "double", "remove", "move")
        )
        if kind == "cut":
            del found[at:]
        elif kind == "flip":
            found[at] ^= 1 << rng.randrange(8)
        elif kind in ("random", "zero", "ones"):
            length = min(length, len(found) - at)
            filler = {"random": rng.randbytes(length), "zero": bytes(length), "ones": b"\xff" * length}[kind]
            found[at : at + length] = filler
        elif kind == "insert":
            found[at:at] = rng.choice((rng.randbytes(length), bytes(length), b"\xff\xfe", b"\xef\xbb\xbf", b"\x00"))
        elif kind == "double":
            found[at:at] = found[at : at + length]
        elif kind == "remove":
            del found[at : at + length]
        else:
            there = rng.randrange(len(found))
            found[at : at + length] = found[there : there + length]
    return bytes(found)
