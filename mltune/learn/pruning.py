"""The skip: calibrated gates, their audit, and the pruner through which Optuna hears of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import optuna
from numpy.typing import NDArray

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

    The interval is one-sided and conformal (Vovk, Gammerman and Shafer, 2005): the optimistic end lies as far above the
    prediction as a share ``confidence`` of the measurements do that the model had not seen. Only the faster half of
    what was measured counts for it, because a skip is a mistake only where the configuration is fast: the guarantee is
    for the configurations that matter (class-conditional, not marginal).

    A search measures mostly what its own model proposed, and there the model errs least. So the interval is calibrated
    on what the model proposed and on what chance or another sampler did separately, and the wider of the two holds: for
    either kind, the promise is kept.

    Until ``minimum`` configurations have been measured the interval is unbounded: nothing is skipped.

    Parameters
    ----------
    name : str
        As in :class:`mltune.records.trial.Skip`.
    confidence : float
        Share of the fast configurations whose speed lies below the optimistic end.
    margin : float
        A configuration whose optimistic end is less than this share slower than the best is measured all the same.
    audit : float
        Share of the skips that is measured all the same.
    minimum : int
        Measured configurations before the first skip.

    Attributes
    ----------
    width : float
        From the prediction to the optimistic end, log share of peak.
    """

    def __init__(
        self, name: str, *, confidence: float = 0.95, margin: float = 0.05, audit: float = 0.05, minimum: int = 40
    ) -> None:
        self.name = name
        self.confidence = confidence
        self.margin = margin
        self.audit = audit
        self.minimum = minimum
        self.width = math.inf

    def calibrate(self, measured: Floats, predicted: Floats, by_model: NDArray[np.bool_] | None = None) -> None:
        """Set the width of the interval.

        Parameters
        ----------
        measured : ndarray of shape (n_configs,)
            Log share of peak; NaN for failures, which are left out.
        predicted : ndarray of shape (n_configs,)
            What the model predicted for each without having seen it; NaN where there is no such prediction.
        by_model : ndarray of shape (n_configs,), bool, optional
            Which of them the model itself had proposed; by default none.
        """
        known = np.isfinite(measured) & np.isfinite(predicted)
        by_model = np.zeros_like(known) if by_model is None else by_model
        groups = [known & ~by_model] + ([known & by_model] if (known & by_model).any() else [])
        enough = known.sum() >= self.minimum
        self.width = max(self._width(measured[rows], predicted[rows]) for rows in groups) if enough else math.inf

    def _width(self, measured: Floats, predicted: Floats) -> float:
        if len(measured) == 0:
            return math.inf
        fast = measured >= np.median(measured)
        residuals = np.sort(measured[fast] - predicted[fast])
        rank = math.ceil((len(residuals) + 1) * self.confidence)
        return max(0.0, float(residuals[rank - 1])) if rank <= len(residuals) else math.inf

    def verdict(self, predicted: Floats, best: float) -> Verdict:
        """Judge a batch.

        Parameters
        ----------
        predicted : ndarray of shape (n_configs,)
            Predicted log share of peak.
        best : float
            The best measured so far; minus infinity when there is none.
        """
        predicted = np.asarray(predicted, dtype=np.float64)
        optimistic = predicted + self.width
        return Verdict(optimistic < best + math.log1p(-self.margin), predicted, optimistic)

    def draw_audit(self, skip: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.bool_]:
        """Return which of the skipped are measured all the same.

        One number is drawn for every configuration, skipped or not, so that no draw hangs on the other verdicts.
        """
        return skip & (rng.random(len(skip)) < self.audit)


class SurrogatePruner(optuna.pruners.BasePruner):  # type: ignore[misc]
    """Prunes a trial by the prediction that was last reported for it.

    Each step has its gate: ``trial.report(prediction, step=0)`` is judged by the first, ``step=1`` by the second. A
    trial that was never reported is never pruned. The study maximises the log share of the device's peak.

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
        verdict = self.gates[step].verdict(np.array([trial.intermediate_values[step]]), best)
        return bool(verdict.skip[0])
