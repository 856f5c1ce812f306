"""Sizes in a CSV file: a column for each name, and ``count`` for the number of uses."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

MAX_BYTES = 2**24
"""Largest CSV file."""

MOST_SIZES = 100_000
"""Most sizes that are listed."""

_INTEGER = re.compile("-?[0-9]{1,18}")

Counted = dict[tuple[tuple[str, int], ...], float]
"""Sizes by name, with their weights."""


def distinct(rows: Iterable[tuple[Mapping[str, int], float]]) -> Counted:
    """Return distinct sizes with the sums of their weights; ValueError if there are none, or their names differ."""
    weights: Counter[tuple[tuple[str, int], ...]] = Counter()
    names: tuple[str, ...] | None = None
    for size, weight in rows:
        names = names or tuple(size)
        if set(size) != set(names) or not names:
            raise ValueError(f"there are sizes of {', '.join(names)} and of {', '.join(size)}; all have the same names")
        weights[tuple((name, size[name]) for name in names)] += weight  # type: ignore[assignment]
    if not weights:
        raise ValueError("there is no size")
    return dict(weights)


def _integer(cell: str | None) -> int:
    """Return an integer in decimal digits: Python also reads ``1_6`` and the digits of other scripts."""
    text = (cell or "").strip()
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"{text!r:.60} is no integer of at most 18 digits")
    return int(text)


def sizes_of_csv(text: str, least: int = 1) -> Iterator[tuple[dict[str, int], float]]:
    r"""Yield the sizes, of at least ``least``, of a CSV file, whose column ``count`` is their weight."""
    rows = csv.DictReader(io.StringIO(text.removeprefix("\ufeff")), strict=True)
    try:
        names = [name.strip() for name in rows.fieldnames or ()]
    except csv.Error as error:
        raise ValueError(f"the first line of a CSV file cannot be read: {error}") from error
    if len(set(names)) < len(names) or not {*names} - {"count"}:
        raise ValueError("the first line of a CSV file must have the names of sizes, and count where there is one")
    rows.fieldnames = names
    try:
        for number, row in enumerate(rows):
            if number >= MOST_SIZES:
                raise ValueError(f"there are more than {MOST_SIZES} sizes, the most of a CSV file")
            whole = {name: _integer(value) for name, value in row.items() if name is not None}
            weight = whole.pop("count", 1)
            if None in row:
                raise ValueError(f"it has more values than the {len(names)} names of the first line")
            if not all(least <= extent < 2**31 for extent in whole.values()) or not 0 <= weight < 2**53:
                raise ValueError(f"a size is not from {least} to 2**31 - 1, or a count is negative")
            if weight:
                yield whole, float(weight)
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{error!s:.200}, in line {rows.line_num} of a CSV file") from error
