"""The output of the program: all text goes through here, and reaches terminals and notebooks printable.

Text may come from files of strangers. It is never read as markup, and control characters in it are replaced by spaces.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from mltune.files.text import printable, printable_lines

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

_UNLIMITED = 10_000
"""Width of output that is not a terminal: lines are not wrapped for a program."""


def write(text: object, *, stderr: bool = False) -> None:
    """Write lines of text."""
    stream = sys.stderr if stderr else sys.stdout
    stream.write(f"{printable_lines(text)}\n")
    stream.flush()


def show(renderables: Iterable[RenderableType]) -> None:
    """Write tables and texts to stdout: as wide as the terminal; elsewhere as wide as they are, without padding."""
    out = console()
    if out.is_terminal or out.is_jupyter:
        for one in renderables:
            out.print(one)
        return
    with out.capture() as captured:
        for one in renderables:
            out.print(one)
    write("\n".join(line.rstrip() for line in captured.get().splitlines()))


def console(*, stderr: bool = False) -> Console:
    """Return a console for stdout or stderr. Where it is not a terminal, its lines are only wrapped to $COLUMNS."""
    made: Console = _class()(stderr=stderr)
    if not made.is_terminal and not made.is_jupyter and "COLUMNS" not in os.environ:
        made.width = _UNLIMITED
    return made


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
            """Render a string, such as a cell of a table, before its width is taken."""
            return super().render_str(_clean(text), **options)

        def render(self, *arguments: Any, **options: Any) -> Iterable[Segment]:
            """Render an object: all that is printed goes through this method."""
            for segment in super().render(*arguments, **options):
                yield segment if segment.control else Segment(_clean(segment.text), segment.style)

    return PrintableConsole
