"""Seconds that a run spends in each phase, earlier sessions of the run included."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping

PHASES = ("search", "compile", "time", "wait", "reference", "record", "finals", "total")
"""The phases of a run: proposing and gating; compiling; verifying and timing; waiting for compilers and GPU; timing the
reference kernel, including the start of the worker; writing records and reporting them to the search; the finals; and
the elapsed time. Compilers and the GPU work in parallel to the other phases.
"""


class Seconds:
    """Seconds by phase, added up on a monotonic clock; ``before`` holds those of earlier sessions of the run."""

    def __init__(self, before: Mapping[str, float]) -> None:
        self._spent = {phase: before.get(phase, 0.0) for phase in PHASES}
        self._started = time.perf_counter() - self._spent["total"]

    @property
    def elapsed(self) -> float:
        """Seconds since the run began, interruptions not counted."""
        return time.perf_counter() - self._started

    def add(self, phase: str, seconds: float) -> None:
        """Add seconds that were measured elsewhere."""
        self._spent[phase] += seconds

    @contextlib.contextmanager
    def spent_on(self, phase: str) -> Iterator[None]:
        """Add the seconds of a ``with`` block."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._spent[phase] += time.perf_counter() - started

    def to_json(self) -> dict[str, float]:
        """Return the seconds of every phase until now."""
        return self._spent | {"total": self.elapsed}
