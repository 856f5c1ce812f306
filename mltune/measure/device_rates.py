"""Measure the rates of a GPU with micro-kernels: arithmetic, tensor cores, memories and launches.

They are compiled and run in processes, as tuned kernels are: one that fails or hangs leaves out its quantity.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from mltune.device.facts import QUANTITIES, Device, Measured, Mix, Quantity
from mltune.device.query import driver_version, query_device
from mltune.errors import DeviceError
from mltune.files.text import printable
from mltune.kernel.launch import Launch
from mltune.measure import micro_kernel as micro
from mltune.measure.build import compile_options
from mltune.measure.compile_pool import CompilePool
from mltune.measure.compiler import CudaSource, check_fits_driver
from mltune.measure.gpu import LoadedKernel
from mltune.measure.micro_kernel import BLOCK_WORDS, BLOCKS, ENTRY, LAUNCHES, MicroKernel, MixKernel
from mltune.measure.stopwatch import SeriesStopwatch
from mltune.process.child import Child, ChildDiedError, ChildTimeoutError
from mltune.records.trial import Build, TrialState

if TYPE_CHECKING:
    from numpy.typing import NDArray


RUNS = 9
"""Runs of each micro-kernel that are timed."""

RUN_S = 0.01
"""Time that a run is to take, seconds: launching it is then less than a thousandth of it."""

_WARM_UP_S = 0.3  # for the clock to rise
_QUEUEING_S = 25e-6  # for the host to queue a launch
_SHORTEST_S = 1e-7
_MOST_ROUNDS, _MOST_GROWTH = 2**31 - 1, 32
_RUN_TIMEOUT_S = 30.0
_WORKER = "mltune.measure.device_rates:make_worker"
_LOST = (ChildDiedError, ChildTimeoutError)
_Kind = TypeVar("_Kind", MicroKernel, MixKernel)


def measure_device(index: int, *, worker: str = _WORKER) -> tuple[Device, dict[str, str]]:
    """Return a GPU's facts with rates that are measured in some twenty seconds, and by name why one is missing."""
    device = query_device(index)
    check_fits_driver(driver_version())
    capability = device.compute_capability or (0, 0)
    usable = [micro_kernel for micro_kernel in micro.MICRO_KERNELS if micro_kernel.since <= capability]
    rates: dict[Quantity, Measured] = {}
    unfit = f"not on a GPU of compute capability {capability[0]}.{capability[1]}"
    reasons: dict[str, str] = dict.fromkeys(QUANTITIES, unfit)
    with Child(worker, (index,)) as child:
        for micro_kernel, build in compile_micro_kernels(usable, device.architecture):
            samples = _samples(child, micro_kernel, build)
            if isinstance(samples, str):
                reasons[micro_kernel.quantity] = samples
                continue
            outcome = summary(samples)
            if micro_kernel.quantity not in rates or outcome.median > rates[micro_kernel.quantity].median:
                rates[micro_kernel.quantity] = outcome
        if not rates:
            raise DeviceError(f"{device.name} runs no micro-kernel, so nothing is measured: {reasons['fp32_flops']}.")
        mixes = tuple(_mixes(child, device))
    unmeasured: dict[str, str] = {name: reasons[name] for name in QUANTITIES if name not in rates}
    return replace(device, measured=rates, mixes=mixes), unmeasured


def compile_micro_kernels(micro_kernels: Iterable[_Kind], architecture: str) -> Iterator[tuple[_Kind, Build]]:
    """Compile micro-kernels in a compile process, each when it is asked for."""
    with CompilePool(CudaSource("", ENTRY, compile_options(architecture)), workers=1) as compiler:
        for micro_kernel in micro_kernels:
            yield micro_kernel, compiler.build(micro_kernel.source).result()


def _samples(child: Child, micro_kernel: MicroKernel | MixKernel, build: Build) -> list[float] | str:
    """Run a micro-kernel; return its samples, or the reason why there are none."""
    if build.state is not TrialState.OK:
        return f"does not compile: {build.detail}"
    try:
        samples: list[float] = child.call((micro_kernel, build), _RUN_TIMEOUT_S)
    except _LOST as error:
        return printable(error, 200)
    return samples


def _mixes(child: Child, device: Device) -> Iterator[Mix]:
    """Measure the mixes of instructions, up to the first that cannot be measured."""
    capability = device.compute_capability or (0, 0)
    usable = [mix_kernel for mix_kernel in micro.MIX_KERNELS if mix_kernel.since <= capability]
    for mix_kernel, build in compile_micro_kernels(usable, device.architecture):
        clocks = _samples(child, mix_kernel, build)
        if isinstance(clocks, str):
            return
        yield from mix_kernel.mixes(clocks)


def summary(samples: Sequence[float]) -> Measured:
    """Return the median and the spread of some runs."""
    lower, median, upper = statistics.quantiles(samples, n=4)
    return Measured(median, (upper - lower) / median)


def make_worker(index: int) -> Callable[[tuple[MicroKernel | MixKernel, Build]], list[float]]:
    """Return the function of the measuring process: it runs a micro-kernel for its rates, or a mix for its clocks."""
    device = query_device(index)
    import cupy

    cupy.cuda.Device(index).use()
    stopwatch = SeriesStopwatch(device.l2_bytes)
    out = cupy.zeros(max(micro.THREADS, device.sm_count * BLOCKS[-1][0] * BLOCK_WORDS), dtype=cupy.uint64)
    stopwatch.take(lambda: stopwatch.spin(_WARM_UP_S), 1)

    def measure(request: tuple[MicroKernel | MixKernel, Build]) -> list[float]:
        micro_kernel, build = request
        places = 1 if isinstance(micro_kernel, MixKernel) else micro_kernel.places(device)
        data = cupy.zeros(places * micro.READ_BYTES, dtype=cupy.uint8)
        addresses = [np.array(array.data.ptr, dtype=np.uint64) for array in (out, data)]
        with LoadedKernel(build.cubin, ENTRY) as kernel:
            if isinstance(micro_kernel, MixKernel):
                launches = micro_kernel.launches(device, build.registers or 1)
                words = out[: BLOCK_WORDS * device.sm_count * BLOCKS[-1][0]].reshape(-1, BLOCK_WORDS)
                return [_clocks(kernel.bind(launch, addresses), words[: launch.grid[0]]) for launch in launches]
            return _rates(micro_kernel, stopwatch, device, lambda launch: kernel.bind(launch, addresses), places)

    return measure


def _rates(
    micro_kernel: MicroKernel,
    stopwatch: SeriesStopwatch,
    device: Device,
    bind: Callable[[Launch], Callable[[], None]],
    places: int,
) -> list[float]:
    """Return the results of several runs of a micro-kernel, in the unit of its quantity."""

    def run(rounds: int, runs: int) -> list[float]:
        return stopwatch.take(bind(micro_kernel.launch(device, rounds, places)), runs)

    if not micro_kernel.work:
        return _launch_times(stopwatch, bind(micro_kernel.launch(device, 0, places)))
    rounds = enough_rounds(lambda rounds: run(rounds, 1)[0])
    return [micro_kernel.amount(device, rounds) / time_s for time_s in run(rounds, RUNS)]


def _clocks(launch: Callable[[], None], blocks: Any) -> float:
    """Return the clocks that the blocks of a multiprocessor take in a launch, of several launches the least."""
    clocks_hz = []
    for _ in range(micro.MIX_LAUNCHES):
        launch()
        clocks_hz.append(clocks_of(blocks.get()))
    return min(clocks_hz)


def clocks_of(blocks: NDArray[np.uint64]) -> float:
    """Return the clocks from first start to last end on a multiprocessor, the median of all multiprocessors.

    A row is start and end of a block on the clock of its multiprocessor, and the number of that.

    >>> clocks_of(np.array([[10, 30, 0], [90, 130, 1], [20, 50, 0]], dtype=np.uint64))
    40.0
    """
    import pandas as pd

    times = pd.DataFrame(blocks.astype(np.int64), columns=["start", "end", "multiprocessor"]).groupby("multiprocessor")
    return float((times["end"].max() - times["start"].min()).median())


def enough_rounds(time_of: Callable[[int], float]) -> int:
    """Return the rounds for which a micro-kernel takes about :data:`RUN_S`, given the seconds of some rounds."""
    rounds = 16
    while True:
        time_s = max(time_of(rounds), _SHORTEST_S)
        if time_s >= RUN_S / 2 or rounds == _MOST_ROUNDS:
            return max(1, min(_MOST_ROUNDS, round(rounds * RUN_S / time_s)))
        rounds = min(_MOST_ROUNDS, rounds * max(2, min(_MOST_GROWTH, int(RUN_S / time_s))))


def _launch_times(stopwatch: SeriesStopwatch, launch: Callable[[], None]) -> list[float]:
    """Return the time that each launch adds to a queue that the GPU never finds empty, of several series."""

    def series() -> None:
        for _ in range(LAUNCHES):
            launch()

    before = stopwatch.prepare
    stopwatch.prepare = lambda: stopwatch.spin(LAUNCHES * _QUEUEING_S)
    try:
        return [stopwatch.take(series, 1)[0] / LAUNCHES for _ in range(RUNS)]
    finally:
        stopwatch.prepare = before
