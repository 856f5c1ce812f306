"""Forecast of the time that a comparison takes: from the runs that are there, before that from a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np

from mltune.comparison.journal import Job, Outcome

OWN_S: Mapping[str, float] = {
    "mltune": 0.01,
    "mltune-noskip": 0.0025,
    "mltune-nobuild": 0.0025,
    "mltune-raw": 0.0025,
    "mltune-tpe": 0.015,
    "tpe": 0.012,
    "astra": 0.0001,
    "random": 0.0001,
    "hybrid_vndx": 0.003,
    "adaptive_tabu_greywolf": 0.002,
    "gp": 0.2,
}
"""Rough seconds of a strategy's own work per evaluation, measured on one core in runs of 400 evaluations."""

UNKNOWN_S = 0.005
"""Assumed seconds for a strategy that is not in the table, such as others of Kernel Tuner."""


class Forecast:
    """The seconds that runs are expected to take, from those that have ended.

    A run takes as long as its strategy works: what it evaluates is looked up.

    Parameters
    ----------
    evaluations : int
        Evaluations of a run.
    """

    def __init__(self, evaluations: int) -> None:
        self._evaluations = evaluations
        self._seconds: dict[tuple[str, ...], list[float]] = defaultdict(list)

    def add(self, outcome: Outcome) -> None:
        """Take a run that has ended into account."""
        if outcome.trace is not None:
            seconds = float(outcome.trace.own_s.sum(dtype=np.float64))
            self._seconds[outcome.job.strategy, outcome.job.dataset].append(seconds)
            self._seconds[outcome.job.strategy,].append(seconds)

    def seconds(self, jobs: Iterable[Job]) -> float:
        """Return the processor time that jobs are expected to take, seconds."""
        return sum(self._run_s(job.strategy, job.dataset) for job in jobs)

    def _run_s(self, strategy: str, dataset: str) -> float:
        for key in ((strategy, dataset), (strategy,)):
            if key in self._seconds:
                return float(np.mean(self._seconds[key]))
        return self._evaluations * OWN_S.get(strategy.partition(":")[0], UNKNOWN_S)
