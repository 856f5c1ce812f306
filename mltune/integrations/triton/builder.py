"""The builder of a tuning: it compiles configurations ahead of their launches, in other processes."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from mltune.integrations.triton.compilers import TIMEOUT_S, Compiled, Compilers, launcher_of
from mltune.integrations.triton.runner import Runner
from mltune.process.child import fulfilled

LATE, LEAST_S, KNOWN_S = 8.0, 3.0, 0.05
"""A compile is stopped after LATE medians of those before, at least LEAST_S; below KNOWN_S it came from the cache."""


PATIENCE, PATIENT_S, ENOUGH, POLL_S = 3.0, 1.0, 3, 0.05
"""A compile is waited for until PATIENCE medians of those before, and at least PATIENT_S; ENOUGH of them tell."""


class Builder:
    """Compiles configurations by their numbers; ``building`` are under way, and ``begun`` counts all.

    One that is `impatient` leaves out what takes much longer than the others: its kernel is large, and hardly fast.
    What an earlier call began to compile is `ahead`, by configurations.
    """

    def __init__(self, compilers: Compilers, runner: Runner, *, impatient: bool) -> None:
        self._compilers, self._runner, self._impatient = compilers, runner, impatient
        self.ahead: dict[Any, Future[Compiled]] = {}
        self._running_since = dict[Future[Compiled], float]()
        self._took_s = list[float]()  # of what ran here, as it is seen: with the start of its process
        self._compile_s: list[float] = []
        self.building: dict[Future[Compiled], int] = {}
        self.begun = 0

    def submit(self, number: int, config: Any, turn: int = 0) -> None:
        """Begin to compile a configuration, now or in a later turn."""
        future = self.ahead.pop(config, None)
        if future is None or future.cancel():  # its turn has not come
            future = self._compile(config, turn)
        self.building[future] = number
        self.begun += 1

    def _compile(self, config: Any, turn: int) -> Future[Compiled]:
        launch = self._runner.capture(config)
        if isinstance(launch, bytes):
            if not self.begun:
                self._compilers.submit(launcher_of(launch), turn=turn)  # all configurations share it
            count = self._compilers.count
            usual_s = statistics.median(self._compile_s) if len(self._compile_s) > count else math.inf
            return self._compilers.submit(launch, min(TIMEOUT_S, max(LEAST_S, LATE * usual_s)), turn)
        return fulfilled(launch)

    def results(self, timeout_s: float) -> Iterator[tuple[int, Compiled]]:
        """Yield what is compiled, by its number; wait for something at most so long."""
        end = time.monotonic() + timeout_s
        late = set[Future[Compiled]]()
        done = wait(self.building, self._wait_s(end), FIRST_COMPLETED).done
        while not (done or (late := self._late())) and self.building and time.monotonic() < end:
            done = wait(self.building, self._wait_s(end), FIRST_COMPLETED).done
        for future in done:
            number, compiled = self.building.pop(future), future.result()
            if compiled.compile_s > KNOWN_S and compiled.state == "ok":
                self._compile_s.append(compiled.compile_s)
                if future in self._running_since:
                    self._took_s.append(time.monotonic() - self._running_since[future])
            yield number, compiled
        for future in late:
            self._compilers.stop(future)
            yield self.building.pop(future), Compiled("killed", "it takes much longer to compile than others")

    def _wait_s(self, end: float) -> float:
        return max(0.0, min(POLL_S if self._impatient else math.inf, end - time.monotonic()))

    def _late(self) -> set[Future[Compiled]]:
        """Return what has been compiling for much longer than others did."""
        now = time.monotonic()
        running = [future for future in self.building if future.running()]
        self._running_since = {future: self._running_since.get(future, now) for future in running}
        if not self._impatient or len(self._took_s) < ENOUGH:
            return set()
        limit_s = max(PATIENT_S, PATIENCE * statistics.median(self._took_s))
        return {future for future, since in self._running_since.items() if now - since > limit_s}

    def abandon(self) -> None:
        """Stop what is not done: the next kernel needs the compilers."""
        for future in (*self.building, *self.ahead.values()):
            if not future.done():
                self._compilers.stop(future)
