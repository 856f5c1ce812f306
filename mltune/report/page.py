"""The report as a page and as Markdown, out of the same findings by two templates."""

from __future__ import annotations

import hashlib
import math
import re
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltune.report.evidence import hours
from mltune.report.sections import MOST_OPEN, Sections
from mltune.report.svg import clean

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"

UNKNOWN = "\N{EN DASH}"

_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~$!&])")


class Verbatim(str):
    """Text of Markdown that is not escaped again."""


def html(document: Mapping[str, Any], found: Sections) -> str:
    """Return the report as one page of HTML, with all that it needs.

    The page allows itself its own style and script, by a policy that it states, and nothing else: whatever text a store
    may hold, no script but the page's runs, and nothing is fetched.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_printable,
    )
    _add_filters(environment)
    script = (TEMPLATES / "page.js").read_text()
    return environment.get_template("page.html").render(
        document=document,
        found=found,
        many=len(found.problems) > MOST_OPEN,
        style=(TEMPLATES / "page.css").read_text(),
        script=script,
        script_hash=b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def markdown(document: Mapping[str, Any], found: Sections) -> str:
    """Return the report as Markdown: the same findings, without figures."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=False,  # noqa: S701 - Markdown escapes otherwise: _markdown does
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_markdown,
    )
    _add_filters(environment)
    environment.filters["code"] = _code
    return environment.get_template("report.md").render(document=document, found=found)


def _add_filters(environment: Environment) -> None:
    environment.filters |= {
        "tflops": tflops,
        "percent": percent,
        "milliseconds": milliseconds,
        "duration": duration,
        "hours": hours,
        "between": between,
        "values": values,
    }


def tflops(value: float | None) -> str:
    """Write TFLOPS to a hundredth, smaller ones to three digits."""
    if value is None:
        return UNKNOWN
    return f"{value:.2f}" if value >= 10 or value == 0 else f"{value:.3g}"


def percent(share: float | None, digits: int = 1) -> str:
    """Write a share as a percentage."""
    return UNKNOWN if share is None or not math.isfinite(share) else f"{100 * share:.{digits}f} %"


def milliseconds(seconds: float | None) -> str:
    """Write a time of a kernel."""
    return UNKNOWN if seconds is None else f"{1e3 * seconds:.4g} ms"


def duration(seconds: float | None) -> str:
    """Write a stretch of time as people say it: ``7 h 58 min``."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def between(interval: list[float] | None, scale: float = 1.0, digits: int = 2) -> str:
    """Write an interval; nothing where there is none."""
    return "" if interval is None else f"{scale * interval[0]:.{digits}f}{UNKNOWN}{scale * interval[1]:.{digits}f}"


def values(configuration: Mapping[str, int] | None) -> str:
    """Write a configuration as ``NAME=VALUE`` pairs."""
    return UNKNOWN if configuration is None else " ".join(f"{name}={value}" for name, value in configuration.items())


def _printable(value: Any) -> Any:
    if value is None:
        return UNKNOWN
    return clean(value) if type(value) is str else value  # what is marked as safe is of another type


def _markdown(value: Any) -> Any:
    if value is None:
        return UNKNOWN
    if type(value) is not str:
        return value
    return _MARKDOWN.sub(r"\\\1", " ".join(clean(value).split()))


def _code(text: str) -> Verbatim:
    """Return text as a code span, which nothing in it can end."""
    flat = " ".join(clean(str(text)).replace("`", "'").replace("|", "¦").split())
    return Verbatim(f"`{flat}`" if flat else "")
