"""The stopwatch of launches, in place of Triton's ``do_bench``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

BRIEF = 4
"""Launches that are timed of every configuration that is measured."""

MOST_LEAD = 64
"""Most clearings of the cache that are queued ahead of timed launches, lest the GPU wait for the process."""


class Stopwatch:
    """Times launches by the GPU's events, each with a cold second-level cache, as Triton's ``do_bench`` does."""

    def __init__(self) -> None:
        self.launches = BRIEF
        self.limit_ms = math.inf
        self.lead = 8
        self.samples_ms: list[float] = []

    def __call__(self, call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
        """Return quantiles of the milliseconds of some launches, after one that is not timed."""
        from triton.runtime.driver import driver

        gpu, cache = driver.active.get_device_interface(), driver.active.get_empty_cache_for_benchmark()

        def timed(count: int) -> list[float]:
            pairs = [[gpu.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
            clean = []
            for _ in range(self.lead):  # the GPU is busy until launches are queued
                driver.active.clear_cache(cache)
            for pair in pairs:
                begin, end = pair
                driver.active.clear_cache(cache)
                begin.record()
                call()
                end.record()
                if not begin.query():  # nothing but the launch's work is between the events
                    clean.append(pair)
            gpu.synchronize()
            if 2 * len(clean) < count and self.lead < MOST_LEAD:
                self.lead *= 2
                return timed(count)
            return [begin.elapsed_time(end) for begin, end in clean or pairs]

        call()
        gpu.synchronize()
        self.samples_ms = timed(1)
        if self.samples_ms[0] < self.limit_ms:
            self.samples_ms += timed(self.launches - 1)
        return [float(np.quantile(self.samples_ms, share)) for share in quantiles]
