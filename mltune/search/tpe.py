"""Optuna's TPE as a proposer, and Optuna's distributions of a space."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from mltune.kernel.coding import row
from mltune.kernel.space import SearchSpace
from mltune.search.history import History
from mltune.search.proposers import Choice, ProposalContext

_TPE_BEST, _TPE_OTHERS = 40, 80


@dataclass(eq=False)
class TpeProposer:
    """Optuna's TPE, with each proposal moved to the nearest valid configuration.

    TPE slows down with every trial, so it gets the best and a random sample. It weighs the latest trials most, so they
    are in the order of scores: its answer does not depend on the time of each.
    """

    name = "tpe"
    space: SearchSpace

    def propose(self, context: ProposalContext, count: int) -> Choice:
        """Ask TPE; see :meth:`Proposer.propose`."""
        distributions, rng = distributions_of(self.space), context.rng
        trials = self._trials(context.history, distributions, rng)
        study = new_study(
            optuna.samplers.TPESampler(seed=int(rng.integers(2**31)), n_startup_trials=0, multivariate=True)
        )
        study.add_trials(trials)
        answers = [study.ask(distributions).params for _ in range(2 * count)]
        columns = {name: np.array([answer[name] for answer in answers], dtype=np.int64) for name in self.space.names}
        return Choice(self.space.nearest(columns))

    def _trials(
        self, history: History, distributions: dict[str, CategoricalDistribution], rng: np.random.Generator
    ) -> list[FrozenTrial]:
        """Return the trials for TPE: a skipped one is pruned with its prediction, a failed one has no value."""
        ended, skipped = len(history.scores), len(history.skipped)
        scores = np.concatenate([history.scores, history.predicted])
        scored = np.concatenate([~np.isnan(history.scores), np.zeros(skipped, dtype=bool)])
        columns = self.space.rows(np.concatenate([history.indices, history.skipped]))
        keys = [columns[name] for name in reversed(list(distributions))]
        ranked = np.lexsort([*keys, np.nan_to_num(scores, nan=-np.inf)])
        rest = max(0, len(ranked) - _TPE_BEST)
        drawn = np.sort(rng.choice(rest, min(rest, _TPE_OTHERS), replace=False))
        return [
            create_trial(
                state=TrialState.COMPLETE if scored[at] else TrialState.PRUNED,
                value=float(scores[at]) if scored[at] else None,
                params=row(columns, at),
                distributions=distributions,
                intermediate_values={} if at < ended else {int(history.gates[at - ended]): float(scores[at])},
            )
            for at in [*ranked[drawn].tolist(), *ranked[rest:].tolist()]
        ]


class Values(CategoricalDistribution):  # type: ignore[misc]
    """A categorical distribution that is shared: Optuna would compare and copy those of every trial, value by value."""

    def __eq__(self, other: object) -> bool:
        return self is other or bool(super().__eq__(other))

    __hash__ = CategoricalDistribution.__hash__

    def __deepcopy__(self, memo: object) -> Values:
        return self


def distributions_of(space: SearchSpace) -> dict[str, CategoricalDistribution]:
    """Return a search space as Optuna distributions, each parameter categorical."""
    return {name: Values(space.values[name]) for name in space.names}


def new_study(sampler: optuna.samplers.BaseSampler) -> Study:
    """Return an empty study that maximises its values, without a message in Optuna's log."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return optuna.create_study(direction="maximize", sampler=sampler)
    finally:
        optuna.logging.set_verbosity(level)
