"""The table of strategies by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mltune.comparison.baselines import Astra, Random, StockTpe
from mltune.comparison.peers import KernelTuner, OptunaGp
from mltune.comparison.shipped import ShippedSearch
from mltune.comparison.simulation import Strategy
from mltune.errors import UsageError

KERNEL_TUNER = "kernel_tuner:"
"""Prefix of the names of Kernel Tuner's strategies."""

OURS: dict[str, Callable[..., Strategy]] = {
    "mltune": ShippedSearch,
    "mltune-noskip": partial(ShippedSearch, skip=False),
    "mltune-nobuild": partial(ShippedSearch, build=False),
    "mltune-raw": partial(ShippedSearch, build=False, resources=False),
    "mltune-tpe": partial(ShippedSearch, proposer="tpe"),
    "tpe": StockTpe,
    "astra": Astra,
    "random": Random,
}
"""The strategies that need no further package."""

PEERS: dict[str, Callable[..., Strategy]] = {
    name: partial(KernelTuner, strategy=name)
    for name in (
        "hybrid_vndx",
        "adaptive_tabu_greywolf",
        "genetic_algorithm",
        "simulated_annealing",
        "bayes_opt",
    )
} | {"gp": OptunaGp}
"""The strategies of other tools. They need the extra ``peers``."""


def strategy(text: str) -> Strategy:
    """Return the strategy of a name.

    Parameters
    ----------
    text : str
        One of :data:`OURS` or :data:`PEERS`, or ``"kernel_tuner:NAME"``; options of a strategy follow its name, as in
        ``"mltune:batch=4:in_flight=1"``.

    Raises
    ------
    UsageError
        There is no such strategy, or it has no such option.
    """
    if text.startswith(KERNEL_TUNER):
        return KernelTuner(name=text, strategy=text.removeprefix(KERNEL_TUNER))
    name, *pairs = text.split(":")
    make = (OURS | PEERS).get(name)
    if make is None:
        raise UsageError(
            f"a strategy is one of {', '.join(OURS | PEERS)} or {KERNEL_TUNER}NAME, but there is none called {name!r}."
        )
    try:
        return make(name=text, **{key: int(value) for key, _, value in (pair.partition("=") for pair in pairs)})
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"options follow a strategy's name as NAME:OPTION=NUMBER, but got {text!r}: {error}."
        ) from error
