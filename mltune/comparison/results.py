"""The result of a comparison: the runs of all strategies, the document of their figures, and the files of both."""

from __future__ import annotations

import datetime
import io
import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mltune.comparison.clock import best_over_time, ended_seconds
from mltune.comparison.figures import draw
from mltune.comparison.journal import Job
from mltune.comparison.scores import bands, evaluations_to, holm, paired_test, scored_range, scores
from mltune.comparison.simulation import COUNTS, Recording, Trace
from mltune.comparison.strategies import COMPILERS
from mltune.dataset.parquet import rounded
from mltune.errors import StoreError
from mltune.files.atomic import write_product
from mltune.files.owned import FIGURE, PAGE, PARQUET_KEY, ROWS, SUMMARY, TEXT
from mltune.files.reading import raising
from mltune.files.text import html_table, many
from mltune.kernel.coding import Floats
from mltune.records.versions import installed_versions

AT = (1, 2, 3, 5, 10, 25, 50, 100, 200, 400)
"""Numbers of evaluations for which the fraction of the optimum is given."""

TO = (0.95, 0.98, 0.99)
"""Fractions of the optimum for which the necessary evaluations and seconds are given."""

_DIGITS = 11
"""Bits of the seconds that are kept, three digits: noise beyond them would not compress."""

PACKAGES = ("numpy", "scikit-learn", "optuna", "kernel-tuner", "pymoo", "torch")
"""Packages whose versions are in the summary."""

REFERENCE = "mltune"
"""The strategy that all others are tested against."""


@dataclass(frozen=True, eq=False)
class Runs:
    """All runs of one strategy on one recording, one for each of the ``seeds``.

    The best and the spent seconds (:mod:`mltune.comparison.scores`) have the shape (n_seeds, n_evaluations).
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

    def __repr__(self) -> str:
        return f"Comparison({', '.join(self.strategies)} on {many(len(self.recordings), 'dataset')}, {self.directory})"

    def _repr_html_(self) -> str:
        scores = {name: f"score {row['score']:.3f}" for name, row in self.summary["strategies"].items()}
        return html_table({"directory": self.directory, "datasets": ", ".join(self.recordings), **scores})

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
    summary = {}
    for name in comparison.strategies:
        spaces = {dataset: _on_dataset(comparison, name, dataset) for dataset in comparison.recordings}
        over_time = {str(cores): _over_time(comparison, name, cores) for cores in comparison.cores}
        figures = {"score_interval": _interval(comparison, name), "over_time": over_time, "datasets": spaces}
        summary[name] = _over_all(spaces) | figures
    order = sorted(summary, key=lambda name: -summary[name]["score"])
    return {
        "evaluations": comparison.evaluations,
        "datasets": {
            name: {
                "kernel": recording.kernel.name,
                "problem": recording.problem.label,
                "device": recording.device.name,
                **recording.origin,
                "configurations": recording.space.count,
                "failed": int(np.isnan(recording.median_s).sum()),
                "optimum_s": recording.optimum_s,
                "budget": _budget(recording, comparison.evaluations),
                "account": recording.account,
                "notices": list(recording.notices),
            }
            for name, recording in comparison.recordings.items()
        },
        "strategies": {name: summary[name] for name in order},
        "significance": _significance(comparison, order),
        "missing": comparison.missing,
        "errors": _errors(comparison.errors),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "versions": {"python": platform.python_version(), **installed_versions(*PACKAGES)},
    }


def _interval(comparison: Comparison, name: str) -> list[float] | None:
    """Return the 95 % interval of a strategy's mean score over its runs; None where a dataset has one run."""
    scored = [run_scores(comparison, name, dataset)[:, None] for dataset in comparison.recordings]
    if min(map(len, scored)) < 2:
        return None
    ends: list[float] = bands(scored, np.random.default_rng(0))[:, 0].tolist()
    return ends


def run_scores(comparison: Comparison, name: str, dataset: str) -> Floats:
    """Return the score of each run of a strategy on a dataset: ndarray of shape (n_seeds,)."""
    return scores(comparison.runs[name, dataset].best_s, comparison.recordings[dataset].pessimal_s)


def _budget(recording: Recording, evaluations: int) -> dict[str, float]:
    """Return the end of the scored range: in evaluations, and in seconds of sequential random search."""
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
    return {**_scored(scores(best_s, recording.pessimal_s, comparison.evaluations)), "to": to, "seeds": len(runs.seeds)}


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
    """Return the median evaluations and seconds to a target; a run that misses it counts with its total."""
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
    rows = list(spaces.values())
    errors = [row["score_error"] for row in rows]
    means: dict[str, Any] = _mean([row | {"score_error": 0.0} for row in rows])
    return means | {
        "score_error": None if None in errors else float(np.sqrt(np.square(errors).sum()) / len(errors)),
        "seeds": min(row["seeds"] for row in rows),
    }


def _mean(parts: Sequence[Any]) -> Any:
    """Return the mean of numbers, or the table of the means of tables."""
    if isinstance(parts[0], dict):
        return {name: _mean([part[name] for part in parts]) for name in parts[0]}
    return float(np.mean(parts))


def _significance(comparison: Comparison, order: list[str]) -> list[dict[str, Any]]:
    """Test :data:`REFERENCE`, or the best strategy if it is absent, against each other strategy."""
    reference = REFERENCE if REFERENCE in order else order[0]
    scored = {
        (name, dataset): dict(zip(runs.seeds, run_scores(comparison, name, dataset).tolist(), strict=True))
        for (name, dataset), runs in comparison.runs.items()
    }
    tested: dict[str, tuple[float, float]] = {}
    for other in order:
        pairs = [_pairs(scored[reference, dataset], scored[other, dataset]) for dataset in comparison.recordings]
        if other != reference and all(len(scores) > 1 for scores, _ in pairs):
            tested[other] = paired_test(
                [scores for scores, _ in pairs], [reference_scores for _, reference_scores in pairs]
            )
    adjusted = holm({other: p for other, (_, p) in tested.items()})
    return [
        {"first": reference, "second": other, "difference": difference, "p": p, "p_adjusted": adjusted[other]}
        for other, (difference, p) in tested.items()
    ]


def _pairs(scores: dict[int, float], reference_scores: dict[int, float]) -> tuple[Floats, Floats]:
    """Return the scores of the seeds that both strategies have."""
    seeds = sorted(scores.keys() & reference_scores.keys())
    return np.array([scores[seed] for seed in seeds]), np.array([reference_scores[seed] for seed in seeds])


_SUMMARY, _ROWS = "summary.json", "evaluations.parquet"

PRODUCTS = {_SUMMARY: SUMMARY, "table.md": TEXT, "scoreboard.html": PAGE, _ROWS: ROWS} | {
    f"{name}.{suffix}": FIGURE for name in ("curves", "curves-spaces") for suffix in ("svg", "png")
}
"""The files of a comparison by name."""


def write_results(
    comparison: Comparison, directory: Path, pages: Mapping[str, str] | None = None, *, overwrite: bool = False
) -> dict[str, Any]:
    """Write the files of :data:`PRODUCTS`, of which ``pages`` are texts by name; return the summary."""
    document = comparison.summary
    files = {_SUMMARY: (json.dumps(document, indent=1) + "\n").encode()}
    files |= {name: text.encode("utf-8", "backslashreplace") for name, text in (pages or {}).items()}
    files |= {_ROWS: evaluations(comparison)}
    with raising(StoreError, f"results cannot be written to {directory}"):
        for name, data in files.items():
            write_product(directory / name, data, PRODUCTS[name], overwrite=overwrite)
        curves = {
            name: {dataset: comparison.fraction(name, dataset) for dataset in comparison.recordings}
            for name in document["strategies"]
        }
        for name, image in draw(curves).items():
            write_product(directory / name, image, PRODUCTS[name], overwrite=overwrite)
    return document


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
    table = pa.concat_tables(parts).unify_dictionaries().replace_schema_metadata({PARQUET_KEY: b"evaluations"})
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
