"""Summaries as JSON documents: of a run, of a campaign, of a dataset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltune.device.facts import Device
from mltune.files.text import printable
from mltune.problem.kinds import problem_from_json
from mltune.records.directory import runs_in
from mltune.records.events import FILE, planned, read_events
from mltune.records.store import is_written
from mltune.records.trial import TrialRecord
from mltune.results.choice import kernel_rows
from mltune.results.optimum import optimum
from mltune.results.rating import rating
from mltune.results.reader import read_run
from mltune.results.run import TuneResult, counts
from mltune.results.unread import Unread, read_or_set_aside

if TYPE_CHECKING:
    from mltune.dataset.manifest import Manifest
    from mltune.records.database_runs import StoredRun


_RATED = ("median_s", "tflops", "gb_per_s", "share_of_peak", "share_of_reference")
"""Fields of a rating that the description of a dataset has of its best configuration."""


def summarise_tuning(run: TuneResult) -> dict[str, Any]:
    """Summarise the result of tuning: the output of ``mltune tune --json``."""
    found = optimum(run)
    document = run.to_json() | {"optimum": None if found is None else asdict(found)}
    if not run.rivals:
        return document
    return document | {"run": str(run.directory.parent.parent), "kernels": kernel_rows(run.rivals)}


def summarise_run(run: TuneResult, top: int) -> dict[str, Any]:
    """Summarise a run with its ``top`` fastest trials: the output of ``mltune show --json``."""
    return summarise_tuning(run) | {
        "declaration": None if run.declaration is None else run.declaration.to_json(),
        "best": [_entry(record, run) for record in run.records.fastest(top)],
    }


def _entry(record: TrialRecord, run: TuneResult) -> dict[str, Any]:
    """Describe one trial that succeeded."""
    measurement = record.measurement
    assert measurement is not None and measurement.median_s is not None  # noqa: S101, PT018 - it succeeded
    return {
        "trial": record.number,
        "configuration": run.header.labelled(record.configuration),
        **rating(run.problem, run.device, measurement.median_s, run.reference_s),
        "noise": measurement.noise,
        "samples": len(measurement.samples_s),
        **{name: getattr(record.build, name, None) for name in ("registers", "spill_bytes")},
    }


def summarise_campaign(directory: Path, read: Callable[[Path, str], TuneResult] = read_run) -> dict[str, Any]:
    """Summarise the directory of a campaign: the output of ``mltune show --json`` and of ``mltune run --json``.

    Parameters
    ----------
    directory : pathlib.Path
    read : callable
        Reads the run in a folder, given its slug.

    Returns
    -------
    dict
        ``plan``, the directory; ``running``; ``distinct``, the number of problems, of which the kernels of a choice are
        one, and ``with_winner``, the number of these that have one; ``problems``, in the order of the plan where its
        event log names them, each kernel of a choice by itself, with

        - ``slug``, and ``state``: ``waiting`` (not begun), ``left out`` (not begun, and gets no time: another kernel is
          faster than this one can be), ``running``, ``begun`` (interrupted before a winner was
          declared), ``declared``, ``finished`` (declared, and nothing better is expected), ``failed`` (no trial
          succeeded) or ``unreadable``,
        - ``detail``, why it is unreadable, what may be missing, why its search has ended by itself; else empty,
        - ``problem``, ``kernel``, ``accuracy``, ``device``, None while waiting, and ``replayed``,
        - ``choice``, the name that the kernels of a choice share, else empty; ``chosen``, whether it is the fastest,
        - ``error``: see :attr:`mltune.results.run.TuneResult.error`,
        - ``trials``, ``counts``, ``seconds``,
        - ``best``: see :meth:`mltune.results.run.TuneResult.best_rating`.

    Raises
    ------
    RunDirectoryError
        There is no campaign.
    """
    folders = {folder.name: folder for folder in runs_in(directory)}
    events, _ = read_events(directory / FILE)
    slugs = dict.fromkeys([*planned(events), *folders])
    left_out = {event.get("slug"): str(event.get("detail")) for event in events if event["event"] == "left_out"}
    problems = []
    for slug in slugs:
        if slug in folders:
            problems.append(_begun(folders[slug], read))
        else:
            problems.append(_blank(slug, "left out" if slug in left_out else "waiting", left_out.get(slug, "")))
    _choose(problems)
    of_choice = {entry["choice"] or entry["slug"]: entry for entry in problems if entry["state"] != "left out"}
    won = {entry["choice"] or entry["slug"] for entry in problems if entry["state"] in ("declared", "finished")}
    return {
        "plan": str(directory),
        "running": is_written(directory),
        "distinct": len(of_choice),
        "with_winner": len(won),
        "problems": problems,
    }


def _choose(problems: list[dict[str, Any]]) -> None:
    """Mark the fastest kernel of each choice, and the problems with a kernel of their own."""
    best_s: dict[str, float] = {}
    for entry in problems:
        if entry["choice"] and entry["best"]:
            median_s = entry["best"]["median_s"]
            best_s[entry["choice"]] = min(median_s, best_s.get(entry["choice"], median_s))
    for entry in problems:
        fastest = bool(entry["best"]) and entry["best"]["median_s"] == best_s.get(entry["choice"])
        entry["chosen"] = fastest if entry["choice"] else entry["state"] != "left out"


def _blank(slug: str, state: str, detail: str = "") -> dict[str, Any]:
    """Return the entry of a problem of which nothing is known."""
    known: dict[str, Any] = {"slug": slug, "state": state, "detail": detail, "replayed": False, "choice": ""}
    unknown: dict[str, Any] = dict.fromkeys(("problem", "kernel", "accuracy", "device", "best", "error"))
    return {**known, **unknown, "trials": 0, "counts": counts([]), "seconds": {}}


def _begun(folder: Path, read: Callable[[Path, str], TuneResult]) -> dict[str, Any]:
    """Return the entry of a problem that was begun."""
    found = read_or_set_aside(folder.name, lambda: _problem(read(folder, folder.name)))
    return _blank(found.slug, "unreadable", f"not readable: {found.reason}") if isinstance(found, Unread) else found


def _problem(run: TuneResult) -> dict[str, Any]:
    return {
        "slug": run.slug,
        "state": _state(run),
        "detail": "; ".join(filter(None, (run.notice, run.stopped))),
        "problem": run.problem.to_json(),
        "kernel": run.kernel,
        "accuracy": run.accuracy,
        "choice": run.choice,
        "device": run.device.to_json(),
        "replayed": run.replayed,
        "best": run.best_rating(),
        "error": run.error,
        "trials": len(run.records),
        "counts": run.counts,
        "seconds": dict(run.seconds),
    }


def _state(run: TuneResult) -> str:
    if is_written(run.directory):
        return "running"
    if run.records and run.best is None:
        return "failed"
    if run.declaration is None or run.declaration.as_of != len(run.records):
        return "begun"
    return "finished" if run.stopped else "declared"


def describe_stored_run(run: StoredRun) -> dict[str, Any]:
    """Describe a run in a database: an entry of the output of ``mltune show postgresql://...``."""
    header = run.header

    def facts() -> dict[str, Any]:
        assert header is not None  # noqa: S101 - else it is unreadable
        problem, device = problem_from_json(dict(header.problem)), Device.from_json(dict(header.device))
        return {"kernel": printable(header.kernel, 200), "label": problem.label, "device": device.name}

    known = read_or_set_aside("", facts)
    return {
        "run": str(run.run),
        "readable": not isinstance(known, Unread),
        **(dict.fromkeys(("kernel", "label", "device")) if isinstance(known, Unread) else known),
        **{name: getattr(run, name) for name in ("owner", "host", "directory", "trials", "best_s", "running")},
        "created": run.created_at.isoformat(timespec="seconds"),
    }


def describe_dataset(manifest: Manifest) -> dict[str, Any]:
    """Describe a dataset: an entry of the output of ``mltune datasets --json``."""
    problem, device, best = manifest.problem, manifest.device, manifest.best
    figures = {} if best is None else rating(problem, device, best.median_s, manifest.reference_median_s)
    return {
        "name": manifest.name,
        "kind": manifest.kind,
        "kernel": manifest.kernel,
        "label": problem.label,
        "problem": problem.to_json(),
        "device": device.name,
        "rows": manifest.rows,
        "counts": dict(manifest.counts),
        **{f"best_{name}": figures.get(name) for name in _RATED},
        "created": manifest.created,
        "source": manifest.source,
        "licence": manifest.licence,
    }
