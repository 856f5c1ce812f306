"""Events as text: one printable line for each event of a run."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from mltune.files.text import printable
from mltune.results.wording import REFERENCE, duration, milliseconds, percent, tflops

UNKNOWN = "?"
"""Stands for a field that an event does not have."""

MESSAGES: dict[str, str] = {
    "run_started": "run started: {problem} with {kernel}",
    "plan_started": "plan {plan} started: {problems} problems",
    "resumed": "resumed at {trials} trials",
    "slice_started": "{problem}: time slice started",
    "slice_ended": "{problem}: time slice ended ({outcome}) after {trials} trials, best {best_s}",
    "set_aside": "{problem} set aside: {detail}",
    "progress": "{done} of {problems} problems done",
    "best": "best so far {rated} (trial {number})",
    "failure": "trial {number} {state}: {detail}",
    "reference": "reference timed: {median_s}",
    "drift": "drift: the reference took {ratio} of its usual time; trials {first} to {last} are marked",
    "throttled": "the GPU was throttled in trial {number}: {discarded} samples measured again",
    "gpu_lost": "GPU lost: {detail}",
    "gpu_back": "GPU back after {lost_s}",
    "worker_died": "worker process died ({exit}): {detail}",
    "disk_full": "disk full: {detail}",
    "disk_back": "disk has room again after {lost_s}",
    "declared": "winner declared: trial {number}, {rated}",
    "interrupted": "interrupted by {signal}",
    "report_written": "report written: {path}",
    "run_ended": "{outcome}: {trials} trials, best {best_s}",
    "plan_ended": "plan {outcome}: {trials} trials",
}
"""Text of each event of :data:`mltune.records.events.EVENTS`; ``rated`` is the rating of its configuration."""


def message(event: Mapping[str, Any]) -> str:
    """Write an event as one line of printable text.

    Parameters
    ----------
    event : mapping
        An event from :func:`mltune.records.events.read_events`: any of its fields may be missing or of another type.

    Examples
    --------
    >>> message({"event": "best", "tflops": 45.3, "share_of_reference": 0.98, "number": 7, "slug": "sgemm-nt-64"})
    '? sgemm-nt-64: best so far 45.30 TFLOPS, 98.0 % of cuBLAS (trial 7)'
    """
    name = str(event.get("event"))
    reference = str(event.get("reference") or REFERENCE)
    fields = defaultdict(lambda: UNKNOWN, {key: _text(key, value) for key, value in event.items()})
    if event.get("share_of_reference") is not None:
        fields["share_of_reference"] += f" of {reference}"
    fields["rated"] = ", ".join(fields[key] for key in _RATES if event.get(key) is not None) or UNKNOWN
    text = MESSAGES[name].format_map(fields) if name in MESSAGES else _unknown_event(event)
    where = fields["slug"] if event.get("slug") else fields["device"] if event.get("device") else ""
    return printable(f"{_clock(event)} {f'{where}: ' if where else ''}{text}")


def _unknown_event(event: Mapping[str, Any]) -> str:
    """Write an event of another version."""
    rest = {key: value for key, value in event.items() if key not in ("at", "event", "slug", "device")}
    return " ".join([str(event.get("event")), *(f"{key}={value}" for key, value in rest.items())])


def _clock(event: Mapping[str, Any]) -> str:
    """Return the local time of an event."""
    try:
        return datetime.fromisoformat(event["at"]).astimezone().strftime("%H:%M:%S")
    except (KeyError, TypeError, ValueError, OverflowError):
        return UNKNOWN


_RATES = ("tflops", "share_of_reference", "share_of_peak")

_FORMATS: dict[str, Callable[[float], str]] = {
    "tflops": lambda value: f"{tflops(value)} TFLOPS",
    "share_of_reference": percent,
    "share_of_peak": lambda value: f"{percent(value)} of the peak",
    "ratio": percent,
    "best_s": milliseconds,
    "median_s": milliseconds,
    "lost_s": duration,
}


def _text(key: str, value: Any) -> str:
    """Write the value of a field."""
    if isinstance(value, list):
        return str(len(value))
    if value is None:
        return UNKNOWN
    if key in _FORMATS and isinstance(value, int | float) and math.isfinite(value):
        return _FORMATS[key](value)
    return str(value)
