"""Audit of skipped configurations: the share of false skips, estimated from a random sample."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mltune.records.trial import GATES, TrialState
from mltune.records.trials import Trials

CONFIDENCE = 0.95
"""Confidence of the bound on the share of false skips."""


@dataclass(frozen=True, slots=True)
class SkipAudit:
    """The audit of the skipped configurations: of those measured anyway, how many were faster than all before them.

    The share of false skips in this random sample is an unbiased estimate for all skips. `false_share_at_most` is its
    upper bound at 95 % confidence, one-sided (Clopper and Pearson, 1934): 1 where nothing was audited.
    """

    skipped: int
    before_compile: int
    after_compile: int
    audited: int
    false: int
    false_share: float | None
    false_share_at_most: float

    def to_json(self) -> dict[str, Any]:
        """Return the audit as plain JSON values."""
        return asdict(self)


def audit_skips(trials: Trials, before: int) -> SkipAudit:
    """Audit the skips of a run from all its trials, in any order, and the number of those before compiling."""
    after = int((trials.in_state(TrialState.SKIPPED) & (trials.column("gate") == GATES[1])).sum())
    audited = trials.column("audited") == 1
    times_s = np.where(trials.succeeded, trials.column("median_s"), np.inf)
    false = int((times_s < _best_before(trials.column("batch"), times_s))[audited].sum())
    return _audit(before, after, int(audited.sum()), false)


def pooled(audits: Collection[SkipAudit]) -> SkipAudit:
    """Return the audit of several runs together: the larger sample gives a tighter bound than each run by itself."""
    counts = ("before_compile", "after_compile", "audited", "false")
    return _audit(*(sum(getattr(audit, name) for audit in audits) for name in counts))


def _audit(before: int, after: int, audited: int, false: int) -> SkipAudit:
    """Return an audit with the figures that follow from the others."""
    share = false / audited if audited else None
    return SkipAudit(before + after, before, after, audited, false, share, _upper_bound(false, audited))


def _upper_bound(false: int, audited: int) -> float:
    """Return the exact one-sided upper confidence bound of a share."""
    if not audited:
        return 1.0
    from scipy.stats import binomtest

    return float(binomtest(false, audited, alternative="less").proportion_ci(CONFIDENCE, method="exact").high)


def _best_before(batches: NDArray[np.int64], times_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return for each trial the fastest median of all earlier batches; infinite where there is none."""
    order = np.argsort(batches, kind="stable")
    best = np.minimum.accumulate(np.append(np.inf, times_s[order]))
    return best[np.searchsorted(batches[order], batches)]  # as many trials are in earlier batches
