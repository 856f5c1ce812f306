"""Forecast of the time that a comparison takes: from the runs that are there, before that from a table."""

from __future__ import annotations

import time
from collections import Counter
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

START_S = 3.0
"""Seconds until a process has started and imported what it needs."""


class Forecast:
    """The time until all runs have ended, from those that have: a run takes as long as its strategy works.

    Parameters
    ----------
    evaluations : int
        Evaluations of a run.
    processes : int
        Processes that work at a time.
    jobs : iterable of Job
        The runs to come.
    known : iterable of Outcome
        Runs that ended earlier.
    """

    def __init__(self, evaluations: int, processes: int, jobs: Iterable[Job], known: Iterable[Outcome] = ()) -> None:
        self._evaluations = evaluations
        self._processes = processes
        self._left = Counter((job.strategy, job.dataset) for job in jobs)
        self._seconds: dict[tuple[str, ...], tuple[int, float]] = {}
        for outcome in known:
            self._learn(outcome)
        self._worked_s = 0.0
        self._since = time.monotonic()

    def ended(self, outcome: Outcome) -> None:
        """Take into account that one of the runs has ended."""
        self._left[outcome.job.strategy, outcome.job.dataset] -= 1
        self._worked_s += self._learn(outcome)

    @property
    def left_s(self) -> float:
        """The expected seconds until all have ended, on a machine as busy as it has been so far."""
        expected_s = START_S + self._worked_s / self._processes
        slowdown = max(1.0, (time.monotonic() - self._since) / expected_s)
        return slowdown * sum(count * self._run_s(*pair) for pair, count in self._left.items()) / self._processes

    def _learn(self, outcome: Outcome) -> float:
        """Add a run to those that its like are expected to resemble; return its seconds."""
        if outcome.trace is None:
            return 0.0
        run_s = float(outcome.trace.own_s.sum(dtype=np.float64))
        strategy, dataset, _ = outcome.job
        for key in ((strategy, dataset), (strategy,)):
            count, seconds = self._seconds.get(key, (0, 0.0))
            self._seconds[key] = count + 1, seconds + run_s
        return run_s

    def _run_s(self, strategy: str, dataset: str) -> float:
        for key in ((strategy, dataset), (strategy,)):
            if key in self._seconds:
                count, seconds = self._seconds[key]
                return seconds / count
        return self._evaluations * OWN_S.get(strategy.partition(":")[0], UNKNOWN_S)
