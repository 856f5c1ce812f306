"""Rendering of a report as HTML and as Markdown, from the same findings by two templates."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mltune.report.evidence import time_use
from mltune.report.sections import MOST_OPEN, Sections
from mltune.report.svg import clean
from mltune.results.wording import UNKNOWN, configuration, milliseconds, percent, spaced_duration, speed, tflops

TEMPLATES = Path(__file__).parent / "templates"

_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~$!&])")


def html(document: Mapping[str, Any], found: Sections) -> str:
    """Return the report as one page of HTML without external resources.

    The page has a content security policy that allows only its own style and script: no text from a store can run a
    script or load anything.
    """
    script = (TEMPLATES / "page.js").read_text()
    return _render(
        "page.html",
        _printable,
        document=document,
        found=found,
        many=len(found.problems) > MOST_OPEN,
        style=(TEMPLATES / "page.css").read_text(),
        script=script,
        script_hash=b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def markdown(document: Mapping[str, Any], found: Sections) -> str:
    """Return the report as Markdown: the same findings, without figures."""
    return _render("report.md", _markdown, document=document, found=found)


def _render(template: str, finalize: Callable[[Any], Any], **values: Any) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=template.endswith(".html"),  # _markdown escapes Markdown
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=finalize,
    )
    environment.filters |= {
        "percent": percent,
        "milliseconds": milliseconds,
        "duration": spaced_duration,
        "time_use": time_use,
        "between": between,
        "values": configuration,
        "rate": _rate,
        "speed": lambda entry: speed(entry["tflops"], entry["median_s"]),
        "code": _code,
    }
    return environment.get_template(template).render(**values)


def between(interval: list[float] | None, scale: float = 1.0, digits: int = 2) -> str:
    """Write an interval; nothing where there is none."""
    return "" if interval is None else f"{scale * interval[0]:.{digits}f}\N{EN DASH}{scale * interval[1]:.{digits}f}"


def _rate(entry: Mapping[str, Any]) -> str:
    """Write the TFLOPS of an entry without their unit, or its time."""
    return milliseconds(entry["median_s"]) if entry["tflops"] is None else tflops(entry["tflops"])


def _printable(value: Any) -> Any:
    if value is None:
        return UNKNOWN
    return clean(value) if type(value) is str else value  # markup that is safe has another type


def _markdown(value: Any) -> Any:
    if value is None:
        return UNKNOWN
    if type(value) is not str:
        return value
    return _MARKDOWN.sub(r"\\\1", " ".join(clean(value).split()))


def _code(text: str) -> Any:
    """Return text as a code span that its content cannot end, marked as safe: it is not escaped again."""
    from markupsafe import Markup

    flat = " ".join(clean(str(text)).replace("`", "'").replace("|", "¦").split())
    return Markup(f"`{flat}`" if flat else "")  # noqa: S704 - Markdown
