"""Sections of a report, which both its HTML and its Markdown are filled from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from mltune.learn.importance import Importance, mean_importance
from mltune.records.events import EVENTS
from mltune.records.reference import Drift, drifts
from mltune.records.trial import TrialRecord
from mltune.report import figures
from mltune.report.evidence import Evidence, Failure, failures
from mltune.report.findings import distinct
from mltune.report.interruptions import interruptions, times
from mltune.report.reading import ReportInput
from mltune.report.svg import Plot, plotting
from mltune.results.audit import SkipAudit
from mltune.results.messages import message
from mltune.results.run import fastest
from mltune.results.wording import REFERENCE

NOTABLE = {"resumed", "interrupted", "drift", "gpu_lost", "gpu_back", "worker_died", "disk_full", "disk_back"}
"""Events that the report lists, besides those of other versions."""

ALARMING = {
    "gpu_lost": "the GPU was lost",
    "disk_full": "the disk was full",
    "worker_died": "a worker process died",
}
"""Events that are listed at the top of the report."""

MOST_EVENTS = 200
LONGEST_EVENT = 600
MOST_PARAMETERS = 8
MOST_OPEN = 3
"""Number of problems up to which their details are open at first."""

FASTEST = 5


@dataclass(frozen=True, slots=True)
class ProblemSection:
    """The details of one problem; ``entry`` is its entry in ``winners.json``."""

    entry: Mapping[str, Any]
    evidence: Evidence
    fastest: Sequence[TrialRecord]
    importance: Importance | None
    audit: SkipAudit
    drifts: Sequence[Drift]
    curve: Plot | None
    heat: figures.HeatMap | None
    plots: Sequence[Plot]


@dataclass(frozen=True, slots=True)
class Sections:
    """The content of a report besides its findings.

    Attributes
    ----------
    attention : sequence of (str, str)
        Each problem or failure to look at first, and the slug of its section; empty for the campaign as a whole.
    problems : sequence of ProblemSection
    importance : mapping of str to (mapping of str to float)
        Mean importance of the parameters, by kernel.
    failures : sequence of Failure
    events : sequence of (str, str)
        The day, and the message.
    more_events : int
        Number of events that are not listed.
    references, discarded : int
        Number of timings of the reference kernel, and of samples discarded for a throttled clock.
    roofs : sequence of Plot
    time : Plot or None
    reference : str
        Name of the reference kernel.
    plan : str or None
    quick : bool
        Whether figures and importances are left out.
    """

    attention: Sequence[tuple[str, str]]
    problems: Sequence[ProblemSection]
    importance: Mapping[str, Mapping[str, float]]
    failures: Sequence[Failure]
    events: Sequence[tuple[str, str]]
    more_events: int
    references: int
    discarded: int
    roofs: Sequence[Plot]
    time: Plot | None
    reference: str
    plan: str | None
    quick: bool


def sections(source: ReportInput, document: Mapping[str, Any], *, quick: bool = False) -> Sections:
    """Return the sections of a report, with their figures.

    Parameters
    ----------
    source : ReportInput
    document : mapping
        The result of :func:`mltune.report.findings.findings`.
    quick : bool
        Leave out figures and importances, which take seconds.
    """
    evidence = [Evidence(run) for run in source.runs]
    problems = [_problem(each, entry, quick) for each, entry in zip(evidence, document["winners"], strict=False)]
    roofs, time = [], None
    if not quick:
        with plotting():
            problems = [_illustrated(problem, number, len(problems)) for number, problem in enumerate(problems)]
            devices = distinct(each.run.device for each in evidence)
            roofs = [figures.roofline(evidence, device, f"roofline-{at}") for at, device in enumerate(devices)]
            spent = {entry["label"]: entry["seconds"] for entry in document["winners"]}
            time = figures.time_bars(spent, "time")
    names = {run.problem.reference for run in source.runs if run.problem.reference} or {REFERENCE}
    events = [event for event in source.events if event["event"] in NOTABLE or event["event"] not in EVENTS]
    return Sections(
        attention=_attention(source, document),
        problems=problems,
        importance=_by_kernel(problems),
        failures=failures(source.runs),
        events=[_listed(event) for event in events[:MOST_EVENTS]],
        more_events=max(len(events) - MOST_EVENTS, 0),
        references=sum(len(run.references) for run in source.runs),
        discarded=sum(each.discarded for each in evidence),
        roofs=[roof for roof in roofs if roof is not None],
        time=time,
        reference=names.pop() if len(names) == 1 else "the reference",
        plan=source.plan,
        quick=quick,
    )


def _problem(each: Evidence, entry: Mapping[str, Any], quick: bool) -> ProblemSection:
    """Return the details of a problem, without figures."""
    return ProblemSection(
        entry=entry,
        evidence=each,
        fastest=fastest(each.run.records, FASTEST),
        importance=None if quick else each.importance,
        audit=each.run.audit(),
        drifts=drifts(each.run.references),
        curve=None,
        heat=None,
        plots=(),
    )


def _illustrated(problem: ProblemSection, number: int, count: int) -> ProblemSection:
    """Return a problem with its figures."""
    each, label, curve, heat = problem.evidence, problem.entry["label"], None, None
    plots: list[Plot | None] = []
    if each.curve is not None:
        curve = figures.best_so_far(each.curve, f"best-{number}", label, alone=count == 1)
    if len(each.predictions.measured) > 1 and each.run.flops:
        plots.append(figures.predicted_and_measured(each.predictions, f"predicted-{number}", label))
    if each.cells is not None:
        heat = figures.heat_map(each.cells, label)
    plots.append(figures.reference_over_time(each, f"reference-{number}", label))
    return replace(problem, curve=curve, heat=heat, plots=[plot for plot in plots if plot is not None])


def _by_kernel(problems: Sequence[ProblemSection]) -> dict[str, dict[str, float]]:
    known: dict[str, list[Importance]] = {}
    for problem in problems:
        if problem.importance is not None:
            known.setdefault(problem.evidence.run.kernel, []).append(problem.importance)
    means = {kernel: mean_importance(those) for kernel, those in known.items()}
    return {kernel: dict(list(mean.items())[:MOST_PARAMETERS]) for kernel, mean in means.items() if mean}


def _attention(source: ReportInput, document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what to look at first, the worst first."""
    found: list[tuple[str, str]] = []
    for entry in document["winners"]:
        if entry["state"] in ("unreadable", "none", "not begun"):
            found.append((f"{entry['label']}: {'; '.join(entry['notes'])}", entry["slug"]))
    happened = Counter(event["event"] for event in source.events)
    for event, text in ALARMING.items():
        if happened[event]:
            found.append((f"{text} {times(happened[event])}", ""))
    if interrupted := interruptions(source.events):
        found.append((interrupted, ""))
    for entry in document["winners"]:
        if entry["state"] == "best so far":
            found.append((f"{entry['label']}: {'; '.join(entry['notes'])}", entry["slug"]))
        elif entry["state"] == "declared" and not entry["verified"] and not entry["replayed"]:
            found.append((f"{entry['label']}: the winner is not verified", entry["slug"]))
        for number, reason in entry["rejected"].items():
            found.append((f"{entry['label']}: trial {number} was faster, but {reason}", entry["slug"]))
    return found


def _listed(event: Mapping[str, Any]) -> tuple[str, str]:
    """Return the day of an event, and its message, which begins with the time of day."""
    try:
        day = datetime.fromisoformat(event["at"]).astimezone().date().isoformat()
    except (ValueError, OverflowError):
        day = ""
    return day, message(event)[:LONGEST_EVENT]
