"""The flow of a search: the sizes of its batches, and how many of them are in flight."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from mltune.records.facts import Whole
from mltune.records.trials import Trials
from mltune.search.history import Pace

PLANNING_S = 0.05
"""Seconds in which a batch is planned."""

FEWEST, MOST = 4, 48
"""Fewest and most proposals of a later batch of a search that adapts: larger ones learn too late."""

MOST_OF_ALL, TWO = 160, 2
"""Most proposals of a batch while everything is measured (the seconds of choosing them grow with their square), and
batches in flight then."""


def steady(pace: Pace, compilers: float, planned: int) -> tuple[int, int]:
    """Return the proposals of a batch, and the batches in flight with which neither compilers nor GPU wait.

    A batch has the trials that end while one is planned, and at most as many as all before it. In flight are the trials
    that end between the plan of one and its result (Little, 1961).
    """
    busiest_s = pace.busiest_s(compilers)
    if math.isinf(compilers) or busiest_s == 0.0:
        return FEWEST, 1
    size = max(FEWEST, min(math.ceil(PLANNING_S / busiest_s), planned, MOST))
    return size, math.ceil((PLANNING_S + pace.compile_s + pace.trial_s) / busiest_s / size)


@dataclass(eq=False)
class Flow:
    """The batches of a search, planned and to come: where each ends, in proposals, and how many are in flight.

    Where it ``adapts`` to the pace of the trials that were told, ``initial`` ones are proposed before any result: first
    the ``start`` from which a model can be fitted, then fewer at a time. Everything follows from results, in the order
    of batches, so that a resumed search has the same flow.
    """

    adapts: bool
    batch: int
    in_flight: Callable[[int], int]
    compilers: float
    start: int
    initial: int = field(init=False)
    ends: list[int] = field(default_factory=lambda: [0], init=False)

    def __post_init__(self) -> None:
        cores = 0 if math.isinf(self.compilers) else int(self.compilers)
        self.initial = min(self.batch, max(self.start, cores))  # no compiler idles

    def is_full(self, number: int, told: int, pace: Pace, whole: Whole) -> bool:
        """Return whether a batch waits for more results than those of the batches told, with their pace."""
        if number < len(self.ends) - 1:
            return False
        if not self.adapts:
            return number - told >= self.in_flight(number)
        if told == 0:
            return self.ends[number] >= self.initial
        most = TWO if whole.covers(number - 1) else steady(pace, self.compilers, self.ends[number])[1]
        return number - told >= most

    def places(self, number: int, told: int, pace: Pace, whole: Whole) -> range:
        """Return the numbers of a batch's proposals, from the state in which it is planned; keep them."""
        if number == len(self.ends) - 1:
            self.ends.append(self.ends[number] + self._size(number, told, pace, whole))
        return range(*self.ends[number : number + 2])

    def _size(self, number: int, told: int, pace: Pace, whole: Whole) -> int:
        planned = self.ends[number]
        if not self.adapts:
            return self.batch
        if told == 0:
            return min(self.initial - planned, FEWEST if planned else self.start)
        size, _ = steady(pace, self.compilers, planned)
        return max(size, min(planned, MOST_OF_ALL)) if whole.covers(number) else size

    def resume(self, trials: Trials, complete: int, whole: Whole) -> int:
        """Repeat the flow up to the first batch that is not among the ``complete`` first trials.

        Returns
        -------
        int
            The number of batches from whose results that batch is planned.
        """
        pace, planned_from, told = Pace(), list[int](), 0
        while True:
            while not self.is_full(len(planned_from), told, pace, whole):
                self.places(len(planned_from), told, pace, whole)
                planned_from.append(told)
            begin, end = self.ends[told : told + 2]
            if end > complete:
                del self.ends[told + 2 :]
                return planned_from[told]
            pace.add(trials[begin:end])
            told += 1
