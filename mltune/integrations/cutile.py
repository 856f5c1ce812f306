"""mltune's search in place of cuTile's exhaustive one."""

from __future__ import annotations

import math
import time as clock
from collections.abc import Sequence
from typing import Any

from mltune.errors import UsageError
from mltune.integrations.host import QUICK, check_least, leaves, require, table_of
from mltune.known.effort import effort
from mltune.search.plain_search import PlainSearch

TESTED, ALL_FAILED = "1.7.", "No valid config found"
"""Versions of cuTile that are tested, and how its error begins where all that it is given fail."""

BATCH = 8
"""Configurations that cuTile is given together: of more than five it stops measuring the slow ones early."""


def search(
    space: Sequence[Any], *args: Any, trials: int | None = None, time: float = math.inf, seed: int = 0, **options: Any
) -> Any:
    """Return the fastest of the configurations that are measured, as ``cuda.tile.tune.exhaustive_search`` does of all.

    cuTile has no hook for a search: its own function compiles and measures batch after batch, and mltune chooses them.
    The first configuration is measured in any case, so that the result is not slower than that one.

    The environment variable ``MLTUNE_EFFORT`` decides where ``trials`` does not: ``none`` (the first configuration
    alone), ``quick`` (at most 25) or ``full`` (all).

    Parameters
    ----------
    space : sequence
        Configurations: numbers, texts, tuples, mappings, or objects with attributes of these.
    *args, **options
        Further arguments of ``exhaustive_search``; ``quiet`` is True by default.
    trials : int, optional
        Most configurations that are measured; by default all.
    time : float
        Seconds after which no batch begins but the first.
    seed : int

    Returns
    -------
    cuda.tile.tune.TuningResult

    Raises
    ------
    UsageError
        cuTile is not installed, or is not version 1.7, the search space is empty, or a number is below its least.
    ValueError
        No configuration that was measured runs.

    Examples
    --------
    >>> result = search(space, stream, grid, matmul, args, trials=40)  # doctest: +SKIP
    >>> result.best.config  # doctest: +SKIP
    """
    check_least(trials=(trials, 1), time=(time, 0))
    tune = require("cuda.tile.tune", "cuda-tile==1.7.*", TESTED)
    every = {tuple(leaves(config).items()): config for config in space}
    configs, end = [*every.values()], clock.monotonic() + time
    if not configs:
        raise UsageError("the search space is empty; it needs at least one configuration.")
    most = trials or {"none": 1, "quick": QUICK}.get(effort(), len(configs))
    proposals = PlainSearch(table_of([dict(parameters) for parameters in every]), seed=seed)
    proposals.begin([0])
    done, failed, rows = list[Any](), list[Any](), [0]
    while rows:
        batch = [configs[row] for row in rows]
        try:
            outcome = tune.exhaustive_search(batch, *args, **{"quiet": True, **options})
            done, failed = [*done, *outcome.successes], [*failed, *outcome.failures]
        except ValueError as error:
            if ALL_FAILED not in str(error):
                raise
            failed += [(config, type(error), str(error)) for config in batch]
        times_us = {id(success.config): success.mean_us for success in done}
        for row in rows:
            proposals.tell(row, times_us.get(id(configs[row])))
        rows = proposals.ask(min(BATCH, most - len(done) - len(failed))) if clock.monotonic() < end else []
    if not done:
        raise ValueError(failed[0][2])
    best = min(done, key=lambda success: success.mean_us)
    return tune.TuningResult(best=best, successes=tuple(done), failures=tuple(failed))
