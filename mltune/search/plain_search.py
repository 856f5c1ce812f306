"""Search over a table of configurations, for hosts that measure by themselves and report in any order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

import numpy as np

from mltune.cost.regressors import one_thread
from mltune.kernel.coding import Floats
from mltune.kernel.configurations import ConfigurationTable
from mltune.search.history import History
from mltune.search.planning import BatchPlanner

Scale: TypeAlias = Literal["log", "symlog"]
"""The scale on which results are compared: logarithms of times, or :func:`symmetric_logs` of anything."""

_LARGEST_SCORE, _DECIMALS = 25.0, 12


class PlainSearch:
    """The planner of :class:`mltune.search.search.Search` over a table, without gates and without a stopping rule.

    Every proposal is planned from all results told before it, and from the configurations under way, which are assumed
    to turn out as predicted. The same table, seed, and order of calls give the same proposals.

    Parameters
    ----------
    table : ConfigurationTable
    seed : int
    scale : {"log", "symlog"}
        ``"log"`` is for times: results are positive, and their ratios count. ``"symlog"`` is for any other objective,
        of any sign and size (:func:`symmetric_logs`).
    maximise : bool
        Whether larger results are better. By default smaller ones are.

    Examples
    --------
    >>> from mltune.kernel.configurations import list_configurations
    >>> table = list_configurations({"block": [16, 32, 64, 128], "unroll": [1, 2, 4]})
    >>> search = PlainSearch(table)
    >>> for _ in range(12):
    ...     (proposed,) = search.ask()
    ...     block, unroll = table[proposed]
    ...     search.tell(proposed, 1.0 + abs(block - 64) + unroll if block < 128 else None)
    >>> search.ask()
    []
    """

    def __init__(
        self, table: ConfigurationTable, *, seed: int = 0, scale: Scale = "log", maximise: bool = False
    ) -> None:
        self._planner = BatchPlanner(table.space, seed=seed)
        self._scale = scale
        self._sign = 1.0 if maximise else -1.0
        self._results: dict[int, float] = {}
        self._running: dict[int, None] = {}

    def resume(self, results: Mapping[int, float | None], running: Iterable[int] = ()) -> None:
        """Learn the results of an earlier part of the tuning, as if told in this order, and what is under way."""
        for index, result in results.items():
            self.tell(index, result)
        self.begin(running)

    def ask(self, count: int = 1) -> list[int]:
        """Propose configurations that are neither told nor under way.

        Returns
        -------
        list of int
            Rows of the table, now under way; fewer than ``count`` when there are no more.
        """
        rows: list[int] = []
        with one_thread(fits_models=False):  # of a host, which may compile meanwhile
            scores = self._scores()
            while len(rows) < count:
                history = History.of(self._results, scores, self._running)
                proposals = self._planner.plan(history, len(history.tried), 1)
                if not proposals:
                    break
                rows.append(proposals[0].index)
                self._running[rows[-1]] = None
        return rows

    def begin(self, rows: Iterable[int]) -> None:
        """Mark configurations as under way that the host measures without a proposal."""
        self._running |= dict.fromkeys(row for row in rows if row not in self._results)

    def tell(self, index: int, result: float | None) -> None:
        """Report the result of any configuration. Of several results the last one counts.

        Parameters
        ----------
        index : int
            Row of the table.
        result : float or None
            None if the configuration failed. A result that is not finite counts as a failure, and so does one that is
            not positive on a logarithmic scale.
        """
        self._running.pop(index, None)
        valid = result is not None and math.isfinite(result) and (self._scale != "log" or result > 0)
        self._results[index] = float(result) if valid and result is not None else math.nan

    def _scores(self) -> Floats:
        """Return the results as scores, in the order of the reports: larger is better, NaN is a failure."""
        results = np.array(list(self._results.values()), dtype=np.float64)
        valid = np.isfinite(results)
        scores = np.full(len(results), math.nan)
        if valid.any():
            valid_results = results[valid]
            scores[valid] = self._sign * (
                np.log(valid_results / valid_results[0]) if self._scale == "log" else symmetric_logs(valid_results)
            )
        # Ratios in another unit differ in their last bits, which would decide among equal candidates.
        limited: Floats = np.clip(scores, -_LARGEST_SCORE, _LARGEST_SCORE).round(_DECIMALS)
        return limited


def symmetric_logs(values: Floats) -> Floats:
    """Return values relative to their median and their usual distance from it, on a scale that is logarithmic far away.

    Sign, unit and origin of the values do not matter, and single values of another magnitude do no harm: asinh(x) is x
    near zero and the log of 2 x far from it. The usual distance is 1.4826 times the median distance, which is the
    standard deviation of normally distributed values (Rousseeuw and Croux, 1993).
    """
    values = values / (np.abs(values).max() or 1.0)  # so that differences stay finite
    distances = values - np.median(values)
    usual = 1.4826 * np.median(np.abs(distances)) or np.std(distances) or 1.0
    with np.errstate(over="ignore"):
        scaled: Floats = np.arcsinh(distances / usual)
    return scaled
