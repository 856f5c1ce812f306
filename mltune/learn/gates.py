"""What one batch is judged by: both gates, as of when the batch was planned."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mltune.kernel.columns import Columns, Floats
from mltune.learn.conformal import UpperEnd, upper_quantile
from mltune.learn.cost_model import CostModel
from mltune.learn.extra_trees import ExtraTreesModel
from mltune.learn.features import BUILD_COLUMNS, Features
from mltune.learn.history import History, fastest_and_some, milestone
from mltune.records.trial import GATES, Build, Skip

if TYPE_CHECKING:
    from mltune.kernel.space import SearchSpace

Verdicts = tuple[list[Skip | None], NDArray[np.bool_]]
"""For each configuration why it is skipped, or None; and whether the audit has it measured all the same."""


MOST_ROWS = 1000
"""Configurations that a model learns from: a fifth of them the fastest, the others at random."""

GROWTH = 1.5
"""The models are fitted again when so many times as many configurations have been measured."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a gate says of a batch of configurations.

    Attributes
    ----------
    skip : ndarray of shape (n_configs,), bool
    predicted, optimistic : ndarray of shape (n_configs,)
        Predicted log share of the device's peak, and the optimistic end of its interval.
    """

    skip: NDArray[np.bool_]
    predicted: Floats
    optimistic: Floats


class Gate:
    """Skips a configuration if even the optimistic end of its predicted speed is below the best so far, less a margin.

    Two promises are kept apart. The ``interval`` has marginal coverage: a share ``confidence`` of all configurations
    lies below its end (:class:`mltune.learn.conformal.UpperEnd`). That is not enough to skip by, because a skip is a
    mistake only where the configuration is fast, and the fastest are those that a model underrates: it regresses to the
    mean. So the gate decides by the wider of that interval and one calibrated on the fastest tenth of what was measured
    alone (class-conditional), or on as many of the fastest as ``confidence`` needs to promise anything.

    A search measures mostly what its own model proposed, and there the model errs least. What was drawn at random and
    what the audit had measured are part of the calibration, and the audit says how often a skip was wrong
    (:mod:`mltune.results.audit`).

    Until ``minimum`` configurations have been measured nothing is skipped.

    Parameters
    ----------
    name : str
        As in :class:`mltune.records.trial.Skip`.
    confidence : float
        Share of the configurations whose speed lies below the optimistic end.
    margin : float
        A configuration whose optimistic end is less than this share slower than the best is measured all the same.
    audit : float
        Share of the skips that is measured all the same.
    minimum : int
        Measured configurations before the first skip.

    Attributes
    ----------
    interval : UpperEnd
        With marginal coverage.
    cautious : UpperEnd
        What the gate decides by: as wide, or wider.
    """

    def __init__(
        self, name: str, *, confidence: float = 0.95, margin: float = 0.02, audit: float = 0.05, minimum: int = 24
    ) -> None:
        self.name = name
        self.confidence = confidence
        self.margin = margin
        self.audit = audit
        self.minimum = minimum
        self.interval = self.cautious = UpperEnd()

    @property
    def is_open(self) -> bool:
        """Whether everything passes, because nothing can be promised yet."""
        return not math.isfinite(self.cautious.width)

    def calibrate(self, measured: Floats, predicted: Floats, spread: Floats) -> None:
        """Set the interval.

        Parameters
        ----------
        measured : ndarray of shape (n_configs,)
            Log share of peak; NaN for failures, which are left out.
        predicted, spread : ndarray of shape (n_configs,)
            What the model predicted for each without having seen it (:meth:`mltune.learn.cost_model.CostModel.unseen`);
            NaN where there is no such prediction.
        """
        known = np.isfinite(measured) & np.isfinite(predicted) & np.isfinite(spread)
        self.interval = self.cautious = UpperEnd()
        if known.sum() < self.minimum:
            return
        measured, predicted, spread = measured[known], predicted[known], spread[known]
        self.interval = UpperEnd.calibrate(measured, predicted, spread, self.confidence)
        fewest = math.ceil(self.confidence / (1.0 - self.confidence) - 1e-9)
        fastest = np.argsort(-measured, kind="stable")[: max(fewest, len(measured) // 10)]
        scores = self.interval.scores(measured[fastest], predicted[fastest], spread[fastest])
        width = max(0.0, self.interval.width, upper_quantile(scores, self.confidence))
        self.cautious = replace(self.interval, width=width)

    def verdict(self, predicted: Floats, spread: Floats, best: float) -> Verdict:
        """Judge a batch.

        Parameters
        ----------
        predicted, spread : ndarray of shape (n_configs,)
            What the model says: log share of peak.
        best : float
            The best measured so far; minus infinity when there is none.
        """
        predicted = np.asarray(predicted, dtype=np.float64)
        optimistic = self.cautious.end(predicted, np.asarray(spread, dtype=np.float64))
        return Verdict(optimistic < best + math.log1p(-self.margin), predicted, optimistic)


class Gates:
    """The gates before and after compiling, calibrated on what was known when a batch was planned.

    Their models are trees on all features: another kind than what proposes, so that they can tell it off. What a gate
    says of a configuration does not depend on when it is asked, and the models are fitted to the earliest trials as a
    schedule says (:func:`mltune.learn.history.milestone`): a resumed run hears the same.

    Parameters
    ----------
    features : Features
    history : History or None
        What is known; None skips nothing.
    builds : mapping of int to Build
        Builds by index of the configuration, as far as known.
    space : SearchSpace
    seed : int
    previous : Gates, optional
        That of the batch before. While the schedule does not ask for another fit, its models and gates are kept.

    Attributes
    ----------
    fitted_to : int
        How many of the earliest trials the models are fitted to.
    is_fresh : bool
        Whether the models were fitted anew.
    """

    def __init__(
        self,
        features: Features,
        history: History | None,
        builds: Mapping[int, Build],
        space: SearchSpace,
        seed: int,
        previous: Gates | None = None,
    ) -> None:
        self._features = features
        self._seed = seed
        self._best = -math.inf if history is None or not history.measured else float(np.nanmax(history.scores))
        finished = 0 if history is None else len(history.indices)
        self.fitted_to = fitted_to = milestone(finished, first=Gate(GATES[0]).minimum, growth=GROWTH)
        self.is_fresh = fitted_to > 0 and (previous is None or previous._gates.fitted_to != fitted_to)
        kept = None if previous is None or self.is_fresh else previous._gates
        self._gates: _FittedGates = kept or _FittedGates(features, history, fitted_to, builds, space, seed)

    def optimistic(self, columns: Columns) -> Floats | None:
        """Return the optimistic ends of what is expected of configurations before compiling.

        Returns
        -------
        ndarray of shape (n_configs,) or None
            Log shares of peak; None while nothing can be promised.
        """
        gate, model = self._gates.get(GATES[0])
        if model is None or gate.is_open:
            return None
        return gate.cautious.end(*model.predict(self._features.before(columns)))

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

    def _judge(
        self, name: str, table: Callable[[], Floats], numbers: Sequence[int], exempt: NDArray[np.bool_]
    ) -> Verdicts:
        nothing: Verdicts = [None] * len(numbers), np.zeros(len(numbers), dtype=bool)
        if exempt.all():
            return nothing
        gate, model = self._gates.get(name)
        if model is None or gate.is_open:
            return nothing
        verdict = gate.verdict(*model.predict(table()), self._best)
        skips = [
            Skip(name, float(mean), float(end)) if skip else None
            for skip, mean, end in zip(verdict.skip & ~exempt, verdict.predicted, verdict.optimistic, strict=True)
        ]
        step = GATES.index(name)
        drawn = [float(np.random.default_rng((self._seed, number, step)).random()) for number in numbers]
        return skips, np.array([skip is not None for skip in skips]) & (np.array(drawn) < gate.audit)


class _FittedGates:
    """Both gates and their models, each fitted when it is first asked for: a run that never skips pays for none."""

    def __init__(
        self,
        features: Features,
        history: History | None,
        fitted_to: int,
        builds: Mapping[int, Build],
        space: SearchSpace,
        seed: int,
    ) -> None:
        self.fitted_to = fitted_to
        self._features = features
        self._history = history
        self._builds = builds
        self._space = space
        self._seed = seed
        self._known: dict[str, tuple[Gate, CostModel | None]] = {}

    def get(self, name: str) -> tuple[Gate, CostModel | None]:
        """Return a gate, calibrated, and its model; None where too little has succeeded."""
        if name not in self._known:
            self._known[name] = self._fit(name)
        return self._known[name]

    def _fit(self, name: str) -> tuple[Gate, CostModel | None]:
        gate, history = Gate(name), self._history
        scores = np.empty(0) if history is None else history.scores[: self.fitted_to]
        if history is None or np.isfinite(scores).sum() < gate.minimum:
            return gate, None
        rng = np.random.default_rng((self._seed, len(scores)))
        rows = fastest_and_some(scores, MOST_ROWS, MOST_ROWS // 5, rng)
        indices, scores = history.indices[rows], scores[rows]
        columns = self._space.rows(indices)
        if name == GATES[0]:
            table = self._features.before(columns)
        else:
            builds = build_columns([self._builds.get(index) for index in indices.tolist()])
            if not any(np.isfinite(column).any() for column in builds.values()):
                return gate, None
            table = self._features.after(columns, builds)
        model = ExtraTreesModel(random_state=self._seed).fit(table, scores)
        gate.calibrate(scores, *model.unseen())
        return gate, model


def spared(proposed_by: Sequence[str], gate: str) -> NDArray[np.bool_]:
    """Return which proposals a gate never skips.

    What explores is never skipped, or a wrong model would confirm itself. What the cost model proposed has been weighed
    against everything else that is known before compiling: only what the compiler says can speak against it.

    Parameters
    ----------
    proposed_by : sequence of str
        See :class:`mltune.learn.sampling.Proposal`.
    gate : {"before_compile", "after_compile"}
    """
    sources = {"random", "start"} | ({"model"} if gate == GATES[0] else set())
    return np.array([one in sources for one in proposed_by], dtype=bool)


def build_columns(builds: Sequence[Build | None]) -> dict[str, NDArray[np.float64]]:
    """Return what builds say as columns; NaN where nothing is known."""
    return {
        name: np.array(
            [np.nan if build is None or getattr(build, name) is None else getattr(build, name) for build in builds],
            dtype=np.float64,
        )
        for name in BUILD_COLUMNS
    }
