"""What a night has found: the one document that ``winners.json`` holds, and that both reports are written from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from mltune import __version__
from mltune.kernel.bundle import device_variables
from mltune.records.declaration import Declaration, Finalist
from mltune.records.seconds import PHASES
from mltune.records.trial import TrialRecord, TrialState
from mltune.report.reading import Night, ProblemRun, Unread
from mltune.results.audit import audit_skips, pooled
from mltune.results.rating import rating
from mltune.results.summary import best, counts

FORMAT = 1
"""Of ``winners.json``; a field that changes its meaning changes it."""


def findings(night: Night, folders: Mapping[str, str]) -> dict[str, Any]:
    """Return what a night has found: docs/reference/report.md explains every field.

    Parameters
    ----------
    night : Night
    folders : mapping of str to str
        Where the winner of a problem lies, by slug, relative to the report.

    Returns
    -------
    dict
        Plain JSON values.
    """
    entries = [_entry(run, folders.get(run.slug)) for run in night.runs]
    entries += [_missing(unread) for unread in night.unread]
    labels = Counter(entry["label"] for entry in entries)
    for entry in entries:  # several kernels or devices for one problem
        if labels[entry["label"]] > 1:
            entry["label"] = entry["slug"]
    shares: dict[str, list[float]] = {}
    for run, entry in zip(night.runs, entries, strict=False):
        if entry["reference"] and entry["tflops"] is not None:
            shares.setdefault(run.problem.name, []).append(entry["reference"]["share"])
    audit = pooled([audit_skips(run.records, run.seconds.get("search", 0.0)) for run in night.runs])
    states = Counter[str]()
    for run in night.runs:
        states.update(counts(record.state for record in run.records))
    return {
        "format": FORMAT,
        "title": night.title,
        "run": str(night.directory),
        "mltune": __version__,
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "began_at": _moment(min((run.header.created_at for run in night.runs), default=None)),
        "devices": distinct(run.device.to_json() for run in night.runs),
        "versions": distinct(dict(run.header.versions) for run in night.runs),
        "seeds": distinct(run.header.seed for run in night.runs),
        "problems": len(entries),
        "with_winner": sum(entry["tflops"] is not None for entry in entries),
        "against_reference": dict(Counter(entry["verdict"] for entry in entries if entry["verdict"])),
        "geometric_mean_share_of_reference": _geometric_mean(list(chain.from_iterable(shares.values()))),
        "by_name": {
            name: {"problems": len(those), "geometric_mean_share_of_reference": _geometric_mean(those)}
            for name, those in shares.items()
        },
        "trials": sum(entry["trials"] for entry in entries),
        "counts": dict(states),
        "seconds": {phase: sum(run.seconds.get(phase, 0.0) for run in night.runs) for phase in PHASES},
        "skips": audit.to_json(),
        "winners": entries,
    }


def _entry(run: ProblemRun, folder: str | None) -> dict[str, Any]:
    """Return the entry of one problem."""
    found = _found(run)
    entry = _blank(run.slug) | {
        "label": run.problem.label,
        "problem": run.problem.to_json(),
        "kernel": run.header.kernel,
        "device": run.device.name,
        "replayed": run.replayed,
        "trials": len(run.records),
        "counts": counts(record.state for record in run.records),
        "seconds": dict(run.seconds),
        "stopped": run.stopped,
        "notes": _notes(run, found),
    }
    if found is None:
        return entry | {"state": "none"}
    record, timed = found
    declared = run.declaration
    timed_again = declared is not None and timed.low_s < timed.high_s
    figures = rating(run.problem, run.device, timed.median_s, None)
    reference = _reference(run, timed)
    return entry | {
        "state": "best so far" if declared is None else "declared",
        "trial": record.number,
        "configuration": dict(record.configuration),
        "median_s": timed.median_s,
        "interval_s": [timed.low_s, timed.high_s] if timed_again else None,
        "tflops": figures["tflops"],
        "tflops_interval": [run.problem.flops / end / 1e12 for end in (timed.high_s, timed.low_s)]
        if timed_again
        else None,
        "share_of_peak": figures["share_of_peak"],
        "reference": reference,
        "verdict": _verdict(reference),
        "finalists": [] if declared is None else [_finalist(run, declared, one) for one in declared.finalists],
        "ties": [] if declared is None else list(declared.ties),
        "rejected": {} if declared is None else {str(at): reason for at, reason in declared.rejected.items()},
        "verified": declared is not None and declared.verified,
        "launch": _launch(run, record),
        "folder": folder,
    }


def _blank(slug: str) -> dict[str, Any]:
    """Return an entry of which nothing is known: every entry has the same fields."""
    unknown = "problem kernel device trial configuration median_s interval_s tflops tflops_interval share_of_peak"
    return {
        "slug": slug,
        "label": slug,
        "state": "none",
        "replayed": False,
        "verified": False,
        "finalists": [],
        "ties": [],
        "rejected": {},
        "trials": 0,
        "counts": {},
        "seconds": {},
        "stopped": "",
        "notes": [],
    } | dict.fromkeys([*unknown.split(), "reference", "verdict", "launch", "folder"])


def _missing(unread: Unread) -> dict[str, Any]:
    begun = unread.reason != "not begun"
    return _blank(unread.slug) | {"state": "unreadable" if begun else "not begun", "notes": [unread.reason]}


def _found(run: ProblemRun) -> tuple[TrialRecord, Finalist] | None:
    """Return the winner and its time: as declared, or the fastest so far."""
    if run.declaration is not None:
        record = run.of_trial(run.declaration.number)
        if record is not None:
            return record, run.declaration.winner
    for record in best(run.records, 1):
        if record.median_s is not None:
            return record, Finalist(record.number, record.median_s, record.median_s, record.median_s)
    return None


def _reference(run: ProblemRun, timed: Finalist) -> dict[str, Any] | None:
    """Return cuBLAS beside the winner: raced against it, or timed once in the same run."""
    raced = None if run.declaration is None else run.declaration.reference
    if raced is not None:
        return {
            "median_s": raced.median_s,
            "interval_s": [raced.low_s, raced.high_s],
            "share": raced.ratio,
            "share_interval": [raced.ratio_low, raced.ratio_high],
        }
    if run.reference_s is None:
        return None
    return {
        "median_s": run.reference_s,
        "interval_s": None,
        "share": run.reference_s / timed.median_s,
        "share_interval": None,
    }


def _verdict(reference: Mapping[str, Any] | None) -> str | None:
    """Say in a word how a winner stands against cuBLAS; what lies within the interval is a tie."""
    if reference is None:
        return None
    low, high = reference["share_interval"] or (reference["share"], reference["share"])
    return "faster" if low > 1.0 else "slower" if high < 1.0 else "level"


def _finalist(run: ProblemRun, declared: Declaration, one: Finalist) -> dict[str, Any]:
    """Return a finalist, and where its configuration differs from the winner's."""
    record, winner = run.of_trial(one.number), run.of_trial(declared.number)
    differs = {}
    if record is not None and winner is not None:
        differs = {
            name: value for name, value in record.configuration.items() if value != winner.configuration.get(name)
        }
    return {
        "trial": one.number,
        "median_s": one.median_s,
        "interval_s": [one.low_s, one.high_s],
        "tflops": run.problem.flops / one.median_s / 1e12,
        "ratio": one.ratio,
        "ratio_interval": [one.ratio_low, one.ratio_high],
        "tie": one.number in declared.ties,
        "differs": differs,
    }


def _notes(run: ProblemRun, found: tuple[TrialRecord, Finalist] | None) -> list[str]:
    """Say what a reader must know before the winner is believed."""
    declared, notes = run.declaration, []
    if not run.records:
        notes.append("no trial on record")
    elif found is None:
        notes.append("no trial succeeded")
    elif declared is None:
        notes.append("not verified: interrupted before its finals")
    else:
        if not declared.verified:
            notes.append("replayed: nothing to verify" if run.replayed else "not verified")
        if declared.rejected:
            notes.append(f"{_many(len(declared.rejected), 'faster trial')} failed the last verification")
        later = len(run.records) - declared.as_of
        if later > 0:
            notes.append(f"declared {_many(later, 'trial')} before the end")
    if found is not None and found[0].state is TrialState.UNSTABLE:
        notes.append("noisy when first timed")
    if found is not None and _reference(run, found[1]) is None:
        notes.append("cuBLAS was not timed")
    return notes


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _launch(run: ProblemRun, record: TrialRecord) -> dict[str, Any] | None:
    """Return how the winner is launched, where its bundle is at hand."""
    if run.kernel is None or run.kernel.source is None:
        return None
    variables = {**run.problem.variables(), **device_variables(run.device)}
    launch = run.kernel.launch(record.configuration, variables)
    return {"grid": list(launch.grid), "block": list(launch.block), "shared_bytes": launch.shared_bytes}


def distinct(values: Iterable[Any]) -> list[Any]:
    """Return values, each once, in the order in which they came first."""
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _geometric_mean(values: Sequence[float]) -> float | None:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def _moment(seconds: float | None) -> str | None:
    """Return a moment, given in seconds since the epoch, as ISO 8601."""
    if seconds is None or not 0.0 < seconds < 1e11:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
