"""One tuning of a Triton kernel: configurations are compiled ahead, and measured in the order of their promise."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from typing import Any

from mltune.errors import DeviceLostError, RunError
from mltune.integrations.triton.builder import Builder
from mltune.integrations.triton.compilers import TIMEOUT_S, Compiled, Compilers
from mltune.integrations.triton.finals import raced
from mltune.integrations.triton.planner import Planner, search_over
from mltune.integrations.triton.runner import FAILED, Runner

OF_COMPILER, LEAST = 4, 25
"""Configurations for each compiler that are compiled where no number of ``trials`` is given, and the least of all."""


class TritonTuning:
    """Compiles and measures configurations until the budget is spent or none is left.

    They are distinct, and the first is the reference. At most `trials` are measured, until `end` on the clock of
    :func:`time.monotonic`. `prior` is the model that the search starts from
    (:func:`mltune.search.launch_model.launch_model`), `started_from` ``"model"`` or ``"physics"``. `times` are
    quantiles of the milliseconds of what was measured: median, 20 % and 80 %.
    """

    def __init__(
        self,
        configs: Sequence[Any],
        runner: Runner,
        compilers: Compilers,
        gpu: Any,
        *,
        trials: int | None = None,
        end: float = math.inf,
        seed: int = 0,
        prior: str = "auto",
    ) -> None:
        batch = max(OF_COMPILER * compilers.count, LEAST)
        self.configs, self._runner, self._compilers, self._end = configs, runner, compilers.count, end
        self._most = min(len(configs), trials or batch)
        self._ahead = min(len(configs), max(batch, 2 * (trials or 0)))
        search = search_over(configs, runner.blocks, gpu, compilers.predictor, trials or 0, seed, prior)
        starts = search.is_started and self._most > 1 and runner.tolerance is None and math.isinf(end)
        self.started_from = "model" if search.is_started else "physics"
        self._planner = Planner(search, trials or 0, before_first=int(starts))
        self._builder = Builder(compilers, runner, impatient=not trials)
        self.times: dict[Any, list[float]] = {}
        self._error: Exception | None = None
        self._reason = ""

    def compile_ahead(self, most: int | None = None) -> dict[Any, Future[Compiled]]:
        """Begin to compile what is most promising, the first at once, the others when there is time."""
        planner, builder = self._planner, self._builder
        for turn, number in enumerate([0, *(number for number in planner.take(self._ahead) if number)][:most]):
            builder.submit(number, self.configs[number], turn)
        return {self.configs[number]: future for future, number in builder.building.items()}

    @property
    def is_verified(self) -> bool:
        """Whether configurations were compared by what they compute."""
        return self._runner.is_verified

    def can_launch_first(self) -> bool:
        """Wait until the first configuration is compiled, and return whether it may be launched."""
        wait([future for future, number in self._builder.building.items() if not number])
        self._receive(0.0)
        planner = self._planner
        return 0 in planner.ready and bool(planner.search.can_launch[0]) and not math.isinf(planner.search.times_s[0])

    def run(self, ahead: dict[Any, Future[Compiled]] | None = None) -> dict[Any, list[float]]:
        """Measure, and return the times in the order of the configurations.

        What :meth:`compile_ahead` began for an earlier call is `ahead`.
        """
        planner, builder, count = self._planner, self._builder, len(self.configs)
        builder.ahead = ahead or {}
        if not self._runner.can_capture:
            planner.todo, planner.ready = set(), planner.todo
        try:
            while len(self.times) < self._most and (time.monotonic() < self._end or not self.times) and self._step():
                pass
        finally:
            builder.abandon()
            self._runner.restore()
        if self._error is not None and all(math.isinf(quantiles[0]) for quantiles in self.times.values()):
            raise self._error
        if not self.times:
            raise RunError(f"none of {count} configurations compiles: {self._reason}")
        times = {config: self.times[config] for config in self.configs if config in self.times}
        return raced(times, self.configs[0], self._runner)

    def _step(self) -> bool:
        """Measure a configuration, or wait for one; return whether there was any."""
        planner, builder, count = self._planner, self._builder, len(self.times)
        self._submit()
        self._receive(0.0)
        share = (builder.begun - len(builder.building)) / max(1, min(self._ahead, builder.begun + len(planner.todo)))
        building = builder.building.values()
        waits = bool(planner.worth(building))
        early = waits and (0 in building or count >= self._most * share)
        promising = planner.promising(count)
        if promising and (0 in planner.ready or not early):
            self._measure(promising[0])
        elif waits:
            self._receive(min(TIMEOUT_S, self._end - time.monotonic()) if count else TIMEOUT_S)
        return bool(promising) or waits

    def _submit(self) -> None:
        """Keep the compilers busy with what is most promising, with some jobs more than there are compilers.

        Before the first measurement, in which Triton builds what launches, there is nothing to learn for their order.
        """
        queued = self._compilers * 5 // 4 + 1 if self.times else 2 * self._compilers
        room = min(queued - len(self._builder.building), self._ahead - self._builder.begun)
        for number in self._planner.take(room) if self._planner.todo and room > 0 else ():
            self._builder.submit(number, self.configs[number])

    def _receive(self, timeout_s: float) -> None:
        """Learn what is compiled; wait for something at most so long."""
        for number, compiled in self._builder.results(timeout_s):
            self._reason = compiled.reason if compiled.state in ("refused", "killed") else self._reason
            self._planner.learn(number, compiled)

    def _measure(self, number: int) -> None:
        """Measure a configuration if it may be launched, and learn its time."""
        self._planner.ready.discard(number)
        if number and not self._planner.search.can_launch[number]:
            self._planner.search.times_s[number] = math.inf
            return
        config, best_ms = self.configs[number], min((median for median, *_ in self.times.values()), default=math.inf)
        try:
            quantiles = self._runner.measure(config, best_ms)
        except DeviceLostError:
            raise
        except Exception as error:
            self._error, quantiles = self._error or error, FAILED
        self.times[config] = quantiles
        self._planner.time(number, quantiles[0])
