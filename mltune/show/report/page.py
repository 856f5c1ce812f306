"""Rendering of a report as HTML and as Markdown, from the same findings by two templates."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mltune.cost.importance import FEWEST_ROWS
from mltune.results.rating import speed, unit_of
from mltune.results.wording import (
    UNKNOWN,
    configuration,
    error,
    many,
    milliseconds,
    of_optimum,
    percent,
    spaced_duration,
)
from mltune.show.report.sections import MOST_OPEN, MOST_PARAMETERS, Sections
from mltune.show.report.svg import clean
from mltune.show.report.tables import between

TEMPLATES = Path(__file__).parent / "templates"

LONGEST_TEXT = 1_000
"""Characters of any text but the plan that a report shows: names and messages come from third parties."""

_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~$!&])")


def html(document: Mapping[str, Any], found: Sections) -> str:
    """Return the report as one page of HTML without external resources.

    The page has a content security policy that allows only its own style and script: no text from a store can run a
    script or load anything.
    """
    from markupsafe import Markup

    script = (TEMPLATES / "page.js").read_text()
    return _render(
        "page.html",
        _printable,
        document=document,
        found=found,
        many=len(found.problems) > MOST_OPEN,
        most_parameters=MOST_PARAMETERS,
        fewest_rows=FEWEST_ROWS,
        plan=None if found.plan is None else Markup("<pre>{}</pre>").format(clean(found.plan)),
        style="\n".join((TEMPLATES / name).read_text() for name in ("colours.css", "page.css")),
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
        "error": error,
        "between": between,
        "hardware": hardware,
        "of_optimum": of_optimum,
        "many": many,
        "values": configuration,
        "speed": speed,
        "unit": unit_of,
        "code": _code,
    }
    return environment.get_template(template).render(**values)


def hardware(device: Mapping[str, Any]) -> str:
    """Write the facts of a device: :meth:`mltune.device.facts.Device.to_json`.

    >>> from mltune.device.known import H200
    >>> hardware(H200.to_json())
    'NVIDIA H200: compute capability 9.0, 132 multiprocessors at 1980 MHz, 140 GiB at 4.80 TB/s'
    """
    if not device["memory_bytes"]:
        return f"{device['name']}: its facts are not on record"
    capability = device["compute_capability"]
    memory = f"{device['memory_bytes'] / 2**30:.0f} GiB at {device['memory_bytes_per_s'] / 1e12:.2f} TB/s"
    cuda = f"compute capability {'.'.join(map(str, capability))}, " if capability else ""
    units = f"{device['sm_count']} {'multiprocessors' if cuda else 'compute units'}"
    return f"{device['name']}: {cuda}{units} at {device['clock_hz'] / 1e6:.0f} MHz, {memory}"


def _printable(value: Any) -> Any:
    if value is None:
        return UNKNOWN
    return clean(_cut(value)) if type(value) is str else value  # markup that is safe has another type


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"


def _markdown(value: Any) -> Any:
    if value is None:
        return UNKNOWN
    if type(value) is not str:
        return value
    return _MARKDOWN.sub(r"\\\1", " ".join(clean(_cut(value)).split()))


def _code(text: str) -> Any:
    """Return text as a code span that its content cannot end, marked as safe: it is not escaped again."""
    from markupsafe import Markup

    flat = " ".join(clean(_cut(str(text))).replace("`", "'").replace("|", "¦").split())
    return Markup(f"`{flat}`" if flat else "")  # noqa: S704 - Markdown
