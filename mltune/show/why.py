"""Explanation of the best trial of a run by facts on record: its bound, and its differences from other trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from mltune.cost.features import Features, build_columns
from mltune.errors import MltuneError
from mltune.kernel.coding import Floats
from mltune.records.trial import TrialRecord
from mltune.results.run import TuneResult
from mltune.results.wording import milliseconds, percent
from mltune.show.report.evidence import placed_of

LEAST = 1.1
"""Smallest ratio of two facts that explains a difference."""

FASTER = 1.02
"""Smallest ratio of two times that needs an explanation."""

_Facts: TypeAlias = tuple[Mapping[str, float], Mapping[str, float]]
"""Facts of a trial on record, and, of a known bundle, its least times by limit."""

_FACTS = {
    "spill_bytes": (-1, "{0:.0f} bytes spilled a thread, not {1:.0f}"),
    "occupancy": (1, "an occupancy of {0:.0%}, not {1:.0%}"),
    "tail_efficiency": (1, "waves that are {0:.0%} full, not {1:.0%}"),
    "bytes_in_flight_per_sm": (1, "{0:,.0f} bytes in flight on a multiprocessor, not {1:,.0f}"),
}
"""Facts that explain a difference: whether more (1) or less (-1) is better, and the words."""


def why(run: TuneResult) -> list[str]:
    """Return up to two sentences on why the best trial of a run is fast, from the facts on record."""
    return bound_and_reasons(run)[1]


def bound_and_reasons(run: TuneResult) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the upper bound of the best trial, None without a bundle and resources, and :func:`why` it is fast."""
    best, time_s = run.best_record, run.best_time_s
    if best is None or time_s is None:
        return None, []
    ranked = run.declaration.finalists[1:] if run.declaration else ()
    second = run.trial(ranked[0].number) if ranked else None
    default = next(iter(run.records.take(run.records.column("proposed_by") == "default")), None)
    slower = []
    for name, other in (("the default", default), ("the runner-up", second)):
        if other is None or other.number == best.number:
            continue
        ratio = ranked[0].ratio if other is second else (other.median_s or 0.0) / time_s
        if ratio >= FASTER:
            slower.append((f"{ratio:.2f} times as fast as {name}", other))
    (facts, limits), *facts_of_slower = _facts(run, [best, *(other for _, other in slower)])
    bound: dict[str, Any] | None = None
    if limits:
        binding = max(limits, key=limits.__getitem__)
        bound = {"time_s": limits[binding], "binding": binding, "share": limits[binding] / time_s}
    compared = []
    for (text, _), facts_of_other in zip(slower, facts_of_slower, strict=True):
        if reasons := _reasons((facts, limits), facts_of_other):
            compared.append(f"{text}, with {' and '.join(reasons)}")
    reached = f"it reaches {percent(bound['share'])} of its upper bound, set by {bound['binding']}" if bound else ""
    return bound, [text for text in (reached, "; ".join(compared)) if text]


def _reasons(best: _Facts, other: _Facts) -> list[str]:
    """Return the two facts that differ most in favour of the best, in words."""
    (facts, our_limits), (other_facts, limits) = best, other
    reasons = {}
    for name, (sign, words) in _FACTS.items():
        if name in facts and name in other_facts:
            higher, less = (facts[name], other_facts[name]) if sign > 0 else (other_facts[name], facts[name])
            reasons[words.format(facts[name], other_facts[name]).replace("%", " %")] = higher / max(less, 1e-9)
    if limits and our_limits:
        binding = max(limits, key=limits.__getitem__)
        words = f"at least {milliseconds(our_limits[binding])} of {binding}, not {milliseconds(limits[binding])}"
        reasons[words] = limits[binding] / max(our_limits.values())
    order = sorted(reasons, key=reasons.__getitem__, reverse=True)
    return [text for text in order if reasons[text] >= LEAST][:2]


def _facts(run: TuneResult, trials: Sequence[TrialRecord]) -> list[_Facts]:
    """Return the facts of trials, evaluated together."""
    builds = build_columns([trial.build for trial in trials])
    recorded = [{name: fact for name, fact in _at(row, builds).items() if fact == fact} for row in range(len(trials))]
    unknown: list[_Facts] = [(facts, {}) for facts in recorded]
    placed = placed_of(run)
    if placed is None:
        return unknown
    try:
        features = Features(placed)
        if not features.has_prior:
            return unknown
        names = trials[0].configuration
        columns = {name: np.array([trial.configuration[name] for trial in trials], dtype=np.int64) for name in names}
        derived, bound = features.derived_and_bound(columns, builds)
    except (MltuneError, ArithmeticError, KeyError, ValueError):  # a configuration is none of this bundle's
        return unknown if len(trials) == 1 else [facts for trial in trials for facts in _facts(run, [trial])]
    return [(_at(row, derived) | facts, _at(row, bound.limits)) for row, facts in enumerate(recorded)]


def _at(row: int, columns: Mapping[str, Floats]) -> dict[str, float]:
    return {name: float(values[row]) for name, values in columns.items()}
