"""Events in words: what a person reads of the diary of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from mltune.results.wording import duration, percent

UNKNOWN = "?"
"""Stands for what an event does not say."""

SENTENCES: dict[str, str] = {
    "run_started": "{problem} begun with {kernel}",
    "plan_started": "plan {plan} begun: {problems} problems",
    "resumed": "resumed at {trials} trials",
    "slice_started": "{problem} is worked on",
    "slice_ended": "{problem} {outcome} after {trials} trials, best {best_s}",
    "progress": "{done} of {problems} problems done",
    "best": "best so far {rated} (trial {number})",
    "failure": "trial {number} {state}: {detail}",
    "reference": "reference timed: {median_s}",
    "drift": "drift: the reference took {ratio} of its first time; trials {first} to {last} are marked",
    "throttled": "the GPU was throttled in trial {number}: {discarded} samples taken again",
    "gpu_lost": "GPU lost: {detail}",
    "gpu_back": "GPU back after {lost_s}",
    "worker_died": "the process at work died ({exit}): {detail}",
    "disk_full": "disk full: {detail}",
    "disk_back": "disk has room again after {lost_s}",
    "declared": "winner declared: trial {number}, {rated}",
    "interrupted": "interrupted by {signal}",
    "report_written": "report written: {path}",
    "run_ended": "{outcome}: {trials} trials, best {best_s}",
    "plan_ended": "plan {outcome}: {trials} trials",
}
"""How each event of :data:`mltune.records.events.EVENTS` is told; ``rated`` is all that rates its configuration."""


def sentence(event: Mapping[str, Any]) -> str:
    """Tell an event in one line of printable text.

    Parameters
    ----------
    event : mapping
        As :func:`mltune.records.events.read_events` returns it: any of its fields may be missing or of another kind.
    """
    name = str(event.get("event"))
    facts = _Facts({key: _word(key, value) for key, value in event.items()})
    facts["rated"] = ", ".join(facts[key] for key in _RATES if event.get(key) is not None) or UNKNOWN
    told = SENTENCES[name].format_map(facts) if name in SENTENCES else _plainly(event)
    where = facts["slug"] if event.get("slug") else facts["device"] if event.get("device") else ""
    return printable(f"{_clock(event)} {f'{where}: ' if where else ''}{told}")


def printable(text: str) -> str:
    """Return text without what would steer a terminal, in one line."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


class _Facts(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return UNKNOWN


def _plainly(event: Mapping[str, Any]) -> str:
    """Tell an event of another version."""
    rest = {key: value for key, value in event.items() if key not in ("at", "event", "slug", "device")}
    return " ".join([str(event.get("event")), *(f"{key}={value}" for key, value in rest.items())])


def _clock(event: Mapping[str, Any]) -> str:
    """Return the local time of an event."""
    try:
        return datetime.fromisoformat(event["at"]).astimezone().strftime("%H:%M:%S")
    except (KeyError, TypeError, ValueError, OverflowError):
        return UNKNOWN


_RATES = ("tflops", "share_of_reference", "share_of_peak")

_FIGURES: dict[str, Callable[[float], str]] = {
    "tflops": lambda value: f"{value:.2f} TFLOPS",
    "share_of_reference": lambda value: f"{percent(value)} of cuBLAS",
    "share_of_peak": lambda value: f"{percent(value)} of the peak",
    "ratio": percent,
    "best_s": lambda value: f"{1e3 * value:.4f} ms",
    "median_s": lambda value: f"{1e3 * value:.4f} ms",
    "lost_s": duration,
    "seconds": duration,
    "elapsed_s": duration,
}


def _word(key: str, value: Any) -> str:
    """Write the value of a field."""
    if isinstance(value, list):
        return str(len(value))
    if value is None:
        return UNKNOWN
    if key in _FIGURES and isinstance(value, int | float) and math.isfinite(value):
        return _FIGURES[key](value)
    return str(value)
