"""Whole spaces: measure every configuration where that takes less than twice the seconds of the search."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from mltune.kernel.bundle import Kernel
from mltune.kernel.coding import Indices
from mltune.kernel.space import SearchSpace
from mltune.records.facts import Whole
from mltune.search.flow import PLANNING_S
from mltune.search.history import History, Results
from mltune.search.stopping import expected_end

LARGEST = 20_000
"""Largest space of which everything may be measured."""

TWICE, GIVEN_UP = 2.0, 2.5
"""Seconds of everything as a multiple of those of the search, up to which it is begun, and up to which it goes on."""

SHORT_S = 2.0
"""Seconds of everything beyond that multiple which do not matter: the answer is certain."""

ENOUGH = 8
"""Measurements whose seconds are enough for a forecast."""

UNMEASURED = "not everything is measured"
"""The beginning of a decision against everything."""


class Forecast(NamedTuple):
    """The seconds of everything and of the search, from the beginning of a run, and of all that is not measured."""

    everything_s: float
    search_s: float
    remaining_s: float


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
        if whole.until is not None or history.measured < ENOUGH:
            return whole
        forecast = self.forecast(history, results)
        detail = (
            f"all {self.count:,} configurations would take {forecast.everything_s:.2g} s, "
            f"the search {forecast.search_s:.2g} s"
        )
        if whole.since is not None:
            enough = forecast.everything_s <= GIVEN_UP * forecast.search_s + SHORT_S
            return whole if enough else Whole(since=whole.since, until=batch, detail=f"{UNMEASURED}: {detail}")
        left_s = math.inf if self.time_s is None else max(0.0, self.time_s - results.elapsed_s)
        if self.trials is not None and self.trials < self.count:
            detail = f"there are {self.count:,} configurations, and trials={self.trials:,}"
        elif forecast.everything_s <= TWICE * forecast.search_s + SHORT_S and not len(history.skipped):
            if forecast.remaining_s <= left_s:
                return Whole(since=batch, detail=detail)
            detail += f", but {left_s:.2g} s are left"
        return whole if whole.detail else Whole(detail=f"{UNMEASURED}: {detail}")

    def forecast(self, history: History, results: Results) -> Forecast:
        """Return the forecast from the recorded seconds of trials.

        What remains is less promising than what was measured: it takes as long as the last batch if that was slower.
        """
        pace, last = results.pace, results.last
        tried = np.fromiter(sorted(history.tried), dtype=np.int64)
        configurations, builds = self._groups
        untried = ~np.isin(configurations, configurations[tried])
        remaining = len(np.unique(configurations[untried]))
        new_builds = len(np.setdiff1d(builds[untried], builds[tried]))
        build_s = max(pace.build_s, last.build_s)
        busy_s = max(new_builds * build_s / self.compilers, remaining * max(pace.trial_s, last.trial_s))
        remaining_s = busy_s + PLANNING_S + min(1, new_builds) * build_s
        search_s = pace.busiest_s(self.compilers)
        expected = max(len(tried), expected_end(history.scores, self.space.count))
        return Forecast(len(tried) * search_s + remaining_s, expected * search_s, remaining_s)

    @property
    def count(self) -> int:
        """The number of configurations, whatever their compiler parameters."""
        return int(self._groups[0].max()) + 1

    @cached_property
    def _groups(self) -> tuple[Indices, Indices]:
        """For each index of the space the number of its configuration, and that of its build."""
        columns = self.space.rows(np.arange(self.space.count))
        own = [name for name in columns if name not in self.kernel.compiler.varied]
        configurations: Indices = np.zeros(self.space.count, dtype=np.int64)
        builds = configurations
        for name in sorted(own, key=lambda name: name in self.kernel.space.launch_parameters):
            values, codes = np.unique(columns[name], return_inverse=True)
            configurations = np.unique(configurations * len(values) + codes, return_inverse=True)[1]
            builds = builds if name in self.kernel.space.launch_parameters else configurations
        return configurations, builds
