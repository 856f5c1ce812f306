"""The history of a search: trials in an Optuna study, and the arrays that proposals are computed from."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState as OptunaState

from mltune.kernel.columns import Floats, Indices, row
from mltune.records.trial import GATES, TrialRecord, TrialState
from mltune.records.trials import Trials

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

    from mltune.kernel.space import SearchSpace

FAILED_SCORE = -sys.float_info.max
"""Score of a failed configuration in Optuna: below every configuration that ran, whatever the unit of the scores."""

_FAILED = "mltune:failed"
_PROPOSED_BY = "mltune:proposed_by"
_TPE_BEST = 40
_TPE_OTHERS = 80


def new_study(sampler: optuna.samplers.BaseSampler) -> Study:
    """Return an empty study that maximises its values, and limit the log of Optuna to warnings."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(direction="maximize", sampler=sampler)


def tell(study: Study, trial: Trial, record: TrialRecord, score: float | None) -> None:
    """Report the end of a trial to the study that proposed it. A prediction that was reported before is kept.

    Parameters
    ----------
    score : float or None
        Log share of the device's peak; None when nothing was measured.
    """
    state, intermediate, attributes = _optuna_fields(record, score)
    for name, value in attributes.items():
        trial.set_user_attr(name, value)
    reported = study.get_trials(deepcopy=False)[trial.number].intermediate_values if intermediate else {}
    for step, value in intermediate.items():
        if step not in reported:
            trial.report(value, step)
    study.tell(trial, score if state == OptunaState.COMPLETE else None, state)


def _optuna_fields(record: TrialRecord, score: float | None) -> tuple[OptunaState, dict[int, float], dict[str, Any]]:
    """Return state, intermediate values and user attributes.

    A PRUNED trial without a value has no rank, and samplers ignore FAIL. A skipped trial therefore carries its
    prediction, a failed one :data:`FAILED_SCORE`.
    """
    attributes: dict[str, Any] = {_PROPOSED_BY: record.proposed_by}
    if score is not None:
        return OptunaState.COMPLETE, {}, attributes
    if record.state == TrialState.SKIPPED:
        skip = record.skip
        return OptunaState.PRUNED, {} if skip is None else {GATES.index(skip.gate): skip.predicted}, attributes
    return OptunaState.PRUNED, {0: FAILED_SCORE}, attributes | {_FAILED: True}


@dataclass(frozen=True, slots=True)
class History:
    """The trials of a study as arrays.

    Attributes
    ----------
    indices : ndarray of shape (n_finished,)
        The configurations that were measured or failed, in the order of trial numbers: the order in which results
        arrived does not matter.
    scores : ndarray of shape (n_finished,)
        Their log shares of peak; NaN for failures.
    skipped, predicted, gates : ndarray of shape (n_skipped,)
        The configurations that a gate skipped, their predicted log shares of peak, and the gate: its position in
        :data:`mltune.records.trial.GATES`.
    running : ndarray of shape (n_running,)
        The configurations under way.
    tried : set of int
        Every configuration proposed so far, including those skipped or still running.
    """

    indices: Indices
    scores: Floats
    skipped: Indices
    predicted: Floats
    gates: Indices
    running: Indices
    tried: set[int]

    @property
    def measured(self) -> int:
        """Number of configurations with a score."""
        return int(np.isfinite(self.scores).sum())

    def best(self, count: int) -> Indices:
        """Return up to ``count`` of the fastest configurations, the fastest first."""
        order = np.argsort(-self.scores, kind="stable")[: min(count, self.measured)]  # NaN sorts last
        return self.indices[order]


class HistoryReader:
    """Read the history from a study, each finished trial only once, and from the records of an earlier part of the run.

    Attributes
    ----------
    index_of : dict of int to int
        Index of the configuration by trial number. A caller can add known ones, which saves a look-up.
    """

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self.index_of: dict[int, int] = {}
        self._ended = 0
        self._past = _Facts()

    def recall(self, trials: Trials, scores: Floats) -> None:
        """Add trials of an earlier part of the run, in the order of their numbers, before those of the study.

        Parameters
        ----------
        scores : ndarray of shape (n_trials,)
            Their log shares of the device's peak; NaN where nothing was measured.
        """
        skipped = trials.in_state(TrialState.SKIPPED) & np.isnan(scores)
        indices = trials.column("index")
        self._past.tried.update(indices.tolist())
        self._past.scores.update(zip(indices[~skipped].tolist(), scores[~skipped].tolist(), strict=True))
        gates = (GATES.index(gate) for gate in trials.column("gate")[skipped].tolist())
        predicted = trials.column("predicted")[skipped].tolist()
        self._past.skipped.update(zip(indices[skipped].tolist(), zip(predicted, gates, strict=True), strict=True))

    def read(self, study: Study) -> History:
        """Return the current history: that of the trials recalled, then that of the study."""
        trials = study.get_trials(deepcopy=False)
        rest = trials[self._ended :]
        self._look_up([trial for trial in rest if trial.number not in self.index_of and trial.params])
        under_way = next((at for at, trial in enumerate(rest) if not trial.state.is_finished()), len(rest))
        for trial in rest[:under_way]:
            self._past.add(trial, self.index_of.get(trial.number))
        self._ended += under_way
        facts = self._past.copy()
        for trial in rest[under_way:]:
            facts.add(trial, self.index_of.get(trial.number))
        return facts.history()

    def _look_up(self, trials: list[FrozenTrial]) -> None:
        names = self.space.names
        complete = [trial for trial in trials if all(name in trial.params for name in names)]
        if not complete:
            return
        columns = {name: np.array([trial.params[name] for trial in complete], dtype=np.int64) for name in names}
        for trial, index in zip(complete, self.space.index_of(columns).tolist(), strict=True):
            if index >= 0:
                self.index_of[trial.number] = index


@dataclass(slots=True)
class _Facts:
    """Facts of some trials by index of the configuration."""

    scores: dict[int, float] = field(default_factory=dict)
    skipped: dict[int, tuple[float, int]] = field(default_factory=dict)  # prediction and gate
    running: list[int] = field(default_factory=list)
    tried: set[int] = field(default_factory=set)

    def copy(self) -> _Facts:
        return _Facts(self.scores.copy(), self.skipped.copy(), self.running.copy(), self.tried.copy())

    def add(self, trial: FrozenTrial, index: int | None) -> None:
        if index is None:
            return
        self.tried.add(index)
        if trial.state == OptunaState.COMPLETE:
            self.scores[index] = float(trial.value)
        elif trial.state == OptunaState.RUNNING:
            self.running.append(index)
        elif trial.user_attrs.get(_FAILED):
            self.scores[index] = np.nan
        elif trial.intermediate_values:
            assert trial.last_step is not None  # noqa: S101 - it has a value at that step
            self.skipped[index] = float(trial.intermediate_values[trial.last_step]), trial.last_step

    def history(self) -> History:
        return History(
            _array(self.scores, np.int64),
            _array(self.scores.values(), np.float64),
            _array(self.skipped, np.int64),
            _array([predicted for predicted, _ in self.skipped.values()], np.float64),
            _array([gate for _, gate in self.skipped.values()], np.int64),
            _array(self.running, np.int64),
            self.tried,
        )


def _array(values: Collection[float], dtype: type[Any]) -> NDArray[Any]:
    return np.fromiter(values, dtype=dtype, count=len(values))


def milestone(count: int, *, first: int = 8, growth: float = 1.25) -> int:
    """Return the number of trials, the earliest of ``count`` finished ones, that a model is fitted to.

    The cost of fitting per trial falls as their number grows. Because the earliest trials never change, a resumed run
    fits the same models as the interrupted one.

    Parameters
    ----------
    first : int
        Number of trials of the first fit; 0 is returned before it.
    growth : float
        Factor between two fits.
    """
    at, following = 0, first
    while following <= count:
        at, following = following, max(following + first, int(following * growth))
    return at


def fastest_and_some(speed: Floats, most: int, fastest: int, rng: np.random.Generator) -> Indices:
    """Return the rows that a model is fitted to: all, or the fastest and a random sample of the others.

    Parameters
    ----------
    speed : ndarray of shape (n_configs,)
        NaN ranks last.
    most : int
        Largest number of rows.
    fastest : int
        Number of them that are the fastest.
    rng : numpy.random.Generator
        Used only when there are more than ``most`` rows.

    Returns
    -------
    ndarray of shape (min(n_configs, most),)
        Sorted.
    """
    if len(speed) <= most:
        return np.arange(len(speed))
    first, others = np.split(np.argsort(-speed, kind="stable"), [fastest])
    return np.sort(np.concatenate([first, rng.choice(others, most - fastest, replace=False)]))


def ask_tpe(
    history: History,
    space: SearchSpace,
    distributions: Mapping[str, CategoricalDistribution],
    count: int,
    rng: np.random.Generator,
) -> list[dict[str, int]]:
    """Ask Optuna's TPE for several proposals.

    TPE slows down with every trial, so it gets the best and a random sample of the others. It weighs the
    latest trials most, so they are given in the order of scores: its answer does not depend on when each finished.

    Returns
    -------
    list of dict of str to int
        Values of every parameter. They may violate restrictions and may repeat.
    """
    scores = np.concatenate([history.scores, np.full(len(history.skipped), np.nan)])
    pruned = np.concatenate([np.full(len(history.scores), FAILED_SCORE), history.predicted])
    gates = np.concatenate([np.zeros(len(history.scores), dtype=np.int64), history.gates])
    columns = space.rows(np.concatenate([history.indices, history.skipped]))
    keys = [columns[name] for name in reversed(list(distributions))]
    ranked = np.lexsort([*keys, np.where(np.isnan(scores), pruned, scores)])
    others = max(0, len(ranked) - _TPE_BEST)
    drawn = np.sort(rng.choice(others, min(others, _TPE_OTHERS), replace=False))
    sampler = optuna.samplers.TPESampler(seed=int(rng.integers(2**31)), n_startup_trials=0, multivariate=True)
    shadow = new_study(sampler)
    for at in [*ranked[drawn].tolist(), *ranked[others:].tolist()]:
        ended = not np.isnan(scores[at])
        trial = optuna.trial.create_trial(
            state=OptunaState.COMPLETE if ended else OptunaState.PRUNED,
            value=float(scores[at]) if ended else None,
            params=row(columns, at),
            distributions=dict(distributions),
            intermediate_values={} if ended else {int(gates[at]): float(pruned[at])},
        )
        shadow.add_trial(trial)
    return [dict(shadow.ask(dict(distributions)).params) for _ in range(count)]
