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
from mltune.records.declaration import Declaration, Finalist
from mltune.records.store import PHASES
from mltune.records.trial import TrialRecord, TrialState
from mltune.records.versions import __version__
from mltune.results.audit import pooled
from mltune.results.funnel import total
from mltune.results.rating import UNITS, rating
from mltune.results.reader import Unread
from mltune.results.run import TuneResult, counts
from mltune.results.summary import Optimum, chosen, optimum
from mltune.results.wording import verification
from mltune.show.report.evidence import ReportInput, placed_of
from mltune.show.why import bound_and_reasons

FORMAT = 1
"""Format of ``winners.json``: changed whenever the meaning of a field changes."""

RATES = tuple(unit.key for unit in UNITS if unit.higher_is_better)
"""Fields of an entry for the rate of its problem: one has a value, the others are None."""

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
    audit = pooled([run.audit() for run in source.runs])
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
        "funnel": total([run.funnel() for run in source.runs]).to_json(),
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
    best, figures, declared = run.best_record, run.best_rating(), run.declaration
    entry = _blank(run.slug) | run.facts()
    entry |= {"device": run.device.name, "reference": None, "notes": _notes(run, figures)}
    if best is None or figures is None:
        return entry
    reference, (bound, reasons) = _reference(run, figures), bound_and_reasons(run)
    entry |= {name: figures[name] for name in ("median_s", *RATES, "share_of_peak")} | {
        "state": "best so far",
        "trial": best.number,
        "error": run.error,
        "configuration": run.header.labelled(best.configuration),
        "reference": reference,
        "verdict": _compared(reference),
        "launch": _launch(run, best),
        "bound": bound,
        "why": reasons,
        "folder": folder,
        "optimum": None if recorded is None else asdict(recorded),
    }
    if declared is None:
        return entry
    low_s, high_s = figures["interval_s"]
    timed = low_s < high_s
    return entry | {
        "state": "declared",
        "interval_s": [low_s, high_s] if timed else None,
        **(_rate_intervals(run, low_s, high_s) if timed else {}),
        "finalists": [_finalist(run, best, finalist, declared) for finalist in declared.finalists],
        "ties": figures["ties"],
        "rejected": {str(number): reason for number, reason in declared.rejected.items()},
        "verified": figures["verified"],
    }


def _rates(run: TuneResult, median_s: float) -> dict[str, float | None]:
    """Return a time as the rate of its problem, None for the other rates."""
    rated = rating(run.problem, run.device, median_s, None)
    return {name: rated[name] for name in RATES}


def _rate_intervals(run: TuneResult, low_s: float, high_s: float) -> dict[str, list[float | None] | None]:
    low, high = _rates(run, high_s), _rates(run, low_s)
    return {f"{name}_interval": None if low[name] is None else [low[name], high[name]] for name in RATES}


def _blank(slug: str) -> dict[str, Any]:
    """Return an entry with all fields and no values."""
    unknown = "problem kernel accuracy device error trial configuration median_s interval_s share_of_peak"
    rates = [f"{name}{of}" for name in RATES for of in ("", "_interval")]
    return {
        "slug": slug,
        "label": slug,
        "state": "none",
        "choice": "",
        "chosen": True,
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
        "why": [],
    } | dict.fromkeys(
        [*unknown.split(), *rates, "reference", "verdict", "launch", "bound", "folder", "optimum", "funnel"]
    )


def _missing(unread: Unread) -> dict[str, Any]:
    begun = unread.reason != "not begun"
    return _blank(unread.slug) | {"state": "unreadable" if begun else "not begun", "notes": [unread.reason]}


def _reference(run: TuneResult, figures: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the reference kernel compared with the winner: in the finals, or as timed in the same run."""
    share = figures["share_of_reference"]
    if share is None or not 0.0 < share < math.inf:
        return None
    raced = None if run.declaration is None else run.declaration.reference
    median_s = run.reference_s if raced is None else raced.median_s
    return {
        "median_s": median_s,
        **({} if median_s is None else _rates(run, median_s)),
        "interval_s": None if raced is None else [raced.low_s, raced.high_s],
        "share": share,
        "share_interval": figures.get("interval_share_of_reference"),
    }


def _compared(reference: Mapping[str, Any] | None) -> str | None:
    """Compare a winner with the reference in a word; a ratio whose interval contains 1 is a tie."""
    if reference is None:
        return None
    low, high = reference["share_interval"] or (reference["share"], reference["share"])
    return "faster" if low > 1.0 else "slower" if high < 1.0 else "level"


def _finalist(run: TuneResult, winner: TrialRecord, finalist: Finalist, declared: Declaration) -> dict[str, Any]:
    """Return a finalist, with its differences from the winner's parameters."""
    record, differs = run.trial(finalist.number), {}
    if record is not None:
        differs = {
            name: value for name, value in record.configuration.items() if value != winner.configuration.get(name)
        }
    return {
        "trial": finalist.number,
        "median_s": finalist.median_s,
        "interval_s": [finalist.low_s, finalist.high_s],
        **_rates(run, finalist.median_s),
        "ratio": finalist.ratio,
        "ratio_interval": [finalist.ratio_low, finalist.ratio_high],
        "tie": finalist.number in declared.ties,
        "differs": differs,
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
    values_once: list[Any] = []
    for value in values:
        if value not in values_once:
            values_once.append(value)
    return values_once


def _geometric_mean(values: Sequence[float]) -> float | None:
    return geometric_mean(values) if values else None


def _moment(seconds: float | None) -> str | None:
    """Return seconds since the epoch as ISO 8601."""
    if seconds is None or not 0.0 < seconds < 1e11:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
