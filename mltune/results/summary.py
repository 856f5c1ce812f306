"""Summaries as JSON documents: of a run, of a campaign, of a dataset; and the choice among kernels in them."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mltune.dataset.dataset import load_dataset
from mltune.device.facts import Device
from mltune.errors import DatasetError, RunDirectoryError
from mltune.files.text import many, printable
from mltune.problem.kinds import problem_from_json
from mltune.records.directory import FILE as STORE
from mltune.records.directory import PLAN_FILE, POINTER, is_begun, is_plan, runs_in
from mltune.records.events import BEGINNINGS, ENDS, FILE, LONGEST_LINE, planned, read_events
from mltune.records.store import is_written
from mltune.records.trial import TrialRecord, TrialState
from mltune.results.funnel import Funnel, total
from mltune.results.leader import rating_of
from mltune.results.rating import RATED, rating
from mltune.results.reader import Unread, read_or_set_aside, read_run
from mltune.results.run import TuneResult, counts

if TYPE_CHECKING:
    from mltune.dataset.manifest import Manifest
    from mltune.records.database_runs import StoredRun


MOST_LISTED = 50
"""Most runs in a list of those in a folder."""

_LATEST_S = 1e11  # in the year 5138: a date that Python has


def summarise_tuning(run: TuneResult) -> dict[str, Any]:
    """Summarise the result of tuning: the output of ``mltune tune --json``."""
    best = optimum(run)
    document = run.to_json() | {"optimum": None if best is None else asdict(best)}
    if not run.rivals:
        return document
    return document | {"run": str(run.directory.parent.parent), "kernels": kernel_rows(run.rivals)}


def summarise_run(run: TuneResult, top: int) -> dict[str, Any]:
    """Summarise a run with its ``top`` fastest trials: the output of ``mltune show --json``."""
    declared, leader = run.declaration, run.leader
    winner = None if leader is None or declared is None else replace(leader, timed_reference_s=None)
    return summarise_tuning(run) | {
        "declaration": None if declared is None else declared.to_json(),
        "winner": None if winner is None else rating_of(winner),
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

    docs/reference/cli.md explains the fields. ``read`` reads the run in a folder, given its slug. Where there is no
    campaign, it raises a RunDirectoryError.
    """
    folders = {folder.name: folder for folder in runs_in(directory)}
    events, _ = read_events(directory / FILE)
    slugs = dict.fromkeys([*planned(events), *folders])
    left_out = {event.get("slug"): str(event.get("detail")) for event in events if event["event"] == "left_out"}
    problems = [
        _begun(folders[slug], read)
        if slug in folders
        else _blank(slug, "left out" if slug in left_out else "waiting", left_out.get(slug, ""))
        for slug in slugs
    ]
    won = {entry["choice"] or entry["slug"] for entry in problems if entry["state"] in ("declared", "finished")}
    return {
        "plan": str(directory),
        "running": is_written(directory),
        "distinct": len(_choose(problems)),
        "with_winner": len(won),
        "funnel": total([Funnel(**entry["funnel"]) for entry in problems if entry["funnel"]]).to_json(),
        "problems": problems,
    }


def _choose(problems: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mark the fastest kernel of each choice and the only one of others; return an entry for each problem."""
    best_s: dict[str, float] = {}
    for entry in problems:
        if entry["choice"] and entry["best"]:
            median_s = entry["best"]["median_s"]
            best_s[entry["choice"]] = min(median_s, best_s.get(entry["choice"], median_s))
    for entry in problems:
        fastest = bool(entry["best"]) and entry["best"]["median_s"] == best_s.get(entry["choice"])
        entry["chosen"] = fastest if entry["choice"] else entry["state"] != "left out"
    counted = [entry for entry in problems if entry["state"] != "left out"]
    return list({entry["choice"] or entry["slug"]: entry for entry in counted}.values())


def _blank(slug: str, state: str, detail: str = "") -> dict[str, Any]:
    """Return the entry of a problem of which nothing is known."""
    entry = {"slug": slug, "state": state, "detail": detail, "replayed": False}
    empty = dict.fromkeys(("choice", "reference", "stopped"), "")
    unknown = dict.fromkeys(("problem", "label", "kernel", "accuracy", "device", "best", "error", "funnel"))
    return {**entry, **empty, **unknown, "trials": 0, "counts": counts([]), "seconds": {}}


def _begun(folder: Path, read: Callable[[Path, str], TuneResult]) -> dict[str, Any]:
    """Return the entry of a problem that was begun."""
    problem = read_or_set_aside(folder.name, lambda: _problem(read(folder, folder.name)))
    if isinstance(problem, Unread):
        return _blank(problem.slug, "unreadable", f"not readable: {problem.reason}")
    return problem


def _problem(run: TuneResult) -> dict[str, Any]:
    return run.facts | {
        "slug": run.slug,
        "state": _state(run),
        "detail": "; ".join(filter(None, (run.notice, run.stopped))),
        "best": run.best_rating,
        "error": run.error,
    }


def _state(run: TuneResult) -> str:
    if is_written(run.directory):
        return "running"
    if run.records and run.best is None:
        return "failed"
    if run.declaration is None or run.declaration.as_of != len(run.records):
        return "begun"
    return "finished" if run.stopped else "declared"


def list_runs(folder: Path) -> list[dict[str, Any]]:
    """Describe the runs and campaigns written last in a folder: the output of ``mltune show`` without a run.

    The newest comes first, and at most :data:`MOST_LISTED`. ``resumable`` is what was interrupted or killed.
    """
    written_s = {directory: at for directory in folder.glob("*") if (at := _written_s(directory)) is not None}
    newest = sorted(written_s, key=written_s.__getitem__, reverse=True)[:MOST_LISTED]
    return [_listed(directory, written_s[directory]) for directory in newest]


def _written_s(directory: Path) -> float | None:
    """Return when a run or a campaign was written last, seconds since 1970; None where there seems to be none."""
    if not is_begun(directory) and not os.path.lexists(directory / PLAN_FILE):
        return None
    times_s = [0.0]
    for name in (STORE, POINTER, PLAN_FILE, FILE):
        with contextlib.suppress(OSError):
            times_s.append((directory / name).lstat().st_mtime)
    return min(max(times_s), _LATEST_S)


def _listed(directory: Path, written_s: float) -> dict[str, Any]:
    outcome = read_or_set_aside(directory.name, partial(_whole, directory))
    if isinstance(outcome, Unread):
        outcome = {"state": "unreadable", "detail": outcome.reason, "problems": [], "trials": None, "best": None}
    written = datetime.fromtimestamp(written_s, UTC).astimezone().isoformat(timespec="seconds")
    return {"run": str(directory), **outcome, "written": written}


def _whole(directory: Path) -> dict[str, Any]:
    """Describe the run, or the campaign as a whole, in a directory."""
    problems = summarise_campaign(directory)["problems"] if is_plan(directory) else [_problem(read_run(directory))]
    labels = [entry["label"] or entry["slug"] for entry in _choose(problems)]
    unreadable = sum(entry["state"] == "unreadable" for entry in problems)
    best = [entry["best"] for entry in problems if entry["chosen"] and entry["best"]]
    return {
        "state": "running" if is_written(directory) else "ended" if _has_ended(directory) else "resumable",
        "detail": f"{many(unreadable, 'problem')} unreadable" if unreadable else "",
        "problems": labels,
        "trials": sum(entry["trials"] for entry in problems),
        "best": best[0] if best and len(labels) == 1 else None,
    }


def _has_ended(directory: Path) -> bool:
    """Return whether a run went on to its end, by the last lines of its event log; a sweep has a dataset instead."""
    log = directory / FILE
    size = log.stat().st_size if log.exists() else 0
    events, _ = read_events(log, max(0, size - LONGEST_LINE))
    of_whole = [event for event in events if event["event"] in BEGINNINGS | ENDS and not event.get("slug")]
    return of_whole[-1].get("outcome") == "ended" if of_whole else any(directory.glob("*.parquet"))


def describe_stored_run(run: StoredRun) -> dict[str, Any]:
    """Describe a run in a database: an entry of the output of ``mltune show postgresql://...``."""
    header = run.header

    def facts() -> dict[str, Any]:
        assert header is not None  # noqa: S101 - else it is unreadable
        problem, device = problem_from_json(dict(header.problem)), Device.from_json(dict(header.device))
        return {"kernel": printable(header.kernel, 200), "label": problem.label, "device": device.name}

    facts_of_run = read_or_set_aside("", facts)
    return {
        "run": str(run.run),
        "readable": not isinstance(facts_of_run, Unread),
        **(dict.fromkeys(("kernel", "label", "device")) if isinstance(facts_of_run, Unread) else facts_of_run),
        **{name: getattr(run, name) for name in ("owner", "host", "directory", "trials", "best_s", "running")},
        "created": run.created_at and run.created_at.isoformat(timespec="seconds"),
    }


def describe_dataset(manifest: Manifest) -> dict[str, Any]:
    """Describe a dataset: an entry of the output of ``mltune datasets --json``."""
    problem, device, best = manifest.problem, manifest.device, manifest.best
    figures = {} if best is None else rating(problem, device, best.median_s, manifest.reference_median_s)
    plain = ("name", "kind", "kernel", "rows", "created", "source", "licence")
    return {
        **{name: getattr(manifest, name) for name in plain},
        "label": problem.label,
        "problem": problem.to_json(),
        "reference": problem.reference,
        "device": device.name,
        "counts": dict(manifest.counts),
        **{f"best_{name}": figures.get(name) for name in RATED},
    }


def by_problem(runs: Iterable[TuneResult]) -> list[list[TuneResult]]:
    """Return the runs of each problem, the fastest first: the kernels of a choice are one problem."""
    runs_of_problem: dict[tuple[str, str], list[TuneResult]] = {}
    for run in runs:
        runs_of_problem.setdefault(("choice", run.choice) if run.choice else ("run", run.slug), []).append(run)
    return [sorted(group, key=_time) for group in runs_of_problem.values()]


def chosen(runs: Iterable[TuneResult]) -> set[str]:
    """Return the slugs of the runs that are the fastest of their problems."""
    return {group[0].slug for group in by_problem(runs)}


def fastest(directory: Path) -> TuneResult:
    """Return the result of the fastest kernel in the directory of a campaign for one problem, with all its rivals."""
    outcomes = [read_or_set_aside(at.name, partial(read_run, at, at.name)) for at in runs_in(directory)]
    groups = by_problem(run for run in outcomes if not isinstance(run, Unread))
    if len(groups) != 1:
        facts = "; ".join([f"{len(groups)}", *(run.reason for run in outcomes if isinstance(run, Unread))])
        raise RunDirectoryError(
            f"{directory} holds {facts}, and a result is that of one problem; name the folder of one of its problems."
        )
    (runs,) = groups
    return replace(runs[0], rivals=tuple(runs))


def kernel_rows(runs: Sequence[TuneResult]) -> list[dict[str, Any]]:
    """Describe the kernels of one problem side by side, in the order of their runs."""
    return [
        {
            "kernel": run.kernel,
            "accuracy": run.accuracy,
            "trials": len(run.records),
            "seconds": run.elapsed_s,
            "best": run.best_rating,
            "error": run.error,
            "run": str(run.directory),
        }
        for run in runs
    ]


def _time(run: TuneResult) -> float:
    return math.inf if run.best_time_s is None else run.best_time_s


_load_last = lru_cache(maxsize=1)(load_dataset)  # a report asks for each dataset by all its runs

_SHIPPED = re.compile(r"replay:([a-z0-9_-]+)")
"""The target of a run that replays a dataset by its name, not by a path."""


@dataclass(frozen=True, slots=True)
class Optimum:
    """The optimum of a dataset, and how near the best trial of a run came to it.

    `median_s` is the optimum's time, seconds; `share` that time as a share of the best trial's, whose rank is `rank`, 1
    for the fastest, among the `configurations` with a time. Of the `skipped`, `skipped_faster` are faster than the best
    trial; `best_skipped` is the fastest of them, None where none has a time.
    """

    dataset: str
    median_s: float
    share: float
    rank: int
    configurations: int
    skipped: int
    skipped_faster: int
    best_skipped: int | None
    best_skipped_ratio: float | None


def optimum(run: TuneResult) -> Optimum | None:
    """Compare the best trial of a run with the whole shipped dataset that it replayed; None for other runs.

    A dataset elsewhere is not opened: its path may come from a stranger.
    """
    target, best = _SHIPPED.fullmatch(str(run.header.settings.get("target"))), run.best_record
    if target is None or best is None:
        return None
    try:
        dataset = _load_last(target[1])
    except DatasetError:
        return None
    manifest = dataset.manifest
    trials = run.records
    if (manifest.kernel, manifest.problem, {*manifest.parameters}) != (run.kernel, run.problem, {*trials.parameters}):
        return None
    times_s = np.where(dataset.states == TrialState.OK.value, dataset.numbers("median_s"), np.inf)
    rows = dataset.space.index_of({name: trials.parameter(name).astype(np.int64) for name in trials.parameters})
    trial_s = np.where(rows >= 0, times_s[rows], np.inf)
    numbers, skipped = trials.column("number"), trials.in_state(TrialState.SKIPPED)
    ours_s, optimum_s = float(trial_s[numbers == best.number][0]), float(times_s.min())
    if not math.isfinite(ours_s):
        return None
    timed = np.flatnonzero(skipped & np.isfinite(trial_s))
    best_skipped = min(timed, key=trial_s.__getitem__, default=None)
    return Optimum(
        target[1],
        optimum_s,
        optimum_s / ours_s,
        1 + int((times_s < ours_s).sum()),
        int(np.isfinite(times_s).sum()),
        int(skipped.sum()),
        int((trial_s[timed] < ours_s).sum()),
        None if best_skipped is None else int(numbers[best_skipped]),
        None if best_skipped is None else float(trial_s[best_skipped]) / ours_s,
    )
