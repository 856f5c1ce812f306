"""Audit of skipped configurations: the share of false skips, estimated from a random sample, and the time saved."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

from mltune.records.trial import TrialRecord, TrialState

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
        Configurations that were not measured.
    before_compile, after_compile : int
        Number of them that each gate skipped.
    audited : int
        Skips that were measured anyway.
    false : int
        Audited skips that were false.
    false_share : float or None
        ``false / audited``; None where nothing was audited.
    false_share_at_most : float
        Its one-sided upper bound at 95 % confidence (Clopper and Pearson, 1934): 1 where nothing was audited.
    saved_time_s : float
        Seconds of verifying and timing saved: per skipped configuration the mean of the audited ones, or of all
        measured ones where none was audited.
    saved_compile_s : float
        Seconds of one compiler saved by the gate before compiling, at the mean compile time. Compilers work in parallel
        with the GPU, so this does not shorten a run.
    search_s : float
        Seconds that the search took: fits, predictions and planning.
    net_s : float
        ``saved_time_s - search_s``.
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
    net_s: float

    def to_json(self) -> dict[str, Any]:
        """Return the audit as plain JSON values."""
        return asdict(self)


def audit_skips(records: Collection[TrialRecord], search_s: float) -> SkipAudit:
    """Audit the skips of a run from all its trials, in any order, and the seconds that the search took."""
    skips = Counter(one.skip.gate for one in records if one.state is TrialState.SKIPPED and one.skip is not None)
    audited = [record for record in records if record.audited]
    earlier = _best_before(records)
    compiled = [record.build.compile_s for record in records if record.build is not None]
    return _audit(
        before_compile=skips["before_compile"],
        after_compile=skips["after_compile"],
        audited=len(audited),
        false=sum(_time(record) < earlier[record.batch] for record in audited),
        saved_time_s=skips.total() * (_mean_time(audited) or _mean_time(records)),
        saved_compile_s=skips["before_compile"] * sum(compiled) / max(len(compiled), 1),
        search_s=search_s,
    )


def pooled(audits: Collection[SkipAudit]) -> SkipAudit:
    """Return the audit of several runs together. The larger sample gives a tighter bound than each run by itself."""
    names = ["before_compile", "after_compile", "audited", "false", "saved_time_s", "saved_compile_s", "search_s"]
    return _audit(**{name: sum(getattr(audit, name) for audit in audits) for name in names})


def _audit(*, audited: int, false: int, **figures: Any) -> SkipAudit:
    """Return an audit with the figures that follow from the others."""
    return SkipAudit(
        skipped=figures["before_compile"] + figures["after_compile"],
        audited=audited,
        false=false,
        false_share=false / audited if audited else None,
        false_share_at_most=_upper_bound(false, audited),
        net_s=figures["saved_time_s"] - figures["search_s"],
        **figures,
    )


def _upper_bound(false: int, audited: int) -> float:
    """Return the exact one-sided upper confidence bound of a share."""
    if not audited:
        return 1.0
    from scipy.stats import binomtest

    return float(binomtest(false, audited, alternative="less").proportion_ci(CONFIDENCE, method="exact").high)


def _best_before(records: Collection[TrialRecord]) -> dict[int, float]:
    """Return the fastest median of all earlier batches, by batch; infinite where there is none."""
    fastest: dict[int, float] = {}
    for record in records:
        fastest[record.batch] = min(fastest.get(record.batch, math.inf), _time(record))
    before, best = {}, math.inf
    for batch in sorted(fastest):
        before[batch] = best
        best = min(best, fastest[batch])
    return before


def _time(record: TrialRecord) -> float:
    """Return the median time of a trial; infinite where it did not succeed."""
    return record.median_s if record.state is TrialState.OK and record.median_s is not None else math.inf


def _mean_time(records: Collection[TrialRecord]) -> float:
    """Return the mean seconds of a measurement; 0 where there is none."""
    taken = [one.measurement.verify_s + one.measurement.time_s for one in records if one.measurement is not None]
    return sum(taken) / len(taken) if taken else 0.0
