"""Cold timing on the GPU: every run starts with a flushed L2 cache and a queue that is not empty."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mltune.device.query import GpuState, Nvml
from mltune.measure.gpu import worker_kernel
from mltune.measure.timing import Series

_QUEUEING_S = 50e-6  # for the host to fill the queue while the GPU spins, ...
_QUEUEING_PER_RUN_S = 25e-6  # ... and for every run of a series
_LEAST_FLUSH_BYTES = 1 << 20
_FLUSHED_CACHES = 2  # bytes that a flush reads, in sizes of the L2 cache: lines that were written are evicted, too
_FLUSH_GRID, _FLUSH_BLOCK = 2048, 256
_READ_EVERY_S = 5e-3  # shortest time between two readings of the GPU's state during a series
_READ_AFTER_S = 20e-3  # a run longer than this is also read at its end: that costs less than a percent


class SeriesStopwatch:
    """Times launches with CUDA events, in series that are queued as a whole before the first of them runs.

    On an idle stream the launch latency would count as run time: a spinning kernel keeps the stream busy until the
    series is queued. Before each run a buffer is read, which evicts the operands from the L2 cache. A buffer that is
    written would be evicted during the run, at its cost.
    """

    def __init__(self, l2_bytes: int) -> None:
        import cupy

        self._cupy = cupy
        self.prepare: Callable[[], None] = lambda: None
        self._unrelated = cupy.zeros(max(_FLUSHED_CACHES * l2_bytes, _LEAST_FLUSH_BYTES) // 8, dtype=cupy.uint64)
        self._events: list[tuple[Any, Any]] = []
        self._spin_kernel = worker_kernel("stopwatch.cu", "spin")
        self._flush_kernel = worker_kernel("stopwatch.cu", "fill_cache")

    def spin(self, duration_s: float) -> None:
        """Queue a kernel that runs for a known time."""
        self._spin_kernel((1,), (1,), (np.int64(round(1e9 * duration_s)),))

    def take(self, launch: Callable[[], None], count: int, meanwhile: Callable[[], None] | None = None) -> list[float]:
        """Time a series of runs of one kernel; see :meth:`take_each`."""
        return self.take_each([launch] * count, meanwhile)

    def take_each(
        self, launches: Sequence[Callable[[], None]], meanwhile: Callable[[], None] | None = None
    ) -> list[float]:
        """Time a series of runs, of one kernel or of several; return the seconds of each.

        `meanwhile` is called on the host while the GPU runs the series, at its beginning and after every run but the
        last.
        """
        count = len(launches)
        while len(self._events) < count:
            self._events.append((self._cupy.cuda.Event(), self._cupy.cuda.Event()))
        series = self._events[:count]
        flushed = (self._unrelated, np.int64(self._unrelated.size), self._unrelated)
        self.spin(_QUEUEING_S + count * _QUEUEING_PER_RUN_S)
        for launch, (start, stop) in zip(launches, series, strict=True):
            self.prepare()
            self._flush_kernel((_FLUSH_GRID,), (_FLUSH_BLOCK,), flushed)
            start.record()
            launch()
            stop.record()
        last = series[-1][1]
        if meanwhile is not None:
            meanwhile()
            for _, stop in series[:-1]:
                stop.synchronize()
                if last.done:
                    break
                meanwhile()
        last.synchronize()
        return [1e-3 * self._cupy.cuda.get_elapsed_time(start, stop) for start, stop in series]


class Readings:
    """Readings of the GPU's state during a series: a complete one, then its quickly changing parts."""

    def __init__(self, nvml: Nvml) -> None:
        self.states: list[GpuState] = []
        self._nvml = nvml
        self._last = -np.inf

    def take(self) -> None:
        """Read the state, unless the last reading is recent."""
        now = time.perf_counter()
        if now - self._last >= _READ_EVERY_S:
            self.states.append(self._nvml.read_clock() if self.states else self._nvml.read())
            self._last = now

    def take_last(self) -> None:
        """Read the state at the end of a long series."""
        if time.perf_counter() - self._last >= _READ_AFTER_S:
            self.take()


class MonitoredKernel:
    """A kernel on the GPU (see :class:`mltune.measure.timing.TimedKernel`)."""

    def __init__(self, stopwatch: SeriesStopwatch, nvml: Nvml, launch: Callable[[], None]) -> None:
        self._stopwatch = stopwatch
        self._nvml = nvml
        self._launch = launch

    def run(self, count: int, *, monitored: bool) -> Series:
        """Time a series of runs."""
        if not monitored:
            return Series(tuple(self._stopwatch.take(self._launch, count)))
        readings = Readings(self._nvml)
        samples_s = self._stopwatch.take(self._launch, count, readings.take)
        readings.take_last()
        return Series(tuple(samples_s), tuple(readings.states))

    def read_state(self) -> GpuState:
        """Read the state of the GPU now."""
        return self._nvml.read()

    def rest(self, duration_s: float) -> None:
        """Leave the GPU idle."""
        time.sleep(duration_s)
