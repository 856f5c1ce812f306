"""A table that leaves out columns where it would be wider than the terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.table import Table

_GAP = 2
_LEAST_TEXT = 24
"""Least width of a column of texts."""


@dataclass(frozen=True, slots=True)
class FittingTable:
    """A table without lines that leaves out columns rather than break a name.

    Attributes
    ----------
    rows : sequence of mapping
        The texts of each row by column. A column whose name starts with ``>`` is aligned to the right.
    texts : collection of str
        Columns that may be wrapped at spaces.
    spare : sequence of str
        Columns that may be left out, the least important one first.
    empty : sequence of str
        The columns of a table without rows.
    """

    rows: Sequence[Mapping[str, str]]
    texts: Collection[str] = ()
    spare: Sequence[str] = ()
    empty: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        """Yield the table with the columns that fit; on the narrowest terminals all but the first are wrapped."""
        from rich.table import Table

        columns = list(self.rows[0] if self.rows else self.empty)
        least = {name: self._least_width(name) for name in columns}
        kept = [name for name in columns if name not in self.spare]
        for name in reversed(self.spare):
            if name in least and _width([*kept, name], least) <= options.max_width:
                kept.append(name)
        narrow = _width(kept, least) > options.max_width
        made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
        for name in (name for name in columns if name in kept):
            wraps = name in self.texts or (narrow and name != columns[0])
            made.add_column(
                name.removeprefix(">"),
                justify="right" if name.startswith(">") else "left",
                overflow="fold",
                no_wrap=not wraps,
                min_width=None if narrow and wraps else least[name],
            )
        for row in self.rows:
            made.add_row(*(row[name] for name in columns if name in kept))
        yield made

    def _least_width(self, name: str) -> int:
        from rich.cells import cell_len

        width = max(cell_len(text) for text in (name.removeprefix(">"), *(row[name] for row in self.rows)))
        return min(width, _LEAST_TEXT) if name in self.texts else width


def _width(names: Collection[str], least: Mapping[str, int]) -> int:
    return sum(least[name] for name in names) + _GAP * (len(names) - 1)
