"""The flow of a search: the sizes of its batches, and how many of them are in flight."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from mltune.records.facts import Whole
from mltune.search.history import Pace

PLANNING_S = 0.05
"""Seconds in which a batch is planned."""

FEWEST, MOST = 4, 48
"""Fewest and most proposals of a later batch of a search that adapts: larger ones learn too late."""

MOST_OF_ALL = 160
"""Most proposals of a batch while everything is measured: the seconds of choosing them grow with their square."""


def steady(pace: Pace, compilers: float, planned: int) -> tuple[int, int]:
    """Return the proposals of a batch, and the trials under way with which neither compilers nor GPU wait.

    A batch has the trials that end while one is planned, and at most as many as all before it. Under way are the trials
    that end between the plan of one and its result (Little, 1961).
    """
    busiest_s = pace.busiest_s(compilers)
    if math.isinf(compilers) or busiest_s == 0.0:
        return FEWEST, 1
    size = max(FEWEST, min(math.ceil(PLANNING_S / busiest_s), planned, MOST))
    return size, round((PLANNING_S + pace.compile_s + pace.trial_s) / busiest_s)


@dataclass(eq=False)
class Flow:
    """The sizes of the batches of a search, and with how many trials under way the next one is planned.

    Where it ``adapts`` to the pace of the trials that were told, ``initial`` ones are proposed before any result: first
    the ``start`` from which a model can be fitted, then fewer at a time. Otherwise every batch has as many proposals,
    and so many are ``in_flight``.
    """

    adapts: bool
    batch: int
    in_flight: Callable[[int], int]
    compilers: float
    start: int
    initial: int = field(init=False)

    def __post_init__(self) -> None:
        cores = 0 if math.isinf(self.compilers) else int(self.compilers)
        self.initial = min(self.batch, max(self.start, cores))  # no compiler idles

    def next(self, number: int, running: int, told: int, pace: Pace, whole: Whole) -> tuple[int, int]:
        """Return the proposals of a batch, and with how many trials under way it is not planned yet."""
        planned = running + told
        if not self.adapts:
            return self.batch, 1 + self.batch * (self.in_flight(number) - 1)
        if told == 0:
            return min(self.initial - planned, FEWEST if planned else self.start), self.initial
        size, enough = steady(pace, self.compilers, planned)
        if whole.covers(number):  # while the latest batch is under way
            return max(size, min(planned, MOST_OF_ALL)), max(enough, 1 + min(planned // 2, MOST_OF_ALL))
        return size, enough
