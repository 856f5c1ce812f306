"""Simulation of a tuning run: a strategy evaluates configurations by index until its budget is spent.

Strategies of other tools have a loop of their own. :meth:`Simulation.evaluate` therefore raises an exception when the
budget is spent, which ends that loop.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mltune.comparison.recording import Recording

IDLE_MOVES = 50
"""Moves per evaluation after which a strategy that only repeats, skips or errs is stopped."""

SKIP_MOVES = 5
"""Moves that a skip counts as."""


class _BudgetSpent(BaseException):
    """The budget is spent. Not an :class:`Exception`, so that strategies which catch errors do not catch this."""


@dataclass(frozen=True, eq=False)
class Trace:
    """The evaluations of one strategy in one simulated run.

    Attributes
    ----------
    indices : ndarray of shape (n_evaluations,), int32
        The configurations evaluated, each once, in order.
    own_s : ndarray of shape (n_evaluations,), float32
        CPU seconds that the strategy used between the previous evaluation and this one.
    recorded_s : ndarray of shape (n_evaluations,), float32
        Recorded seconds of compiling and running it, and of compiling what was skipped since the previous one.
    repeats, invalid : int
        Number of repeated evaluations, and of proposals outside the space.
    skipped_before, skipped_after : int
        Configurations skipped before and after compiling.
    """

    indices: NDArray[np.int32]
    own_s: NDArray[np.float32]
    recorded_s: NDArray[np.float32]
    repeats: int = 0
    invalid: int = 0
    skipped_before: int = 0
    skipped_after: int = 0


class Simulation:
    """One run of one strategy on one recording, with a budget of evaluations of distinct configurations.

    The strategy's own time is measured in CPU seconds of the process between two calls, and is attributed to the
    following evaluation: it does not depend on the load of the machine. Time before :meth:`begin` (imports, building
    the search space) is not counted.

    Parameters
    ----------
    evaluations : int
        The budget, at most the number of recorded configurations.
    """

    def __init__(self, recording: Recording, evaluations: int) -> None:
        self.recording = recording
        self.space = recording.space
        self.budget = min(evaluations, recording.space.count)
        self._median_s: list[float] = recording.median_s.tolist()
        self._compile_s: list[float] = recording.compile_s.tolist()
        self._run_s: list[float] = recording.run_s.tolist()
        self._seen: set[int] = set()
        self._indices: list[int] = []
        self._own_s: list[float] = []
        self._recorded_s: list[float] = []
        self._skip_s = 0.0
        self._counts: Counter[str] = Counter()
        self._idle = IDLE_MOVES * self.budget
        self._thinking_since = time.process_time()

    @property
    def left(self) -> int:
        """Number of evaluations left."""
        return self.budget - len(self._indices)

    def seen(self, index: int) -> bool:
        """Return whether a configuration has been evaluated."""
        return index in self._seen

    def begin(self) -> None:
        """Start the clock of the strategy: everything before was preparation."""
        self._thinking_since = time.process_time()

    def evaluate(self, index: int) -> float | None:
        """Return the recorded time of a configuration.

        A configuration that was evaluated before costs nothing and counts as a repeat. A negative index stands for a
        proposal outside the space, which counts as invalid and as failed.

        Returns
        -------
        float or None
            Median time in seconds; None for a configuration that failed.
        """
        if index < 0:
            self._counts["invalid"] += 1
            self._idle_move()
            return None
        if index in self._seen:
            self._counts["repeats"] += 1
            self._idle_move()
        else:
            self._count(index)
        median_s = self._median_s[index]
        return None if math.isnan(median_s) else median_s

    def skip(self, index: int, *, after_compile: bool) -> None:
        """Record that the strategy skips a configuration. After compiling, its compile time has been spent."""
        self._counts["skipped_after" if after_compile else "skipped_before"] += 1
        if after_compile:
            self._skip_s += self._compile_s[index]
        self._idle_move(SKIP_MOVES)

    def trace(self) -> Trace:
        """Return the trace so far."""
        return Trace(
            np.array(self._indices, dtype=np.int32),
            np.array(self._own_s, dtype=np.float32),
            np.array(self._recorded_s, dtype=np.float32),
            **self._counts,
        )

    def _count(self, index: int) -> None:
        if not self.left:
            raise _BudgetSpent
        self._own_s.append(time.process_time() - self._thinking_since)
        self._seen.add(index)
        self._indices.append(index)
        self._recorded_s.append(self._compile_s[index] + self._run_s[index] + self._skip_s)
        self._skip_s = 0.0
        if not self.left:
            raise _BudgetSpent
        self._thinking_since = time.process_time()

    def _idle_move(self, moves: int = 1) -> None:
        self._idle -= moves
        if self._idle < 0:
            raise _BudgetSpent


@runtime_checkable
class Strategy(Protocol):
    """A search strategy: what ``mltune compare`` measures.

    The same recording and seed give the same evaluations. Each run gets a copy of the strategy of its own, in a process
    that imports its class.

    Examples
    --------
    >>> class FirstToLast:
    ...     name = "first_to_last"
    ...
    ...     def search(self, simulation, seed):
    ...         simulation.begin()
    ...         for index in range(simulation.space.count):
    ...             simulation.evaluate(index)
    >>> isinstance(FirstToLast(), Strategy)
    True
    """

    @property
    def name(self) -> str:
        """Its name in tables and figures."""
        ...

    def search(self, simulation: Simulation, seed: int) -> None:
        """Search until :meth:`Simulation.evaluate` ends the run. Returning earlier forfeits the rest of the budget."""
        ...


def simulate(strategy: Strategy, recording: Recording, evaluations: int, seed: int) -> Trace:
    """Run a strategy on a recording, with a budget of evaluations."""
    simulation = Simulation(recording, evaluations)
    with contextlib.suppress(_BudgetSpent):
        strategy.search(simulation, seed)
    return simulation.trace()
