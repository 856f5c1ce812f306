"""The parts of a report, in the order of reading: what both its HTML and its Markdown are filled from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from mltune.learn.importance import Importance, mean_importance
from mltune.records.reference import Drift, drifts
from mltune.records.trial import TrialRecord
from mltune.report import figures
from mltune.report.breaks import breaks, times
from mltune.report.evidence import Evidence, Failure, failures
from mltune.report.findings import distinct
from mltune.report.reading import Night
from mltune.report.svg import Plot, plotting
from mltune.results.audit import SkipAudit, audit_skips
from mltune.results.messages import sentence
from mltune.results.summary import best

ROUTINE = frozenset(
    {
        "best",
        "declared",
        "failure",
        "plan_ended",
        "plan_started",
        "progress",
        "reference",
        "report_written",
        "run_ended",
        "run_started",
        "slice_ended",
        "slice_started",
        "throttled",
    }
)
"""Events of every night. All others are told: those of other versions too."""

ALARMING = {
    "gpu_lost": "the GPU was lost",
    "disk_full": "the disk was full",
    "worker_died": "a process that tunes died",
}
"""Events that a reader should know of first."""

MOST_EVENTS = 200
LONGEST_EVENT = 600
MOST_PARAMETERS = 8
MOST_OPEN = 3
"""Problems up to which their details are open from the start."""

FASTEST = 5


@dataclass(frozen=True, slots=True)
class Problem:
    """The details of one problem.

    Attributes
    ----------
    entry : mapping
        Of ``winners.json``.
    evidence : Evidence
    fastest : sequence of TrialRecord
    importance : Importance or None
    audit : SkipAudit
    drifts : sequence of Drift
    curve : Plot or None
    heat : HeatMap or None
    plots : sequence of Plot
    """

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
    """All of a report but its findings.

    Attributes
    ----------
    attention : sequence of (str, str)
        What went wrong, and the slug of the problem that tells more; empty where that is all of the night.
    problems : sequence of Problem
    importance : mapping of str to (mapping of str to float)
        By kernel: the mean importance of its parameters.
    failures : sequence of Failure
    events : sequence of (str, str)
        The day, and what happened.
    more_events : int
        Events that are not listed.
    references, discarded : int
        Timings of the reference kernel, and samples that were discarded for a throttled clock.
    roofs : sequence of Plot
    hours : Plot or None
    plan : str or None
    quick : bool
        Whether it was made without figures and importances.
    """

    attention: Sequence[tuple[str, str]]
    problems: Sequence[Problem]
    importance: Mapping[str, Mapping[str, float]]
    failures: Sequence[Failure]
    events: Sequence[tuple[str, str]]
    more_events: int
    references: int
    discarded: int
    roofs: Sequence[Plot]
    hours: Plot | None
    plan: str | None
    quick: bool


def sections(night: Night, document: Mapping[str, Any], *, quick: bool = False) -> Sections:
    """Return the parts of the report on a night, its figures drawn.

    Parameters
    ----------
    night : Night
    document : mapping
        What :func:`mltune.report.findings.findings` found.
    quick : bool
        Leave out what takes seconds: figures and importances.
    """
    evidence = [Evidence(run) for run in night.runs]
    problems = [_problem(each, entry, quick) for each, entry in zip(evidence, document["winners"], strict=False)]
    roofs, hours = [], None
    if not quick:
        with plotting():
            problems = [_illustrated(problem, number, len(problems)) for number, problem in enumerate(problems)]
            devices = distinct(each.run.device for each in evidence)
            roofs = [figures.roofline(evidence, device, f"roofline-{at}") for at, device in enumerate(devices)]
            spent = {entry["label"]: entry["seconds"] for entry in document["winners"]}
            hours = figures.where_the_hours_went(spent, "hours")
    events = [event for event in night.events if event["event"] not in ROUTINE]
    return Sections(
        attention=_attention(night, document),
        problems=problems,
        importance=_by_kernel(problems),
        failures=failures(night.runs),
        events=[_told(event) for event in events[:MOST_EVENTS]],
        more_events=max(len(events) - MOST_EVENTS, 0),
        references=sum(len(run.references) for run in night.runs),
        discarded=sum(each.discarded for each in evidence),
        roofs=[roof for roof in roofs if roof is not None],
        hours=hours,
        plan=night.plan,
        quick=quick,
    )


def _problem(each: Evidence, entry: Mapping[str, Any], quick: bool) -> Problem:
    """Return the details of a problem, without figures."""
    return Problem(
        entry=entry,
        evidence=each,
        fastest=best(each.run.records, FASTEST),
        importance=None if quick else each.importance,
        audit=audit_skips(each.run.records, each.run.seconds.get("search", 0.0)),
        drifts=drifts(each.run.references),
        curve=None,
        heat=None,
        plots=(),
    )


def _illustrated(problem: Problem, number: int, count: int) -> Problem:
    """Return a problem with its figures drawn."""
    each, label, curve, heat = problem.evidence, problem.entry["label"], None, None
    plots: list[Plot | None] = []
    if each.curve is not None:
        curve = figures.best_so_far(each.curve, f"best-{number}", label, alone=count == 1)
    if len(each.predictions.measured) > 1:
        plots.append(figures.predicted_and_measured(each.predictions, f"predicted-{number}", label))
    if each.cells is not None:
        heat = figures.heat_map(each.cells, label)
    plots.append(figures.reference_over_time(each, f"reference-{number}", label))
    return replace(problem, curve=curve, heat=heat, plots=[plot for plot in plots if plot is not None])


def _by_kernel(problems: Sequence[Problem]) -> dict[str, dict[str, float]]:
    kernels = dict.fromkeys(problem.evidence.run.header.kernel for problem in problems)
    means = {
        kernel: mean_importance(
            [
                problem.importance
                for problem in problems
                if problem.importance is not None and problem.evidence.run.header.kernel == kernel
            ]
        )
        for kernel in kernels
    }
    return {kernel: dict(list(mean.items())[:MOST_PARAMETERS]) for kernel, mean in means.items() if mean}


def _attention(night: Night, document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Say what went wrong, the worst first."""
    said: list[tuple[str, str]] = []
    for entry in document["winners"]:
        if entry["state"] in ("unreadable", "none", "not begun"):
            said.append((f"{entry['label']}: {'; '.join(entry['notes'])}", entry["slug"]))
    happened = Counter(event["event"] for event in night.events)
    for event, text in ALARMING.items():
        if happened[event]:
            said.append((f"{text} {times(happened[event])}", ""))
    if found := breaks(night.events):
        said.append((found.told(), ""))
    for entry in document["winners"]:
        if entry["state"] == "best so far":
            said.append((f"{entry['label']}: {'; '.join(entry['notes'])}", entry["slug"]))
        elif entry["state"] == "declared" and not entry["verified"] and not entry["replayed"]:
            said.append((f"{entry['label']}: the winner is not verified", entry["slug"]))
        for number, reason in entry["rejected"].items():
            said.append((f"{entry['label']}: trial {number} was faster, but {reason}", entry["slug"]))
    return said


def _told(event: Mapping[str, Any]) -> tuple[str, str]:
    """Return an event as it is told: the day, and a sentence that begins with the time of day."""
    try:
        day = datetime.fromisoformat(event["at"]).astimezone().date().isoformat()
    except (ValueError, OverflowError):
        day = ""
    return day, sentence(event)[:LONGEST_EVENT]
