"""Strata of a space, each audited by itself, and the bounds that a random sample proves."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from mltune.kernel.coding import Indices

FALSE_SHARE = 0.01
"""The audit grows until it bounds the share of false skips below this."""

AUDIT_CONFIDENCE = 0.95
"""Confidence of the bound on the share of false skips."""

SWITCHES = 12
"""Most switches, which are parameters with two values, whose combinations are strata."""


@dataclass(frozen=True, slots=True)
class Stratum:
    """A part of the space that is audited by itself: ``next`` are its unmeasured configurations in random order.

    The configurations that share the values of two switches are a stratum, for every two and all their values (the
    whole space, where it has not two), and so are those that the model knows least of. Strata overlap. The audited ones
    are the first in the random order, a uniform sample; counts are as in :class:`PruningAudit`.
    """

    left_out: int
    audited: int
    false: int
    next: Indices

    @property
    def share_at_most(self) -> float:
        """Upper bound of the share of fast ones among those that are left out."""
        return missed_at_most(self.left_out, self.audited, self.false) / max(self.left_out, 1)

    def sees(self, group: int, audited: int | None = None) -> float:
        """Return the probability that a random sample meets one of a group (hypergeometric)."""
        size, outside = self.audited if audited is None else audited, max(self.left_out - group, 0)
        if size > outside or not self.left_out:
            return 1.0
        ways = math.lgamma(outside + 1) - math.lgamma(outside - size + 1)
        return 1.0 - math.exp(ways - math.lgamma(self.left_out + 1) + math.lgamma(self.left_out - size + 1))

    def needed(self, group: int, confidence: float) -> int:
        """Return how many more configurations must be audited to meet one of a group with a confidence."""
        sizes = range(self.audited, self.left_out)
        return bisect_left(sizes, confidence, key=lambda size: self.sees(group, size))

    @property
    def surely_met(self) -> int:
        """Least size of a group of which the audit meets one with :data:`AUDIT_CONFIDENCE`."""
        return bisect_left(range(self.left_out), AUDIT_CONFIDENCE, key=self.sees)


def combinations_of(switches: NDArray[np.bool_]) -> list[NDArray[np.bool_]]:
    """Return masks of shape (n_configs,) for the values of every two switches; without two switches one mask of all."""
    pairs = combinations(switches.T[:SWITCHES], 2)
    masks = (
        mask for switch, other in pairs for mask in (switch & other, switch & ~other, ~switch & other, ~switch & ~other)
    )
    return [mask for mask in masks if mask.any()] or [np.ones(len(switches), dtype=bool)]


def missed_at_most(population: int, audited: int, false: int = 0) -> int:
    """Return the largest number of fast configurations in a population that a random sample allows.

    ``false`` of the ``audited`` are fast. The sample is drawn without replacement, so this number is hypergeometric:
    the bound of Clopper and Pearson (1934) for a finite population.
    """
    from scipy.stats import hypergeom

    def is_refuted(missed: int) -> bool:
        return bool(hypergeom.cdf(false, population, missed, audited) <= 1.0 - AUDIT_CONFIDENCE)

    return false + bisect_left(range(false + 1, population - audited + false + 1), True, key=is_refuted)


def audit_size(population: int, false: int = 0) -> int:
    """Return the smallest sample with ``false`` fast ones that bounds their share below :data:`FALSE_SHARE`."""
    sizes, enough = range(min(false, population), population), FALSE_SHARE * population
    return sizes.start + bisect_left(sizes, True, key=lambda size: missed_at_most(population, size, false) < enough)
