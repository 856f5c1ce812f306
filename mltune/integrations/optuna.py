"""mltune's search as a sampler of Optuna."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import numpy as np
from optuna.distributions import CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from mltune.errors import UsageError
from mltune.kernel.configurations import Restrictions, Values, list_configurations, plain_values
from mltune.search.plain_search import PlainSearch, Scale

ATTRIBUTE = "mltune:configuration"
"""System attribute of a trial with its configuration, which other threads and processes see."""

_ATTEMPTS = 5  # where other processes choose the same configuration at the same time
_LOCK = threading.Lock()
_ABSENT = object()


class MltuneSampler(BaseSampler):  # type: ignore[misc]
    """Sample valid configurations with mltune's search, none twice while one is left.

    A trial gets a whole configuration when it begins; its ``suggest`` methods return the values. The choice depends on
    the seed and the study's trials only: studies can be continued, and shared by threads and processes. Trials that
    failed or were pruned are learned as failures. ``study.optimize`` ends when every configuration has been tried.

    Parameters
    ----------
    parameters : mapping of str to sequence
        The values of each parameter: bool, int, float, str or None.
    restrictions : sequence of str or callable
        Conditions of a configuration: expressions over numeric parameters, such as ``"x * y <= 1024"``
        (:mod:`mltune.kernel.expressions`), or functions that take it as a dict.
    seed : int
    scale : {"symlog", "log"}
        By default the objective may have values of any sign and size. ``"log"`` is for times: ratios count, and a value
        that is not positive is a failure.

    Raises
    ------
    UsageError
        A parameter or a restriction is not as described, no configuration satisfies all, or there are too many. In a
        study: it has several objectives, or the objective suggests other parameters or values.

    Examples
    --------
    >>> import optuna
    >>> sampler = MltuneSampler({"block": [32, 64, 128], "unroll": [1, 2, 4]}, ["block * unroll <= 256"])
    >>> study = optuna.create_study(sampler=sampler)
    >>> def objective(trial):
    ...     block = trial.suggest_categorical("block", [32, 64, 128])
    ...     return abs(block - 64) + trial.suggest_int("unroll", 1, 4)
    >>> study.optimize(objective, n_trials=20)
    >>> len(study.trials), study.best_params
    (8, {'block': 64, 'unroll': 1})
    """

    def __init__(
        self, parameters: Values, restrictions: Restrictions = (), *, seed: int = 0, scale: Scale = "symlog"
    ) -> None:
        self._table = list_configurations(plain_values(parameters), restrictions)
        self._seed = seed
        self._scale: Scale = scale

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Choose the configuration of a trial, and store it where other processes see it."""
        if len(study.directions) > 1:
            raise UsageError(f"the search has one objective, but the study has {len(study.directions)}.")
        with _LOCK:
            for attempt in range(_ATTEMPTS):
                row = self._choose(study, trial, attempt)
                if row is not None:
                    chosen = dict(zip(self._table.names, self._table[row], strict=True))
                    study._storage.set_trial_system_attr(trial._trial_id, ATTRIBUTE, chosen)
                # Of two processes that choose the same at the same time, one or both see it here and choose again.
                results, running = self._known(study, trial)
                if row not in results and row not in running:
                    return

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, Any]:
        """Return nothing: values are given out one by one, whichever method suggests them."""
        return {}

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: dict[str, Any]) -> dict[str, Any]:
        """Return nothing; see :meth:`infer_relative_search_space`."""
        return {}

    def sample_independent(self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: Any) -> Any:
        """Return the value of a parameter in the configuration of the trial."""
        chosen = trial.system_attrs.get(ATTRIBUTE)
        if chosen is None:
            fixed = repr(trial.system_attrs.get("fixed_params"))[:300]
            raise UsageError(f"no configuration of the sampler has {fixed}; enqueue a trial with all its parameters.")
        if param_name not in chosen or not _offers(param_distribution, chosen[param_name]):
            raise UsageError(
                "the objective must suggest the parameters of the sampler with the same values, but it asked for "
                f"{param_name} in {param_distribution!s:.300}, and the sampler chose {chosen!s:.300}."
            )
        return chosen[param_name]

    def _choose(self, study: Study, trial: FrozenTrial, attempt: int) -> int | None:
        """Return the row of a configuration to try; None if none has the values of an enqueued trial."""
        results, running = self._known(study, trial)
        fixed = trial.system_attrs.get("fixed_params", {})
        rows = self._table.rows_with(fixed)
        free = np.ones(len(self._table), dtype=bool)
        free[[*results, *running]] = False
        free_rows = rows[free[rows]]
        rng = np.random.default_rng((self._seed, trial.number))
        if free.sum() <= 1:
            with contextlib.suppress(RuntimeError):  # there is nothing to stop where a caller asks and tells
                study.stop()
        if fixed or not len(free_rows):
            return int(rng.choice(free_rows if len(free_rows) else rows)) if len(rows) else None
        maximise = study.direction == StudyDirection.MAXIMIZE
        search = PlainSearch(self._table, seed=self._seed, scale=self._scale, maximise=maximise)
        search.resume(results, running)
        return int(rng.choice(search.ask(1 + attempt)))

    def _known(self, study: Study, trial: FrozenTrial) -> tuple[dict[int, float | None], list[int]]:
        """Return the results of the other trials by row, and the rows under way."""
        results: dict[int, float | None] = {}
        running = []
        for other in study._storage.get_all_trials(study._study_id, deepcopy=False):  # a pruner may hide some
            chosen = other.system_attrs.get(ATTRIBUTE, other.params)
            row = self._table.row_of([chosen.get(name, _ABSENT) for name in self._table.names])
            if row < 0 or other.number == trial.number:
                continue
            if other.state.is_finished():
                results[row] = other.value if other.state == TrialState.COMPLETE else None
            elif other.state == TrialState.RUNNING:
                running.append(row)
        return results, running


def _offers(distribution: Any, value: Any) -> bool:
    """Return whether a distribution has a value."""
    if isinstance(distribution, CategoricalDistribution):
        return value in distribution.choices
    return isinstance(value, int | float) and bool(distribution.low <= value <= distribution.high)
