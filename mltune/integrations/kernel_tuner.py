"""mltune's search as a strategy of Kernel Tuner.

Written against Kernel Tuner 1.5 (van Werkhoven, 2019, 10.1016/j.future.2018.08.004).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mltune.errors import UsageError
from mltune.integrations.host import check_least, require
from mltune.kernel.configurations import ConfigurationTable
from mltune.search.plain_search import PlainSearch

FAILURE = sys.float_info.max
"""The cost that Kernel Tuner gives to a configuration that failed."""


def strategy(*, seed: int = 0, batch: int = 1) -> Any:
    """Return mltune's search as an argument ``strategy`` of ``kernel_tuner.tune_kernel``.

    Kernel Tuner builds the search space, applies its restrictions, measures and counts: ``max_fevals`` and
    ``time_limit`` of its ``strategy_options`` end the search. A configuration that fails is learned as failed.

    Parameters
    ----------
    seed : int
    batch : int
        Configurations that Kernel Tuner measures together. Up to 4 cost no evaluations, wider batches some at first.

    Returns
    -------
    kernel_tuner.strategies.wrapper.OptAlgWrapper

    Raises
    ------
    UsageError
        Kernel Tuner is not installed, or ``batch`` is below 1. While tuning: there are several objectives.

    Examples
    --------
    >>> import kernel_tuner
    >>> results, env = kernel_tuner.tune_kernel(
    ...     ..., strategy=strategy(seed=1), strategy_options={"max_fevals": 50}
    ... )  # doctest: +SKIP
    """
    check_least(batch=(batch, 1))
    return require("kernel_tuner.strategies.wrapper", "kernel-tuner>=1.5").OptAlgWrapper(_Search(seed, batch))


@dataclass(slots=True)
class _Search:
    """What Kernel Tuner calls to optimise: it ends by an exception when the budget is spent.

    `costfunc_kwargs` tell Kernel Tuner to take configurations as they are: neither scaled nor moved to the nearest
    valid one.
    """

    seed: int
    batch: int
    costfunc_kwargs: Mapping[str, Any] = field(default_factory=lambda: {"scaling": False, "snap": False})

    def __call__(self, func: Any, searchspace: Any) -> tuple[tuple[Any, ...], float]:
        """Measure configurations of a search space, and return the best one and its cost."""
        objectives = list(func.tuning_options.objective)
        if len(objectives) != 1:
            raise UsageError(
                f"the objectives {', '.join(objectives)} are too many: the search has one; combine them in a metric."
            )
        table = ConfigurationTable.from_rows(searchspace.tune_params, searchspace.list)
        search = PlainSearch(table, seed=self.seed, scale="log" if objectives == ["time"] else "symlog")
        best: tuple[tuple[Any, ...], float] = ((), math.inf)
        while rows := search.ask(self.batch):
            # a cost is smaller for a better configuration, also where the objective is maximised
            for row, cost in zip(rows, func.eval_all([table[row] for row in rows]), strict=True):
                search.tell(row, cost if cost < FAILURE else None)
                if cost < best[1]:
                    best = table[row], cost
        return best
