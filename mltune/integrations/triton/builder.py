"""The builder of a tuning: it compiles configurations ahead of their launches, in other processes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from mltune.integrations.triton.compilers import TIMEOUT_S, Compiled, Compilers
from mltune.integrations.triton.runner import Runner

LATE, LEAST_S, KNOWN_S = 8.0, 3.0, 0.05
"""A compile is stopped after LATE medians of those before, at least LEAST_S; below KNOWN_S it came from the cache."""


class Builder:
    """Compiles configurations by their numbers; ``building`` are under way, and ``begun`` counts all."""

    def __init__(self, compilers: Compilers, runner: Runner) -> None:
        self._compilers, self._runner = compilers, runner
        self._compile_s: list[float] = []
        self.building: dict[Future[Compiled], int] = {}
        self.begun = 0

    def submit(self, number: int, config: Any) -> None:
        """Begin to compile a configuration."""
        self.building[self._compile(config)] = number
        self.begun += 1

    def _compile(self, config: Any) -> Future[Compiled]:
        launch = self._runner.capture(config)
        if isinstance(launch, bytes):
            count = self._compilers.count
            usual_s = statistics.median(self._compile_s) if len(self._compile_s) > count else math.inf
            return self._compilers.submit(launch, min(TIMEOUT_S, max(LEAST_S, LATE * usual_s)))
        done: Future[Compiled] = Future()
        done.set_result(launch)
        return done

    def results(self, timeout_s: float) -> Iterator[tuple[int, Compiled]]:
        """Yield what is compiled, by its number; wait for something at most so long."""
        for future in wait(self.building, max(timeout_s, 0.0), FIRST_COMPLETED).done:
            number, compiled = self.building.pop(future), future.result()
            if compiled.compile_s > KNOWN_S and compiled.state == "ok":
                self._compile_s.append(compiled.compile_s)
            yield number, compiled

    def abandon(self) -> None:
        """Cancel what has not begun."""
        for future in self.building:
            future.cancel()
