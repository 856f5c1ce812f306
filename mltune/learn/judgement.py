"""What one batch is judged by: both gates, as of when the batch was planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mltune.kernel.table import Columns
from mltune.learn.cost_model import CostModel, ExtraTreesModel
from mltune.learn.features import BUILD_COLUMNS, Features
from mltune.learn.pruning import Gate
from mltune.learn.study import GATES, History
from mltune.records.trial import Build, Skip

if TYPE_CHECKING:
    from mltune.kernel.space import SearchSpace

Verdicts = tuple[list[Skip | None], NDArray[np.bool_]]
"""For each configuration why it is skipped, or None; and whether the audit has it measured all the same."""


class Judgement:
    """The gates before and after compiling, calibrated on what was known when a batch was planned.

    What a gate says of a configuration does not depend on when it is asked: a resumed run hears the same.

    Parameters
    ----------
    features : Features
    model : CostModel or None
        The model that the batch was planned with; None skips nothing.
    history : History or None
        What it was fitted to.
    builds : mapping of int to Build
        Builds by index of the configuration, as far as known.
    space : SearchSpace
    seed : int
    """

    def __init__(
        self,
        features: Features,
        model: CostModel | None,
        history: History | None,
        builds: Mapping[int, Build],
        space: SearchSpace,
        seed: int,
    ) -> None:
        self._features = features
        self._seed = seed
        self._gates = {name: Gate(name) for name in GATES}
        self._models: dict[str, CostModel] = {}
        if model is None or history is None or history.measured < self._gates[GATES[0]].minimum:
            return
        self._best = float(np.nanmax(history.scores))
        self._calibrate(GATES[0], model, history)
        known = features.after(
            space.rows(history.indices), build_columns([builds.get(i) for i in history.indices.tolist()])
        )
        second = ExtraTreesModel(random_state=seed).fit(known, history.scores)
        self._calibrate(GATES[1], second, history)

    def before(self, columns: Columns, numbers: Sequence[int], exempt: NDArray[np.bool_]) -> Verdicts:
        """Judge configurations before compiling.

        Parameters
        ----------
        columns : Columns
        numbers : sequence of int
            Trial numbers: the audit is drawn by them.
        exempt : ndarray of shape (n_configs,), bool
            Which are never skipped: what explores.
        """
        return self._judge(GATES[0], lambda: self._features.before(columns), numbers, exempt)

    def after(
        self, columns: Columns, builds: Sequence[Build], numbers: Sequence[int], exempt: NDArray[np.bool_]
    ) -> Verdicts:
        """Judge configurations after compiling; see :meth:`before`."""
        return self._judge(GATES[1], lambda: self._features.after(columns, build_columns(builds)), numbers, exempt)

    def _calibrate(self, name: str, model: CostModel, history: History) -> None:
        self._gates[name].calibrate(history.scores, model.unseen(), history.by_model)
        self._models[name] = model

    def _judge(
        self, name: str, table: Callable[[], NDArray[np.float64]], numbers: Sequence[int], exempt: NDArray[np.bool_]
    ) -> Verdicts:
        gate, model = self._gates[name], self._models.get(name)
        if model is None or not np.isfinite(gate.width) or not len(numbers):
            return [None] * len(numbers), np.zeros(len(numbers), dtype=bool)
        predicted, _ = model.predict(table())
        verdict = gate.verdict(predicted, self._best)
        skips = [
            Skip(name, float(mean), float(end)) if skip else None
            for skip, mean, end in zip(verdict.skip & ~exempt, verdict.predicted, verdict.optimistic, strict=True)
        ]
        step = GATES.index(name)
        drawn = [float(np.random.default_rng((self._seed, number, step)).random()) for number in numbers]
        return skips, np.array([skip is not None for skip in skips]) & (np.array(drawn) < gate.audit)


def build_columns(builds: Sequence[Build | None]) -> dict[str, NDArray[np.float64]]:
    """Return what builds say as columns; NaN where nothing is known."""
    return {
        name: np.array(
            [np.nan if build is None or getattr(build, name) is None else getattr(build, name) for build in builds],
            dtype=np.float64,
        )
        for name in BUILD_COLUMNS
    }
