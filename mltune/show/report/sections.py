"""Sections of a report, for its HTML and its Markdown."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from mltune.cost.importance import mean_importance
from mltune.records.events import BEGINNINGS, ENDS, EVENTS
from mltune.results.messages import message
from mltune.results.summary import by_problem
from mltune.show.report import figures, tables
from mltune.show.report.evidence import Evidence, ReportInput, failures
from mltune.show.report.figures import bandwidths, not_drawn, roofline
from mltune.show.report.findings import distinct
from mltune.show.report.svg import Omission, Plot, drawn, plotting
from mltune.show.report.tables import Entry
from mltune.show.table import funnel

NOTABLE = {"resumed", "interrupted", "drift", "worker_died", "gpu_lost", "gpu_back"}
NOTABLE |= {"disk_full", "disk_back", "database_lost", "database_back"}
"""Events that the report lists, besides those of other versions."""

ALARMING = {
    "gpu_lost": "the GPU was lost",
    "disk_full": "the disk was full",
    "database_lost": "the database did not answer",
    "worker_died": "a worker process died",
}
"""Events that are listed at the top of the report."""

MOST_EVENTS = 200
LONGEST_EVENT = 600
LONGEST_SIGNAL = 20
MOST_PARAMETERS = 8
MOST_DRAWN = 50
"""Most problems with figures: those of a thousand problems take minutes, and no one reads them."""

MOST_ATTENTION = 50
"""Most entries of the first section that are listed openly; the others are folded."""

MOST_OPEN = 3
"""Most problems whose details are open at first."""


def sections(source: ReportInput, document: Mapping[str, Any], *, quick: bool = False) -> dict[str, Any]:
    """Return the content of both templates besides the findings; ``quick`` leaves out figures, which take seconds."""
    entries, names = document["winners"], {run.problem.reference for run in source.runs if run.problem.reference}
    reference = names.pop() if len(names) == 1 else "the reference"
    evidence = [Evidence(run) for run in source.runs]
    pairs = list(zip(evidence, entries, strict=False))
    notable = [event for event in source.events if event["event"] in NOTABLE or event["event"] not in EVENTS]
    with contextlib.nullcontext() if quick else plotting():
        roofs, time = ([], None) if quick else _of_all(pairs)
        drawn_slugs = set() if quick else furthest_behind(entry for _, entry in pairs)
        problems = [_problem(item, entry, reference, quick=quick) for item, entry in pairs]
        for number, (problem, (item, entry)) in enumerate(zip(problems, pairs, strict=True)):
            if entry["slug"] in drawn_slugs:
                problem |= _figures(number, item, entry["label"], alone=len(pairs) == 1)
    return {
        "attention": _attention(source, document),
        "problems": problems,
        "winners": tables.winners(entries, reference),
        "kernels": tables.kernels(_competing(source, entries), reference),
        "funnel": funnel(document["funnel"], replayed=any(entry["replayed"] for entry in entries)),
        "predictions": tables.predictions(entries, evidence),
        "times": tables.times(entries, document["seconds"]),
        "deviations": tables.deviations(entries, evidence),
        "events": tables.events([_listed(event) for event in notable[:MOST_EVENTS]]),
        "more_events": max(len(notable) - MOST_EVENTS, 0),
        "importance": {} if quick else _by_kernel(evidence),
        "failures": failures(source.runs),
        "references": sum(len(run.references) for run in source.runs),
        "discarded": sum(item.discarded for item in evidence),
        "roofs": roofs,
        "off_roofs": [(entry["label"], reason) for item, entry in pairs if (reason := not_drawn(item))],
        "time": time,
        "reference": reference,
        "compared": _compared(document, reference),
        "labels": {entry["slug"]: entry["label"] for entry in entries},
        "plan": source.plan,
        "quick": quick,
        "drawn": len(drawn_slugs),
    }


def _of_all(pairs: Sequence[tuple[Evidence, Entry]]) -> tuple[list[Plot | Omission], Plot | Omission | None]:
    """Draw the rooflines of each device, and the time use of all problems."""
    roofs = []
    for at, device in enumerate(distinct(evidence.run.device for evidence, _ in pairs)):
        here = {entry["label"]: evidence for evidence, entry in pairs if evidence.run.device == device}
        roofs += [
            drawn(f"The roofline of {device.name}", roofline, [*here.values()], f"roofline-{at}"),
            drawn(f"The memory bandwidth of {device.name}", bandwidths, here, f"bandwidth-{at}"),
        ]
    seconds = {entry["label"]: entry["seconds"] for _, entry in pairs}
    return [roof for roof in roofs if roof is not None], drawn("Time use", figures.time_bars, seconds, "time")


def furthest_behind(entries: Iterable[Entry]) -> set[str]:
    """Return the slugs of the :data:`MOST_DRAWN` problems with figures furthest behind reference, then peak."""

    def place(entry: Entry) -> tuple[float, float]:
        reference, peak = entry["reference"], entry["share_of_peak"]
        return reference["share"] if reference else math.inf, math.inf if peak is None else peak

    return {entry["slug"] for entry in sorted(entries, key=place)[:MOST_DRAWN]}


def _problem(evidence: Evidence, entry: Entry, reference: str, *, quick: bool) -> dict[str, Any]:
    """Return the details of a problem without its figures."""
    return {
        "entry": entry,
        "evidence": evidence,
        "importance": None if quick else evidence.importance,
        "table": tables.finalists(entry, reference) if entry["finalists"] else tables.fastest(evidence.run),
        **dict.fromkeys(("curve", "predicted", "heat", "over_time")),
    }


def _figures(number: int, evidence: Evidence, label: str, *, alone: bool) -> dict[str, Any]:
    """Draw the figures of a problem; their names end with its ``number``."""
    drawings: dict[str, Any] = {}
    if evidence.curve is not None:
        best = figures.best_so_far
        drawings["curve"] = drawn(f"Best so far of {label}", best, evidence.curve, f"best-{number}", label, alone=alone)
    if len(evidence.predictions.measured) > 1 and evidence.run.rate.peak is not None:
        title, draw = f"Predicted and measured speed of {label}", figures.predicted_and_measured
        drawings["predicted"] = drawn(title, draw, evidence.predictions, f"predicted-{number}", label)
    if evidence.cells is not None:
        drawings["heat"] = drawn(f"The heat map of {label}", figures.heat_map, evidence.cells, label)
    title, over_time = f"The reference kernel over time, beside {label},", figures.reference_over_time
    return drawings | {"over_time": drawn(title, over_time, evidence, f"reference-{number}", label)}


def _competing(source: ReportInput, entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries of the problems with several kernels, those of a problem together, the fastest first."""
    by_slug = {entry["slug"]: entry for entry in entries}
    return [by_slug[run.slug] for group in by_problem(source.runs) if len(group) > 1 for run in group]


def _by_kernel(evidence: Sequence[Evidence]) -> dict[str, dict[str, float]]:
    """Return the mean importance of the most important parameters, by kernel."""
    by_kernel: dict[str, list[Mapping[str, float]]] = {}
    for item in evidence:
        if item.importance is not None:
            by_kernel.setdefault(item.run.kernel, []).append(item.importance)
    means = {kernel: mean_importance(those) for kernel, those in by_kernel.items()}
    return {kernel: dict(list(mean.items())[:MOST_PARAMETERS]) for kernel, mean in means.items()}


def _compared(document: Mapping[str, Any], reference: str) -> str:
    """Write how many winners are faster and slower than the reference; empty if none was compared with it."""
    compared = document["against_reference"]
    wordings = {"faster": "faster than", "level": "as fast as", "slower": "slower than"}
    parts = [
        f"{compared[verdict]} {wording} {reference}" for verdict, wording in wordings.items() if compared.get(verdict)
    ]
    apart = document["with_winner"] - sum(compared.values())
    return ", ".join([*parts, f"{apart} not compared"] if apart and parts else parts)


def _attention(source: ReportInput, document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the entries of the first section, the worst first."""
    failed: list[tuple[str, str]] = []
    doubtful: list[tuple[str, str]] = []
    for entry in document["winners"]:
        label, slug, notes = entry["label"], entry["slug"], "; ".join(entry["notes"])
        if entry["state"] in ("unreadable", "none", "not begun"):
            failed.append((f"{label}: {notes}", slug))
        elif entry["state"] == "best so far":
            doubtful.append((f"{label}: {notes}", slug))
        elif not entry["verified"] and not entry["replayed"]:
            doubtful.append((f"{label}: the winner is not verified", slug))
        for number, reason in entry["rejected"].items():
            doubtful.append((f"{label}: trial {number} was faster, but {reason[:LONGEST_EVENT]}", slug))
    happened = Counter(event["event"] for event in source.events)
    events = [f"{text} {_times(happened[event])}" for event, text in ALARMING.items() if happened[event]]
    return [*failed, *((text, "") for text in (*events, interruptions(source.events)) if text), *doubtful]


def _listed(event: Mapping[str, Any]) -> tuple[str, str]:
    """Return the day of an event, and its message, which begins with the time of day."""
    try:
        day = datetime.fromisoformat(event["at"]).astimezone().date().isoformat()
    except (ValueError, OverflowError):
        day = ""
    return day, message(event)[:LONGEST_EVENT]


def interruptions(events: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence on the interruptions and their signals; empty if there was none.

    A part that neither ended nor was interrupted by a signal before the next one began was killed. Events do not show
    whether the last part was killed or still goes on.
    """
    signals: list[str] = []  # empty for an interruption without a record: a kill, a power failure
    resumed, running, broken = 0, False, False
    for event in events:
        name = event["event"]
        if name in BEGINNINGS:
            if running:
                signals.append("")
            resumed += running or broken
            running, broken = True, False
        elif name == "interrupted":
            signals.append(str(event.get("signal") or "")[:LONGEST_SIGNAL])
            running, broken = False, True
        elif name in ENDS:
            if event.get("outcome") == "interrupted" and not broken:
                signals.append("")
                broken = True
            running = False
    count, counted = len(signals), Counter(filter(None, signals))
    if not count:
        return ""
    by = ", ".join(
        f"{_times(number)} by {signal}" if count > 1 else f"by {signal}" for signal, number in counted.items()
    )
    again = "" if resumed == count else f" {_times(resumed)}"
    return f"interrupted {_times(count)}{f' ({by})' if by else ''}{f' and resumed{again}' if resumed else ''}"


def _times(count: int) -> str:
    """Write a number of times."""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
