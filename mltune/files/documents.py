"""Parsers of JSON and TOML from strangers: size, depth and numbers are bounded before anything looks at the content."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

DEEPEST = 32
"""Levels of tables and lists that a document may have."""

_LARGEST_INTEGER = 2**63
_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![\w-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{DEEPEST}}}")


def parse_json(data: bytes | str) -> Any:
    """Parse JSON.

    A text that is not JSON, is nested too deeply, or holds an integer of more than 64 bits or a key twice, raises a
    ValueError.

    Examples
    --------
    >>> parse_json('{"number": [1, 2.5]}')
    {'number': [1, 2.5]}
    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ValueError: a document has at most 32 levels, but this one has more
    """
    try:
        return _checked(json.loads(data, object_pairs_hook=_object))
    except RecursionError:
        raise _too_deep() from None


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; errors are those of :func:`parse_json`.

    Examples
    --------
    >>> parse_toml("a.b = 1")
    {'a': {'b': 1}}
    >>> parse_toml("a" + ".a" * 20_000 + " = 1")
    Traceback (most recent call last):
    ValueError: a document has at most 32 levels, but this one has more
    """
    if _LONG_KEY.search(text):  # the parser needs seconds and gigabytes for them
        raise _too_deep()
    try:
        document: dict[str, Any] = _checked(tomllib.loads(text))
        return document
    except RecursionError:
        raise _too_deep() from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of some pairs; a key that occurs twice would lose a value."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("the keys of an object must differ, but one occurs twice")
    return found


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
                    raise ValueError(f"an integer has at most 64 bits, but this one has {part.bit_length()}")
        if not below:
            return document
        level = below
    raise _too_deep()


def _too_deep() -> ValueError:
    return ValueError(f"a document has at most {DEEPEST} levels, but this one has more")
