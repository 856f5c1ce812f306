"""Scores of searches; docs/explanation/comparison.md has the definitions and their sources."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from mltune.comparison.simulation import Trace
from mltune.kernel.coding import Floats

SCORED_EVALUATIONS = 250
"""Largest number of evaluations that the score over evaluations covers."""

CUTOFF, CUTOFF_START = 0.95, 0.01
"""Expected positions of random search between median and optimum, at the end and the start of the scored range."""

RESAMPLES = 9999
BAND_RESAMPLES = 1000


def best_so_far(median_s: Floats, traces: Sequence[Trace], evaluations: int) -> Floats:
    """Return the best time after each evaluation of each run: ndarray of shape (n_runs, evaluations).

    The recorded times ``median_s`` are NaN for failures. The best is infinite until a configuration succeeds; a run
    that ended early keeps its last value.
    """
    best = np.full((len(traces), evaluations), np.inf)
    for run, trace in zip(best, traces, strict=True):
        times = median_s[trace.indices[:evaluations]]
        run[: len(times)] = np.where(np.isfinite(times), times, np.inf)
    best = np.minimum.accumulate(best, axis=1)
    return best


def spent_seconds(traces: Sequence[Trace], evaluations: int) -> Floats:
    """Return the seconds until the end of each evaluation, of strategy and recording: shape (n_runs, evaluations)."""
    seconds = np.zeros((len(traces), evaluations))
    for run, trace in zip(seconds, traces, strict=True):
        spent = (trace.own_s + trace.recorded_s)[:evaluations]
        run[: len(spent)] = spent
    return np.cumsum(seconds, axis=1)


def expected_minimum(values: Floats, draws: int) -> Floats:
    """Return the exact expectation of the minimum of 1 to ``draws`` values drawn without replacement.

    With the values in ascending order, the minimum of n draws of N exceeds the k-th value with the hypergeometric
    probability C(N - k, n) / C(N, n).

    Examples
    --------
    >>> expected_minimum(np.array([1.0, 2.0, 3.0]), 3).round(3).tolist()
    [2.0, 1.333, 1.0]
    """
    ascending = np.sort(values)
    steps = np.diff(ascending)
    above = np.arange(len(values) - 1, 0, -1, dtype=np.float64)  # number of values above the k-th
    exceeds = np.ones(len(steps))
    expected = np.empty(draws)
    for drawn in range(draws):
        exceeds *= np.maximum(above - drawn, 0.0) / (len(values) - drawn)
        expected[drawn] = ascending[0] + steps @ exceeds
    return expected


def scored_range(times: Floats, evaluations: int) -> tuple[int, int]:
    """Return the first and the last evaluation that the score covers, from all times, failures as the slowest.

    At these, random search is expected to be 1 % and 95 % of the way from the median to the optimum (Willemsen et al.,
    2024, 10.1016/j.future.2024.05.021, equations 5 to 7), as computed by the package ``autotuning_methodology``. The
    last is at most ``evaluations``.
    """
    last = min(_evaluations_to(times, CUTOFF), evaluations)
    last = max(last, min(2, evaluations))
    return min(max(_evaluations_to(times, CUTOFF_START), 1), last), last


def _evaluations_to(times: Floats, share: float) -> int:
    """Return the expected number of random evaluations to reach a share of the way from the median to the optimum."""
    descending = np.sort(times)[::-1]
    optimum, median = descending[-1], float(np.median(times))
    place = int(np.argmax(descending <= optimum + (median - optimum) * (1.0 - share)))
    if descending[place] == optimum:
        place = max(place - 1, 0)
    return math.ceil(place / (len(times) + 1 - place))


def scores(best: Floats, times: Floats, most: int = SCORED_EVALUATIONS) -> Floats:
    """Return the score of each run: its mean position between random search (0) and the optimum (1).

    ``best`` is that of :func:`best_so_far`, and ``times`` has the shape (n_configs,), failures as the slowest. A score
    of 1 is the optimum from the first evaluation on (Willemsen et al., 2024, equation 8); at most the first ``most``
    count. The expectation of random search is exact (:func:`expected_minimum`), where the package approximates it.
    """
    first, last = scored_range(times, min(most, best.shape[1]))
    random = expected_minimum(times, min(last, len(times)))[first - 1 :]
    averages: Floats = standardised(best[:, first - 1 : last], random, times).mean(axis=1)
    return averages


def standardised(best: Floats, random: Floats, times: Floats) -> Floats:
    """Return curves scaled to 0 for random search and 1 for the optimum; a run without success has the slowest time."""
    optimum = times.min()
    curves: Floats = (random - np.minimum(best, times.max())) / np.maximum(random - optimum, np.finfo(float).tiny)
    return curves


def evaluations_to(fraction: Floats, target: float) -> Floats:
    """Return the number of evaluations after which each run reached a fraction of the optimum, or infinity."""
    there = fraction >= target
    return np.where(there.any(axis=1), 1.0 + np.argmax(there, axis=1), np.inf)


def bands(curves: Sequence[Floats], rng: np.random.Generator) -> Floats:
    """Return the lower and upper 95 % bootstrap confidence band of the mean over spaces: shape (2, n_evaluations).

    Curves have the shape (n_runs, n_evaluations). Runs are drawn with replacement within each space; the spaces are
    fixed.
    """
    total = np.zeros((BAND_RESAMPLES, curves[0].shape[1]))
    for runs in curves:
        weights = rng.multinomial(len(runs), np.full(len(runs), 1.0 / len(runs)), size=BAND_RESAMPLES)
        total += weights @ runs / len(runs)
    return np.quantile(total / len(curves), (0.025, 0.975), axis=0)


def paired_test(scores: Sequence[Floats], reference_scores: Sequence[Floats], seed: int = 0) -> tuple[float, float]:
    """Return the mean difference of scores over spaces, and the two-sided p-value, over pairs of the same seed.

    A permutation test of the mean difference: under the null hypothesis the two runs of a pair are exchangeable. It
    tests the mean, which is the reported figure, and assumes no distribution. Scores have the shape (n_runs,) per
    space.
    """
    from scipy.stats import permutation_test

    weight = [np.full(len(a), 1.0 / (len(a) * len(scores))) for a in scores]
    weights = np.concatenate(weight)
    pairs = np.concatenate([a - b for a, b in zip(scores, reference_scores, strict=True)]) * weights
    if not pairs.any():
        return 0.0, 1.0
    tested = permutation_test(
        (pairs,),
        lambda x, axis: x.sum(axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=500,
        rng=np.random.default_rng(seed),
    )
    return float(pairs.sum()), float(tested.pvalue)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return p-values adjusted for multiple tests (Holm, 1979, "A simple sequentially rejective ... procedure")."""
    ordered = sorted(p_values, key=p_values.__getitem__)
    factors = np.arange(len(ordered), 0, -1)
    adjusted = np.minimum(np.maximum.accumulate(factors * [p_values[name] for name in ordered]), 1.0)
    by_name = dict(zip(ordered, adjusted.tolist(), strict=True))
    return {name: by_name[name] for name in p_values}
