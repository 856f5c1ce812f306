"""Whole spaces: measure every configuration where that takes less than twice the seconds of the search."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mltune.kernel.bundle import Kernel
from mltune.kernel.coding import Indices
from mltune.kernel.space import SearchSpace
from mltune.records.facts import Whole
from mltune.search.history import History, Results
from mltune.search.stopping import expected_end

LARGEST = 20_000
"""Largest space of which everything may be measured."""

TWICE, GIVEN_UP = 2.0, 2.5
"""Seconds of everything as a multiple of those of the search, up to which it is begun, and up to which it goes on."""

PLANNING_S = 0.05
"""Seconds for which compilers and GPU wait while a batch is planned."""

FEWEST, MOST = 4, 48
"""Fewest and most proposals of a later batch of a search that adapts: larger ones learn too late."""

MOST_OF_ALL = 160
"""Most proposals of a batch while everything is measured: the seconds of choosing them grow with their square."""


def batch_size(occupancy: float, planned: int) -> int:
    """Return the proposals of a batch: as many as keep compilers and GPU busy, and at most as many as before it."""
    return max(FEWEST, min(round(occupancy), planned, MOST))


@dataclass(frozen=True, slots=True)
class Forecast:
    """The seconds of measuring all ``count`` configurations and of the search, from the beginning of the run.

    ``remaining`` configurations are not measured; they take ``remaining_s`` and need so many distinct ``builds``.
    """

    count: int
    remaining: int
    builds: int
    remaining_s: float
    everything_s: float
    search_s: float

    def __str__(self) -> str:
        """Return the forecast in words."""
        return (
            f"all {self.count:,} configurations would take {self.everything_s:.2g} s, the search {self.search_s:.2g} s"
        )


@dataclass(eq=False)
class WholeSpace:
    """The configurations and the builds of a space, of which everything may be measured by so many compilers.

    Configurations that differ only in launch parameters share a build; those that differ only in compiler parameters
    count as one. ``trials`` and ``time_s`` limit the run.
    """

    space: SearchSpace
    kernel: Kernel
    compilers: float
    trials: int | None = None
    time_s: float | None = None

    def decide(self, whole: Whole, batch: int, history: History, results: Results) -> Whole:
        """Return what is measured from a batch on.

        It follows from recorded seconds and is on record itself, so that a resumed run has the same batches. Once
        everything was given up, the search goes on as usual until its end.
        """
        if whole.until is not None:
            return whole
        forecast = self.forecast(history, results)
        if whole.since is not None:
            if forecast.everything_s <= GIVEN_UP * forecast.search_s:
                return whole
            return Whole(since=whole.since, until=batch, detail=f"not everything is measured: {forecast}")
        if len(history.skipped) or not history.measured:  # what was skipped would be missing
            return whole
        if law := self._law_against(forecast, results):
            return whole if whole.detail else Whole(detail=f"not everything is measured: {law}")
        return Whole(since=batch, detail=str(forecast))

    def _law_against(self, forecast: Forecast, results: Results) -> str:
        """Return why not everything is measured; empty where it is."""
        if self.trials is not None and self.trials < forecast.count:
            return f"there are {forecast.count:,} configurations, and trials={self.trials:,}"
        if forecast.everything_s > TWICE * forecast.search_s:
            return str(forecast)
        if self.time_s is not None and results.elapsed_s + forecast.remaining_s > self.time_s:
            return f"{forecast}, but {max(0.0, self.time_s - results.elapsed_s):.2g} s are left"
        return ""

    def forecast(self, history: History, results: Results) -> Forecast:
        """Return the forecast from the recorded seconds of trials.

        What remains is less promising than what was measured: it takes as long as the last batch if that was slower.
        """
        pace, last = results.pace, results.last
        tried = np.fromiter(sorted(history.tried), dtype=np.int64)
        configurations, builds = self._groups
        covered = np.zeros(self._count, dtype=bool)
        covered[configurations[tried]] = True
        remaining = self._count - int(covered.sum())
        new_builds = len(np.setdiff1d(builds[~covered[configurations]], builds[tried]))
        build_s, trial_s = max(pace.build_s, last.build_s), max(pace.trial_s, last.trial_s)
        batches = math.ceil(remaining / MOST_OF_ALL)
        waits_s = batches * PLANNING_S + min(batches, new_builds) * build_s
        remaining_s = max(new_builds * build_s / self.compilers, remaining * trial_s) + waits_s
        expected = max(len(tried), expected_end(history.scores, self.space.count))
        spent_s, search_s = (self._search_s(results, trials) for trials in (len(tried), expected))
        return Forecast(self._count, remaining, new_builds, remaining_s, spent_s + remaining_s, search_s)

    @property
    def verdict(self) -> str:
        """The reason of a search that ends because everything is measured."""
        return f"all {self._count:,} configurations were measured"

    @property
    def _count(self) -> int:
        return int(self._groups[0].max()) + 1

    def _search_s(self, results: Results, trials: int) -> float:
        """Return the seconds of so many trials of a search, whose batches follow each other."""
        size, pace = batch_size(results.occupancy(self.compilers), trials), results.pace
        return trials * pace.busiest_s(self.compilers) + trials / size * (pace.compile_s + PLANNING_S)

    @cached_property
    def _groups(self) -> tuple[Indices, Indices]:
        """For each index of the space the number of its configuration, and that of its build."""
        columns = self.space.rows(np.arange(self.space.count))
        own = [name for name in columns if name not in self.kernel.compiler.varied]
        compiled = [name for name in own if name not in self.kernel.space.launch_parameters]
        numbers = [_numbered([columns[name] for name in names], self.space.count) for names in (own, compiled)]
        return numbers[0], numbers[1]


def _numbered(columns: list[Indices], count: int) -> Indices:
    """Return for each row the number of its combination of values, from 0."""
    numbers: Indices = np.zeros(count, dtype=np.int64)
    for column in columns:
        values, codes = np.unique(column, return_inverse=True)
        numbers = np.unique(numbers * len(values) + codes, return_inverse=True)[1]
    return numbers
