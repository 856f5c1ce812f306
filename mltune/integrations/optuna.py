"""mltune's search as a sampler of Optuna."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from optuna.distributions import CategoricalDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.samplers import BaseSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from mltune.errors import UsageError
from mltune.kernel.configurations import Restrictions, Values, list_configurations, plain_values
from mltune.search.plain_search import PlainSearch, Scale

ATTRIBUTE = "mltune:configuration"
"""System attribute of a trial with its configuration, which other threads and processes see."""

_OWNER, _ENDED = "mltune:owner", "mltune:ended"
"""System attributes of a trial of ``study.optimize``: the thread that runs it, and that its end was reported."""

_MOST_LOSSES = 3
"""A configuration whose trials were lost so often fails: it may be what kills the process."""

_LEAST_STALE_S, _STALE_FACTOR = 60.0, 10
_ATTEMPTS = 5  # where other processes choose the same configuration at the same time
_LOCK = threading.Lock()
_ABSENT = object()


class MltuneSampler(BaseSampler):  # type: ignore[misc]
    """Sample valid configurations with mltune's search, none twice while one is left.

    A trial gets a whole configuration when it begins; its ``suggest`` methods return the values. The choice depends on
    the seed and the study's trials only: studies can be continued, and shared by threads and processes. Trials that
    failed or were pruned are learned as failures. ``study.optimize`` ends when every configuration has been tried.

    The configuration of a trial whose process was killed is proposed again, and first: once the thread of this computer
    that ran it has ended, once Optuna's heartbeat is stale, or once the trial has run for `stale_after`. A trial that
    was asked for and never told is proposed again at the latest when nothing else is left.

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
    stale_after : float, optional
        Seconds after which a trial that runs elsewhere is taken for lost; by default ten times the longest trial of the
        study, and at least a minute.

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
        self,
        parameters: Values,
        restrictions: Restrictions = (),
        *,
        seed: int = 0,
        scale: Scale = "symlog",
        stale_after: float | None = None,
    ) -> None:
        self._table = list_configurations(plain_values(parameters), restrictions)
        self._seed = seed
        self._scale: Scale = scale
        self._stale_after = stale_after

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Choose the configuration of a trial, and store it where other processes see it."""
        if len(study.directions) > 1:
            raise UsageError(f"the study has {len(study.directions)} objectives; the search has one.")
        with _LOCK:
            _fail_stale(study, trial)
            for attempt in range(_ATTEMPTS):
                row = self._choose(study, trial, attempt)
                if row is not None:
                    chosen = dict(zip(self._table.names, self._table[row], strict=True))
                    study._storage.set_trial_system_attr(trial._trial_id, ATTRIBUTE, chosen)
                # Of two processes that choose the same at the same time, one or both see it here and choose again.
                seen = self._seen(study, trial)
                if row not in seen.results and row not in seen.running:
                    return

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Any) -> None:
        """Note that a trial has ended: one that Optuna fails because its process was killed has not."""
        study._storage.set_trial_system_attr(trial._trial_id, _ENDED, True)

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
                f"the objective asked for {param_name} in {param_distribution!s:.300}, and the sampler chose "
                f"{chosen!s:.300}; it must suggest the parameters of the sampler with the same values."
            )
        return chosen[param_name]

    def _choose(self, study: Study, trial: FrozenTrial, attempt: int) -> int | None:
        """Return the row of a configuration to try; None if none has the values of an enqueued trial."""
        seen, attributes = self._seen(study, trial), trial.system_attrs
        is_retry = "failed_trial" in attributes  # of Optuna's RetryHeartbeatStaleTrialCallback
        fixed = (is_retry and attributes.get(ATTRIBUTE)) or attributes.get("fixed_params", {})
        rows = self._table.rows_with(fixed)
        free = np.ones(len(self._table), dtype=bool)
        free[[*seen.results, *seen.running]] = False
        free_rows = rows[free[rows]]
        rng = np.random.default_rng((self._seed, trial.number))
        if free.sum() + len(seen.abandoned) <= 1 and not seen.waiting:
            with contextlib.suppress(RuntimeError):  # there is nothing to stop where a caller asks and tells
                study.stop()
        if fixed or not len(free_rows):
            again = [] if fixed else seen.abandoned[:1]
            candidates = free_rows if len(free_rows) else again or rows
            return int(rng.choice(candidates)) if len(candidates) else None
        if attempt < len(seen.lost):
            return seen.lost[attempt]
        maximise = study.direction == StudyDirection.MAXIMIZE
        search = PlainSearch(self._table, seed=self._seed, scale=self._scale, maximise=maximise)
        search.resume(seen.results, seen.running)
        return int(rng.choice(search.ask(1 + attempt)))

    def _seen(self, study: Study, trial: FrozenTrial) -> _Seen:
        """Return what the other trials of a study say of the configurations."""
        trials = study._storage.get_all_trials(study._study_id, deepcopy=False)  # a pruner may hide some
        seen, lost, alive = _Seen(), list[int](), set[int]()
        lasted = [other.duration.total_seconds() for other in trials if other.duration is not None]
        limit_s = max(_LEAST_STALE_S, _STALE_FACTOR * max(lasted)) if lasted else float("inf")
        for other in trials:
            seen.waiting |= other.state == TrialState.WAITING
            chosen = other.system_attrs.get(ATTRIBUTE, other.params)
            row = self._table.row_of([chosen.get(name, _ABSENT) for name in self._table.names])
            if row < 0 or other.number == trial.number:
                continue
            if other.state.is_finished():
                is_lost = other.state == TrialState.FAIL and _owner_of(other) is not None
                if is_lost and _ENDED not in other.system_attrs:
                    lost.append(row)
                else:
                    seen.results[row] = other.value if other.state == TrialState.COMPLETE else None
            elif other.state == TrialState.RUNNING:
                is_alive = _is_alive(_owner_of(other))
                if is_alive is None and _age_s(other) > (self._stale_after or limit_s):
                    lost.append(row)
                else:
                    seen.running.append(row)
                    alive |= {row} if is_alive else set()
            elif "failed_trial" in other.system_attrs:
                seen.running.append(row)
        losses = Counter(lost)
        seen.results |= {row: None for row in losses if losses[row] >= _MOST_LOSSES and row not in seen.results}
        seen.lost = [row for row in losses if row not in seen.results and row not in seen.running]
        begun_last_first = dict.fromkeys(reversed(seen.running))
        seen.abandoned = [row for row in reversed(begun_last_first) if row not in alive and row not in seen.results]
        return seen


@dataclass(slots=True)
class _Seen:
    """Configurations of a study by row: results, under way, lost with their process, and perhaps never told.

    `abandoned` are those under way of which nobody knows whether they still run, the first begun first.
    """

    results: dict[int, float | None] = field(default_factory=dict)
    running: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    abandoned: list[int] = field(default_factory=list)
    waiting: bool = False


def _fail_stale(study: Study, trial: FrozenTrial) -> None:
    """Note the thread that runs a trial, and fail trials whose thread has ended; Optuna fails stale heartbeats."""
    owner = _owner() if getattr(study._thread_local, "in_optimize_loop", False) else None
    for other in study._storage.get_all_trials(study._study_id, deepcopy=False, states=(TrialState.RUNNING,)):
        its_owner = _owner_of(other)
        is_earlier = its_owner is not None and its_owner == owner  # a thread runs one trial at a time
        if other.number != trial.number and (is_earlier or _is_alive(its_owner) is False):
            with contextlib.suppress(UpdateFinishedTrialError):
                study._storage.set_trial_state_values(other._trial_id, TrialState.FAIL)
    if owner is not None:
        study._storage.set_trial_system_attr(trial._trial_id, _OWNER, [*owner, trial.number])


def _owner_of(trial: FrozenTrial) -> list[Any] | None:
    """Return the thread that runs or ran a trial; Optuna copies the attribute of a lost trial to its retry."""
    *owner, number = trial.system_attrs.get(_OWNER) or [None]
    return owner if number == trial.number else None


def _owner() -> list[Any] | None:
    """Return what identifies this thread: the system that it runs in, its numbers, and when it began."""
    try:
        pid, thread = os.getpid(), threading.get_native_id()
        return [_system(), pid, thread, _began(pid, thread)]
    except OSError:
        return None


def _is_alive(owner: list[Any] | None) -> bool | None:
    """Return whether a thread still runs; None where that is not known."""
    try:
        system, pid, thread, began = owner or ["", 0, 0, ""]
        if system != _system():
            return None
    except OSError:
        return None
    try:
        return bool(_began(pid, thread) == began)
    except OSError:
        return False


def _system() -> str:
    """Return what identifies a boot of a computer and the numbers of processes in it."""
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"


def _began(pid: int, thread: int) -> str:
    return Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()[19]


def _age_s(trial: FrozenTrial) -> float:
    began = trial.datetime_start
    return 0.0 if began is None else (datetime.now(began.tzinfo) - began).total_seconds()


def _offers(distribution: Any, value: Any) -> bool:
    """Return whether a distribution has a value."""
    if isinstance(distribution, CategoricalDistribution):
        return value in distribution.choices
    return isinstance(value, int | float) and bool(distribution.low <= value <= distribution.high)
