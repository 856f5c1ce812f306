"""Output of the program: text made safe for terminals, and tables declared as columns.

Text from strangers is never read as markup, and its control characters become spaces. On a narrow terminal a table
leaves columns out rather than break a name.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from mltune.files.text import many, printable, printable_lines
from mltune.results.rating import Unit, unit_of, units_of
from mltune.results.wording import UNKNOWN, percent, spaced_duration

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table as RichTable
    from rich.text import Text

JsonObject = Mapping[str, Any]
"""What a command prints with ``--json``."""

_UNLIMITED = 10_000
"""Width of output that is not a terminal: lines are not wrapped for a program."""


def write(text: object, *, stderr: bool = False) -> None:
    """Write lines of text."""
    stream = sys.stderr if stderr else sys.stdout
    stream.write(f"{printable_lines(text)}\n")
    stream.flush()


def show(renderables: Iterable[RenderableType]) -> None:
    """Write tables and texts to stdout, as wide as the terminal; elsewhere at full width, without padding."""
    out = console()
    if out.is_terminal or out.is_jupyter:
        for renderable in renderables:
            out.print(renderable)
        return
    with out.capture() as captured:
        for renderable in renderables:
            out.print(renderable)
    write("\n".join(line.rstrip() for line in captured.get().splitlines()))


def console(*, stderr: bool = False) -> Console:
    """Return a console for stdout or stderr; without a terminal it wraps lines to $COLUMNS alone."""
    instance: Console = _class()(stderr=stderr)
    if not instance.is_terminal and not instance.is_jupyter and "COLUMNS" not in os.environ:
        instance.width = _UNLIMITED
    return instance


def for_notebook(picture: RenderableType) -> dict[str, str]:
    """Return a picture as HTML and as plain text, by MIME type, for the output of a notebook cell."""
    from rich.jupyter import JUPYTER_HTML_FORMAT

    recorder = _class()(file=io.StringIO(), record=True, width=console().width, force_jupyter=False)
    recorder.print(picture)
    html = recorder.export_html(clear=False, inline_styles=True, code_format=JUPYTER_HTML_FORMAT)
    return {"text/html": html, "text/plain": recorder.export_text()}


def _clean(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


@cache
def _class() -> type[Console]:
    """Return the class of our consoles; rich is slow to import."""
    from rich.console import Console
    from rich.segment import Segment

    class PrintableConsole(Console):
        """A console that reads no text as markup, and whose output has no control characters but its own."""

        def __init__(self, **options: Any) -> None:
            super().__init__(markup=False, highlight=False, emoji=False, **options)

        def render_str(self, text: str, **options: Any) -> Text:
            """Render a string, such as a cell of a table, before its width is measured."""
            return super().render_str(_clean(text), **options)

        def render(self, *arguments: Any, **options: Any) -> Iterable[Segment]:
            """Render an object: all output goes through this method."""
            for segment in super().render(*arguments, **options):
                yield segment if segment.control else Segment(_clean(segment.text), segment.style)

    return PrintableConsole


_GAP = 2
_LEAST_WRAPPED = 24
"""Least width of a column whose texts may be wrapped."""


Of = str | tuple[Any, ...] | Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    ``of`` is a key of the row, the keys on the way to a part of it, or a function of it, and ``write`` writes its
    value; None is ``-``. Numbers are aligned to the ``right``; a terminal ``wraps`` texts at spaces, and leaves
    ``spare`` columns out: 1 before all others, 0 never. Reports have further: ``small`` writes an addition to a cell,
    such as its interval; ``look`` is the macro ``cell`` of the page (``code``, ``folded``, ``notes``, ``verdict``,
    ``when``); ``link`` returns an address.
    """

    heading: str
    of: Of
    write: Callable[[Any], str] = str
    right: bool = False
    wraps: bool = False
    spare: int = 0
    small: Callable[[Any], str] | None = None
    look: str = ""
    link: Callable[[Any], str] | None = None

    def value(self, row: Any) -> Any:
        """Return the value of a row in the column, by which a page sorts numbers."""
        if callable(self.of):
            return self.of(row)
        for key in (self.of,) if isinstance(self.of, str) else self.of:
            row = None if row is None else row[key]
        return row

    def text(self, row: Any) -> str:
        """Write the cell of a row."""
        value = self.value(row)
        return UNKNOWN if value is None else self.write(value)

    def addition(self, row: Any) -> str:
        """Write the addition to the cell of a row; empty if there is none."""
        return "" if self.small is None else self.small(row)

    def address(self, row: Any) -> str:
        """Return the address of the link in the cell of a row; empty if there is none."""
        return "" if self.link is None else self.link(row)


def number(heading: str, of: Of, write: Callable[[Any], str] = str, **options: Any) -> Column:
    """Return a column of numbers."""
    return Column(heading, of, write, right=True, **options)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows, and the columns that show them; a report adds the row ``total``, a page may sort by a column."""

    rows: Sequence[Any]
    columns: Sequence[Column]
    sortable: bool = False
    total: Any = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RichTable]:
        """Yield the table with the columns that fit; on the narrowest terminals all but the first are wrapped."""
        from rich.table import Table as RichTable

        texts = [[column.text(row) for row in self.rows] for column in self.columns]
        least = [_least_width(column, cells) for column, cells in zip(self.columns, texts, strict=True)]
        kept = self._kept(least, options.max_width)
        narrow = _width(kept, least) > options.max_width
        table = RichTable(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
        for at in kept:
            column = self.columns[at]
            wraps = column.wraps or (narrow and at > 0)
            table.add_column(
                column.heading,
                justify="right" if column.right else "left",
                overflow="fold",
                no_wrap=not wraps,
                min_width=None if narrow and wraps else least[at],
            )
        for cells in zip(*(texts[at] for at in kept), strict=True):
            table.add_row(*cells)
        yield table

    def _kept(self, least: Sequence[int], width: int) -> list[int]:
        """Return the positions of the columns that fit: those not spare, then the most important spare ones."""
        spare = {at: column.spare for at, column in enumerate(self.columns) if column.spare}
        kept = [at for at in range(len(self.columns)) if at not in spare]
        for at in sorted(spare, key=lambda at: -spare[at]):
            if _width([*kept, at], least) <= width:
                kept.append(at)
        return sorted(kept)


def _least_width(column: Column, texts: Iterable[str]) -> int:
    from rich.cells import cell_len

    width = max(cell_len(text) for text in (column.heading, *texts))
    return min(width, _LEAST_WRAPPED) if column.wraps else width


def _width(places: Collection[int], least: Sequence[int]) -> int:
    return sum(least[at] for at in places) + _GAP * (len(places) - 1)


def facts(rows: Iterable[tuple[str, str]]) -> RichTable:
    """Return a table of names and values without a heading."""
    from rich.table import Table as RichTable

    grid = RichTable.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(name, value)
    return grid


def funnel(figures: Mapping[str, Any], *, replayed: bool) -> Table:
    """Return the table of the stages of a run: the fields of :class:`mltune.results.funnel.Funnel`."""
    skipped = {name: f"{many(figures[f'skipped_{name}'], 'skip')}" for name in ("before", "after")}
    rows = [
        ("valid", "valid", "", None),
        ("scored by a model", "scored", "", None),
        ("proposed", "proposed", "", "not_proposed_saved_s"),
        ("compiled", "compiled", skipped["before"], "before_saved_s"),
        ("measured", "measured", f"{skipped['after']}, {figures['failed']:,} failed", "after_saved_s"),
        ("finalists", "finalists", "", None),
    ]
    columns = [
        Column("stage", (0,)),
        number("configurations", lambda row: _configurations(row[1], figures)),
        Column("left out", (2,)),
        number("saved, as recorded" if replayed else "saved", lambda row: row[3] and figures[row[3]], spaced_duration),
    ]
    return Table(rows, columns)


def _configurations(stage: str, figures: Mapping[str, Any]) -> str:
    """Write the number of configurations of a stage; above 1,024 scored or skipped before it is an estimate."""
    from mltune.records.distinct import KEPT  # with NumPy

    count = figures[stage]
    if count is None:
        return "not on record"
    estimated = {"scored": count, "proposed": figures["skipped_before"]}.get(stage, 0) > KEPT
    return f"about {float(f'{count:.2g}'):,.0f}" if estimated else f"{count:,}"


Figures = Mapping[str, Any]
"""A rating, see :func:`mltune.results.rating.rating`; empty where nothing is known."""


def speeds(ratings: Iterable[Figures], of: Callable[[Any], Figures] = lambda row: row, spare: int = 0) -> list[Column]:
    """Return a column of speeds, with intervals, for each unit of ratings; the last unit is the first to be spare."""

    def column(unit: Unit, spare: int) -> Column:
        def value(row: Any) -> Any:
            return unit.value(of(row)) if unit_of(of(row)) == unit else None

        def interval(row: Any) -> str:
            return "" if value(row) is None else "\N{EN DASH}".join(unit.interval(of(row)) or ())

        return number(unit.name, value, unit.write, small=interval, spare=spare)

    units = units_of(ratings)
    later = [column(unit, spare and spare + len(units) - at) for at, unit in enumerate(units[1:], 2)]
    return [column(units[0], 0), *later] if units else [number("speed", lambda row: None)]


def rated(
    ratings: Iterable[Figures],
    references: Iterable[str],
    of: Callable[[Any], Figures] = lambda row: row,
    *,
    spare: tuple[int, int, int] = (0, 1, 0),
) -> list[Column]:
    """Return the columns of ratings: speeds, and shares of the reference kernels (by name) and of the limit.

    ``spare`` is that of the shares of the reference and of the limit, and of the units after the first, in this order.
    """
    present = set(filter(None, references))
    of_reference, of_limit, of_units = spare
    reference = present.pop() if len(present) == 1 else "reference"
    return [
        *speeds(ratings, of, of_units),
        number(f"of {reference}", lambda row: of(row).get("share_of_reference"), percent, spare=of_reference),
        number("of peak", lambda row: of(row).get("share_of_peak"), percent, spare=of_limit),
    ]
