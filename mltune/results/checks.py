"""Validation of what a store holds beside its header and trials: directories may come from third parties.

Devices and declarations that do not make sense are errors. Optional facts of another type are dropped.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Any, TypeGuard

from mltune.device.facts import Device
from mltune.records.declaration import Declaration
from mltune.records.reference import Reference

LEAST, MOST = 1e-12, 1e12
"""Bounds of times in seconds and of ratios of times, as in the trials of a store."""

_FACTS_OF_DEVICES = [
    field.name
    for field in dataclasses.fields(Device)
    if field.name not in ("name", "compute_capability", "fma_per_clock", "measured", "mixes")
]


def check_device(document: Mapping[str, Any]) -> None:
    """Check that a stored device has a name, a compute capability or none, and finite numbers that are not negative.

    Raises
    ------
    ValueError
        A fact is of another type.
    """
    capability = document.get("compute_capability", ())
    laws = {
        "name": isinstance(document.get("name"), str),
        "compute_capability": capability is None
        or (isinstance(capability, list) and [type(part) for part in capability] == [int, int]),
        **{name: _is_number(document.get(name)) for name in _FACTS_OF_DEVICES},
    }
    for name, holds in laws.items():
        if not holds:
            raise ValueError(f"its device has no valid `{name}`")


def checked_declaration(fact: Any, numbers: Collection[int], *, replayed: bool) -> Declaration | None:
    """Return the stored declaration, if every value in it can be a time.

    A replay verifies nothing, although older declarations say so.

    Raises
    ------
    ValueError
        A time is not, the winner is not a finalist, or a finalist is not on record.
    """
    if fact is None:
        return None
    declaration = Declaration.from_json(fact)
    finalists = {finalist.number for finalist in declaration.finalists}
    timed = [*declaration.finalists, *([declaration.reference] if declaration.reference else [])]
    times = [(one.median_s, one.low_s, one.high_s, one.ratio, one.ratio_low, one.ratio_high) for one in timed]
    if not all(is_time(value) for values in times for value in values) or declaration.number not in finalists:
        raise ValueError("a declaration holds times from 1e-12 to 1e12 s, and its winner among the finalists")
    if not finalists <= set(numbers):
        raise ValueError("a declaration names trials that are on record")
    return dataclasses.replace(declaration, verified=declaration.verified and not replayed)


def is_sound(reference: Reference) -> bool:
    """Return whether a timing of the reference kernel holds finite times."""
    return (
        is_time(reference.median_s)
        and is_time(reference.elapsed_s, or_zero=True)
        and (reference.noise is None or _is_number(reference.noise))
        and type(reference.after) is int
    )


def checked_limit(fact: Any) -> Mapping[str, float | None] | None:
    """Return the stored budget, ``trials`` and ``time_s``: None for each that is not limited."""
    if not isinstance(fact, Mapping):
        return None
    trials = fact.get("trials")
    return {"trials": trials if type(trials) is int and trials > 0 else None, "time_s": time_of(fact.get("time_s"))}


def time_of(value: Any) -> float | None:
    """Return a time above 0; None for anything else."""
    return float(value) if is_time(value) else None


def is_time(value: Any, *, or_zero: bool = False) -> bool:
    """Return whether a value can be a time in seconds or a ratio of times, or is 0 where that is allowed.

    Sums, ratios and rates of such values are finite.
    """
    return _is_number(value) and (0.0 if or_zero else LEAST) <= value <= MOST


def _is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a finite number, not below 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
