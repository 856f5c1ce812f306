"""Writes the report on a night: ``report.html``, ``report.md``, ``winners.json``, and the winners' folders."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mltune.errors import RunError
from mltune.records.atomic import replace_folder_atomically, write_file_atomically
from mltune.records.directory import WINNER, WINNERS, is_plan
from mltune.report.findings import findings
from mltune.report.page import html, markdown
from mltune.report.reading import Night, read_night
from mltune.report.sections import sections

HTML, MARKDOWN, JSON = "report.html", "report.md", "winners.json"


@dataclass(frozen=True, slots=True)
class ReportPaths:
    """Where the report lies.

    Attributes
    ----------
    html, markdown, winners : pathlib.Path
    document : dict
        What ``winners.json`` holds.
    """

    html: Path
    markdown: Path
    winners: Path
    document: dict[str, Any]


def write_report(directory: Path, folder: Path | None = None, *, quick: bool = False) -> ReportPaths:
    """Write the report on the directory of a run or of a plan. No GPU is needed, and the night may still go on.

    What is missing or damaged is said in the report. Each file is written as a whole or not at all.

    Parameters
    ----------
    directory : pathlib.Path
    folder : pathlib.Path, optional
        Where it goes; by default into ``directory``.
    quick : bool
        Leave out what takes seconds: figures, and which parameters mattered.

    Raises
    ------
    RunDirectoryError
        It is the directory of neither.
    RunError
        The report cannot be written.
    """
    directory = Path(directory)
    folder = directory if folder is None else Path(folder)
    night = read_night(directory)
    with _into(folder):
        document = _collect(night, folder)
        found = sections(night, document, quick=quick)
        _write(folder / MARKDOWN, markdown(document, found))
        _write(folder / HTML, html(document, found))
    return ReportPaths(folder / HTML, folder / MARKDOWN, folder / JSON, document)


def write_winners(directory: Path) -> Path:
    """Write ``winners.json`` of the directory of a run or of a plan, and copy the winners to where it says; no report.

    Raises
    ------
    RunDirectoryError
        It is the directory of neither.
    RunError
        They cannot be written.
    """
    directory = Path(directory)
    night = read_night(directory)
    with _into(directory):
        _collect(night, directory)
    return directory / JSON


@contextlib.contextmanager
def _into(folder: Path) -> Iterator[None]:
    """Make a folder, and say what keeps it from being written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise RunError(
            f"a report is written to a folder with room for it, but {folder} cannot be written: {error}; "
            "write it elsewhere with --output."
        ) from error


def _collect(night: Night, folder: Path) -> dict[str, Any]:
    """Bring the winners, write what was found as JSON, and return it."""
    document = findings(night, _bring_winners(night, folder))
    _write(folder / JSON, json.dumps(document, indent=2, allow_nan=False) + "\n")
    return document


def _bring_winners(night: Night, folder: Path) -> dict[str, str]:
    """Copy what can be taken away to where the report lies; return where it lies, by slug, relative to the report."""
    places = {}
    for run in night.runs:
        winner = run.directory / WINNER
        if not winner.is_dir() or winner.is_symlink():
            continue
        if not is_plan(night.directory) and folder.resolve() == run.directory.resolve():
            places[run.slug] = WINNER
            continue
        _copy(winner, folder / WINNERS / run.slug)
        places[run.slug] = f"{WINNERS}/{run.slug}"
    return places


def _copy(source: Path, target: Path) -> None:
    """Copy the plain files of a folder in place of an earlier copy; links are not followed."""
    files = {path.name: path.read_bytes() for path in source.iterdir() if path.is_file() and not path.is_symlink()}
    replace_folder_atomically(target, files)


def _write(path: Path, text: str) -> None:
    write_file_atomically(path, text.encode("utf-8", "backslashreplace"))
