"""Baseline strategies: random search, ASTRA's hand-set thresholds and Optuna's unmodified TPE.

The last proposes configurations outside a space, which :class:`Projection` moves to the nearest untried one of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mltune.kernel.columns import row

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import Trial

    from mltune.comparison.simulation import Simulation
    from mltune.kernel.space import TableSpace


SPARSE = 0.01
"""A space with less than this share of the raw combinations of its values is sparse: few proposals are in it."""


def is_sparse(space: TableSpace) -> bool:
    """Return whether nearly all combinations of values are outside a space, as in a sample of a larger space."""
    return space.count < SPARSE * math.prod(len(values) for values in space.values.values())


class Projection:
    """The nearest untried configuration for any combination of values.

    The distance of two values of a parameter is the number of values between them, as a share of all its values.
    """

    def __init__(self, space: TableSpace) -> None:
        columns = space.rows(np.arange(space.count))
        self._names = space.names
        self._values = {name: np.array(space.values[name]) for name in space.names}
        self.codes = np.column_stack([np.searchsorted(self._values[name], columns[name]) for name in space.names])
        self._scaled = (self.codes / np.maximum(self.codes.max(axis=0), 1)).astype(np.float32)
        self._tried = np.zeros(space.count, dtype=bool)

    @property
    def exhausted(self) -> bool:
        """Whether all configurations have been tried."""
        return bool(self._tried.all())

    def take(self, codes: Any) -> int:
        """Return the index of the nearest untried configuration, and mark it as tried.

        Parameters
        ----------
        codes : array_like of shape (n_parameters,)
            Position of each value among the values of its parameter.
        """
        wanted = np.asarray(codes) / np.maximum(self.codes.max(axis=0), 1)
        distance = np.abs(self._scaled - wanted.astype(np.float32)).sum(axis=1)
        distance[self._tried] = np.inf
        index = int(np.argmin(distance))
        self._tried[index] = True
        return index

    def code(self, configuration: Mapping[str, int]) -> list[int]:
        """Return the position of each value of a configuration among the values of its parameter."""
        return [int(np.searchsorted(self._values[name], configuration[name])) for name in self._names]


@dataclass(frozen=True, slots=True)
class Random:
    """Uniform random search without replacement."""

    name: str = "random"

    def search(self, simulation: Simulation, seed: int) -> None:
        """Evaluate in a random order; see :class:`mltune.comparison.simulation.Strategy`."""
        order = np.random.default_rng(seed).permutation(simulation.space.count).tolist()
        simulation.begin()
        for index in order:
            simulation.evaluate(index)


@dataclass(frozen=True, slots=True)
class Astra:
    """ASTRA's hand-set thresholds, with random search among what they keep (:mod:`mltune.search.astra`).

    A configuration that is discarded before compiling costs nothing, one discarded after compiling its compile time.
    When all kept configurations have been measured, the others follow. Nothing is discarded when the bundle lacks the
    resources that the thresholds are computed from.
    """

    name: str = "astra"

    def search(self, simulation: Simulation, seed: int) -> None:
        """Evaluate what is kept in a random order; see :class:`mltune.comparison.simulation.Strategy`."""
        from mltune.errors import BundleError
        from mltune.search.astra import AstraThresholds

        recording, count = simulation.recording, simulation.space.count
        columns = simulation.space.rows(np.arange(count))
        try:
            thresholds = AstraThresholds(recording.kernel, recording.problem, recording.device)
        except BundleError:
            before = after = np.ones(count, dtype=bool)
        else:
            before = thresholds.keeps(columns)
            after = thresholds.keeps(columns, recording.builds) if recording.builds else before
        order = np.random.default_rng(seed).permutation(count)
        simulation.begin()
        discarded = []
        for index in order[before[order]].tolist():
            if after[index]:
                simulation.evaluate(index)
            else:
                simulation.skip(index, after_compile=True)
                discarded.append(index)
        for index in (*discarded, *order[~before[order]].tolist()):
            simulation.evaluate(index)


@dataclass(frozen=True, slots=True)
class StockTpe:
    """Optuna's TPESampler without changes, with one categorical parameter each.

    An invalid proposal is reported as PRUNED without a value, which TPE ranks below every configuration that ran (FAIL
    is ignored); a repeated one with its known result. Neither costs an evaluation. In a sparse space
    (:func:`is_sparse`), such as a random sample of a larger one, almost every
    proposal would be invalid: there each is projected to the nearest configuration not tried yet.
    """

    name: str = "tpe"

    def search(self, simulation: Simulation, seed: int) -> None:
        """Evaluate one proposal at a time; see :class:`mltune.comparison.simulation.Strategy`."""
        import optuna

        from mltune.search.proposers import distributions_of, new_study

        space = simulation.space
        study = new_study(optuna.samplers.TPESampler(seed=seed))
        distributions = distributions_of(space)
        projection = Projection(space) if is_sparse(space) else None
        simulation.begin()
        while projection is None or not projection.exhausted:
            trial = study.ask(distributions)
            if projection is None:
                index = int(space.index_of({name: np.array([value]) for name, value in trial.params.items()})[0])
            else:
                index = projection.take(projection.code(trial.params))
                trial = _moved(study, trial, space, index, distributions)
            median_s = simulation.evaluate(index)
            if median_s is None:
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            else:
                study.tell(trial, -math.log(median_s))


def _moved(
    study: Study, trial: Trial, space: TableSpace, index: int, distributions: Mapping[str, BaseDistribution]
) -> Trial:
    """Replace a trial by one of another configuration: the first ends as FAIL, which samplers ignore."""
    from optuna.trial import TrialState

    study.tell(trial, state=TrialState.FAIL)
    study.enqueue_trial(row(space.rows(np.array([index])), 0))
    return study.ask(dict(distributions))
