"""The searches that a run can be asked for, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mltune.learn.astra import AstraThresholds
from mltune.learn.proposers import Proposer, RandomProposer, TpeProposer
from mltune.learn.sampling import BatchSampler, distributions_of

if TYPE_CHECKING:
    from mltune.kernel.space import SearchSpace
    from mltune.learn.features import Features

SEARCHES = ("model", "tpe", "random", "astra")
"""A Gaussian process that departs from physics; Optuna's TPE made valid and free of duplicates; chance; chance within
the hand-set thresholds of LAWN 267."""


def preload() -> None:
    """Import what a search imports on its way: best done before a compile pool takes all cores."""
    import importlib

    for name in ("scipy.linalg", "scipy.optimize", "scipy.special", "sklearn.ensemble", "mltune.learn.gates"):
        importlib.import_module(name)


def make_sampler(search: str, space: SearchSpace, features: Features, seed: int) -> BatchSampler:
    """Return the sampler of a search.

    Parameters
    ----------
    search : str
        One of :data:`SEARCHES`.
    space : SearchSpace
    features : Features
        Of the kernel, the problem and the device.
    seed : int

    Raises
    ------
    ValueError
        There is no such search.
    BundleError
        The thresholds need resources that the kernel's bundle does not name.
    """
    prior = features.prior if features.has_prior else None
    return BatchSampler(space, prior, seed=seed, proposer=_proposer(search, space, features))


def _proposer(search: str, space: SearchSpace, features: Features) -> Proposer | None:
    if search == "model":
        return None
    if search == "tpe":
        return TpeProposer(space, distributions_of(space))
    if search == "random":
        return RandomProposer(space)
    if search == "astra":
        return RandomProposer(space, AstraThresholds(features.kernel, features.problem, features.device).keeps)
    raise ValueError(f"a search is one of {', '.join(SEARCHES)}, got {search!r}")
