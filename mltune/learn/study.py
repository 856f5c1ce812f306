"""An Optuna study of a run: how trials enter it, and what is read back from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState as OptunaState

from mltune.records.trial import TrialRecord, TrialState

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

    from mltune.kernel.space import SearchSpace

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

FAILED_SCORE = -20.0
"""Log share of peak that Optuna is told for a failed configuration: far below any that ran."""

GATES = ("before_compile", "after_compile")
"""The gates in the order of the steps at which Optuna hears of their predictions."""

_FAILED = "mltune:failed"
_PROPOSED_BY = "mltune:proposed_by"
_TPE_BEST = 40
_TPE_OTHERS = 80


def frozen_trial(
    record: TrialRecord, distributions: Mapping[str, CategoricalDistribution], score: float | None
) -> FrozenTrial:
    """Return a finished trial as Optuna keeps it: what a resumed run rebuilds its study from.

    Parameters
    ----------
    record : TrialRecord
    distributions : mapping of str to CategoricalDistribution
        Those of the sampler.
    score : float or None
        Log share of the device's peak; None where nothing was measured.
    """
    state, intermediate, attributes = _as_optuna_sees_it(record, score)
    return optuna.trial.create_trial(
        state=state,
        value=score if state == OptunaState.COMPLETE else None,
        params=dict(record.configuration),
        distributions=dict(distributions),
        intermediate_values=intermediate,
        user_attrs=attributes,
    )


def tell(study: Study, trial: Trial, record: TrialRecord, score: float | None) -> None:
    """Tell Optuna how a trial that it was asked for has ended.

    The study is then as if the :func:`frozen_trial` of the record had been added to it. A prediction that was reported
    before stays.
    """
    state, intermediate, attributes = _as_optuna_sees_it(record, score)
    for name, value in attributes.items():
        trial.set_user_attr(name, value)
    reported = study.get_trials(deepcopy=False)[trial.number].intermediate_values
    for step, value in intermediate.items():
        if step not in reported:
            trial.report(value, step)
    study.tell(trial, score if state == OptunaState.COMPLETE else None, state)


def _as_optuna_sees_it(
    record: TrialRecord, score: float | None
) -> tuple[OptunaState, dict[int, float], dict[str, Any]]:
    """Return state, intermediate values and user attributes.

    A bare PRUNED has no order among the others, and FAIL is ignored by every sampler: a skip carries its prediction, a
    failure a score far below any that ran.
    """
    attributes = {_PROPOSED_BY: record.proposed_by}
    if score is not None:
        return OptunaState.COMPLETE, {}, attributes
    if record.state == TrialState.SKIPPED:
        skip = record.skip
        return OptunaState.PRUNED, {} if skip is None else {GATES.index(skip.gate): skip.predicted}, attributes
    return OptunaState.PRUNED, {0: FAILED_SCORE}, attributes | {_FAILED: True}


@dataclass(frozen=True, slots=True)
class History:
    """What the trials of a study say.

    Attributes
    ----------
    indices : ndarray of shape (n_finished,)
        The configurations that were measured or failed, sorted: the order in which results came in leaves no trace.
    scores : ndarray of shape (n_finished,)
        Their log shares of peak; NaN for those that failed.
    by_model : ndarray of shape (n_finished,), bool
        Which of them the cost model had proposed.
    tried : set of int
        Every configuration ever proposed, those skipped or still running among them.
    """

    indices: Indices
    scores: Floats
    by_model: NDArray[np.bool_]
    tried: set[int]

    @property
    def measured(self) -> int:
        """Number of configurations with a score."""
        return int(np.isfinite(self.scores).sum())

    def best(self, count: int) -> Indices:
        """Return up to ``count`` of the fastest configurations, the fastest first."""
        order = np.argsort(-self.scores, kind="stable")[: min(count, self.measured)]  # NaN sorts last
        return self.indices[order]


def read_history(study: Study, space: SearchSpace, index_of: dict[int, int]) -> History:
    """Read back what a study knows.

    Parameters
    ----------
    study : Study
    space : SearchSpace
    index_of : dict of int to int
        Index of the configuration by trial number, as far as it was looked up before; what is new is added.
    """
    trials = study.get_trials(deepcopy=False)
    _look_up([trial for trial in trials if trial.number not in index_of and len(trial.params)], space, index_of)
    scores: dict[int, float] = {}
    by_model: dict[int, bool] = {}
    for trial in trials:
        index = index_of.get(trial.number)
        if index is None:
            continue
        by_model[index] = trial.user_attrs.get(_PROPOSED_BY) == "model"
        if trial.state == OptunaState.COMPLETE:
            scores[index] = float(trial.value)
        elif trial.user_attrs.get(_FAILED):
            scores[index] = np.nan
    indices = np.array(sorted(scores), dtype=np.int64)
    tried = {index_of[trial.number] for trial in trials if trial.number in index_of}
    return History(
        indices,
        np.array([scores[index] for index in indices.tolist()], dtype=np.float64),
        np.array([by_model[index] for index in indices.tolist()], dtype=bool),
        tried,
    )


def _look_up(trials: list[FrozenTrial], space: SearchSpace, index_of: dict[int, int]) -> None:
    complete = [trial for trial in trials if space.names == tuple(name for name in space.names if name in trial.params)]
    if not complete:
        return
    columns = {name: np.array([trial.params[name] for trial in complete], dtype=np.int64) for name in space.names}
    for trial, index in zip(complete, space.index_of(columns).tolist(), strict=True):
        if index >= 0:
            index_of[trial.number] = index


def ask_tpe(
    study: Study, distributions: Mapping[str, CategoricalDistribution], count: int, rng: np.random.Generator
) -> list[dict[str, int]]:
    """Ask Optuna's TPE what it would try next, any number of times.

    TPE slows down with every trial that it knows, so it is shown the best and a random share of the others; and it
    weighs the latest most, so they are shown in order of score: what it answers does not depend on when each finished.

    Returns
    -------
    list of dict of str to int
        Values of every parameter: not always valid together, and not always new.
    """
    finished = study.get_trials(deepcopy=False, states=(OptunaState.COMPLETE, OptunaState.PRUNED))
    known = [trial for trial in finished if trial.params.keys() == distributions.keys()]
    ranked = sorted(known, key=lambda trial: (_score(trial), *(trial.params[name] for name in distributions)))
    others = max(0, len(ranked) - _TPE_BEST)
    drawn = np.sort(rng.choice(others, min(others, _TPE_OTHERS), replace=False))
    shown = [ranked[position] for position in drawn] + ranked[others:]
    sampler = optuna.samplers.TPESampler(seed=int(rng.integers(2**31)), n_startup_trials=0, multivariate=True)
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        shadow = optuna.create_study(direction="maximize", sampler=sampler)
    finally:
        optuna.logging.set_verbosity(verbosity)
    shadow.add_trials(shown)
    return [dict(shadow.ask(dict(distributions)).params) for _ in range(count)]


def _score(trial: FrozenTrial) -> float:
    if trial.state == OptunaState.COMPLETE:
        return float(trial.value)
    return float(trial.intermediate_values[trial.last_step]) if trial.intermediate_values else FAILED_SCORE
