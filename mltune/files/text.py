"""Text for messages: safe for a terminal, counts with nouns, and the known name nearest to an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from html import escape

_LONGEST_NAME = 200
_LONGEST_QUOTE = 120
_FEWEST_LETTERS = 3


def printable(text: object, longest: int | None = None) -> str:
    r"""Return text as one line without control characters, cut to a longest length with an ellipsis."""
    line = str(text)
    if longest is not None and len(line) > longest:
        line = line[: longest - 1] + "…"
    return line if line.isprintable() else "".join(letter if letter.isprintable() else " " for letter in line)


def printable_lines(text: object) -> str:
    """Return text of several lines without control characters other than the ends of lines."""
    return "\n".join(printable(line) for line in str(text).splitlines()).rstrip("\n")


def many(count: float, noun: str) -> str:
    """Write a count with its noun.

    >>> many(1, "trial"), many(2, "trial"), many(0, "entry")
    ('1 trial', '2 trials', '0 entries')
    """
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count} {noun if count == 1 else plural}"


def html_table(facts: Mapping[str, object]) -> str:
    """Return facts as a table for a notebook."""
    rows = (f"<tr><th>{escape(name)}</th><td>{escape(printable(value))}</td></tr>" for name, value in facts.items())
    return f"<table>{''.join(rows)}</table>"


def html_rows(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows with the same keys as a table for a notebook, with the keys as headings."""
    heads = "".join(f"<th>{escape(name)}</th>" for name in (rows[0] if rows else ()))
    lines = ("".join(f"<td>{escape(printable(value))}</td>" for value in row.values()) for row in rows)
    return f"<table><tr>{heads}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def no_such(kind: str, name: object, names: Iterable[str], law: str = "") -> str:
    """Return the message about an unknown name: the name, the nearest known one, and which there are.

    >>> no_such("plan", "quik", ["quick"])
    "'quik' is no plan; did you mean 'quick'?"
    """
    hint = did_you_mean(str(name), names) or "."
    return f"{printable(repr(name), _LONGEST_QUOTE)} is no {kind}{hint}{law and f' {law}.'}"


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the known name that begins with it or is nearest, if any."""
    names = {candidate.lower(): candidate for candidate in candidates}
    lowered = name.lower()[:_LONGEST_NAME]
    longer = [candidate for candidate in names if len(lowered) >= _FEWEST_LETTERS and candidate.startswith(lowered)]
    nearest = sorted(longer, key=len) or difflib.get_close_matches(lowered, names, n=1)
    return f"; did you mean {printable(names[nearest[0]])!r}?" if nearest else ""
