"""One tuning of a Triton kernel: configurations are compiled ahead, and measured in the order of their promise."""

from __future__ import annotations

import contextlib
import heapq
import math
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mltune.errors import DeviceLostError, MltuneWarning, RunError
from mltune.integrations.host import table_of
from mltune.integrations.triton_compilers import TIMEOUT_S, Compiled, Compilers, source_of
from mltune.integrations.triton_winners import Winners, configuration, innermost
from mltune.search.launch_model import launch_features, start_of
from mltune.search.launch_search import BUILD, LaunchSearch

BRIEF = 4
"""Launches that are timed of every configuration that is measured."""

HOPELESS = 1.5
"""A configuration whose first launch takes this many times the best is not launched again."""

CLOSE = 1.1
"""Configurations whose brief time is at most this many times the best are measured again, in turns."""

FINALISTS, ROUNDS, ROUND_MS, MOST_LAUNCHES = 12, 6, 20.0, 25
"""Most configurations of the finals, their rounds, and milliseconds and most of the launches of each in a round."""

BEHIND = 1.03
"""A finalist this many times slower than the best leaves after a round."""

EACH, LEAST = 4, 25
"""Configurations for each compiler that are compiled where ``trials`` does not say how many are measured, and the least
of all."""

LATE, LEAST_S, KNOWN_S = 8.0, 3.0, 0.05
"""A compile is stopped after this many times the median of those before it, but not before these seconds. Those that
took less than the last were in Triton's cache."""

ENDLESS_S = 60.0
"""Seconds after which a configuration that is still being measured is put on record: its launch may never end."""

MOST_LEAD = 64
"""Most clearings of the cache that are queued ahead of timed launches, lest the GPU wait for the process."""

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
class Session:
    """Compiles and measures configurations until the budget is spent or none is left.

    Attributes
    ----------
    tuner : triton.runtime.autotuner.Autotuner
        With the positional arguments of the call in ``nargs``.
    bench : callable
        ``Autotuner._bench``: measures a configuration with the tuner's ``do_bench``.
    kwargs : mapping
        Those of the call, ``grid`` and ``warmup`` among them.
    configs : sequence of triton.Config
        Distinct; the first is the reference.
    gpu : Device or None
    trials : int or None
        Most configurations that are measured.
    end : float
        The end on the clock of :func:`time.monotonic`.
    stopwatch : Stopwatch or None
        None where the user has a function that times.
    tolerance : float or None
        Largest difference from the outputs of the first configuration, relative to their largest magnitude.
    prior : str
        The model that the search starts from (:func:`mltune.search.launch_model.launch_model`).
    times : dict
        Quantiles of the milliseconds of what was measured: median, 20 % and 80 %.
    """

    tuner: Any
    bench: Callable[..., Any]
    kwargs: Mapping[str, Any]
    configs: Sequence[Any]
    compilers: Compilers
    gpu: Any
    winners: Winners
    trials: int | None = None
    end: float = math.inf
    seed: int = 0
    stopwatch: Stopwatch | None = None
    tolerance: float | None = None
    prior: str = "auto"
    times: dict[Any, list[float]] = field(default_factory=dict)
    _search: LaunchSearch = field(init=False)
    _todo: set[int] = field(init=False)
    _before_first: int = 0
    _ready: set[int] = field(default_factory=set)
    _refused: set[int] = field(default_factory=set)
    _flying: dict[Future[Compiled], int] = field(default_factory=dict)
    _begun: int = 0
    _compile_s: list[float] = field(default_factory=list)
    _error: Exception | None = None
    _reason: str = ""
    _saved: list[tuple[Any, Any, Any]] = field(default_factory=list)

    @property
    def started_from(self) -> str:
        """What says which come first: ``"model"`` or ``"physics"``."""
        return "model" if self._search.is_started else "physics"

    def run(self) -> dict[Any, list[float]]:
        """Measure, and return the times, the first configuration's first."""
        count, batch = len(self.configs), max(EACH * self.compilers.count, LEAST)
        most = min(count, self.trials or batch)
        ahead = min(count, max(batch, 2 * (self.trials or 0)))
        self._search, self._todo = self._new_search(), set(range(count))
        self._before_first = int(
            self._search.is_started and most > 1 and self.tolerance is None and math.isinf(self.end)
        )
        if not hasattr(innermost(self.tuner), "device_caches"):  # another kind of function than the compiler takes
            self._todo, self._ready = set(), self._todo
        try:
            while len(self.times) < most and (time.monotonic() < self.end or not self.times):
                self._submit(ahead)
                self._receive(0.0)
                share = (self._begun - len(self._flying)) / max(1, min(ahead, self._begun + len(self._todo)))
                waits = bool(self._worth(self._flying.values()))
                early = waits and (0 in self._flying.values() or len(self.times) >= most * share)
                promising = self._promising()
                if promising and (0 in self._ready or not early):
                    self._measure(promising[0])
                elif waits:
                    self._receive(min(TIMEOUT_S, self.end - time.monotonic()) if self.times else TIMEOUT_S)
                else:
                    break
        finally:
            for future in self._flying:
                future.cancel()
            with contextlib.suppress(RuntimeError):  # the GPU may be lost
                for tensor, old, _ in self._saved:
                    tensor.copy_(old)
        if self._error is not None and all(math.isinf(quantiles[0]) for quantiles in self.times.values()):
            raise self._error
        if not self.times:
            raise RunError(f"at least one configuration must compile, but none of {count} does: {self._reason}")
        self.times = {config: self.times[config] for config in self.configs[:1] if config in self.times} | self.times
        return self._finals()

    def _new_search(self) -> LaunchSearch:
        """Return a search over the parameters of the configurations, with what their grids say."""
        hooks = list(dict.fromkeys(config.pre_hook for config in self.configs))
        every = [{**configuration(config), "pre_hook": hooks.index(config.pre_hook)} for config in self.configs]
        table = table_of(every)
        blocks = np.array([self._blocks(config) for config in self.configs])
        threads = np.array([32.0 * config.num_warps for config in self.configs])
        values: dict[str, list[Any]] = {name: [parameters.get(name) for parameters in every] for name in table.names}
        extents = [
            name
            for name, listed in values.items()
            if all(type(value) is int and value > 0 for value in listed)
            and self._blocks(self.configs[0], **{name: min(listed)})
            > self._blocks(self.configs[0], **{name: max(listed)})
        ]
        columns = table.space.rows(np.arange(len(every)))
        start = start_of(self.prior, launch_features(columns, extents, blocks, threads, self.gpu))
        predictor = self.compilers.predictor.begin()
        waits = start is None or self.trials is not None  # what is measured meanwhile is chosen worse, or counts
        predict = predictor.predict if waits else predictor.predict_if_started
        return LaunchSearch(columns, extents, blocks, threads, self.gpu, self.seed, start, predict)

    def _blocks(self, config: Any, **changed: Any) -> float:
        """Return the number of blocks of the grid; NaN where it cannot be evaluated."""
        grid, arguments = self.kwargs.get("grid"), {**self.tuner.nargs, **self.kwargs, **config.all_kwargs(), **changed}
        with contextlib.suppress(Exception):  # functions of the user, which may ask for what only a launch knows
            fn = self.tuner.fn
            while hasattr(fn, "values"):  # heuristics
                arguments |= {name: value(arguments) for name, value in fn.values.items()}
                fn = fn.fn
            return float(math.prod(grid(arguments) if callable(grid) else grid or ()))
        return math.nan

    def _submit(self, most: int) -> None:
        """Keep the compilers busy with what is most promising, with some jobs more than there are compilers.

        Before the first measurement, in which Triton builds what launches, there is nothing to learn for their order.
        """
        queued = self.compilers.count * 5 // 4 + 1 if self.times else 2 * self.compilers.count
        while self._todo and (room := min(queued - len(self._flying), most - self._begun)) > 0:
            worth = self._worth(self._todo)
            if 0 in self._todo:
                worth = [index for index in worth if index]
                worth.insert(self._before_first, 0)
            self._todo = set(worth[room:])
            for index in worth[:room]:
                self._flying[self._compile(self.configs[index])] = index
                self._begun += 1

    def _worth(self, some: Iterable[int], *, compiled: bool = False) -> list[int]:
        """Return those that are worth to be compiled, or measured, the best first: all that ``trials`` asks for."""
        rows, trials = np.array(sorted(some), dtype=np.int64), self.trials or 0
        are_all = trials >= (1 if compiled else len(self.configs))
        ordered = self._search.best_first if are_all else self._search.worth
        return [*map(int, ordered(rows, compiled=compiled))]

    def _promising(self) -> list[int]:
        """Return what is compiled and worth to be measured, the next first.

        The first configuration is the first, or where the search has started from a model, the second.
        """
        is_next = 0 in self._ready and len(self.times) >= self._before_first
        return [0] if is_next else self._worth(self._ready, compiled=True)

    def _compile(self, config: Any) -> Future[Compiled]:
        """Begin to compile a configuration as a launch would."""
        if config.pre_hook:
            config.pre_hook({**self.tuner.nargs, **self.kwargs, **config.all_kwargs()})
        meta = {**self.kwargs, **config.all_kwargs(), "warmup": True}
        try:
            launch = source_of(innermost(self.tuner), lambda: self.tuner.fn.run(*self.tuner.nargs.values(), **meta))
        except Exception as error:  # which a launch raises, too: it is measured, and fails there
            launch = Compiled("unknown", str(error))
        if isinstance(launch, bytes):
            usual_s = statistics.median(self._compile_s) if len(self._compile_s) > self.compilers.count else math.inf
            return self.compilers.submit(launch, min(TIMEOUT_S, max(LEAST_S, LATE * usual_s)))
        done: Future[Compiled] = Future()
        done.set_result(launch)
        return done

    def _receive(self, timeout_s: float) -> None:
        """Learn what is compiled; wait for something at most so long."""
        for future in wait(self._flying, max(timeout_s, 0.0), FIRST_COMPLETED).done:
            index, compiled = self._flying.pop(future), future.result()
            if compiled.state == "ok":
                self._compile_s += [compiled.compile_s] if compiled.compile_s > KNOWN_S else []
                for name in BUILD:
                    self._search.build[name][index] = getattr(compiled, name)
            if compiled.state in ("refused", "killed"):
                self._search.times_s[index], self._reason = math.inf, compiled.reason
            if compiled.state != "killed":  # of those that are refused the first is tried here, in case the way was bad
                (self._refused if index and compiled.state == "refused" else self._ready).add(index)

    def _measure(self, index: int) -> None:
        """Measure a configuration if it may be launched, and learn its time."""
        self._ready.discard(index)
        config, was_refused = self.configs[index], math.isinf(self._search.times_s[index])
        if index and not self._search.can_launch[index]:
            self._search.times_s[index] = math.inf
            return
        if self.stopwatch is not None:
            self.stopwatch.limit_ms = HOPELESS * min(
                (quantiles[0] for quantiles in self.times.values()), default=math.inf
            )
        try:
            with self._watched(config):
                quantiles = FAILED
                if self.tolerance is None or self._is_right(config, self.tolerance):
                    quantiles = self._timed(config)
            if self.stopwatch is not None and math.isfinite(quantiles[0]):
                quantiles = [min(self.stopwatch.samples_ms)] * 3  # compilers disturb single launches
        except DeviceLostError:
            raise
        except Exception as error:
            self._error, quantiles = self._error or error, FAILED
        if was_refused and math.isfinite(quantiles[0]):
            self._ready |= self._refused
        self.times[config] = quantiles
        self._search.times_s[index] = quantiles[0] / 1e3 if quantiles[0] > 0 else math.nan

    @contextlib.contextmanager
    def _watched(self, config: Any) -> Iterator[None]:
        """Put a configuration on record whose launch ends the CUDA context, or may never end."""
        timer = threading.Timer(ENDLESS_S, self._warn, [config])
        timer.start()
        try:
            yield
        except Exception as error:
            _check_alive(error, config, self.winners)
            raise
        finally:
            timer.cancel()

    def _warn(self, config: Any) -> None:
        """Say so of a launch that may never end, while this process still can."""
        reason = f"has not been measured in {ENDLESS_S:g} s"
        then = _left_out(config, reason, self.winners)
        warnings.warn(MltuneWarning(f"`{config}` {reason}: if it never ends, kill the process; {then}."), stacklevel=1)

    def _timed(self, config: Any) -> list[float]:
        times_ms = self.bench(*self.tuner.nargs.values(), config=config, **self.kwargs)
        return list(times_ms) if isinstance(times_ms, Sequence) else [times_ms] * 3

    def _is_right(self, config: Any, tolerance: float) -> bool:
        """Whether a configuration leaves the arguments as the first one does; it is launched once for that."""
        arguments = [*self.tuner.nargs.values(), *self.kwargs.values()]
        tensors = [argument for argument in arguments if hasattr(argument, "clone") and hasattr(argument, "isclose")]
        before = [old for _, old, _ in self._saved] or [tensor.clone() for tensor in tensors]
        for tensor, old in zip(tensors, before, strict=True):
            tensor.copy_(old)
        timed, self.tuner.do_bench = self.tuner.do_bench, lambda call, quantiles: call()
        try:
            self._timed(config)
        finally:
            self.tuner.do_bench = timed
        self._saved = self._saved or [(*pair, pair[0].clone()) for pair in zip(tensors, before, strict=True)]
        return all(_is_close(tensor, expected, tolerance) for tensor, _, expected in self._saved)

    def _finals(self) -> dict[Any, list[float]]:
        """Measure the fastest and the first again in turns, and put the others behind them in proportion."""
        brief = {config: quantiles[0] for config, quantiles in self.times.items() if math.isfinite(quantiles[0])}
        close = (config for config in brief if brief[config] <= CLOSE * min(brief.values()))
        finalists = heapq.nsmallest(FINALISTS, close, key=brief.__getitem__)
        finalists += [config for config in self.configs[:1] if config in brief and config not in finalists]
        if self.stopwatch is None or len(finalists) < 2:
            return self.times
        samples: dict[Any, list[float]] = {config: [] for config in finalists}
        self.stopwatch.limit_ms = math.inf
        for _ in range(ROUNDS):
            for config in finalists:
                self.stopwatch.launches = max(3, min(MOST_LAUNCHES, int(ROUND_MS / max(brief[config], 1e-3))))
                with self._watched(config):
                    self._timed(config)
                samples[config] += self.stopwatch.samples_ms
            medians = {config: statistics.median(samples[config]) for config in finalists}  # of the same rounds
            finalists = [config for config in finalists if medians[config] <= BEHIND * min(medians.values())]
        self.stopwatch.launches = BRIEF
        best = min(finalists, key=medians.__getitem__)
        least, scale = 1.0001 * medians[best], medians[best] / brief[best]
        estimates = {
            config: [max(least, scale * value) for value in quantiles] for config, quantiles in self.times.items()
        }
        return estimates | {config: np.quantile(samples[config], (0.5, 0.2, 0.8)).tolist() for config in finalists}


def _is_close(actual: Any, expected: Any, tolerance: float) -> bool:
    if not actual.is_floating_point() or not expected.numel():
        return bool((actual == expected).all())
    actual, expected = actual.float(), expected.float()
    largest = float(expected.abs().nan_to_num(0.0, 0.0, 0.0).max())
    return bool(actual.isclose(expected, rtol=0.0, atol=tolerance * largest, equal_nan=True).all())


def _check_alive(error: Exception, config: Any, winners: Winners) -> None:
    """Raise a DeviceLostError if a launch has ended the CUDA context of the process, as an illegal access does."""
    try:
        from triton.runtime.driver import driver

        synchronize = driver.active.get_device_interface().synchronize
    except Exception:
        return  # there is no GPU
    try:
        synchronize()
    except Exception:
        then = _left_out(config, "the launch ended the CUDA context of its process", winners)
        raise DeviceLostError(
            f"a launch must leave the CUDA context usable, but after `{config}` it is not ({error}): {then}; start the "
            "program again."
        ) from error


def _left_out(config: Any, reason: str, winners: Winners) -> str:
    """Put a configuration on record, and return what follows from that."""
    winners.add(config, failed=reason)
    return "it is on record and will be left out" if winners else "leave it out of the configurations"
