"""Why the best trial of a run is fast: its upper bound, and what sets it apart from the default and the runner-up.

Everything follows from facts on record: what the compiler reported, and the resources of a known bundle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mltune.cost.features import BUILD_COLUMNS, Features
from mltune.errors import MltuneError
from mltune.kernel.coding import columns_of
from mltune.records.trial import TrialRecord
from mltune.results.run import TuneResult
from mltune.results.wording import milliseconds, percent
from mltune.show.report.evidence import kernel_of

LEAST = 1.1
"""Ratio of two facts from which on one explains a difference."""

FASTER = 1.02
"""Ratio of two times from which on there is a difference to explain."""

_FACTS = {
    "spill_bytes": (-1, "{0:.0f} bytes spilled a thread, not {1:.0f}"),
    "occupancy": (1, "an occupancy of {0:.0%}, not {1:.0%}"),
    "tail_efficiency": (1, "waves that are {0:.0%} full, not {1:.0%}"),
    "bytes_in_flight_per_sm": (1, "{0:,.0f} bytes in flight on a multiprocessor, not {1:,.0f}"),
}
"""Facts that explain a difference: whether more or less is better, and the words."""


def why(run: TuneResult) -> list[str]:
    """Return up to two sentences on the best trial of a run; none where no fact on record explains it."""
    best, time_s, compared = run.best_record, run.best_time_s, []
    if best is None or time_s is None:
        return []
    bound = bound_of(run, best, time_s)
    ranked = run.declaration.finalists[1:] if run.declaration else ()
    second = run.trial(ranked[0].number) if ranked else None
    default = next(iter(run.records.take(run.records.column("proposed_by") == "default")), None)
    for name, other in (("the default", default), ("the runner-up", second)):
        if other is None or other.number == best.number:
            continue
        ratio = ranked[0].ratio if other is second else (other.median_s or 0.0) / time_s
        if ratio >= FASTER and (reasons := _reasons(run, best, other)):
            compared.append(f"{ratio:.2f} times as fast as {name}, with {' and '.join(reasons)}")
    reached = f"it reaches {percent(bound['share'])} of its upper bound, set by {bound['binding']}" if bound else ""
    return [text for text in (reached, "; ".join(compared)) if text]


def bound_of(run: TuneResult, record: TrialRecord, time_s: float) -> dict[str, Any] | None:
    """Return the upper bound of a trial: least time, what binds, and the share that a time reaches.

    None where its bundle is not known or has no resources.
    """
    _, limits = _facts(run, record)
    if not limits:
        return None
    binding = max(limits, key=limits.__getitem__)
    return {"time_s": limits[binding], "binding": binding, "share": limits[binding] / time_s}


def _reasons(run: TuneResult, best: TrialRecord, other: TrialRecord) -> list[str]:
    """Return the two facts that differ most in favour of the best, in words."""
    (facts, our_limits), (other_facts, limits) = _facts(run, best), _facts(run, other)
    reasons = {}
    for name, (sign, words) in _FACTS.items():
        if name in facts and name in other_facts:
            higher, less = (facts[name], other_facts[name]) if sign > 0 else (other_facts[name], facts[name])
            reasons[words.format(facts[name], other_facts[name])] = higher / max(less, 1e-9)
    if limits and our_limits:
        binding = max(limits, key=limits.__getitem__)
        words = f"at least {milliseconds(our_limits[binding])} of {binding}, not {milliseconds(limits[binding])}"
        reasons[words] = limits[binding] / max(our_limits.values())
    order = sorted(reasons, key=reasons.__getitem__, reverse=True)
    return [text for text in order if reasons[text] >= LEAST][:2]


def _facts(run: TuneResult, record: TrialRecord) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """Return what is on record of a trial, and its least times by what limits it; these only of a known bundle."""
    built = {name: getattr(record.build, name, None) for name in BUILD_COLUMNS}
    builds = {name: np.array([value], dtype=np.float64) for name, value in built.items() if value is not None}
    facts = {name: float(values[0]) for name, values in builds.items()}
    kernel, columns = kernel_of(run), columns_of(record.configuration)
    if kernel is None:
        return facts, {}
    try:
        features = Features(kernel, run.problem, run.device)
        if not features.has_prior:
            return facts, {}
        derived, limits = features.derived(columns, builds), features.bound(columns, builds).limits
    except (MltuneError, ArithmeticError, KeyError, ValueError):  # the configuration is none of this bundle's
        return facts, {}
    return {name: float(values[0]) for name, values in derived.items()} | facts, {
        name: float(values[0]) for name, values in limits.items()
    }
