"""Input of a report: the runs, the plan and the events of a directory.

The directory may be damaged or come from a third party. A problem that cannot be read is reported as such; the others
are read.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mltune.files.assets import folder
from mltune.files.documents import parse_toml
from mltune.files.reading import read_file
from mltune.kernel.bundle import Kernel
from mltune.kernel.reader import load_kernel
from mltune.records.directory import PLAN_FILE, PROBLEMS, SLUG, is_begun, is_plan, runs_in
from mltune.records.events import FILE as EVENTS_FILE
from mltune.records.events import planned, read_events
from mltune.results.reader import Unread, read_or_set_aside, read_run
from mltune.results.run import TuneResult

_BUILT_IN = re.compile(r"[a-z][a-z0-9_]{0,63}")
MAX_BYTES = 1 << 18
"""Longest text of a plan that a report shows."""

_load_once = functools.cache(load_kernel)


@dataclass(frozen=True, slots=True)
class ReportInput:
    """The input of a report.

    ``plan`` is the text of the plan, None for the run of one problem; ``title`` that of the plan, or the label of the
    problem; ``unread`` the problems that were not begun or cannot be read; ``events`` all events in their order.
    """

    directory: Path
    plan: str | None
    title: str
    runs: Sequence[TuneResult]
    unread: Sequence[Unread]
    events: Sequence[Mapping[str, Any]]


def read_input(directory: Path, read: Callable[[Path, str], TuneResult] = read_run) -> ReportInput:
    """Read the directory of a run or of a campaign; ``read`` reads the run in a folder, given its slug.

    Raises
    ------
    RunDirectoryError
        It is neither.
    """
    directory = Path(directory)
    events, _ = read_events(directory / EVENTS_FILE)
    if is_plan(directory):
        plan: str | None = _plan(directory / PLAN_FILE)
        found = [_read(path, path.name, read) for path in _folders(directory, events)]
        title = _title(plan or "") or directory.resolve().name
    else:
        plan, found = None, [_read(path, "", read) for path in runs_in(directory)]
        title = found[0].problem.label if isinstance(found[0], TuneResult) else found[0].slug
    runs = [run for run in found if isinstance(run, TuneResult)]
    return ReportInput(directory, plan, title, runs, [run for run in found if isinstance(run, Unread)], events)


def _folders(directory: Path, events: Sequence[Mapping[str, Any]]) -> list[Path]:
    """Return the folders of a plan's problems, also of those not begun: in the order of the plan, as far as known.

    Kernels that were left out, because another one is faster than they can be, have none.
    """
    found = sorted(path.name for path in directory.glob(f"{PROBLEMS}/*") if path.is_dir())
    left_out = {event.get("slug") for event in events if event["event"] == "left_out"} - set(found)
    ordered = dict.fromkeys([*(slug for slug in planned(events) if slug not in left_out), *found])
    return [directory / PROBLEMS / name for name in ordered if SLUG.fullmatch(name)]


def _plan(path: Path) -> str:
    """Return the text of a plan, or why it cannot be read."""
    try:
        return read_file(path, MAX_BYTES).decode("utf-8", "backslashreplace")
    except OSError as error:
        return f"# {error}"


def _title(text: str) -> str:
    """Return the title that a plan gives itself."""
    try:
        document = parse_toml(text)
    except ValueError:
        return ""
    heads = [document, document.get("plan")]
    titles = (head.get(key) for head in heads if isinstance(head, dict) for key in ("title", "name"))
    return next((title[:200] for title in titles if isinstance(title, str) and title), "")


def _read(directory: Path, slug: str, read: Callable[[Path, str], TuneResult]) -> TuneResult | Unread:
    """Read one run; ``slug`` is empty for a run outside a plan."""
    if slug and not is_begun(directory):
        return Unread(slug, "not begun")
    return read_or_set_aside(slug or directory.resolve().name, lambda: read(directory, slug))


def kernel_of(run: TuneResult) -> Kernel | None:
    """Return the kernel bundle of a run, if it is a built-in one that has not changed since."""
    header = run.header
    if not _BUILT_IN.fullmatch(header.kernel) or not (folder("kernels") / header.kernel).is_dir():
        return None
    kernel = _load_once(header.kernel)
    same = kernel.is_version(header.source_hash) and set(kernel.all_parameters) == set(header.parameters)
    return kernel if same else None
