"""The order in which configurations are compiled and measured: the search over launches, and what is due."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from mltune.integrations.host import table_of
from mltune.integrations.triton.compilers import Compiled
from mltune.integrations.triton.winners import configuration
from mltune.search.launch_model import launch_features, start_of
from mltune.search.launch_search import BUILD, LaunchSearch


def search_over(
    configs: Sequence[Any],
    blocks_of: Callable[..., float],
    gpu: Any,
    predictor: Any,
    trials: int,
    seed: int,
    prior: str,
) -> LaunchSearch:
    """Return a search over the parameters of configurations; ``blocks_of`` says what their grids are."""
    hooks = list(dict.fromkeys(config.pre_hook for config in configs))
    rows = [{**configuration(config), "pre_hook": hooks.index(config.pre_hook)} for config in configs]
    table = table_of(rows)
    blocks = np.array([blocks_of(config) for config in configs])
    threads = np.array([32.0 * config.num_warps for config in configs])
    values: dict[str, list[Any]] = {name: [parameters.get(name) for parameters in rows] for name in table.names}
    extents = [
        name
        for name, listed in values.items()
        if all(type(value) is int and value > 0 for value in listed)
        and blocks_of(configs[0], **{name: min(listed)}) > blocks_of(configs[0], **{name: max(listed)})
    ]
    columns = table.space.rows(np.arange(len(rows)))
    start = start_of(prior, launch_features(columns, extents, blocks, threads, gpu))
    predictor.begin()
    waits = start is None or trials  # what is measured meanwhile is chosen worse, or counts
    predict = predictor.predict if waits else predictor.predict_if_started
    return LaunchSearch(columns, extents, blocks, threads, gpu, seed, start, predict)


class Planner:
    """Says what is compiled next and what is measured next, by the numbers of configurations; 0 is the reference.

    `todo` are not given to a compiler yet, `ready` may be measured, and `refused` are refused by the compiler. Of
    `trials` that the user asks for (0: none) all are worth it.
    """

    def __init__(self, search: LaunchSearch, trials: int, before_first: int) -> None:
        self.search = search
        self._count, self._trials = len(search.times_s), trials
        self._before_first = before_first
        self.todo, self.ready, self.refused = set(range(self._count)), set[int](), set[int]()

    def worth(self, numbers: Iterable[int], *, compiled: bool = False) -> list[int]:
        """Return what is worth compiling or measuring, the best first: all of it where the user asks for ``trials``."""
        rows = np.array(sorted(numbers), dtype=np.int64)
        are_all = self._trials >= (1 if compiled else self._count)
        ordered = self.search.best_first if are_all else self.search.worth
        return [*map(int, ordered(rows, compiled=compiled))]

    def take(self, room: int) -> list[int]:
        """Return what is compiled next, so many at most; it is no longer to do."""
        worth = self.worth(self.todo)
        if 0 in self.todo:
            worth = [number for number in worth if number]
            worth.insert(self._before_first, 0)
        self.todo = set(worth[room:])
        return worth[:room]

    def promising(self, measured: int) -> list[int]:
        """Return what is worth measuring next, the best first: the reference comes first, or second after a model."""
        is_next = 0 in self.ready and measured >= self._before_first
        return [0] if is_next else self.worth(self.ready, compiled=True)

    def learn(self, number: int, compiled: Compiled) -> None:
        """Learn what compiling said of a configuration."""
        if compiled.state == "ok":
            for name in BUILD:
                self.search.build[name][number] = getattr(compiled, name)
        if compiled.state in ("refused", "killed"):
            self.search.times_s[number] = math.inf
        if compiled.state != "killed":  # of those that are refused the first is tried here, in case the way was bad
            (self.refused if number and compiled.state == "refused" else self.ready).add(number)

    def time(self, number: int, median_ms: float) -> None:
        """Learn the time of a configuration; where one runs that the compiler refused, the others may run, too."""
        if math.isinf(self.search.times_s[number]) and math.isfinite(median_ms):
            self.ready |= self.refused
        self.search.times_s[number] = median_ms / 1e3 if median_ms > 0 else math.nan
