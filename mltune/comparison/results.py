"""The result of a comparison: the runs of all strategies, the document of their figures, and the files of both."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mltune.comparison.clock import best_over_time, ended_seconds
from mltune.comparison.figures import draw
from mltune.comparison.journal import Job
from mltune.comparison.scores import evaluations_to, holm, paired_test, scored_range, scores
from mltune.comparison.simulation import COUNTS, Recording, Trace
from mltune.comparison.strategies import COMPILERS
from mltune.dataset.parquet import rounded
from mltune.errors import StoreError
from mltune.files.atomic import write_file_atomically
from mltune.files.reading import reason
from mltune.files.text import many
from mltune.kernel.coding import Floats
from mltune.records.versions import installed_versions

AT = (25, 50, 100, 200, 400)
"""Numbers of evaluations for which the fraction of the optimum is given."""

TO = (0.95, 0.98, 0.99)
"""Fractions of the optimum for which the necessary evaluations and seconds are given."""

_DIGITS = 11
"""Bits of the seconds that are kept, three digits: further ones are noise and would not compress."""

REFERENCE = "mltune"
"""The strategy that the others are tested against."""


@dataclass(frozen=True, eq=False)
class Runs:
    """All runs of one strategy on one recording, one for each of the ``seeds``.

    ``best_s`` (:func:`mltune.comparison.scores.best_so_far`) and ``spent_s``
    (:func:`mltune.comparison.scores.spent_seconds`) have the shape (n_seeds, n_evaluations).
    """

    seeds: tuple[int, ...]
    traces: tuple[Trace, ...]
    best_s: Floats
    spent_s: Floats


@dataclass(frozen=True, eq=False)
class Comparison:
    """The runs of a comparison.

    Attributes
    ----------
    recordings : mapping of str to Recording
        By name of the dataset.
    runs : mapping of (str, str) to Runs
        By strategy and dataset. A strategy that has no run on one of the datasets is left out.
    errors : mapping of Job to str
        Reasons of the runs that failed, one line each.
    directory : pathlib.Path
        Where the comparison is written.
    missing : int
        Number of runs that have not ended: the comparison was stopped.
    cores : tuple of int
        The numbers of compile cores with which the runs are put on the clock.
    """

    strategies: tuple[str, ...]
    recordings: Mapping[str, Recording]
    evaluations: int
    runs: Mapping[tuple[str, str], Runs]
    errors: Mapping[Job, str] = field(default_factory=dict)
    directory: Path = Path()
    missing: int = 0
    cores: tuple[int, ...] = ()

    def fraction(self, name: str, dataset: str) -> Floats:
        """Return the best so far as fractions of the optimum, 0 until a configuration succeeds.

        An ndarray of shape (n_seeds, n_evaluations).
        """
        return self.recordings[dataset].optimum_s / self.runs[name, dataset].best_s

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The figures of all strategies as a JSON document: see :func:`summarise`."""
        return summarise(self)

    def to_json(self) -> dict[str, Any]:
        """Return the summary: what ``mltune compare --json`` prints."""
        return self.summary


@dataclass(frozen=True, slots=True)
class PartialComparison:
    """One share of a comparison: its runs are on record, and a comparison without a share joins all shares.

    Attributes
    ----------
    share : tuple of (int, int)
        Part, and number of parts.
    runs : int
        Number of runs of the share, those that failed or have not ended included.
    errors : mapping of Job to str
        Reasons of the runs that failed, one line each.
    missing : int
        Number of runs that have not ended: the comparison was stopped.
    directory : pathlib.Path
        Where the runs are written.
    """

    share: tuple[int, int]
    runs: int
    errors: Mapping[Job, str]
    missing: int
    directory: Path

    def to_json(self) -> dict[str, Any]:
        """Return the share as plain JSON values: what ``mltune compare --share I/N --json`` prints."""
        return {
            "share": "{}/{}".format(*self.share),
            "runs": self.runs,
            "missing": self.missing,
            "errors": _errors(self.errors),
            "output": str(self.directory),
        }


def _errors(errors: Mapping[Job, str]) -> list[dict[str, Any]]:
    return [{**job._asdict(), "error": error} for job, error in sorted(errors.items())]


def summarise(comparison: Comparison) -> dict[str, Any]:
    """Return the figures of a comparison as a JSON document; docs/explanation/comparison.md defines them.

    ``strategies`` has by name, best score first, the figures over all datasets and, under ``datasets``, for each;
    ``significance`` the score of the reference minus that of each other strategy, with its p-value.
    """
    found = {}
    for name in comparison.strategies:
        spaces = {dataset: _on_dataset(comparison, name, dataset) for dataset in comparison.recordings}
        over_time = {str(cores): _over_time(comparison, name, cores) for cores in comparison.cores}
        found[name] = _over_all(spaces) | {"over_time": over_time, "datasets": spaces}
    order = sorted(found, key=lambda name: -found[name]["score"])
    return {
        "evaluations": comparison.evaluations,
        "datasets": {
            name: {
                "configurations": recording.space.count,
                "failed": int(np.isnan(recording.median_s).sum()),
                "optimum_s": recording.optimum_s,
                "budget": _budget(recording, comparison.evaluations),
                "account": recording.account,
                "notices": list(recording.notices),
            }
            for name, recording in comparison.recordings.items()
        },
        "strategies": {name: found[name] for name in order},
        "significance": _significance(comparison, order),
        "missing": comparison.missing,
        "errors": _errors(comparison.errors),
        "versions": installed_versions("optuna", "scikit-learn", "numpy", "kernel-tuner", "torch"),
    }


def run_scores(comparison: Comparison, name: str, dataset: str) -> Floats:
    """Return the score of each run of a strategy on a dataset: ndarray of shape (n_seeds,)."""
    return scores(comparison.runs[name, dataset].best_s, comparison.recordings[dataset].pessimal_s)


def _budget(recording: Recording, evaluations: int) -> dict[str, float]:
    """Return the end of the scored range: in evaluations, and in seconds of random search, one by one."""
    _, last = scored_range(recording.pessimal_s, evaluations)
    return {"evaluations": last, "seconds": last * recording.evaluation_s}


def _over_time(comparison: Comparison, name: str, cores: int) -> dict[str, Any]:
    """Return the figures of a strategy over time with some compile cores, over all datasets and for each."""
    spaces = {dataset: _on_clock(comparison, name, dataset, cores) for dataset in comparison.recordings}
    return _over_all(spaces) | {"datasets": spaces}


def _on_clock(comparison: Comparison, name: str, dataset: str, cores: int) -> dict[str, Any]:
    recording = comparison.recordings[dataset]
    runs = comparison.runs.get((f"{name}{COMPILERS}{cores}", dataset), comparison.runs[name, dataset])
    ended = [ended_seconds(trace, recording, cores) for trace in runs.traces]
    at_s = recording.evaluation_s * np.arange(1.0, comparison.evaluations + 1.0)
    best_s = best_over_time(recording.median_s, runs.traces, ended, at_s)
    to = {}
    for target in TO:
        reached_s = [
            ends_s[recording.optimum_s >= target * recording.median_s[trace.indices]].min(initial=np.inf)
            for trace, ends_s in zip(runs.traces, ended, strict=True)
        ]
        counted_s = np.minimum(reached_s, [ends_s.max(initial=0.0) for ends_s in ended])
        to[str(target)] = {"seconds": float(np.median(counted_s)), "reached": float(np.isfinite(reached_s).mean())}
    return {**_scored(scores(best_s, recording.pessimal_s)), "to": to, "seeds": len(runs.seeds)}


def _scored(scored: Floats) -> dict[str, float | None]:
    """Return the mean of the scores of some runs, and its standard error."""
    error = float(scored.std(ddof=1) / np.sqrt(len(scored))) if len(scored) > 1 else None
    return {"score": float(scored.mean()), "score_error": error}


def _on_dataset(comparison: Comparison, name: str, dataset: str) -> dict[str, Any]:
    runs = comparison.runs[name, dataset]
    fraction = comparison.fraction(name, dataset)
    scored = run_scores(comparison, name, dataset)
    own = np.array([trace.own_s.sum() for trace in runs.traces])
    evaluated = np.array([len(trace.indices) for trace in runs.traces])
    return {
        "at": {str(at): float(fraction[:, at - 1].mean()) for at in AT if at <= comparison.evaluations},
        "to": {str(target): _to(fraction, runs.spent_s, target) for target in TO},
        **_scored(scored),
        "seeds": len(runs.seeds),
        "seconds": {
            "own_per_evaluation": float((own / np.maximum(evaluated, 1)).mean()),
            "own": float(own.mean()),
            "recorded": float(runs.spent_s[:, -1].mean() - own.mean()),
        },
        "evaluated": float(evaluated.mean()),
        "counts": {kind: float(np.mean([getattr(trace, kind) for trace in runs.traces])) for kind in COUNTS},
    }


def _to(fraction: Floats, spent_s: Floats, target: float) -> dict[str, float]:
    """Return the median evaluations and seconds to a target; a run that did not reach it counts with its total."""
    needed = evaluations_to(fraction, target)
    there = np.isfinite(needed)
    counted = np.where(there, needed, fraction.shape[1]).astype(int)
    seconds = spent_s[np.arange(len(counted)), counted - 1]
    return {
        "evaluations": float(np.median(counted)),
        "seconds": float(np.median(seconds)),
        "reached": float(there.mean()),
    }


def _over_all(spaces: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the means over datasets."""
    each = list(spaces.values())
    errors = [one["score_error"] for one in each]
    means: dict[str, Any] = _mean([one | {"score_error": 0.0} for one in each])
    return means | {
        "score_error": None if None in errors else float(np.sqrt(np.square(errors).sum()) / len(errors)),
        "seeds": min(one["seeds"] for one in each),
    }


def _mean(parts: Sequence[Any]) -> Any:
    """Return the mean of numbers; of tables a table of the means."""
    if isinstance(parts[0], dict):
        return {name: _mean([part[name] for part in parts]) for name in parts[0]}
    return float(np.mean(parts))


def _significance(comparison: Comparison, order: list[str]) -> list[dict[str, Any]]:
    """Test :data:`REFERENCE`, or if it is absent the best strategy, against each other strategy."""
    reference = REFERENCE if REFERENCE in order else order[0]
    scored = {
        (name, dataset): dict(zip(runs.seeds, run_scores(comparison, name, dataset).tolist(), strict=True))
        for (name, dataset), runs in comparison.runs.items()
    }
    tested: dict[str, tuple[float, float]] = {}
    for other in order:
        pairs = [_pairs(scored[reference, dataset], scored[other, dataset]) for dataset in comparison.recordings]
        if other != reference and all(len(ours) > 1 for ours, _ in pairs):
            tested[other] = paired_test([ours for ours, _ in pairs], [theirs for _, theirs in pairs])
    adjusted = holm({other: p for other, (_, p) in tested.items()})
    return [
        {"first": reference, "second": other, "difference": difference, "p": p, "p_adjusted": adjusted[other]}
        for other, (difference, p) in tested.items()
    ]


def _pairs(ours: dict[int, float], theirs: dict[int, float]) -> tuple[Floats, Floats]:
    """Return the scores of the seeds that both strategies have."""
    seeds = sorted(ours.keys() & theirs.keys())
    return np.array([ours[seed] for seed in seeds]), np.array([theirs[seed] for seed in seeds])


def write_results(comparison: Comparison, directory: Path) -> dict[str, Any]:
    """Write the summary, ``table.md``, ``evaluations.parquet`` and ``curves*.svg`` and ``.png``; return the summary."""
    document = comparison.summary
    try:
        write_file_atomically(directory / "summary.json", (json.dumps(document, indent=1) + "\n").encode())
        write_file_atomically(directory / "table.md", markdown(document).encode())
        write_file_atomically(directory / "evaluations.parquet", evaluations(comparison))
        curves = {
            name: {dataset: comparison.fraction(name, dataset) for dataset in comparison.recordings}
            for name in document["strategies"]
        }
        for name, image in draw(curves).items():
            write_file_atomically(directory / name, image)
    except OSError as error:
        raise StoreError(
            f"results are written to the output directory, but {directory} cannot be: {reason(error)}."
        ) from error
    return document


def markdown(document: Mapping[str, Any]) -> str:
    """Return the summary of a comparison (:func:`summarise`) as Markdown."""
    strategies, datasets = document["strategies"], document["datasets"]
    on_clock = [
        [name, cores, _score(found), *(f"{to['seconds']:.2f} ({to['reached']:.0%})" for to in found["to"].values())]
        for name in strategies
        for cores, found in strategies[name]["over_time"].items()
    ]
    first = next(iter(strategies.values()))
    limit = document["evaluations"]
    header = ["strategy", "score", *(f"at {at}" for at in first["at"])]
    header += [f"evaluations to {float(to):.0%} (reached)" for to in first["to"]]
    header += ["own ms per evaluation", "seeds"]
    clock = ["strategy", "compile cores", "score", *(f"seconds to {float(to):.0%} (reached)" for to in first["to"])]
    overall = [
        [name, _score(found), *(f"{value:.3f}" for value in found["at"].values())]
        + [f"{to['evaluations']:.0f} ({to['reached']:.0%})" for to in found["to"].values()]
        + [f"{1e3 * found['seconds']['own_per_evaluation']:.2f}", str(found["seeds"])]
        for name, found in strategies.items()
    ]
    spaces = [
        [name, *(_score(found["datasets"][dataset]) for dataset in datasets)] for name, found in strategies.items()
    ]
    tests = [
        [one["second"], f"{one['difference']:+.3f}", f"{one['p_adjusted']:.2g}"] for one in document["significance"]
    ]
    reference = next((one["first"] for one in document["significance"]), "")
    title = f"Score of `{reference}` minus that of the others (permutation test of pairs, Holm's correction):"
    compared = [title, "", *_lines(["other", "difference", "p"], tests), ""]
    return "\n".join(
        [
            f"Means over {many(len(datasets), 'recorded space')}; at most {limit} distinct configurations a run.",
            "`at N`: fraction of the optimum after N evaluations. A run that misses a target counts with all of them.",
            "",
            *_lines(header, overall),
            "",
            "Score by space:",
            "",
            *_lines(["strategy", *datasets], spaces),
            "",
            *(("Over time, with a simulated clock:", "", *_lines(clock, on_clock), "") if on_clock else ()),
            *(compared if tests else ()),
            *(f"- {text}" for text in _notices(document)),
        ]
    )


def _notices(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a reader should know about the recordings and the runs."""
    for name, dataset in document["datasets"].items():
        yield from (f"{name}: {text}" for text in (dataset["account"], *dataset["notices"]) if text)
    if document["missing"]:
        yield f"The comparison was stopped: {many(document['missing'], 'run')} missing."


def _score(found: Mapping[str, Any]) -> str:
    error = found["score_error"]
    return f"{found['score']:.3f}" + ("" if error is None else f" ± {error:.3f}")


def _lines(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    ruler = ["---", *["---:"] * (len(header) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (header, ruler, *rows)]


def evaluations(comparison: Comparison) -> bytes:
    """Return a Parquet file of one row per strategy, dataset, seed and evaluation.

    Columns: ``strategy``, ``dataset``, ``seed``, ``evaluation`` (from 1), ``index`` (the row of the dataset),
    ``fraction`` (of the optimum, the best so far), ``own_s`` and ``recorded_s`` (of this evaluation).
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts = [
        _rows(name, dataset, runs, comparison.recordings[dataset].optimum_s)
        for (name, dataset), runs in comparison.runs.items()
    ]
    table = pa.concat_tables(parts).unify_dictionaries()
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", compression_level=9)
    return buffer.getvalue()


def _rows(name: str, dataset: str, runs: Runs, optimum_s: float) -> Any:
    import pyarrow as pa

    lengths = [len(trace.indices) for trace in runs.traces]
    numbers = [np.arange(1, length + 1, dtype=np.uint16) for length in lengths]
    fraction = [optimum_s / best[:length] for best, length in zip(runs.best_s, lengths, strict=True)]
    constant = pa.array(np.zeros(sum(lengths), dtype=np.int8))
    return pa.table(
        {
            "strategy": pa.DictionaryArray.from_arrays(constant, [name]),
            "dataset": pa.DictionaryArray.from_arrays(constant, [dataset]),
            "seed": np.repeat(np.array(runs.seeds, dtype=np.uint16), lengths),
            "evaluation": np.concatenate(numbers),
            "index": np.concatenate([trace.indices for trace in runs.traces]).astype(np.uint32),
            "fraction": np.concatenate(fraction).astype(np.float32),
            "own_s": rounded(np.concatenate([trace.own_s for trace in runs.traces]), _DIGITS),
            "recorded_s": rounded(
                np.concatenate([trace.recorded_s for trace in runs.traces]).astype(np.float32), _DIGITS
            ),
        }
    )
