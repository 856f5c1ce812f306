"""Comparison of search strategies: run every strategy on every dataset with every seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass

from mltune.comparison.jobs import run_jobs
from mltune.comparison.journal import Journal, Outcome
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
    """The progress of a comparison: the numbers of jobs, of finished and of failed ones, and the last that finished."""

    jobs: int
    done: int
    failed: int
    last: str = ""


def compare(request: CompareRequest, progress: Report | None = None) -> Comparison | None:
    """Run the jobs that are not in the journal, and return the comparison of all that are.

    Parameters
    ----------
    progress : callable, optional
        Called after every run.

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
    facts = {"evaluations": request.evaluations, "version": __version__}
    facts |= {f"dataset {name}": recording.fingerprint for name, recording in recordings.items()}
    with closing(Journal(request.output, facts, request.share)) as journal:
        _run(request, journal, progress)
        outcomes = list(journal.outcomes())
    if request.share != (1, 1):
        return None
    return _comparison(request, recordings, outcomes)


def _run(request: CompareRequest, journal: Journal, progress: Report | None) -> None:
    jobs = request.jobs()
    known = journal.done()
    missing = [job for job in jobs if job not in known]
    done, failed = len(jobs) - len(missing), 0
    sources = {source.name: source for source in request.sources}
    for outcome in run_jobs(missing, sources, request.evaluations, request.processes):
        journal.add(outcome)
        done, failed = done + 1, failed + bool(outcome.error)
        if progress is not None:
            progress(Progress(len(jobs), done, failed, " ".join(map(str, outcome.job))))


def _comparison(request: CompareRequest, recordings: Mapping[str, Recording], outcomes: list[Outcome]) -> Comparison:
    pairs = [(name, dataset) for name in request.strategies for dataset in recordings]
    traces: dict[tuple[str, str], dict[int, Trace]] = {pair: {} for pair in pairs}
    errors = {}
    for outcome in outcomes:
        job, trace = outcome.job, outcome.trace
        limit = request.fewer_seeds.get(job.strategy, request.seeds)
        if (job.strategy, job.dataset) not in traces or job.seed >= min(limit, request.seeds):
            continue
        if trace is None:
            errors[job] = outcome.error
        else:
            traces[job.strategy, job.dataset][job.seed] = trace
    complete = tuple(name for name in request.strategies if all(traces[name, dataset] for dataset in recordings))
    if not complete:
        reason = next(iter(errors.values()), "nothing was run").strip().splitlines()[-1]
        raise RunError(f"at least one strategy must have run on every dataset, but none has: {reason}")
    runs = {
        (name, dataset): _runs(recordings[dataset], traces[name, dataset], request.evaluations)
        for name in complete
        for dataset in recordings
    }
    return Comparison(complete, recordings, request.evaluations, runs, errors)


def _runs(recording: Recording, traces: Mapping[int, Trace], evaluations: int) -> Runs:
    seeds = tuple(sorted(traces))
    ordered = tuple(traces[seed] for seed in seeds)
    best_s = best_so_far(recording.median_s, ordered, evaluations)
    return Runs(seeds, ordered, best_s, spent_seconds(ordered, evaluations))
