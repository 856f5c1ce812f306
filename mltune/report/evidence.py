"""What stands behind the findings of one problem: plain arrays and figures, of which plots and tables are made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from mltune.kernel.columns import Floats
from mltune.learn.cost_model import log_share
from mltune.records.reference import usual_s
from mltune.records.trial import TrialRecord, TrialState
from mltune.report.reading import ProblemRun

if TYPE_CHECKING:
    from mltune.learn.importance import Importance

FAILURES = (
    TrialState.COMPILE_ERROR,
    TrialState.LAUNCH_ERROR,
    TrialState.WRONG_RESULT,
    TrialState.TIMEOUT,
    TrialState.CRASHED,
    TrialState.UNSTABLE,
)
"""The states of a trial that went wrong."""

MOST_CELLS = 2_000
"""Of a heat map."""

HOURS = {
    "search": "searching",
    "wait": "waiting for builds and the GPU",
    "reference": "reference kernel and start",
    "finals": "finals",
    "record": "recording and telling",
    "rest": "the rest",
}
"""What the loop of a run does with its time, and how it is told."""

FEWEST_PREDICTED = 5
"""Trials below which no rank correlation is given."""


@dataclass(frozen=True, slots=True)
class Curve:
    """The best so far of one problem.

    Attributes
    ----------
    at : ndarray of shape (n_steps,)
        When the best so far changed, and the end: seconds of the run, or trials.
    share : ndarray of shape (n_steps,)
        The best so far then, as a share of ``of``.
    of : {"cuBLAS", "final best"}
    unit : {"s", "trials"}
        Trials in replay, where seconds say nothing of a GPU, and where no times are on record.
    """

    at: Floats
    share: Floats
    of: str
    unit: str


@dataclass(frozen=True, slots=True)
class Predictions:
    """What the search predicted when it proposed trials, and what was measured then.

    Attributes
    ----------
    predicted, measured : ndarray of shape (n_predicted,)
        Shares of the device's peak.
    rank_correlation : float or None
        Spearman's; None where there are fewer than :data:`FEWEST_PREDICTED`, or where all are equal.
    """

    predicted: Floats
    measured: Floats
    rank_correlation: float | None


@dataclass(frozen=True, slots=True)
class Cells:
    """The best found for each pair of values of two parameters.

    Attributes
    ----------
    names : tuple of two str
        The parameter of the rows, and that of the columns.
    rows, columns : tuple of int
        Their values.
    tflops : ndarray of shape (n_rows, n_columns)
        NaN where nothing was measured.
    """

    names: tuple[str, str]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    tflops: Floats


@dataclass(frozen=True, slots=True)
class Failure:
    """A kind of failure, and an example of it.

    Attributes
    ----------
    state : str
    count : int
    slug : str
        Of the example's problem.
    example : TrialRecord
    """

    state: str
    count: int
    slug: str
    example: TrialRecord

    @property
    def detail(self) -> str:
        """What went wrong with the example."""
        parts = (self.example, self.example.measurement, self.example.build)
        return next((part.detail for part in parts if part is not None and part.detail), "")


@dataclass
class Evidence:
    """What stands behind one run. Everything is computed when first asked for.

    Attributes
    ----------
    run : ProblemRun
    reference_s : float or None
        Time that shares are of: that of cuBLAS, or else of the best found.
    """

    run: ProblemRun
    measured: list[TrialRecord] = field(init=False)

    def __post_init__(self) -> None:
        self.measured = [
            record for record in self.run.records if record.state is TrialState.OK and record.median_s is not None
        ]

    @cached_property
    def times(self) -> Floats:
        """Times of what was measured, seconds: ndarray of shape (n_measured,)."""
        return np.array([record.median_s for record in self.measured], dtype=np.float64)

    @cached_property
    def reference_s(self) -> float | None:
        """Time of cuBLAS: as raced against the winner, or as timed once."""
        declared = self.run.declaration
        return (
            declared.reference.median_s
            if declared is not None and declared.reference is not None
            else self.run.reference_s
        )

    @cached_property
    def curve(self) -> Curve | None:
        """The best so far; None where nothing was measured."""
        if not self.measured:
            return None
        ends = np.array([record.elapsed_s for record in self.measured], dtype=np.float64)
        in_seconds = not self.run.replayed and bool(np.all(np.isfinite(ends) & (ends > 0.0)))
        at = ends if in_seconds else np.array([record.number + 1.0 for record in self.measured])
        order = np.argsort(at, kind="stable")
        at, best = at[order], np.minimum.accumulate(self.times[order])
        steps = np.flatnonzero(np.diff(best, prepend=np.inf) < 0.0)
        last = max(at[-1], self.run.seconds.get("total", 0.0) if in_seconds else float(len(self.run.records)))
        of = self.reference_s if self.reference_s is not None else float(best[-1])
        return Curve(
            np.append(at[steps], last),
            of / np.append(best[steps], best[-1]),
            "final best" if self.reference_s is None else "cuBLAS",
            "s" if in_seconds else "trials",
        )

    @cached_property
    def predictions(self) -> Predictions:
        """What was predicted and measured, of trials that both is known of."""
        known = [record for record in self.measured if _finite(record.predicted)]
        predicted = np.exp(np.clip([record.predicted for record in known if record.predicted is not None], -30.0, 3.0))
        flops, peak = float(self.run.problem.flops), self.run.peak_flops
        measured = np.exp([log_share(flops, record.median_s, peak) for record in known if record.median_s is not None])
        return Predictions(predicted, measured, _rank_correlation(predicted, measured))

    @cached_property
    def importance(self) -> Importance | None:
        """Which parameters mattered."""
        from mltune.learn.importance import importance

        names = self.run.header.parameters
        columns = {
            name: np.array([record.configuration[name] for record in self.measured], dtype=np.int64) for name in names
        }
        return importance(columns, self.times) if self.measured else None

    @cached_property
    def cells(self) -> Cells | None:
        """The best found over two parameters; None where there are none to choose, or too few or too many to show."""
        names = self._block_shape() or self._two_most_important()
        if names is None or not self.measured:
            return None
        first, second = ([record.configuration[name] for record in self.measured] for name in names)
        rows, columns = tuple(sorted(set(first))), tuple(sorted(set(second)))
        if len(rows) * len(columns) > MOST_CELLS:
            return None
        fastest = np.full((len(rows), len(columns)), np.inf)
        at = np.searchsorted(rows, first), np.searchsorted(columns, second)
        np.minimum.at(fastest, at, self.times)
        tflops = np.where(np.isfinite(fastest), self.run.problem.flops / fastest / 1e12, np.nan)
        return Cells(names, rows, columns, tflops)

    def _block_shape(self) -> tuple[str, str] | None:
        """Return the two parameters that the grid of a launch is computed from: the tile of a block."""
        kernel = self.run.kernel
        if kernel is None or kernel.source is None:
            return None
        names = kernel.parameters_of(name for expression in kernel.grid for name in expression.names)
        ordered = [name for name in kernel.all_parameters if name in names]
        return (ordered[0], ordered[1]) if len(ordered) == 2 else None

    def _two_most_important(self) -> tuple[str, str] | None:
        found = self.importance
        if found is None or len(found.shares) < 2:
            return None
        order = list(self.run.header.parameters)
        first, second = sorted(list(found.shares)[:2], key=order.index)
        return first, second

    @cached_property
    def intensity(self) -> float | None:
        """Operations per byte that must cross the memory bus at least; None where the problem does not say.

        Every operand counts once: A and B are read, C is written, and read where beta is not 0.
        """
        problem = self.run.problem
        return problem.flops / problem.bytes if problem.flops and problem.bytes else None

    @cached_property
    def reference_changes(self) -> Floats:
        """By which share each timing of the reference kernel was off its usual time: ndarray of shape (n_timings,).

        See :func:`mltune.records.reference.usual_s`.
        """
        references = self.run.references
        times = np.array([reference.median_s for reference in references], dtype=np.float64)
        return times / usual_s(references) - 1.0 if references else times

    @cached_property
    def discarded(self) -> int:
        """Samples that were discarded because something held the clock down."""
        return sum(record.measurement.discarded for record in self.run.records if record.measurement is not None)


def failures(runs: Sequence[ProblemRun]) -> list[Failure]:
    """Return the kinds of failure that occurred, the most frequent first; the example is the first that says why."""
    found: list[Failure] = []
    for state in FAILURES:
        failed = [(run.slug, record) for run in runs for record in run.records if record.state is state]
        if failed:
            candidates = [Failure(str(state), len(failed), slug, record) for slug, record in failed]
            found.append(next((one for one in candidates if one.detail), candidates[0]))
    return sorted(found, key=lambda failure: -failure.count)


def hours(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return where the seconds of a run's clock went, by the keys of :data:`HOURS`.

    A phase that its store does not count is 0, and its seconds are in the rest. Compilers and the GPU work side by side
    with all of them.
    """
    spent = {phase: seconds.get(phase, 0.0) for phase in HOURS if phase != "rest"}
    return spent | {"rest": max(seconds.get("total", 0.0) - sum(spent.values()), 0.0)}


def _rank_correlation(predicted: Floats, measured: Floats) -> float | None:
    if len(predicted) < FEWEST_PREDICTED or np.ptp(predicted) == 0.0 or np.ptp(measured) == 0.0:
        return None
    from scipy.stats import spearmanr

    return float(spearmanr(predicted, measured).statistic)


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
