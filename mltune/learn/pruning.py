"""The skip: calibrated gates, their audit, and the pruner through which Optuna hears of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import optuna
from numpy.typing import NDArray

from mltune.learn.conformal import UpperEnd, upper_quantile

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

Floats = NDArray[np.float64]


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
    (:mod:`mltune.audit`).

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

    def draw_audit(self, skip: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.bool_]:
        """Return which of the skipped are measured all the same.

        One number is drawn for every configuration, skipped or not, so that no draw hangs on the other verdicts.
        """
        return skip & (rng.random(len(skip)) < self.audit)


class SurrogatePruner(optuna.pruners.BasePruner):  # type: ignore[misc]
    """Prunes a trial by what was last reported for it: the optimistic end of its predicted speed.

    Each step has its gate: ``trial.report(optimistic, step=0)`` is judged by the first, ``step=1`` by the second, each
    with its margin. A trial that was never reported is never pruned. The study maximises the log share of the device's
    peak.

    Parameters
    ----------
    gates : sequence of Gate
    """

    def __init__(self, gates: Sequence[Gate]) -> None:
        self.gates = tuple(gates)

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """Return whether the gate of the last reported step says to skip the trial."""
        step = trial.last_step
        if step is None or not 0 <= step < len(self.gates):
            return False
        complete = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
        best = max((float(other.value) for other in complete), default=-math.inf)
        return bool(trial.intermediate_values[step] < best + math.log1p(-self.gates[step].margin))
