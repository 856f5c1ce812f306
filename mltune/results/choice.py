"""The choice among kernels in the results: which run of a problem is the fastest, and the table of its kernels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from mltune.results.run import TuneResult


def by_problem(runs: Iterable[TuneResult]) -> list[list[TuneResult]]:
    """Return the runs of each problem, the fastest first: the kernels of a choice are one problem."""
    found: dict[tuple[str, str], list[TuneResult]] = {}
    for run in runs:
        found.setdefault(("choice", run.choice) if run.choice else ("run", run.slug), []).append(run)
    return [sorted(group, key=_time) for group in found.values()]


def chosen(runs: Iterable[TuneResult]) -> set[str]:
    """Return the slugs of the runs that are the fastest of their problems."""
    return {group[0].slug for group in by_problem(runs)}


def kernel_rows(runs: Sequence[TuneResult]) -> list[dict[str, Any]]:
    """Describe the kernels of one problem side by side, as plain JSON values.

    Returns
    -------
    list of dict
        In the order of `runs`: ``kernel``, ``accuracy``, ``trials``, ``seconds``, ``best`` (a rating, see
        :meth:`mltune.results.run.TuneResult.best_rating`), ``error`` (:attr:`mltune.results.run.TuneResult.error`),
        ``run``.
    """
    return [
        {
            "kernel": run.kernel,
            "accuracy": run.accuracy,
            "trials": len(run.records),
            "seconds": run.elapsed_s,
            "best": run.best_rating(),
            "error": run.error,
            "run": str(run.directory),
        }
        for run in runs
    ]


def _time(run: TuneResult) -> float:
    return math.inf if run.best_time_s is None else run.best_time_s
