"""The search over a table of configurations, for hosts that measure by themselves and report in any order.

The adapters of other tuners share it. An objective need not be a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

import numpy as np

from mltune.cost.features import Features
from mltune.cost.regressors import one_thread
from mltune.device.known import UNKNOWN
from mltune.kernel.bundle import Kernel
from mltune.kernel.coding import Floats, row
from mltune.kernel.configurations import ConfigurationTable
from mltune.kernel.parts import KernelSpace
from mltune.problem.kinds import timed_problem
from mltune.records.trial import Measurement, TrialRecord, TrialState
from mltune.records.trials import Trials
from mltune.search.search import Batch, Search

Scale: TypeAlias = Literal["log", "symlog"]
"""The scale on which results are compared: logarithms of times, or :func:`symmetric_logs` of anything."""

_LARGEST_SCORE = 25.0
_FAILED = TrialState.CRASHED, Measurement(TrialState.CRASHED)


class PlainSearch:
    """:class:`mltune.search.search.Search` over a table of configurations, without gates and without a stopping rule.

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

    Notes
    -----
    :class:`~mltune.search.search.Search` learns batches in the order in which it planned them. A result that comes in
    another order, or one of a configuration that it did not propose, and with ``"symlog"`` every result, therefore
    makes a new search that recalls all results. This takes some ten milliseconds.

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
        self._table = table
        self._seed = seed
        self._scale = scale
        self._sign = 1.0 if maximise else -1.0
        problem = timed_problem("plain")
        kernel = Kernel(name="plain", problem=problem.kind, space=KernelSpace(parameters=table.space.values))
        self._features = Features(kernel, problem, UNKNOWN)
        self._results: dict[int, float] = {}
        self._open: dict[int, Batch | None] = {}
        self._search: Search | None = None

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
        proposed: list[int] = []
        with one_thread(fits_models=False):  # of a host, which may compile meanwhile
            search = self._search = self._search or self._recalled()
            while len(proposed) < count and (batch := search.ask()).candidates:
                proposed.append(batch.candidates[0].index)
                self._open[proposed[-1]] = batch
        return proposed

    def begin(self, rows: Iterable[int]) -> None:
        """Mark configurations as under way that the host measures without being asked to."""
        for index in rows:
            if index not in self._open and index not in self._results:
                self._open[index] = self._search = None

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
        in_order = self._scale == "log" and index == next(iter(self._open), None)
        batch = self._open.pop(index, None)
        valid = result is not None and math.isfinite(result) and (self._scale != "log" or result > 0)
        self._results[index] = float(result) if valid and result is not None else math.nan
        if self._search is None or batch is None or not in_order:
            self._search = None
            return
        state, measurement = _outcome(self._scores()[-1])
        self._search.tell(batch, [batch.candidates[0].record(state, measurement=measurement)])

    def _recalled(self) -> Search:
        """Return a new search that has learned all results, and in which the same configurations are under way."""
        space = self._table.space
        most = len(self._open) + 1
        search = Search(
            space, self._features, seed=self._seed, batch=1, in_flight=lambda number: most, skip=False, stop=False
        )
        indices = [*self._results, *self._open]
        outcomes = [*map(_outcome, self._scores()), *([_FAILED] * len(self._open))]
        configurations = space.rows(np.array(indices, dtype=np.int64))
        records = [
            TrialRecord(at, at, index, row(configurations, at), state, proposed_by="model", measurement=measurement)
            for at, (index, (state, measurement)) in enumerate(zip(indices, outcomes, strict=True))
        ]
        search.resume(Trials.from_records(records, space.names))
        self._open = {index: search.ask() for index in self._open}
        return search

    def _scores(self) -> list[float]:
        """Return the results as scores, in the order of the reports: larger is better, NaN is a failure."""
        results = np.array(list(self._results.values()))
        valid = np.isfinite(results)
        scores = np.full(len(results), math.nan)
        if valid.any():
            valid_results = results[valid]
            scores[valid] = self._sign * (
                np.log(valid_results / valid_results[0]) if self._scale == "log" else symmetric_logs(valid_results)
            )
        limited: list[float] = np.clip(scores, -_LARGEST_SCORE, _LARGEST_SCORE).tolist()
        return limited


def symmetric_logs(values: Floats) -> Floats:
    """Return values relative to their median and their usual distance from it, on a scale that is logarithmic far away.

    Sign, unit and origin of the values do not matter, and single values of another magnitude do no harm: asinh(x) is x
    near zero and the log of 2 x far from it. The usual distance is 1.4826 times the median distance, which is the
    standard deviation of normally distributed values (Rousseeuw and Croux, 1993).

    Examples
    --------
    >>> symmetric_logs(np.array([-7.0, 1e9, 0.0, 2.0, -3.0])).round(2).tolist()
    [-1.24, 19.92, 0.0, 0.44, -0.63]
    """
    values = values / (np.abs(values).max() or 1.0)  # so that differences stay finite
    distances = values - np.median(values)
    usual = 1.4826 * np.median(np.abs(distances)) or np.std(distances) or 1.0
    with np.errstate(over="ignore"):
        scaled: Floats = np.arcsinh(distances / usual)
    return scaled


def _outcome(score: float) -> tuple[TrialState, Measurement]:
    """Return the outcome that a search without a peak gives this score, up to a constant."""
    if math.isnan(score):
        return _FAILED
    return TrialState.OK, Measurement(TrialState.OK, median_s=math.exp(-score))
