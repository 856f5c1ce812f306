"""The table of strategies by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mltune.comparison.baselines import Astra, Random, StockTpe
from mltune.comparison.peers import KernelTuner, OptunaGp
from mltune.comparison.shipped import ShippedSearch
from mltune.comparison.simulation import Strategy
from mltune.errors import UsageError
from mltune.files.text import did_you_mean

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


_OPTIONS = {"batch": (1, 4096), "in_flight": (1, 64), "skip": (0, 1), "build": (0, 1), "resources": (0, 1)}
"""The options of mltune's own strategies, and their bounds."""


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
        There is no such strategy, it has no such option, or its package is not installed.
    """
    if text.startswith(KERNEL_TUNER):
        return KernelTuner(name=text, strategy=text.removeprefix(KERNEL_TUNER))
    name, *pairs = text.split(":")
    known = OURS | PEERS
    if name not in known:
        raise UsageError(
            f"a strategy is one of {', '.join(known)} or {KERNEL_TUNER}NAME, but there is none called {name!r}"
            f"{did_you_mean(name, known) or '.'}"
        )
    return known[name](name=text, **dict(_option(name, pair) for pair in pairs))


def _option(name: str, pair: str) -> tuple[str, int]:
    """Return an option of one of our strategies and its value."""
    options = _OPTIONS if name.startswith("mltune") else {}
    key, _, value = pair.partition("=")
    if key not in options:
        has = f"the options of {name} are {', '.join(options)}" if options else f"{name} has no options"
        raise UsageError(f"options follow a strategy's name; {has}, but got {key!r}{did_you_mean(key, options) or '.'}")
    least, most = options[key]
    if not (value.isdecimal() and least <= int(value[:9]) <= most):
        raise UsageError(f"an option is given as {name}:{key}=NUMBER with {least} <= NUMBER <= {most}, got {pair!r}.")
    return key, int(value)


def available() -> tuple[str, ...]:
    """Return the names of all strategies, those of other packages only where these are installed."""

    def is_installed(name: str) -> bool:
        try:
            strategy(name)
        except UsageError:
            return False
        return True

    return (*OURS, *filter(is_installed, PEERS))
