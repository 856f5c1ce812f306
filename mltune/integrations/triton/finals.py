"""The finals of a tuning: the fastest configurations, and the first, are launched again in turns."""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np

from mltune.integrations.triton.runner import BRIEF, Runner

CLOSE = 1.1
"""Configurations whose brief time is at most this many times the best are measured again, in turns."""

FINALISTS, ROUNDS, ROUND_MS, MOST_LAUNCHES = 12, 6, 20.0, 25
"""Most configurations of the finals, their rounds, and milliseconds and most of the launches of each in a round."""

BEHIND = 1.03
"""A finalist this many times slower than the best leaves after a round."""

TIE = 1.005
"""Finalists at most this many times slower than the best tie with it."""


def raced(times: Mapping[Any, list[float]], first: Any, runner: Runner) -> dict[Any, list[float]]:
    """Return quantiles of milliseconds after the finals; those of others lie behind them in proportion.

    The times come in the order of the kernel's list, and ties are decided by it: tunes that differ in noise alone have
    the same winner. A finalist that was faster, and tied, has the time of the winner.
    """
    brief = {config: quantiles[0] for config, quantiles in times.items() if math.isfinite(quantiles[0])}
    close = (config for config in brief if brief[config] <= CLOSE * min(brief.values()))
    finalists = heapq.nsmallest(FINALISTS, close, key=brief.__getitem__)
    finalists += [first] if first in brief and first not in finalists else []
    if runner.stopwatch is None or len(finalists) < 2:
        return dict(times)
    samples: dict[Any, list[float]] = {config: [] for config in finalists}
    for _ in range(ROUNDS):
        for config in finalists:
            launches = max(3, min(MOST_LAUNCHES, int(ROUND_MS / max(brief[config], 1e-3))))
            samples[config] += runner.sample(config, runner.stopwatch, launches)
        medians = {config: statistics.median(samples[config]) for config in finalists}  # of the same rounds
        finalists = [config for config in finalists if medians[config] <= BEHIND * min(medians.values())]
    runner.stopwatch.launches = BRIEF
    best = preferred({config: medians[config] for config in times if config in finalists}, first)
    least, scale = 1.0001 * medians[best], medians[best] / brief[best]
    estimates = {config: [scale * value for value in quantiles] for config, quantiles in times.items()}
    estimates |= {config: np.quantile(samples[config], (0.5, 0.2, 0.8)).tolist() for config in finalists}
    behind = {config: [max(least, value) for value in quantiles] for config, quantiles in estimates.items()}
    return behind | {best: estimates[best]}


def preferred(medians: Mapping[Any, float], first: Any) -> Any:
    """Return the fastest, or of several that tie with it `first`, else the one with the fewest warps and stages.

    Of these the first in the order of the mapping is taken.
    """
    ties = [config for config, median in medians.items() if median <= TIE * min(medians.values())]
    return first if first in ties else min(ties, key=lambda config: (config.num_warps, config.num_stages))
