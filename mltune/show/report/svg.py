"""SVG plots by Matplotlib: compact, with the colours of the style sheet for light and dark pages."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any, ParamSpec, TypeVar

_Figure = TypeVar("_Figure")
_Arguments = ParamSpec("_Arguments")

LONGEST_REASON = 200

INK, QUIET, FAINT = "#0a0b0c", "#0b0c0d", "#0d0e0f"
"""Placeholders for the page's colours of text, of captions and of lines. No figure uses these colours otherwise."""

SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#6a51c7", "#7a7a72")
"""Placeholders for the page's colours of series (the first five: Okabe and Ito, 2008, "Color Universal Design")."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_THEMED = {INK: "currentColor", QUIET: "var(--quiet)", FAINT: "var(--line)"} | {
    colour: f"var(--series-{number})" for number, colour in enumerate(SERIES, start=1)
}
_SIZES = re.compile(r'(?<= )(d|x|y|width|height|transform)="([^"]*)"')
_METADATA = ("Date", "Creator", "Format", "Type")
_LONG_NUMBER = re.compile(r"-?\d+\.\d{2,}")

STYLE = {
    "svg.fonttype": "none",  # keep text: in the page's font, searchable, readable by screen readers
    "text.parse_math": False,  # names come from third parties
    "path.simplify": False,
    "font.size": 8.5,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 9.0,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.bottom": False,
    "ytick.left": False,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.5,
    "legend.frameon": False,
}


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure of a page, whose text at the width ``width_px`` is as large as the caption.

    The SVG is safe to include in HTML: all text in it is escaped. It contains its text alternative.
    """

    svg: str
    caption: str
    width_px: int


@dataclass(frozen=True, slots=True)
class Omission:
    """A sentence in place of a figure that cannot be drawn."""

    reason: str


class NotDrawableError(ValueError):
    """The values of a figure cannot be drawn; the message says why."""


@contextmanager
def plotting() -> Iterator[None]:
    """Configure Matplotlib for plots of a page while the context lasts."""
    import matplotlib
    import numpy as np

    # The page has fonts for all letters; values out of range are checked where they are drawn.
    with matplotlib.rc_context(), warnings.catch_warnings(), np.errstate(all="ignore"):
        matplotlib.rcdefaults()  # no matplotlibrc, such as one of the working directory, changes a page
        matplotlib.rcParams.update(STYLE)
        warnings.filterwarnings("ignore", "Glyph")
        yield


def drawn(
    title: str, draw: Callable[_Arguments, _Figure], *arguments: _Arguments.args, **options: _Arguments.kwargs
) -> _Figure | Omission:
    """Return the figure that a function draws, or a sentence with the reason if its values cannot be drawn.

    The values come from stores that may be damaged, or from third parties: one figure must not cost the page the
    others.
    """
    try:
        return draw(*arguments, **options)
    except NotDrawableError as error:
        reason = str(error)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
    return Omission(f"{title} cannot be drawn: {reason[:LONGEST_REASON]}.")


def axes(width_in: float, height_in: float, *, left_in: float = 0.52, top_in: float = 0.1) -> Any:
    """Return the axes of a new figure, with margins in inches: automatic layouts would draw everything twice."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, height_in))
    right, bottom = 0.2, 0.42
    width, height = width_in - left_in - right, height_in - bottom - top_in
    box = (left_in / width_in, bottom / height_in, width / width_in, height / height_in)
    panel = figure.add_axes(box)
    panel.patch.set_visible(False)
    return panel


def dots(panel: Any, x: Any, y: Any, colour: str, *, size: float = 3.0, label: str | None = None) -> None:
    """Plot points as one path of zero-length lines with round ends: a tenth of the file size of markers."""
    import numpy as np

    gaps = np.full(len(x), np.nan)
    path = (np.column_stack([x, x, gaps]).ravel(), np.column_stack([y, y, gaps]).ravel())
    panel.plot(*path, color=colour, linewidth=size, solid_capstyle="round", alpha=0.65, label=label, clip_on=False)


def finish(panel: Any, name: str, title: str, caption: str) -> Plot:
    """Return the plot of axes made by :func:`axes`, in :func:`plotting`; its name has letters, digits and ``-``."""
    import matplotlib

    figure, file = panel.figure, io.StringIO()
    matplotlib.rcParams["svg.hashsalt"] = name  # ids are then unique in the page, and reproducible
    figure.savefig(file, format="svg", transparent=True, metadata=dict.fromkeys(_METADATA))
    width_pt, height_pt = figure.get_size_inches() * 72.0
    body = file.getvalue().partition("<g ")
    head = (
        f'<svg viewBox="0 0 {width_pt:g} {height_pt:g}" role="img" aria-labelledby="{name}-t {name}-d">'
        f'<title id="{name}-t">{escape(title)}</title><desc id="{name}-d">{escape(caption)}</desc>'
    )
    return Plot(clean(head + _shorten("".join(body[1:]))), caption, round(width_pt * 4 / 3))


def clean(text: str) -> str:
    """Replace invisible characters, and those that change the direction of writing."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def _shorten(svg: str) -> str:
    """Remove what a page does not need, and replace placeholder colours by variables of the style sheet."""
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r" font-family: [^;\"]*;?", "", svg)
    svg = re.sub(r' transform="rotate\(-?0 [^"]*\)"', "", svg)
    svg = _SIZES.sub(lambda match: f'{match[1]}="{_LONG_NUMBER.sub(_rounded, match[2])}"', svg)
    svg = re.sub(r"\s*\n\s*", "\n", svg)
    for stands_for, colour in _THEMED.items():
        svg = svg.replace(stands_for, colour)
    return svg.replace("xlink:href", "href").replace("<g>\n</g>\n", "")


def _rounded(match: re.Match[str]) -> str:
    return f"{float(match[0]):.1f}".removesuffix(".0")
