"""Projection: what a strategy proposes that knows nothing of a space's gaps, moved to the nearest configuration."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import Trial

    from mltune.kernel.space import TableSpace

SPARSE = 0.01
"""A space with less than this share of the raw combinations of its values is sparse: hardly a proposal is in it."""


def is_sparse(space: TableSpace) -> bool:
    """Return whether nearly all combinations of values lie outside a space, as they do in a sample of a larger one."""
    return space.count < SPARSE * math.prod(len(values) for values in space.values.values())


class Projection:
    """Finds the nearest configuration that was not tried.

    A parameter counts by how many of its values lie between, as a share of its range.

    Parameters
    ----------
    space : TableSpace
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
        """Whether everything has been tried."""
        return bool(self._tried.all())

    def take(self, codes: Any) -> int:
        """Return the index of the nearest untried configuration, which then is tried.

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


def tell_instead(
    study: Study, trial: Trial, params: Mapping[str, int], distributions: Mapping[str, BaseDistribution], score: float
) -> None:
    """Tell a study of another configuration than the one that it proposed: its trial is forgotten (FAIL is ignored)."""
    import optuna

    study.tell(trial, state=optuna.trial.TrialState.FAIL)
    study.add_trial(
        optuna.trial.create_trial(params=dict(params), distributions=dict(distributions), value=float(score))
    )
