"""The comparison of search strategies: every strategy searches every dataset with every seed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mltune.comparison.baselines import ShippedSearch
from mltune.comparison.jobs import Forecast, run_jobs
from mltune.comparison.journal import DATASET, STRATEGY, Job, Journal, Outcome
from mltune.comparison.results import Comparison, PartialComparison, Runs
from mltune.comparison.scores import best_so_far, spent_seconds
from mltune.comparison.simulation import Recording, RecordingSource, Strategy, Trace
from mltune.comparison.strategies import COMPILERS, MOST_CORES, Given, fingerprint, named, split, with_cores
from mltune.cost.model_file import NONE
from mltune.errors import RunError, UsageError
from mltune.files.text import many, printable
from mltune.records.directory import named_directory
from mltune.records.versions import __version__

EVERY = "all"
"""The name for every strategy, or every dataset."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The numbers of runs that have ended and failed, the last run, the estimated seconds left, and a message."""

    jobs: int
    done: int
    failed: int
    last: str = ""
    left_s: float | None = None
    message: str = ""


Report = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """A request for a comparison: each strategy searches each dataset with the seeds from 0 on.

    A run has at most ``evaluations``, of distinct configurations. ``output`` is the directory of the journal, whose
    runs are not repeated; ``share`` the part of the jobs, such as ``(2, 4)`` for the second of four; ``fewer_seeds``
    has the seeds of slow strategies; ``cores`` are the numbers of compile cores of the clock.
    """

    strategies: Mapping[str, Strategy]
    sources: tuple[RecordingSource, ...]
    evaluations: int
    seeds: int
    processes: int
    output: Path
    share: tuple[int, int] = (1, 1)
    fewer_seeds: Mapping[str, int] = field(default_factory=dict)
    cores: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        part, parts = self.share
        if not 1 <= part <= parts:
            raise UsageError(f"the share cannot be {part}/{parts}: it is PART/PARTS with 1 <= PART <= PARTS.")
        for kind, names in (("strategy", [*self.strategies]), ("dataset", [source.name for source in self.sources])):
            if not names or len(set(names)) != len(names):
                fact = f"a {kind} was named twice: {', '.join(names)}" if names else f"no {kind} was named"
                raise UsageError(f"{fact}; a comparison needs at least one {kind}, and each once.")

    @property
    def played(self) -> dict[str, Strategy]:
        """The strategies, and those whose proposals depend on compile cores once more for each number of them."""
        return with_cores(self.strategies, self.cores)

    def jobs(self) -> list[Job]:
        """Return the jobs of this share, all of a seed before those of the next."""
        part, parts = self.share
        fewer = self.fewer_seeds
        every = (
            Job(name, source.name, seed)
            for seed in range(self.seeds)
            for source in self.sources
            for name in self.played
            if seed < fewer.get(name, fewer.get(name.partition(COMPILERS)[0], self.seeds))
        )
        return [job for job in every if zlib.crc32("\n".join(map(str, job)).encode()) % parts == part - 1]


@dataclass(frozen=True, kw_only=True)
class CompareCall:
    """The options of :func:`mltune.compare`."""

    strategies: str | Given | Sequence[Given]
    datasets: str | Sequence[str] | None = None
    table: str | Path | None = None
    parameters: str | Sequence[str] | None = None
    time_column: str | None = None
    aggregate: bool = False
    evaluations: int
    seeds: int
    jobs: int | None = None
    out: str | Path | None = None
    share: str | None = None
    compile_cores: str | int | Sequence[int] = ()

    def request(self) -> CompareRequest:
        """Return the request that the options describe."""
        if self.table is not None and self.datasets is not None:
            raise UsageError("both --datasets and --table were given; a comparison is over one of them.")
        if self.table is None and (self.parameters or self.time_column or self.aggregate):
            raise UsageError("--table is missing, to which --parameters, --time-column and --aggregate belong.")
        selected, limits = named(split(self.strategies))
        if self.table is None:
            sources = _datasets(self.datasets)
        else:
            table, parameters = Path(self.table), _split(self.parameters)
            sources = (RecordingSource(table.stem, table, parameters, self.time_column, self.aggregate),)
        return CompareRequest(
            strategies=selected,
            sources=sources,
            evaluations=self.evaluations,
            seeds=self.seeds,
            processes=self.jobs or os.cpu_count() or 1,
            output=default_output(selected, sources, self.evaluations) if self.out is None else Path(self.out),
            share=(1, 1) if self.share is None else _share(self.share),
            fewer_seeds=limits,
            cores=tuple(dict.fromkeys(map(_cores, _split(self.compile_cores)))),
        )


def default_output(strategies: Iterable[str], sources: Sequence[RecordingSource], evaluations: int) -> Path:
    """Return the directory that belongs to a comparison, whatever its seeds: the same command continues it."""
    tables = [[source.name, source.table and str(source.table.absolute())] for source in sources]
    columns = [[source.parameters, source.time, source.aggregate] for source in sources]
    facts = [sorted(strategies), tables, columns, evaluations, __version__]
    return named_directory(f"compare-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:10]}")


def compare_strategies(
    request: CompareRequest, progress: Report | None = None, stop: Callable[[], bool] = bool
) -> Comparison | PartialComparison:
    """Run the jobs that are not in the journal, and return the comparison of all that are.

    A request for one share returns a part; a request without a share joins the parts. ``progress`` gets the messages at
    the start and the state after every run. ``stop`` is called several times a second; true ends the comparison. It is
    a usage error if the journal is of another comparison, and a RunError, with the first error of a run, if no strategy
    has a run on every dataset.
    """
    recordings = {source.name: source.load() for source in request.sources}
    facts: dict[str, Any] = {"evaluations": request.evaluations, "version": __version__}
    facts |= {f"{DATASET}{name}": recording.fingerprint for name, recording in recordings.items()}
    sources = {f"{STRATEGY}{name}": fingerprint(strategy) for name, strategy in request.strategies.items()}
    facts |= {name: source for name, source in sources.items() if source}
    for dataset, recording in recordings.items():
        for name, sha256, notice in start_models(request.strategies, recording):
            facts[f"{STRATEGY}{name} on {dataset}"] = sha256
            recordings[dataset] = replace(recordings[dataset], notices=(*recordings[dataset].notices, notice))
    sizes = {name: recording.space.count for name, recording in recordings.items()}
    journal = Journal(request.output, facts, request.share)
    outcomes = journal.begin(request.jobs(), sizes, request.evaluations)
    for outcome in _run(request, recordings, outcomes, progress, stop):
        journal.add(outcome)
        outcomes[outcome.job] = outcome
    if request.share != (1, 1):
        errors, missing = _unfinished(request, outcomes)
        return PartialComparison(request.share, len(request.jobs()), errors, missing, request.output)
    return _comparison(request, recordings, outcomes)


def _run(
    request: CompareRequest,
    recordings: Mapping[str, Recording],
    earlier: Mapping[Job, Outcome],
    progress: Report | None,
    stop: Callable[[], bool],
) -> Iterator[Outcome]:
    """Run the jobs without a trace, and report each."""
    jobs = request.jobs()
    missing = {job: None for job in jobs if job not in earlier or earlier[job].trace is None}
    processes = max(1, min(request.processes, len(missing), os.cpu_count() or 1))
    forecast = Forecast(request.evaluations, processes, missing, earlier.values())

    def report(message: str = "", *, failed: int = 0, last: str = "", forecasts: bool = True) -> None:
        if progress is not None:
            left_s = forecast.left_s if forecasts and missing else None
            progress(Progress(len(jobs), len(jobs) - len(missing), failed, last, left_s, message))

    for recording in recordings.values():
        for text in filter(None, (recording.account, *recording.notices)):
            report(f"{recording.name}: {text}", forecasts=False)
    there = len(jobs) - len(missing)
    report(f"{many(len(jobs), 'run')} in {request.output}" + (f", {there} there already" if there else ""))
    failed = 0
    for outcome in run_jobs([*missing], recordings, request.played, request.evaluations, request.processes, stop):
        yield outcome
        forecast.ended(outcome)
        del missing[outcome.job]
        failed += outcome.trace is None
        report(failed=failed, last=" ".join(map(str, outcome.job)))


def _comparison(
    request: CompareRequest, recordings: Mapping[str, Recording], outcomes: Mapping[Job, Outcome]
) -> Comparison:
    traces: dict[tuple[str, str], dict[int, Trace]] = {
        (name, dataset): {} for name in request.played for dataset in recordings
    }
    for job, outcome in outcomes.items():
        if outcome.trace is not None:
            traces[job.strategy, job.dataset][job.seed] = outcome.trace
    errors, missing = _unfinished(request, outcomes)
    ran = {name for name in request.played if all(traces[name, dataset] for dataset in recordings)}
    complete = tuple(
        name for name, strategy in request.strategies.items() if {*with_cores({name: strategy}, request.cores)} <= ran
    )
    if not complete:
        reason = next(iter(errors.values()), "they were stopped before; the same command goes on")
        raise RunError(f"no strategy has run on every dataset: {reason}")
    runs = {
        (name, dataset): _runs(recordings[dataset], traces[name, dataset], request.evaluations)
        for name in request.played
        if name in ran
        for dataset in recordings
    }
    return Comparison(complete, recordings, request.evaluations, runs, errors, request.output, missing, request.cores)


def _unfinished(request: CompareRequest, outcomes: Mapping[Job, Outcome]) -> tuple[dict[Job, str], int]:
    """Return the errors of failed runs, and the number of unfinished ones."""
    errors = {job: outcome.reason for job, outcome in outcomes.items() if outcome.trace is None}
    return errors, len(request.jobs()) - len(outcomes)


def _runs(recording: Recording, traces: Mapping[int, Trace], evaluations: int) -> Runs:
    seeds = tuple(sorted(traces))
    ordered = tuple(traces[seed] for seed in seeds)
    best_s = best_so_far(recording.median_s, ordered, evaluations)
    return Runs(seeds, ordered, best_s, spent_seconds(ordered, evaluations))


def _split(names: str | int | Sequence[str | int] | None) -> tuple[str, ...]:
    """Return texts one by one: those of a sequence, or the parts of a text between commas."""
    if not isinstance(names, str):
        names = ",".join(map(str, names if isinstance(names, Sequence) else [] if names is None else [names]))
    return tuple(part.strip() for part in names.split(",") if part.strip())


def _datasets(text: str | Sequence[str] | None) -> tuple[RecordingSource, ...]:
    """Return the datasets of some names, paths and folders; a shipped dataset comes before a folder of its name."""
    from mltune.dataset.dataset import datasets_in, list_datasets, shipped_datasets

    names: Sequence[str] = _split(text) or (EVERY,)
    if tuple(names) == (EVERY,):
        return tuple(RecordingSource(manifest.name) for manifest in list_datasets())
    shipped = shipped_datasets()
    folders = {name: datasets_in(Path(name)) for name in names if name not in shipped and Path(name).is_dir()}
    return tuple(RecordingSource(str(path)) for name in names for path in folders.get(name, (name,)))


def _cores(text: str) -> int:
    if not (re.fullmatch("[0-9]{1,4}", text) and 1 <= int(text) <= MOST_CORES):
        got = printable(repr(text), longest=60)
        raise UsageError(f"compile cores cannot be {got}: they are whole numbers from 1 to {MOST_CORES}, such as 1,16.")
    return int(text)


def _share(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not all(re.fullmatch("[0-9]{1,18}", number) for number in (part, parts)):
        raise UsageError(f"the share cannot be {text!r}: it is PART/PARTS, such as 2/4 for the second of four.")
    return int(part), int(parts)


_LONGEST = 4000
"""Most characters of a notice: a card may name any number of datasets."""


def start_models(strategies: Mapping[str, Strategy], recording: Recording) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each strategy with a model option, the model's SHA-256 or ``""``, and its training data."""
    for name, strategy in strategies.items():
        if not isinstance(strategy, ShippedSearch) or strategy.prior == NONE:
            continue
        chosen = strategy.model(recording)
        if chosen is None:
            yield name, "", f"there is no model, and {name} searches without one"
            continue
        training = chosen.card.training
        here = recording.device.name, recording.problem.label
        alike = [dataset for dataset, of in training.items() if (of.device, of.problem) == here]
        if recording.name in training:
            said = "has learned from this dataset, which says nothing of its worth elsewhere"
        elif alike:
            said = f"has learned from the same problem on the same GPU, {', '.join(alike)}"
        else:
            said = "has not seen this problem on this GPU"
        listed = ", ".join(training) or "unknown datasets"
        notice = f"{name} starts from the model {chosen.name}, which {said}; trained on {listed}"
        yield name, chosen.card.sha256, printable(notice, _LONGEST)
