"""Audit of skipped configurations: the share of false skips, estimated from a random sample, and the time saved."""

from __future__ import annotations

from collections import Counter
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
    """The audit of the configurations that a run skipped.

    A random sample of the skips is measured anyway. A skip was false if its configuration was faster than everything
    proposed in earlier batches: the search would have missed an improvement. The share of false skips in the sample is
    an unbiased estimate for all skips.

    Attributes
    ----------
    skipped : int
        Configurations that were not measured: ``before_compile`` and ``after_compile`` by the gate that skipped them.
    audited, false : int
        Skips that were measured anyway, and those of them that were false.
    false_share_at_most : float
        Upper bound of the share of false skips at 95 % confidence, one-sided (Clopper and Pearson, 1934): 1 where
        nothing was audited.
    saved_time_s : float
        Seconds of verifying and timing saved: per skipped configuration the mean of the audited ones, or of all
        measured ones where none was audited.
    saved_compile_s : float
        Seconds of one compiler saved by the gate before compiling, at the mean compile time. Compilers work in parallel
        with the GPU, so this does not shorten a run.
    search_s : float
        Seconds that the search took for fits, predictions and planning.
    net_s : float or None
        ``saved_time_s - search_s``; None in replay, where the seconds saved are those of the recording and the search
        took those of this machine.
    """

    skipped: int
    before_compile: int
    after_compile: int
    audited: int
    false: int
    false_share: float | None
    false_share_at_most: float
    saved_time_s: float
    saved_compile_s: float
    search_s: float
    net_s: float | None

    def to_json(self) -> dict[str, Any]:
        """Return the audit as plain JSON values."""
        return asdict(self)


def audit_skips(trials: Trials, search_s: float, *, replayed: bool = False) -> SkipAudit:
    """Audit the skips of a run from all its trials, in any order, and the seconds that the search took."""
    skips = Counter(trials.column("gate")[trials.in_state(TrialState.SKIPPED)].tolist())
    audited = trials.column("audited") == 1
    times_s = np.where(trials.succeeded, trials.column("median_s"), np.inf)
    compiled_s = trials.column("compile_s")[trials.column("build_state") != None]  # noqa: E711 - an array
    taken_s = trials.column("verify_s") + trials.column("time_s")
    before, after = (skips[gate] for gate in GATES)
    return _audit(
        before_compile=before,
        after_compile=after,
        audited=int(audited.sum()),
        false=int((times_s < _best_before(trials.column("batch"), times_s))[audited].sum()),
        saved_time_s=(before + after) * (_mean(taken_s[audited]) or _mean(taken_s)),
        saved_compile_s=before * _mean(compiled_s),
        search_s=search_s,
        replayed=replayed,
    )


def pooled(audits: Collection[SkipAudit]) -> SkipAudit:
    """Return the audit of several runs together: the larger sample gives a tighter bound than each run by itself."""
    names = ["before_compile", "after_compile", "audited", "false", "saved_time_s", "saved_compile_s", "search_s"]
    replayed = any(audit.net_s is None for audit in audits)
    return _audit(**{name: sum(getattr(audit, name) for audit in audits) for name in names}, replayed=replayed)


def _audit(*, audited: int, false: int, replayed: bool, **figures: Any) -> SkipAudit:
    """Return an audit with the figures that follow from the others."""
    return SkipAudit(
        skipped=figures["before_compile"] + figures["after_compile"],
        audited=audited,
        false=false,
        false_share=false / audited if audited else None,
        false_share_at_most=_upper_bound(false, audited),
        net_s=None if replayed else figures["saved_time_s"] - figures["search_s"],
        **figures,
    )


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


def _mean(values: NDArray[np.float64]) -> float:
    """Return the mean of the values that are known; 0 where there is none."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else 0.0
