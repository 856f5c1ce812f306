"""Where the seconds of a run go, those of its earlier parts included."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping

PHASES = ("search", "compile", "time", "wait", "reference", "record", "finals", "total")
"""What a run spends seconds on: proposing and judging; compilers; verifying and timing; waiting for both; timing the
reference kernel, which waits for the start of the worker; writing records and telling of them; the finals; and all of
it by the clock. Compilers and the GPU work beside the others.
"""


class Seconds:
    """Adds up seconds by phase. The clock is one that nobody sets.

    Parameters
    ----------
    before : mapping of str to float
        What earlier parts of the run spent.
    """

    def __init__(self, before: Mapping[str, float]) -> None:
        self._spent = {phase: before.get(phase, 0.0) for phase in PHASES}
        self._started = time.perf_counter() - self._spent["total"]

    @property
    def elapsed(self) -> float:
        """Seconds since the run began, interruptions not counted."""
        return time.perf_counter() - self._started

    def add(self, phase: str, seconds: float) -> None:
        """Count seconds that were measured elsewhere."""
        self._spent[phase] += seconds

    @contextlib.contextmanager
    def spent_on(self, phase: str) -> Iterator[None]:
        """Count the seconds of a ``with`` block."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._spent[phase] += time.perf_counter() - started

    def to_json(self) -> dict[str, float]:
        """Return the seconds of every phase until now."""
        return self._spent | {"total": self.elapsed}
