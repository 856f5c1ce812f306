"""Validation of stored runs: directories may come from third parties, or may be damaged.

Headers, trials and declarations that do not make sense are errors. Single times that cannot be times, and optional
facts of another type, are dropped.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Any

from mltune.device.facts import Device
from mltune.records.declaration import Declaration
from mltune.records.header import RunHeader
from mltune.records.reference import Reference
from mltune.records.trial import GATES, TrialRecord

_FACTS_OF_DEVICES = [
    field.name
    for field in dataclasses.fields(Device)
    if field.name not in ("name", "compute_capability", "fma_per_clock")
]


def check_header(header: RunHeader) -> None:
    """Check the types of a header, and that the numbers in it are finite and not negative.

    Raises
    ------
    ValueError
        A field is of another type.
    """
    plain = (str, int, float, bool, type(None))
    laws = {
        "kernel": isinstance(header.kernel, str),
        "seed": type(header.seed) is int,
        "created_at": is_time(header.created_at, or_zero=True),
        "settings": isinstance(header.settings, dict) and all(type(v) in plain for v in header.settings.values()),
        "versions": isinstance(header.versions, dict) and all(isinstance(v, str) for v in header.versions.values()),
        "parameters": all(type(value) is int for values in header.parameters.values() for value in values),
        "device": isinstance(header.device, dict)
        and isinstance(header.device.get("name"), str)
        and all(is_time(header.device.get(name), or_zero=True) for name in _FACTS_OF_DEVICES)
        and [type(part) for part in header.device.get("compute_capability") or (0, 0)] == [int, int],
    }
    for name, holds in laws.items():
        if not holds:
            raise ValueError(f"its header has no valid {name}")


def checked_record(record: TrialRecord, header: RunHeader) -> TrialRecord:
    """Return a record in which every time is finite and not negative: others become 0, a median becomes None.

    Raises
    ------
    ValueError
        Its configuration or its gate is not one of the run.
    """
    if record.configuration.keys() != header.parameters.keys():
        raise ValueError(f"trial {record.number} has other parameters than its run")
    if any(type(value) is not int for value in record.configuration.values()):
        raise ValueError(f"trial {record.number} has a value that is no integer")
    if record.skip is not None and record.skip.gate not in GATES:
        raise ValueError(f"trial {record.number} was skipped by an unknown gate")
    build, measured = _repaired(record.build, "compile_s"), _repaired(record.measurement, "verify_s", "time_s")
    if measured is not None and measured.median_s is not None and not is_time(measured.median_s):
        measured = dataclasses.replace(measured, median_s=None)
    found: TrialRecord = _repaired(record, "elapsed_s")
    same = build is record.build and measured is record.measurement
    return found if same else dataclasses.replace(found, build=build, measurement=measured)


def _repaired(part: Any, *names: str) -> Any:
    """Return a part of a record with 0 for each of these seconds that is negative or no finite number."""
    wrong = {name: 0.0 for name in names if part is not None and not is_time(getattr(part, name), or_zero=True)}
    return dataclasses.replace(part, **wrong) if wrong else part


def checked_declaration(fact: Any, numbers: Collection[int]) -> Declaration | None:
    """Return the stored declaration, if every time in it is finite and above 0.

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
        raise ValueError("a declaration holds finite times above 0, and its winner among the finalists")
    if not finalists <= set(numbers):
        raise ValueError("a declaration names trials that are on record")
    return declaration


def is_sound(reference: Reference) -> bool:
    """Return whether a timing of the reference kernel holds finite times."""
    return (
        is_time(reference.median_s)
        and is_time(reference.elapsed_s, or_zero=True)
        and (reference.noise is None or is_time(reference.noise, or_zero=True))
        and type(reference.after) is int
    )


def checked_limit(fact: Any) -> Mapping[str, float | None] | None:
    """Return the stored budget, ``trials`` and ``time_s``: None for each that is not limited."""
    if not isinstance(fact, Mapping):
        return None
    trials = fact.get("trials")
    return {"trials": trials if type(trials) is int and trials > 0 else None, "time_s": time_of(fact.get("time_s"))}


def time_of(value: Any) -> float | None:
    """Return a number that is finite and above 0; None for anything else."""
    return float(value) if is_time(value) else None


def is_time(value: Any, *, or_zero: bool = False) -> bool:
    """Return whether a value is a finite number above 0, or 0 where that is allowed."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and (value >= 0.0 if or_zero else value > 0.0)
