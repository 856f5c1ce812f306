"""A comparison: strategies x datasets x seeds, run and summed up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from mltune import __version__
from mltune.compare.jobs import run_jobs
from mltune.compare.journal import Ended, Job, Journal
from mltune.compare.recording import Recording
from mltune.compare.request import CompareRequest
from mltune.compare.scores import best_so_far, spent_seconds
from mltune.compare.simulation import Trace
from mltune.errors import RunError
from mltune.kernel.columns import Floats

Report = Callable[["Progress"], None]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a comparison is: its jobs, those that are done and those of them that failed, and the last to end."""

    jobs: int
    done: int
    failed: int
    last: str = ""


@dataclass(frozen=True, eq=False)
class Runs:
    """All runs of one strategy on one recording.

    Attributes
    ----------
    seeds : tuple of int
    traces : tuple of Trace
        One per seed.
    best_s : ndarray of shape (n_seeds, n_evaluations)
        See :func:`mltune.compare.scores.best_so_far`.
    spent_s : ndarray of shape (n_seeds, n_evaluations)
        See :func:`mltune.compare.scores.spent_seconds`.
    """

    seeds: tuple[int, ...]
    traces: tuple[Trace, ...]
    best_s: Floats
    spent_s: Floats


@dataclass(frozen=True, eq=False)
class Comparison:
    """What a comparison found.

    Attributes
    ----------
    strategies : tuple of str
    recordings : mapping of str to Recording
        By name of the dataset.
    evaluations : int
    runs : mapping of (str, str) to Runs
        By strategy and dataset. A strategy without a run on some dataset is left out altogether.
    errors : mapping of Job to str
        The runs that failed.
    """

    strategies: tuple[str, ...]
    recordings: Mapping[str, Recording]
    evaluations: int
    runs: Mapping[tuple[str, str], Runs]
    errors: Mapping[Job, str] = field(default_factory=dict)

    def fraction(self, name: str, dataset: str) -> Floats:
        """Return the best so far as fractions of the optimum; 0 until something succeeds.

        Returns
        -------
        ndarray of shape (n_seeds, n_evaluations)
        """
        return self.recordings[dataset].optimum_s / self.runs[name, dataset].best_s

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The figures of all strategies as a JSON document: see :func:`mltune.compare.summary.summarise`."""
        from mltune.compare.summary import summarise

        return summarise(self)


def compare(request: CompareRequest, progress: Report | None = None) -> Comparison | None:
    """Run what is not in the journal yet, and return everything that is.

    One share of several is run and returns None: a comparison that is whole joins them.

    Parameters
    ----------
    request : CompareRequest
    progress : callable, optional
        Told after every run.

    Raises
    ------
    UsageError
        A dataset cannot be loaded, or the journal is of another comparison.
    RunError
        Some strategy has no run at all: its error is said.
    """
    recordings = {source.name: source.load() for source in request.sources}
    facts = {"evaluations": request.evaluations, "version": __version__}
    facts |= {f"dataset {name}": recording.fingerprint for name, recording in recordings.items()}
    with Journal(request.output, facts, request.share) as journal:
        _run(request, journal, progress)
        ended = list(journal.ended())
    if request.share != (1, 1):
        return None
    return _comparison(request, recordings, ended)


def _run(request: CompareRequest, journal: Journal, progress: Report | None) -> None:
    jobs = request.jobs()
    known = journal.done()
    missing = [job for job in jobs if job not in known]
    done, failed = len(jobs) - len(missing), 0
    sources = {source.name: source for source in request.sources}
    for ended in run_jobs(missing, sources, request.evaluations, request.processes):
        journal.add(ended)
        done, failed = done + 1, failed + bool(ended.error)
        if progress is not None:
            progress(Progress(len(jobs), done, failed, " ".join(map(str, ended.job))))


def _comparison(request: CompareRequest, recordings: Mapping[str, Recording], ended: list[Ended]) -> Comparison:
    pairs = [(name, dataset) for name in request.strategies for dataset in recordings]
    traces: dict[tuple[str, str], dict[int, Trace]] = {pair: {} for pair in pairs}
    errors = {}
    for job, trace, error in ((one.job, one.trace, one.error) for one in ended):
        limit = request.fewer_seeds.get(job.strategy, request.seeds)
        if (job.strategy, job.dataset) not in traces or job.seed >= min(limit, request.seeds):
            continue
        if trace is None:
            errors[job] = error
        else:
            traces[job.strategy, job.dataset][job.seed] = trace
    complete = tuple(name for name in request.strategies if all(traces[name, dataset] for dataset in recordings))
    if not complete:
        reason = next(iter(errors.values()), "nothing was run").strip().splitlines()[-1]
        raise RunError(f"a comparison needs a strategy that has run on every dataset, but there is none: {reason}")
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


def versions() -> dict[str, Any]:
    """Return the versions of what the strategies run on, as far as installed."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"mltune": __version__}
    for package in ("optuna", "scikit-learn", "numpy", "kernel-tuner", "torch"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
