"""Writing of a report: ``report.html``, ``report.md``, ``winners.json``, and the folders of the winners."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mltune.errors import RunError
from mltune.files.atomic import replace_folder_atomically, write_file_atomically
from mltune.files.reading import reason
from mltune.records.directory import WINNER, WINNERS, is_plan
from mltune.report.findings import findings
from mltune.report.page import html, markdown
from mltune.report.reading import ReportInput, read_input
from mltune.report.sections import sections

HTML, MARKDOWN, JSON = "report.html", "report.md", "winners.json"


@dataclass(frozen=True, slots=True)
class ReportPaths:
    """The files of a report.

    Attributes
    ----------
    document : dict
        The content of ``winners.json``.
    """

    html: Path
    markdown: Path
    winners: Path
    document: dict[str, Any]


def write_report(directory: Path, folder: Path | None = None, *, quick: bool = False) -> ReportPaths:
    """Write the report on the directory of a run or of a campaign, which may still go on. No GPU is needed.

    The report names what is missing or damaged. Each file is written as a whole or not at all.

    Parameters
    ----------
    folder : pathlib.Path, optional
        Where to write it; by default ``directory``.
    quick : bool
        Leave out figures and importances, which take seconds.

    Raises
    ------
    RunDirectoryError
        It is neither of these.
    RunError
        The report cannot be written.
    """
    directory = Path(directory)
    folder = directory if folder is None else Path(folder)
    source = read_input(directory)
    with _into(folder):
        document = _collect(source, folder)
        found = sections(source, document, quick=quick)
        _write(folder / MARKDOWN, markdown(document, found))
        _write(folder / HTML, html(document, found))
    return ReportPaths(folder / HTML, folder / MARKDOWN, folder / JSON, document)


def write_winners(directory: Path) -> Path:
    """Write ``winners.json`` and the folders of the winners; errors are those of :func:`write_report`."""
    directory = Path(directory)
    source = read_input(directory)
    with _into(directory):
        _collect(source, directory)
    return directory / JSON


@contextlib.contextmanager
def _into(folder: Path) -> Iterator[None]:
    """Make a folder; raise a RunError if it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise RunError(
            f"a report is written to a folder with room for it, but {folder} cannot be written: {reason(error)}; "
            "write it elsewhere with --output."
        ) from error


def _collect(source: ReportInput, folder: Path) -> dict[str, Any]:
    """Copy the winners; write the findings as JSON and return them."""
    document = findings(source, _copy_winners(source, folder))
    _write(folder / JSON, json.dumps(document, indent=2, allow_nan=False) + "\n")
    return document


def _copy_winners(source: ReportInput, folder: Path) -> dict[str, str]:
    """Copy the exported winners next to the report; return their folders by slug, relative to the report.

    Only plain files are copied, in place of an earlier copy.
    """
    places = {}
    for run in source.runs:
        winner = run.directory / WINNER
        if not winner.is_dir() or winner.is_symlink():
            continue
        if not is_plan(source.directory) and folder.resolve() == run.directory.resolve():
            places[run.slug] = WINNER
            continue
        files = {path.name: path.read_bytes() for path in winner.iterdir() if path.is_file() and not path.is_symlink()}
        replace_folder_atomically(folder / WINNERS / run.slug, files)
        places[run.slug] = f"{WINNERS}/{run.slug}"
    return places


def _write(path: Path, text: str) -> None:
    write_file_atomically(path, text.encode("utf-8", "backslashreplace"))
