"""Findings of a report: the JSON document in ``winners.json``, which both reports are written from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from statistics import geometric_mean
from typing import Any

from mltune import __version__
from mltune.kernel.bundle import device_variables
from mltune.records.declaration import Declaration, Finalist
from mltune.records.seconds import PHASES
from mltune.records.trial import TrialRecord, TrialState
from mltune.report.reading import ReportInput, Unread, kernel_of
from mltune.results.audit import pooled
from mltune.results.rating import rating
from mltune.results.run import TuneResult
from mltune.results.wording import REFERENCE

FORMAT = 1
"""Format of ``winners.json``: changed whenever the meaning of a field changes."""


def findings(source: ReportInput, folders: Mapping[str, str]) -> dict[str, Any]:
    """Return the findings of a run or of a campaign; the documentation of the report explains every field.

    Parameters
    ----------
    source : ReportInput
    folders : mapping of str to str
        Folder of the exported winner of each problem, by slug, relative to the report.

    Returns
    -------
    dict
        Plain JSON values.
    """
    entries = [_entry(run, folders.get(run.slug)) for run in source.runs]
    entries += [_missing(unread) for unread in source.unread]
    labels = Counter(entry["label"] for entry in entries)
    for entry in entries:  # several kernels or devices for one problem
        if labels[entry["label"]] > 1:
            entry["label"] = entry["slug"]
    shares: dict[str, list[float]] = {}
    for run, entry in zip(source.runs, entries, strict=False):
        if entry["reference"]:
            shares.setdefault(run.problem.name, []).append(entry["reference"]["share"])
    audit = pooled([run.audit() for run in source.runs])
    states = Counter[str]()
    for run in source.runs:
        states.update(run.counts)
    return {
        "format": FORMAT,
        "title": source.title,
        "run": str(source.directory),
        "mltune": __version__,
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "began_at": _moment(min((run.header.created_at for run in source.runs), default=None)),
        "devices": distinct(run.device.to_json() for run in source.runs),
        "versions": distinct(dict(run.header.versions) for run in source.runs),
        "seeds": distinct(run.header.seed for run in source.runs),
        "problems": len(entries),
        "with_winner": sum(entry["median_s"] is not None for entry in entries),
        "against_reference": dict(Counter(entry["verdict"] for entry in entries if entry["verdict"])),
        "geometric_mean_share_of_reference": _geometric_mean(list(chain.from_iterable(shares.values()))),
        "by_name": {
            name: {"problems": len(those), "geometric_mean_share_of_reference": _geometric_mean(those)}
            for name, those in shares.items()
        },
        "trials": sum(entry["trials"] for entry in entries),
        "counts": dict(states),
        "seconds": {phase: sum(run.seconds.get(phase, 0.0) for run in source.runs) for phase in PHASES},
        "skips": audit.to_json(),
        "winners": entries,
    }


def _entry(run: TuneResult, folder: str | None) -> dict[str, Any]:
    """Return the entry of one problem."""
    found = _found(run)
    entry = _blank(run.slug) | {
        "label": run.problem.label,
        "problem": run.problem.to_json(),
        "kernel": run.kernel,
        "device": run.device.name,
        "replayed": run.replayed,
        "trials": len(run.records),
        "counts": run.counts,
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
        "tflops_interval": [_tflops(run, end_s) for end_s in (timed.high_s, timed.low_s)]
        if timed_again and run.flops
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


def _tflops(run: TuneResult, median_s: float) -> float | None:
    return run.flops / median_s / 1e12 if run.flops else None


def _blank(slug: str) -> dict[str, Any]:
    """Return an entry with all fields and no values."""
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


def _found(run: TuneResult) -> tuple[TrialRecord, Finalist] | None:
    """Return the best trial with its times: as declared, else as first measured."""
    record, median_s = run.best, run.best_time_s
    if record is None or median_s is None:
        return None
    if run.declaration is not None:
        return record, run.declaration.winner
    return record, Finalist(record.number, median_s, median_s, median_s)


def _reference(run: TuneResult, timed: Finalist) -> dict[str, Any] | None:
    """Return the reference kernel compared with the winner: in the finals, else as timed once in the same run."""
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
    """Compare a winner with the reference in a word; a ratio whose interval contains 1 is a tie."""
    if reference is None:
        return None
    low, high = reference["share_interval"] or (reference["share"], reference["share"])
    return "faster" if low > 1.0 else "slower" if high < 1.0 else "level"


def _finalist(run: TuneResult, declared: Declaration, one: Finalist) -> dict[str, Any]:
    """Return a finalist, with the parameters in which it differs from the winner."""
    record, winner = run.trial(one.number), run.trial(declared.number)
    differs = {}
    if record is not None and winner is not None:
        differs = {
            name: value for name, value in record.configuration.items() if value != winner.configuration.get(name)
        }
    return {
        "trial": one.number,
        "median_s": one.median_s,
        "interval_s": [one.low_s, one.high_s],
        "tflops": _tflops(run, one.median_s),
        "ratio": one.ratio,
        "ratio_interval": [one.ratio_low, one.ratio_high],
        "tie": one.number in declared.ties,
        "differs": differs,
    }


def _notes(run: TuneResult, found: tuple[TrialRecord, Finalist] | None) -> list[str]:
    """Return the reservations about a winner."""
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
    if found is not None and run.problem.reference and _reference(run, found[1]) is None:
        notes.append(f"{run.problem.reference or REFERENCE} was not timed")
    return notes


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _launch(run: TuneResult, record: TrialRecord) -> dict[str, Any] | None:
    """Return the launch configuration of the winner, if its bundle is known."""
    kernel = kernel_of(run)
    if kernel is None or kernel.source is None:
        return None
    variables = {**run.problem.variables(), **device_variables(run.device)}
    launch = kernel.launch(record.configuration, variables)
    return {"grid": list(launch.grid), "block": list(launch.block), "shared_bytes": launch.shared_bytes}


def distinct(values: Iterable[Any]) -> list[Any]:
    """Return each value once, in the order of first occurrence."""
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _geometric_mean(values: Sequence[float]) -> float | None:
    return geometric_mean(values) if values else None


def _moment(seconds: float | None) -> str | None:
    """Return seconds since the epoch as ISO 8601."""
    if seconds is None or not 0.0 < seconds < 1e11:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
