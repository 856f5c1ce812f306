"""The audit of the skip: how often it was wrong, by the skips that were measured all the same, and what it saved."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

from mltune.records.trial import TrialRecord, TrialState

CONFIDENCE = 0.95
"""Of the bound on the share of false skips."""


@dataclass(frozen=True, slots=True)
class SkipAudit:
    """What a run says of its own skips.

    A skip was false if the configuration, measured after all, was faster than everything proposed in earlier batches:
    the search would have missed an improvement. Audited skips are drawn at random, so their share of false ones is an
    unbiased estimate for all skips.

    Attributes
    ----------
    skipped : int
        Configurations that were not measured.
    before_compile, after_compile : int
        Those of them that each gate skipped.
    audited : int
        Skips that were measured all the same.
    false : int
        Audited skips that were false.
    false_share : float or None
        ``false / audited``; None where nothing was audited.
    false_share_at_most : float
        Its one-sided upper bound at 95 % confidence (Clopper and Pearson, 1934): 1 where nothing was audited.
    saved_time_s : float
        Seconds of verifying and timing saved: a skipped configuration counts as an audited one took on the average, or
        as any measured one where none was audited.
    saved_compile_s : float
        Seconds of one compiler saved by the gate before compiling, at the average of what was compiled. Compilers run
        beside the GPU: a run is not shorter by them.
    search_s : float
        Seconds that the search itself took: every fit and prediction of a model, and the planning.
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
    """Audit the skips of a run.

    Parameters
    ----------
    records : collection of TrialRecord
        All of the run's trials, in any order.
    search_s : float
        Seconds that the search itself took.
    """
    by_gate = {"before_compile": 0, "after_compile": 0}
    for record in records:
        if record.state is TrialState.SKIPPED and record.skip is not None:
            by_gate[record.skip.gate] += 1
    audited = [record for record in records if record.audited]
    earlier = _best_before(records)
    false = sum(_succeeded(record) and _median(record) < earlier[record.batch] for record in audited)
    saved_time_s = sum(by_gate.values()) * (_mean_time(audited) or _mean_time(records))
    compiled = [record.build.compile_s for record in records if record.build is not None]
    return SkipAudit(
        skipped=sum(by_gate.values()),
        **by_gate,
        audited=len(audited),
        false=false,
        false_share=false / len(audited) if audited else None,
        false_share_at_most=_upper_bound(false, len(audited)),
        saved_time_s=saved_time_s,
        saved_compile_s=by_gate["before_compile"] * sum(compiled) / max(len(compiled), 1),
        search_s=search_s,
        net_s=saved_time_s - search_s,
    )


def pooled(audits: Collection[SkipAudit]) -> SkipAudit:
    """Return the audit of several runs together: what one tells of its skips is little, all of a night tell more.

    The share of false skips is that of all skips audited, and bounded as such.
    """
    audited, false = sum(audit.audited for audit in audits), sum(audit.false for audit in audits)
    return SkipAudit(
        skipped=sum(audit.skipped for audit in audits),
        before_compile=sum(audit.before_compile for audit in audits),
        after_compile=sum(audit.after_compile for audit in audits),
        audited=audited,
        false=false,
        false_share=false / audited if audited else None,
        false_share_at_most=_upper_bound(false, audited),
        saved_time_s=sum(audit.saved_time_s for audit in audits),
        saved_compile_s=sum(audit.saved_compile_s for audit in audits),
        search_s=sum(audit.search_s for audit in audits),
        net_s=sum(audit.net_s for audit in audits),
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
        median_s = _median(record) if _succeeded(record) else math.inf
        fastest[record.batch] = min(fastest.get(record.batch, math.inf), median_s)
    before, best = {}, math.inf
    for batch in sorted(fastest):
        before[batch] = best
        best = min(best, fastest[batch])
    return before


def _succeeded(record: TrialRecord) -> bool:
    return record.state is TrialState.OK and record.median_s is not None


def _median(record: TrialRecord) -> float:
    return math.inf if record.median_s is None else record.median_s


def _mean_time(records: Collection[TrialRecord]) -> float:
    """Return the seconds that a measurement took on the average; 0 where there is none."""
    taken = [one.measurement.verify_s + one.measurement.time_s for one in records if one.measurement is not None]
    return sum(taken) / len(taken) if taken else 0.0
