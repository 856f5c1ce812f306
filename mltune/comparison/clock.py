"""The clock of simulated runs: the end of each evaluation in a trace, for any number of compile cores and a GPU."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np

from mltune.comparison.simulation import Recording, Trace
from mltune.kernel.coding import Floats


def ended_seconds(trace: Trace, recording: Recording, cores: int) -> Floats:
    """Return the seconds at which the evaluations of a run end: ndarray of shape (n_evaluations,).

    The strategy computes on a core of its own, and proposes a build after its computation and the results that it uses.
    Builds wait for one of the ``cores`` in the order of the proposals, then for the GPU in the order in which they are
    ready. Skips after compiling and failed builds do not occupy the GPU.
    """
    builds = trace.builds
    compile_s = recording.compile_s[builds["index"]].tolist()
    run_s = np.where(builds["measured"], recording.run_s[builds["index"]], 0.0).tolist()
    ended_s = [math.nan] * len(compile_s)
    cores_s = [0.0] * cores  # when each is free: a heap
    ready: list[tuple[float, int]] = []  # builds that wait for the GPU, as a heap
    gpu_s = thinking_s = told_s = 0.0
    told = 0

    def run_next() -> None:
        nonlocal gpu_s
        built_s, place = heapq.heappop(ready)
        ended_s[place] = gpu_s = max(gpu_s, built_s) + run_s[place]

    for place, (known_s, own_s) in enumerate(builds[["known", "own_s"]].tolist()):
        while told < known_s:
            while math.isnan(ended_s[told]):  # what is proposed later is ready later
                run_next()
            told_s = max(told_s, ended_s[told])
            told += 1
        thinking_s = max(thinking_s, told_s) + own_s
        built_s = max(thinking_s, cores_s[0]) + compile_s[place]
        heapq.heapreplace(cores_s, built_s)
        if run_s[place] > 0.0:
            heapq.heappush(ready, (built_s, place))
        else:
            ended_s[place] = built_s
    while ready:
        run_next()
    evaluations_s: Floats = np.array(ended_s)[builds["measured"]]
    return evaluations_s


def best_over_time(median_s: Floats, traces: Sequence[Trace], ended_s: Sequence[Floats], at_s: Floats) -> Floats:
    """Return the best time of each run at some seconds: ndarray of shape (n_runs, n_seconds), infinite before any."""
    best = np.full((len(traces), len(at_s)), np.inf)
    for run, trace, ends_s in zip(best, traces, ended_s, strict=True):
        order = np.argsort(ends_s, kind="stable")
        times_s = np.fmin(median_s[trace.indices[order]], np.inf)
        known_s = np.minimum.accumulate(np.concatenate([[np.inf], times_s]))
        run[:] = known_s[np.searchsorted(ends_s[order], at_s, side="right")]
    return best
