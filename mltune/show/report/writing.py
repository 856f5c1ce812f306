"""Writing of a report from two templates: ``report.html``, ``report.md``, ``winners.json``, and the winners."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import warnings
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltune.cost.importance import FEWEST_ROWS
from mltune.errors import MltuneWarning, RunError
from mltune.files.atomic import replace_folder_atomically, write_product
from mltune.files.owned import PAGE, REPORT, TEXT, ForeignFileError, Product, check_replaceable
from mltune.files.owned import WINNER as WINNER_FOLDER
from mltune.files.reading import read_file, reason
from mltune.files.text import many
from mltune.records.directory import HTML, JSON, MARKDOWN, WINNER, WINNERS, is_plan
from mltune.results.rating import speed, unit_of
from mltune.results.reader import read_run
from mltune.results.run import TuneResult
from mltune.results.winner_texts import templates_in
from mltune.results.wording import (
    UNKNOWN,
    configuration,
    error,
    milliseconds,
    of_optimum,
    of_skipped,
    percent,
    skip_check,
    spaced_duration,
)
from mltune.show.report.evidence import ReportInput, read_input
from mltune.show.report.findings import findings
from mltune.show.report.sections import MOST_ATTENTION, MOST_OPEN, MOST_PARAMETERS, sections
from mltune.show.report.svg import clean
from mltune.show.report.tables import between

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"

LONGEST_TEXT = 1_000
"""Most characters of any text but the plan in a report: names and messages come from third parties."""

_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~$!&])")


def html(document: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    """Return the report as one page of HTML without external resources.

    Its content security policy allows only its own style and script: no text from a store can run a script or load
    anything.
    """
    from markupsafe import Markup

    script = (TEMPLATES / "page.js").read_text("utf-8")
    values = {
        **parts,
        "many": len(parts["problems"]) > MOST_OPEN,
        "most_parameters": MOST_PARAMETERS,
        "most_attention": MOST_ATTENTION,
        "fewest_rows": FEWEST_ROWS,
        "plan": None if parts["plan"] is None else Markup("<pre>{}</pre>").format(clean(parts["plan"])),
        "style": style(),
        "script": script,
        "script_hash": b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    }
    return render("page.html", document, values)


def markdown(document: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    """Return the report as Markdown: the same findings, without figures."""
    return render("report.md", document, parts)


def style() -> str:
    """Return the style sheet of a page."""
    return "\n".join((TEMPLATES / name).read_text("utf-8") for name in ("colours.css", "page.css"))


def render(template: str, document: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    """Return a filled template: every text is cut and escaped, for HTML or for Markdown."""
    return _templates(is_html=template.endswith(".html")).get_template(template).render(document=document, **parts)


@cache  # with its compiled templates
def _templates(*, is_html: bool) -> Environment:
    finalize = _printable if is_html else _markdown  # which escapes Markdown
    environment = templates_in(TEMPLATES, autoescape=is_html, finalize=finalize)
    by_their_names = (percent, milliseconds, error, between, hardware, of_optimum, of_skipped, skip_check, many, speed)
    environment.filters |= {function.__name__: function for function in by_their_names}
    environment.filters |= {"duration": spaced_duration, "values": configuration, "unit": unit_of, "code": _code}
    return environment


def hardware(device: Mapping[str, Any]) -> str:
    """Write the facts of a device: :meth:`mltune.device.facts.Device.to_json`."""
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
    """Return text as a code span that its content cannot end, marked as safe against a second escape."""
    from markupsafe import Markup

    flat = " ".join(clean(_cut(str(text))).replace("`", "'").replace("|", "¦").split())
    return Markup(f"`{flat}`" if flat else "")  # noqa: S704 - Markdown


MOST_FILES, MOST_BYTES = 100, 1 << 28
"""Most files of a winner's folder that is copied, and bytes of all of them."""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


@dataclass(frozen=True, slots=True)
class ReportPaths:
    """The files of a report, and the content of ``winners.json``."""

    html: Path
    markdown: Path
    winners: Path
    document: dict[str, Any]


def write_report(
    directory: Path,
    folder: Path | None = None,
    *,
    overwrite: bool = False,
    quick: bool = False,
    read: Callable[[Path, str], TuneResult] = read_run,
) -> ReportPaths:
    """Write the report on the directory of a run or of a campaign, which may still go on.

    The report lists what is missing or damaged. Each file is written as a whole or not at all, into ``folder`` or else
    into the directory; ``overwrite`` replaces files that mltune did not write. ``quick`` leaves out figures and
    importances. ``read`` reads the run in a folder, given its slug.
    """
    directory = Path(directory)
    folder = directory if folder is None else Path(folder)
    source = read_input(directory, read)
    with _into(folder):
        check_replaceable({} if overwrite else report_files(folder))
        document = _collect(source, folder, overwrite=overwrite)
        parts = sections(source, document, quick=quick)
        _write(folder / MARKDOWN, markdown(document, parts), overwrite=overwrite)
        _write(folder / HTML, html(document, parts), overwrite=overwrite)
    return ReportPaths(folder / HTML, folder / MARKDOWN, folder / JSON, document)


def write_winners(
    directory: Path, read: Callable[[Path, str], TuneResult] = read_run, *, overwrite: bool = False
) -> Path:
    """Write ``winners.json`` and the folders of the winners; see :func:`write_report`."""
    directory = Path(directory)
    source = read_input(directory, read)
    with _into(directory):
        _collect(source, directory, overwrite=overwrite)
    return directory / JSON


_PRODUCTS = {HTML: PAGE, MARKDOWN: TEXT, JSON: REPORT}


def report_files(folder: Path) -> dict[Path, Product]:
    """Return the files of a report in a folder."""
    return {folder / name: product for name, product in _PRODUCTS.items()}


@contextlib.contextmanager
def _into(folder: Path) -> Iterator[None]:
    """Make a folder; raise a RunError if it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except ForeignFileError as error:
        raise RunError(f"{error}; a report is written elsewhere with --out.") from error
    except OSError as error:
        raise RunError(
            f"the folder of the report, {folder}, cannot be written: {reason(error)}; write it elsewhere with --out."
        ) from error


def _collect(source: ReportInput, folder: Path, *, overwrite: bool) -> dict[str, Any]:
    """Copy the winners; write the findings as JSON and return them."""
    document = findings(source, _copy_winners(source, folder))
    _write(folder / JSON, json.dumps(document, indent=2, allow_nan=False) + "\n", overwrite=overwrite)
    return document


def _copy_winners(source: ReportInput, folder: Path) -> dict[str, str]:
    """Copy the exported winners in place of earlier copies; return their folders by slug, relative to the report."""
    places = {}
    for run in source.runs:
        winner = run.directory / WINNER
        if not winner.is_dir():
            continue
        if not is_plan(source.directory) and folder.resolve() == run.directory.resolve():
            places[run.slug] = WINNER
            continue
        if copy_winner(winner, folder / WINNERS / run.slug, folder):
            places[run.slug] = f"{WINNERS}/{run.slug}"
    return places


def copy_winner(winner: Path, target: Path, folder: Path) -> bool:
    """Copy the folder of a winner in place of an earlier copy inside a folder; return whether that was possible.

    It is not if the folder is too large, or none of a winner, or if something else is in the place of the copy. A file
    that was added or changed is left out.
    """
    files = _files(winner)
    if files is None:
        fact = f"{winner} has more than {MOST_FILES} files or {MOST_BYTES} bytes, the most of a winner's folder"
        warnings.warn(f"{fact}, and is not copied.", MltuneWarning, stacklevel=1)
        return False
    try:
        replace_folder_atomically(target, WINNER_FOLDER.own(files), WINNER_FOLDER, inside=folder)
    except (ForeignFileError, ValueError) as error:
        warnings.warn(f"{winner} is not copied: {error}.", MltuneWarning, stacklevel=1)
        return False
    return True


def _files(winner: Path) -> dict[str, bytes] | None:
    """Return the regular files with plain names in a folder; None if they are too many or too large."""
    files: dict[str, bytes] = {}
    with os.scandir(winner) as entries:
        for entry in entries:
            if not entry.is_file(follow_symlinks=False) or not _PLAIN_NAME.fullmatch(entry.name):
                continue
            free_bytes = MOST_BYTES - sum(map(len, files.values()))
            if len(files) == MOST_FILES or entry.stat(follow_symlinks=False).st_size > free_bytes:
                return None
            files[entry.name] = read_file(winner / entry.name, free_bytes, inside=winner)
    return files


def _write(path: Path, text: str, *, overwrite: bool) -> None:
    write_product(path, text.encode("utf-8", "backslashreplace"), _PRODUCTS[path.name], overwrite=overwrite)
