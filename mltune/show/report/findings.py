"""Findings of a report: the JSON document in ``winners.json``, from which both reports are written."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import chain
from statistics import geometric_mean
from typing import Any

from mltune.errors import MltuneError
from mltune.files.text import many, printable
from mltune.records.declaration import Finalist
from mltune.records.store import PHASES
from mltune.records.trial import TrialRecord, TrialState
from mltune.records.versions import __version__
from mltune.results.funnel import pooled, total
from mltune.results.leader import RATES, Leader, finding_of
from mltune.results.reader import Unread
from mltune.results.run import TuneResult, counts
from mltune.results.summary import Optimum, chosen, optimum
from mltune.results.wording import verification
from mltune.show.report.evidence import ReportInput, placed_of
from mltune.show.why import bound_and_reasons

FORMAT = 1
"""Format of ``winners.json``: changed whenever the meaning of a field changes."""

LONGEST_FACT = 60
"""Longest name of a device or of a kernel in a label."""


def findings(source: ReportInput, folders: Mapping[str, str]) -> dict[str, Any]:
    """Return the findings of a run or a campaign (docs/reference/report.md); ``folders`` are of winners, by slug."""
    by_dataset = sorted(source.runs, key=lambda run: str(run.header.settings.get("target")))  # each is read once
    optima = {run.slug: optimum(run) for run in by_dataset}
    entries = [_entry(run, folders.get(run.slug), optima[run.slug]) for run in source.runs]
    entries += [_missing(unread) for unread in source.unread]
    _tell_apart(entries)
    fastest = chosen(source.runs)
    for run, entry in zip(source.runs, entries, strict=False):
        entry["chosen"] = run.slug in fastest
    winners = [entry for entry in entries if entry["chosen"]]
    shares: dict[str, list[float]] = {}
    for run, entry in zip(source.runs, entries, strict=False):
        if entry["reference"] and entry["chosen"]:
            shares.setdefault(run.problem.name, []).append(entry["reference"]["share"])
    audit = pooled([run.audit for run in source.runs])
    document = {
        "format": FORMAT,
        "title": source.title,
        "run": str(source.directory),
        "mltune": __version__,
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "began_at": _moment(min((run.header.created_at for run in source.runs), default=None)),
        "devices": distinct(run.device.to_json() for run in source.runs),
        "versions": distinct(dict(run.header.versions) for run in source.runs),
        "seeds": distinct(run.header.seed for run in source.runs),
        "problems": len(winners),
        "with_winner": sum(entry["median_s"] is not None for entry in winners),
        "against_reference": dict(Counter(entry["verdict"] for entry in winners if entry["verdict"])),
        "geometric_mean_share_of_reference": _geometric_mean(list(chain.from_iterable(shares.values()))),
        "by_name": {
            name: {"problems": len(those), "geometric_mean_share_of_reference": _geometric_mean(those)}
            for name, those in shares.items()
        },
        "trials": sum(entry["trials"] for entry in entries),
        "counts": counts(chain.from_iterable(run.records.column("state").tolist() for run in source.runs)),
        "seconds": {phase: sum(run.seconds.get(phase, 0.0) for run in source.runs) for phase in PHASES},
        "skips": audit.to_json(),
        "funnel": total([run.funnel for run in source.runs]).to_json(),
        "winners": entries,
    }
    return {name: _finite(value) for name, value in document.items()}


def _finite(value: Any) -> Any:
    """Return a JSON value with None in place of the numbers that are not finite."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _tell_apart(entries: Sequence[dict[str, Any]]) -> None:
    """Add the device, the kernel or the slug to entries with the same label that differ in it."""
    for fact, addition in (("device", " on {}"), ("kernel", " with {}"), ("slug", " ({})")):
        alike: dict[str, list[dict[str, Any]]] = {}
        for entry in entries:
            alike.setdefault(entry["label"], []).append(entry)
        for group in alike.values():
            if len({entry[fact] for entry in group}) > 1:
                for entry in group:
                    entry["label"] += addition.format(printable(entry[fact], LONGEST_FACT))


def _entry(run: TuneResult, folder: str | None, recorded: Optimum | None) -> dict[str, Any]:
    """Return the entry of one problem."""
    leader, declared, figures = run.leader, run.declaration, run.best_rating
    entry = _blank(run.slug) | run.facts
    entry |= {"device": run.device.name, "reference": None, "notes": _notes(run, figures)}
    if leader is None:
        return entry
    bound, reasons = bound_and_reasons(run)
    return (
        entry
        | finding_of(leader)
        | {
            "launch": _launch(run, leader.record),
            "bound": bound,
            "why": reasons,
            "folder": folder,
            "optimum": None if recorded is None else asdict(recorded),
            "finalists": []
            if declared is None
            else [_finalist(run, leader, finalist) for finalist in declared.finalists],
        }
    )


def _blank(slug: str) -> dict[str, Any]:
    """Return an entry with all fields and no values."""
    unknown = "problem kernel accuracy device error trial configuration median_s interval_s share_of_peak reference"
    rates = [f"{name}{of}" for name in RATES for of in ("", "_interval")]
    return (
        {"slug": slug, "label": slug, "state": "none", "choice": "", "stopped": "", "trials": 0}
        | {"chosen": True, "replayed": False, "verified": False}
        | {name: [] for name in ("finalists", "ties", "notes", "why")}
        | {name: {} for name in ("rejected", "counts", "seconds")}
        | dict.fromkeys([*unknown.split(), *rates, "verdict", "launch", "bound", "folder", "optimum", "funnel"])
    )


def _missing(unread: Unread) -> dict[str, Any]:
    begun = unread.reason != "not begun"
    return _blank(unread.slug) | {"state": "unreadable" if begun else "not begun", "notes": [unread.reason]}


def _finalist(run: TuneResult, leader: Leader, finalist: Finalist) -> dict[str, Any]:
    """Return a finalist, with its differences from the winner's parameters."""
    record, best = run.trial(finalist.number), leader.record.configuration
    configuration = {} if record is None else record.configuration
    return {
        "trial": finalist.number,
        "median_s": finalist.median_s,
        "interval_s": [finalist.low_s, finalist.high_s],
        **leader.rates(finalist.median_s),
        "ratio": finalist.ratio,
        "ratio_interval": [finalist.ratio_low, finalist.ratio_high],
        "tie": leader.declaration is not None and finalist.number in leader.declaration.ties,
        "differs": {name: value for name, value in configuration.items() if value != best.get(name)},
    }


def _notes(run: TuneResult, figures: Mapping[str, Any] | None) -> list[str]:
    """Return the reservations about a winner."""
    declared, notes = run.declaration, [run.notice] if run.notice else []
    if not run.records:
        notes.append("no trial on record")
    elif figures is None:
        notes.append("no trial succeeded")
    elif declared is None:
        notes.append("not verified: interrupted before its finals")
    else:
        if not declared.verified:
            notes.append(verification(declared.verified, run.replayed))
        if declared.rejected:
            notes.append(f"{many(len(declared.rejected), 'faster trial')} failed the last verification")
        later = len(run.records) - declared.as_of
        if later > 0:
            notes.append(f"declared {many(later, 'trial')} before the end")
    if run.best is not None and run.best.state is TrialState.UNSTABLE:
        notes.append("noisy when first timed")
    if figures is not None and run.problem.reference and figures["share_of_reference"] is None:
        notes.append(f"{run.problem.reference} was not timed")
    return notes


def _launch(run: TuneResult, record: TrialRecord) -> dict[str, Any] | None:
    """Return the launch configuration of the winner, if its bundle is known."""
    placed = placed_of(run)
    if placed is None or placed.kernel.source.text is None:
        return None
    try:
        launch = placed.launch(record.configuration)
    except (MltuneError, ArithmeticError, ValueError):  # the configuration is none of this bundle's
        return None
    return {"grid": list(launch.grid), "block": list(launch.block), "shared_bytes": launch.shared_bytes}


def distinct(values: Iterable[Any]) -> list[Any]:
    """Return each value once, in the order of first occurrence."""
    listed = list(values)
    return [value for at, value in enumerate(listed) if value not in listed[:at]]


def _geometric_mean(values: Sequence[float]) -> float | None:
    return geometric_mean(values) if values else None


def _moment(seconds: float | None) -> str | None:
    """Return seconds since the epoch as ISO 8601."""
    if seconds is None or not 0.0 < seconds < 1e11:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
