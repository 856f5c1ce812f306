"""The runner of a tuning: it launches the configurations of one call in this process, and times and checks them."""

from __future__ import annotations

import contextlib
import math
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mltune.errors import DeviceLostError, MltuneWarning
from mltune.integrations.triton.compilers import Compiled, source_of
from mltune.integrations.triton.keys import innermost
from mltune.integrations.triton.outputs import Outputs
from mltune.integrations.triton.winners import Winners

BRIEF = 4
"""Launches that are timed of every configuration that is measured."""

MOST_LEAD = 64
"""Most clearings of the cache that are queued ahead of timed launches, lest the GPU wait for the process."""

HOPELESS = 1.5
"""A configuration whose first launch takes this many times the best is not launched again."""

ENDLESS_S = 60.0
"""Seconds after which a configuration that is still being measured is put on record: its launch may never end."""

FAILED = [math.inf] * 3


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


@dataclass(slots=True)
class Runner:
    """Launches configurations of a kernel with the arguments of a call.

    `tuner` has the positional arguments of the call in ``nargs``; `bench` is its ``_bench``, which measures with the
    tuner's ``do_bench``; `kwargs` has ``grid`` and ``warmup``, too. `winners` records a configuration whose launch must
    not be repeated. `stopwatch` is None where the user has a function that times. `tolerance` is the largest difference
    from the outputs of the first configuration, relative to their largest magnitude.
    """

    tuner: Any
    bench: Callable[..., Any]
    kwargs: Mapping[str, Any]
    winners: Winners
    stopwatch: Stopwatch | None = None
    tolerance: float | str | None = None
    _outputs: Outputs | None = None

    def __post_init__(self) -> None:
        if self.tolerance is not None:
            arguments = {**self.tuner.nargs, **self.kwargs}
            self._outputs = Outputs({name: value for name, value in arguments.items() if name in self.tuner.arg_names})

    @property
    def is_verified(self) -> bool:
        """Whether configurations were compared by something that they change."""
        return self._outputs is not None and self._outputs.are_changed

    @property
    def can_capture(self) -> bool:
        """Whether the function is one that compilers take."""
        return hasattr(innermost(self.tuner), "device_caches")

    def blocks(self, config: Any, **changed: Any) -> float:
        """Return the number of blocks of the grid; NaN where it cannot be evaluated."""
        grid, arguments = self.kwargs.get("grid"), {**self._arguments(config), **changed}
        with contextlib.suppress(Exception):  # functions of the user, which may ask for what only a launch knows
            fn = self.tuner.fn
            while hasattr(fn, "values"):  # heuristics
                arguments |= {name: value(arguments) for name, value in fn.values.items()}
                fn = fn.fn
            return float(math.prod(grid(arguments) if callable(grid) else grid or ()))
        return math.nan

    def capture(self, config: Any) -> bytes | Compiled:
        """Return what a launch would compile (:func:`mltune.integrations.triton.compilers.source_of`)."""
        if config.pre_hook:
            config.pre_hook(self._arguments(config))
        meta = {name: value for name, value in self.kwargs.items() if name != "warmup"} | config.all_kwargs()
        try:
            return source_of(self.tuner.fn, *self.tuner.nargs.values(), **meta)
        except Exception as error:  # which a launch raises, too: it is measured, and fails there
            return Compiled("unknown", str(error))

    def measure(self, config: Any, best_ms: float) -> list[float]:
        """Return quantiles of the brief milliseconds of a configuration, and raise what its launch does."""
        if self.stopwatch is not None:
            self.stopwatch.limit_ms = HOPELESS * best_ms
        with self._watched(config):
            if self._outputs is not None and not self._is_right(config, self._outputs):
                return FAILED
            quantiles = self._timed(config)
        if self.stopwatch is not None and math.isfinite(quantiles[0]):
            quantiles = [min(self.stopwatch.samples_ms)] * 3  # compilers disturb single launches
        return quantiles

    def sample(self, config: Any, stopwatch: Stopwatch, launches: int) -> list[float]:
        """Return the milliseconds of so many launches of a configuration that has run before."""
        stopwatch.limit_ms, stopwatch.launches = math.inf, launches
        with self._watched(config):
            self._timed(config)
        return stopwatch.samples_ms

    def restore(self) -> None:
        """Give the arguments the contents that they had before launches were checked."""
        if self._outputs is not None:
            with contextlib.suppress(RuntimeError):  # the GPU may be lost
                self._outputs.restore()

    def _arguments(self, config: Any) -> dict[str, Any]:
        return {**self.tuner.nargs, **self.kwargs, **config.all_kwargs()}

    def _timed(self, config: Any) -> list[float]:
        return quantiles_of(self.bench(*self.tuner.nargs.values(), config=config, **self.kwargs))

    def _is_right(self, config: Any, outputs: Outputs) -> bool:
        """Whether a configuration leaves the arguments as the first one does; it is launched for that."""

        def launch() -> bool:
            launched = list[Any]()
            timed, self.tuner.do_bench = self.tuner.do_bench, lambda call, quantiles: launched.append(call())
            try:
                self.bench(*self.tuner.nargs.values(), config=config, **self.kwargs)
            finally:
                self.tuner.do_bench = timed
            return bool(launched)

        right = outputs.are_right(self.tolerance or 0.0, launch)
        outputs.restore()
        return right

    @contextlib.contextmanager
    def _watched(self, config: Any) -> Iterator[None]:
        """Put a configuration on record whose launch ends the CUDA context, or may never end."""
        timer = threading.Timer(ENDLESS_S, self._warn, [config])
        timer.start()
        try:
            yield
        except Exception as error:
            self._check_alive(error, config)
            raise
        finally:
            timer.cancel()

    def _warn(self, config: Any) -> None:
        """Warn of a launch that may never end, while this process still can."""
        reason = f"has not been measured in {ENDLESS_S:g} s"
        then = self._left_out(config, reason)
        warnings.warn(MltuneWarning(f"`{config}` {reason}: if it never ends, kill the process; {then}."), stacklevel=1)

    def _check_alive(self, error: Exception, config: Any) -> None:
        """Raise a DeviceLostError if a launch has ended the CUDA context of the process, as an illegal access does."""
        try:
            from triton.runtime.driver import driver

            synchronize = driver.active.get_device_interface().synchronize
        except Exception:
            return  # there is no GPU
        try:
            synchronize()
        except Exception:
            then = self._left_out(config, "the launch ended the CUDA context of its process")
            raise DeviceLostError(
                f"the CUDA context is not usable after `{config}` ({error}): {then}; start the program again."
            ) from error

    def _left_out(self, config: Any, reason: str) -> str:
        """Put a configuration on record, and return what follows from that."""
        self.winners.add(config, failed=reason)
        return "it is on record and will be left out" if self.winners else "leave it out of the configurations"


def quantiles_of(measured: Any) -> list[float]:
    """Return what a benchmark returned as three quantiles, infinite where it is no time: that never wins."""
    times_ms: list[float] = np.ravel(measured).astype(float).tolist()
    if times_ms[:1] != [math.inf] and not (times_ms and all(0 < time_ms < math.inf for time_ms in times_ms)):
        fact = f"do_bench returned {measured!r}; it must return milliseconds above 0"
        warnings.warn(f"{fact}: such a configuration is not taken.", MltuneWarning, stacklevel=2)
        return FAILED
    return times_ms if len(times_ms) == len(FAILED) else times_ms[:1] * len(FAILED)
