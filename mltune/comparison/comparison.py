"""Comparison of search strategies: run every strategy on every dataset with every seed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from mltune.comparison.forecast import Forecast
from mltune.comparison.jobs import run_jobs
from mltune.comparison.journal import DATASET, Job, Journal, Outcome
from mltune.comparison.recording import Recording
from mltune.comparison.request import CompareRequest
from mltune.comparison.scores import best_so_far, spent_seconds
from mltune.comparison.simulation import Trace
from mltune.comparison.summary import Comparison, Runs
from mltune.errors import RunError
from mltune.records.versions import __version__

Report = Callable[["Progress"], None]


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a comparison.

    Attributes
    ----------
    jobs, done, failed : int
        Numbers of runs, of those that have ended, and of those that ended with an error.
    last : str
        The run that ended last.
    left_s : float or None
        Estimated seconds until all have ended.
    message : str
        A message for the user; empty for none.
    """

    jobs: int
    done: int
    failed: int
    last: str = ""
    left_s: float | None = None
    message: str = ""


def compare(
    request: CompareRequest, progress: Report | None = None, stop: Callable[[], bool] = bool
) -> Comparison | None:
    """Run the jobs that are not in the journal, and return the comparison of all that are.

    Parameters
    ----------
    progress : callable, optional
        Called at the start with what there is to say, and after every run.
    stop : callable
        Called several times a second; true ends the comparison with the runs that have ended.

    Returns
    -------
    Comparison or None
        None for one share of several: a request without shares joins them.

    Raises
    ------
    UsageError
        A dataset cannot be loaded, or the journal is of another comparison.
    RunError
        No strategy has a run on every dataset; the message has the error of the first failed run.
    """
    recordings = {source.name: source.load() for source in request.sources}
    facts: dict[str, Any] = {"evaluations": request.evaluations, "version": __version__}
    facts |= {f"{DATASET}{name}": recording.fingerprint for name, recording in recordings.items()}
    sizes = {name: recording.space.count for name, recording in recordings.items()}
    with closing(Journal(request.output, facts, request.share)) as journal:
        outcomes = journal.outcomes(request.jobs(), sizes, request.evaluations)
        for outcome in _run(request, recordings, outcomes, progress, stop):
            journal.add(outcome)
            outcomes[outcome.job] = outcome
    if request.share != (1, 1):
        return None
    return _comparison(request, recordings, outcomes)


def _run(
    request: CompareRequest,
    recordings: Mapping[str, Recording],
    known: Mapping[Job, Outcome],
    progress: Report | None,
    stop: Callable[[], bool],
) -> Iterator[Outcome]:
    """Run the jobs without a trace, and report of each."""
    jobs = request.jobs()
    missing = {job: None for job in jobs if job not in known or known[job].trace is None}
    processes = max(1, min(request.processes, len(missing), os.cpu_count() or 1))
    forecast = Forecast(request.evaluations, processes, missing, known.values())

    def report(message: str = "", *, failed: int = 0, last: str = "", forecasts: bool = True) -> None:
        if progress is not None:
            left_s = forecast.left_s if forecasts and missing else None
            progress(Progress(len(jobs), len(jobs) - len(missing), failed, last, left_s, message))

    for recording in recordings.values():
        for text in filter(None, (recording.account, *recording.notices)):
            report(f"{recording.name}: {text}", forecasts=False)
    there = len(jobs) - len(missing)
    report(f"{len(jobs)} runs in {request.output}" + (f", of which {there} are there" if there else ""))
    failed = 0
    for outcome in run_jobs([*missing], recordings, request.evaluations, request.processes, stop):
        yield outcome
        forecast.ended(outcome)
        del missing[outcome.job]
        failed += outcome.trace is None
        report(failed=failed, last=" ".join(map(str, outcome.job)))


def _comparison(
    request: CompareRequest, recordings: Mapping[str, Recording], outcomes: Mapping[Job, Outcome]
) -> Comparison:
    traces: dict[tuple[str, str], dict[int, Trace]] = {
        (name, dataset): {} for name in request.strategies for dataset in recordings
    }
    for job, outcome in outcomes.items():
        if outcome.trace is not None:
            traces[job.strategy, job.dataset][job.seed] = outcome.trace
    errors = {job: outcome.reason for job, outcome in outcomes.items() if outcome.trace is None}
    missing = len(request.jobs()) - len(outcomes)
    complete = tuple(name for name in request.strategies if all(traces[name, dataset] for dataset in recordings))
    if not complete:
        reason = next(iter(errors.values()), "they were stopped before; the same command goes on")
        raise RunError(f"at least one strategy must have run on every dataset, but none has: {reason}")
    runs = {
        (name, dataset): _runs(recordings[dataset], traces[name, dataset], request.evaluations)
        for name in complete
        for dataset in recordings
    }
    return Comparison(complete, recordings, request.evaluations, runs, errors, request.output, missing)


def _runs(recording: Recording, traces: Mapping[int, Trace], evaluations: int) -> Runs:
    seeds = tuple(sorted(traces))
    ordered = tuple(traces[seed] for seed in seeds)
    best_s = best_so_far(recording.median_s, ordered, evaluations)
    return Runs(seeds, ordered, best_s, spent_seconds(ordered, evaluations))
