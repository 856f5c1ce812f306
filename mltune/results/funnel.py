"""The funnel of a run: how many configurations each stage left over, what this saved, and an audit of the skips."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mltune.records.trial import GATES, TrialState
from mltune.records.trials import Trials


@dataclass(frozen=True, slots=True)
class Funnel:
    """How many configurations each stage of a run left over, from the whole space to the finalists.

    ``proposed = skipped_before + compiled`` and ``compiled = skipped_after + failed + measured``.

    Attributes
    ----------
    valid : int or None
        Valid configurations in the space, in replay those recorded. None where a stage is not on record.
    scored : int or None
        Distinct configurations whose speed was predicted to choose what is proposed: by the model of the search, before
        it by physics and pretrained models, in a pruned sweep by its model. Exact up to 1,024, then within some 3 %. 0
        where chance or another tuner proposes.
    proposed : int
        Distinct configurations that were proposed.
    skipped_before, skipped_after : int
        Configurations that were proposed and never compiled (exact up to 1,024, then within some 3 %), and trials that
        the gate after compiling skipped. Those measured for the audit are not among them.
    compiled : int
        Trials: what was given to the compiler.
    failed, measured : int
        Compiled trials that ended without a time, and with one.
    finalists : int
        Trials that the winner was chosen from; 0 before the finals.
    not_proposed_saved_s, before_saved_s, after_saved_s : float or None
        Seconds saved by not proposing what was scored, and by each gate, at the mean rates of the run. What was not
        compiled saved the seconds of the busier of the compilers, which share the work, and the GPU; what was compiled
        and not measured saved those of the GPU. In replay the seconds are recorded ones, and of one compiler.

    Examples
    --------
    >>> import mltune
    >>> result = mltune.tune(trials=40, device="replay:h200-sgemm-nt-4096-complete", progress=None)
    >>> funnel = result.funnel
    >>> funnel.valid, funnel.compiled
    (5320, 40)
    >>> funnel.valid > funnel.scored > funnel.proposed > funnel.compiled
    True
    """

    valid: int | None
    scored: int | None
    proposed: int
    skipped_before: int
    compiled: int
    skipped_after: int
    failed: int
    measured: int
    finalists: int
    not_proposed_saved_s: float | None
    before_saved_s: float
    after_saved_s: float

    def to_json(self) -> dict[str, int | float | None]:
        """Return the funnel as plain JSON values."""
        return asdict(self)


def funnel_of(
    trials: Trials,
    *,
    valid: int | None,
    scored: int | None,
    never_compiled: int,
    finalists: int,
    compilers: float,
) -> Funnel:
    """Return the funnel of a run from all its trials, and from what its store has of the other stages."""
    skipped, gates = trials.in_state(TrialState.SKIPPED), trials.column("gate")
    before, after = (int((skipped & (gates == gate)).sum()) for gate in GATES)
    compiled, measured = len(trials) - before, int(trials.timed.sum())
    before += never_compiled
    proposed = before + compiled
    compile_s, gpu_s = mean_seconds(trials)
    busier_s = max(compile_s / compilers, gpu_s)
    return Funnel(
        valid=valid,
        scored=scored,
        proposed=proposed,
        skipped_before=before,
        compiled=compiled,
        skipped_after=after,
        failed=compiled - after - measured,
        measured=measured,
        finalists=finalists,
        not_proposed_saved_s=None if scored is None else busier_s * max(0, scored - proposed),
        before_saved_s=busier_s * before,
        after_saved_s=gpu_s * after,
    )


def total(funnels: Sequence[Funnel]) -> Funnel:
    """Return the sums of several funnels; a stage that is not on record in one of them is not known of all."""
    columns = {field.name: [getattr(funnel, field.name) for funnel in funnels] for field in fields(Funnel)}
    sums: dict[str, Any] = {name: None if None in column else sum(column) for name, column in columns.items()}
    return Funnel(**sums)


def mean_seconds(trials: Trials) -> tuple[float, float]:
    """Return the mean seconds of compiling a configuration, and of verifying and timing one that is predicted slow.

    The latter are those of the audited trials, or of all where there are none.
    """
    compiled_s = trials.column("compile_s")[trials.column("build_state") != None]  # noqa: E711 - an array
    taken_s = trials.column("verify_s") + trials.column("time_s")
    return _mean(compiled_s), _mean(taken_s[trials.column("audited") == 1]) or _mean(taken_s)


def _mean(values: NDArray[np.float64]) -> float:
    """Return the mean of the values that are known; 0 where there is none."""
    finite = values[~np.isnan(values)]
    return float(finite.mean()) if len(finite) else 0.0


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
