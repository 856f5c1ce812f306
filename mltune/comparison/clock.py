"""The clock of simulated runs: the end of each evaluation in a trace, for any number of compile cores and a GPU."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np

from mltune.comparison.simulation import Recording, Trace
from mltune.kernel.coding import Floats


class Bench:
    """Cores that compile side by side, and a GPU that measures builds one by one as they are ready."""

    def __init__(self, cores: int) -> None:
        self._cores_s = [0.0] * cores  # when each is free: a heap, as all lists here
        self._ready: list[tuple[float, int, float]] = []
        self._ended: list[tuple[float, int]] = []
        self._gpu_s = 0.0

    def begin(self, place: int, at_s: float, compile_s: float, run_s: float) -> None:
        """Begin a trial at some second, not before those that have begun; without a run it ends as it is built."""
        built_s = max(at_s, self._cores_s[0]) + compile_s
        heapq.heapreplace(self._cores_s, built_s)
        if run_s > 0.0:
            heapq.heappush(self._ready, (built_s, place, run_s))
        else:
            heapq.heappush(self._ended, (built_s, place))

    def end(self) -> tuple[float, int]:
        """Return when the next trial ends, if no other begins before, and its place."""
        while self._ready:
            begun_s = max(self._gpu_s, self._ready[0][0])
            if self._ended and self._ended[0][0] <= begun_s:
                break
            _, place, run_s = heapq.heappop(self._ready)
            self._gpu_s = begun_s + run_s
            heapq.heappush(self._ended, (self._gpu_s, place))
        return heapq.heappop(self._ended)


def ended_seconds(trace: Trace, recording: Recording, cores: int) -> Floats:
    """Return the seconds at which the evaluations of a run end: ndarray of shape (n_evaluations,).

    The strategy computes on a core of its own, and proposes a build after its computation and the results that it uses.
    Builds wait for one of the ``cores`` in the order of the proposals, then for the GPU in the order in which they are
    ready. Skips after compiling and failed builds do not occupy the GPU.
    """
    builds, bench = trace.builds, Bench(cores)
    compile_s = recording.compile_s[builds["index"]].tolist()
    run_s = np.where(builds["measured"], recording.run_s[builds["index"]], 0.0).tolist()
    ended_s = np.full(len(builds), math.nan)
    order = range(len(builds)) if trace.told is None else trace.told.tolist()
    thinking_s, told = 0.0, 0
    for place, (results, own_s) in enumerate(builds[["known", "own_s"]].tolist()):
        for needed in order[told:results]:
            while math.isnan(ended_s[needed]):
                end_s, ended = bench.end()
                ended_s[ended] = end_s
            thinking_s = max(thinking_s, ended_s[needed])
        told = max(told, results)
        thinking_s += own_s
        bench.begin(place, thinking_s, compile_s[place], run_s[place])
    for _ in range(int(np.isnan(ended_s).sum())):
        end_s, ended = bench.end()
        ended_s[ended] = end_s
    evaluations_s: Floats = ended_s[builds["measured"]]
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
