"""Text from files that strangers may have prepared, made fit for a terminal."""

from __future__ import annotations


def printable(text: object, longest: int | None = None) -> str:
    r"""Return text as one line without control characters: escape sequences do not reach the terminal.

    Parameters
    ----------
    text : object
        Converted with ``str``.
    longest : int, optional
        Longer text is cut off, and ends with an ellipsis.

    Examples
    --------
    >>> printable("GPU\x1b[2J of\nmine")
    'GPU [2J of mine'
    >>> printable("a long name", longest=7)
    'a long…'
    """
    line = _cut(str(text), longest)
    return line if line.isprintable() else "".join(letter if letter.isprintable() else " " for letter in line)


def printable_lines(text: object, longest: int | None = None) -> str:
    """Return text of several lines without control characters other than the ends of lines."""
    return "\n".join(printable(line) for line in _cut(str(text), longest).splitlines())


def _cut(text: str, longest: int | None) -> str:
    return text if longest is None or len(text) <= longest else text[: longest - 1] + "…"
