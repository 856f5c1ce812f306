"""Events as text: one printable line for each event of a run."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

from mltune.files.text import many, printable
from mltune.results.rating import rating_text
from mltune.results.wording import duration, milliseconds, percent

UNKNOWN = "?"
"""Stands for a field that an event does not have."""

MESSAGES: dict[str, str] = {
    "run_started": "run started: {problem} with {kernel}",
    "plan_started": "plan {plan} started: {problems}",
    "resumed": "resumed at {trials}",
    "model": "pretrained model: {detail}",
    "wisdom": "known to be fast, measured first: {detail}",
    "slice_started": "{problem}: time slice started",
    "slice_ended": "{problem}: time slice ended ({outcome}) after {trials}, best {best_s}",
    "set_aside": "{problem} set aside: {detail}",
    "left_out": "a kernel of {problem} is left out: {detail}",
    "progress": "{done} of {problems} done",
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
    "database_lost": "database lost: {detail}",
    "database_back": "database back after {lost_s}",
    "declared": "winner declared: trial {number}, {rated}",
    "interrupted": "interrupted by {signal}",
    "report_written": "report written: {path}",
    "run_ended": "{outcome}: {trials}, best {best_s}",
    "plan_ended": "plan {outcome}: {trials}",
}
"""Text of each event of :data:`mltune.records.events.EVENTS`; ``rated`` is the rating of its configuration."""


def message(event: Mapping[str, Any]) -> str:
    """Write an event, of which any field may be missing or of another type, as one line of printable text."""
    name = str(event.get("event"))
    fields = defaultdict(lambda: UNKNOWN, {key: _text(key, value) for key, value in event.items()})
    figures = {key: value for key, value in event.items() if _is_number(value)}
    fields["rated"] = rating_text(figures, event.get("reference")) or UNKNOWN
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


_FORMATS: dict[str, Callable[[Any], str]] = {
    "ratio": percent,
    "best_s": milliseconds,
    "median_s": milliseconds,
    "lost_s": duration,
    "trials": partial(many, noun="trial"),
    "problems": partial(many, noun="problem"),
}


def _text(key: str, value: Any) -> str:
    """Write the value of a field."""
    if value is None:
        return UNKNOWN
    if isinstance(value, list):
        value = len(value)
    if key in _FORMATS and _is_number(value):
        return _FORMATS[key](value)
    return str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
