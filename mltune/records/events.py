"""Event log of a run or plan: one JSON line per event, read by ``mltune show --follow`` and the report.

The log is informative only: runs are resumed from their stores. It may come from a stranger: a line that cannot be read
is ignored, and what is read has known types and a limited size.
"""

from __future__ import annotations

import contextlib
import json
import math
import numbers
import os
import time
from collections.abc import Iterable, Mapping, Set
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from mltune.files.atomic import append_line
from mltune.files.reading import open_regular
from mltune.records.declaration import Reference
from mltune.records.directory import EVENT_LOG, SLUG

FILE = EVENT_LOG

_RATED = {"number", "median_s", "gb_per_s", "tflops", "share_of_reference", "share_of_peak"}
_LOST, _BACK = frozenset({"detail"}), frozenset({"lost_s"})

EVENTS: dict[str, frozenset[str]] = {
    "run_started": frozenset({"problem", "kernel", "seed", "trials", "time_s", "versions", "pid"}),
    "plan_started": frozenset({"plan", "problems", "devices", "budget_s", "budget_trials", "versions", "pid"}),
    "resumed": frozenset({"trials", "budget_s", "budget_trials", "pid"}),
    "model": frozenset({"detail"}),
    "wisdom": frozenset({"detail"}),
    "slice_started": frozenset({"problem", "limit"}),
    "slice_ended": frozenset({"problem", "trials", "best_s", "outcome", "detail", "done"}),
    "set_aside": frozenset({"problem", "detail"}),
    "left_out": frozenset({"problem", "detail"}),
    "progress": frozenset({"runs", "done", "problems", "left_s", "message"}),
    "best": frozenset(_RATED),
    "failure": frozenset({"number", "state", "detail"}),
    "reference": frozenset(field.name for field in fields(Reference)) - {"elapsed_s"},
    "drift": frozenset({"first", "last", "ratio"}),
    "throttled": frozenset({"number", "discarded", "throttle_reasons"}),
    "worker_died": frozenset({"detail", "exit"}),
    **dict.fromkeys(("gpu_lost", "disk_full", "database_lost"), _LOST),
    **dict.fromkeys(("gpu_back", "disk_back", "database_back"), _BACK),
    "declared": frozenset(_RATED | {"ties", "rejected"}),
    "interrupted": frozenset({"signal"}),
    "report_written": frozenset({"path"}),
    "run_ended": frozenset({"outcome", "detail", "trials", "best_s", "seconds"}),
    "plan_ended": frozenset({"outcome", "detail", "trials", "seconds"}),
}
"""Every event, and its fields besides those of :data:`EVERYWHERE` (docs/reference/events.md); unknown is None."""

EVERYWHERE = frozenset({"slug", "device", "elapsed_s"})
"""Fields of any event: the problem of a plan, the device, and the elapsed seconds of the run or plan."""

_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("at", "event", "slug", "device", "problem", "kernel", "plan"), (str,)),
    **dict.fromkeys(("outcome", "detail", "message", "state", "path"), (str,)),
    **dict.fromkeys(("problems", "devices", "runs", "ties"), (list,)),
    **dict.fromkeys(("versions", "seconds", "rejected"), (dict,)),
    **dict.fromkeys(("exit", "signal"), (str, int)),
}
"""Types of the fields that are not numbers. In ``progress``, ``problems`` is a number."""

ENDS = frozenset({"run_ended", "plan_ended"})
"""Events after which the log ends, unless the run is resumed."""

BEGINNINGS = frozenset({"run_started", "plan_started", "resumed"})
"""Events with which a process begins to write the log."""

SNAPSHOT_EVERY_S = 60.0
"""Seconds between two events ``progress``."""

_LARGEST = 2**63
_NESTED = (list, dict, tuple, Mapping, Set)

LONGEST_TEXT = 300
"""Most characters of a text: the messages of a compiler may have megabytes."""

LONGEST_LINE = 1 << 16
"""Most bytes of a line that is read."""

MOST_BYTES = 1 << 23
"""Most bytes that are read at a time."""


class EventLog:
    """A log in the directory of a run or plan, to which events are appended.

    An event is one line, appended by one write, so several processes may log to one file. Events that a full disk
    dropped are counted in the field ``dropped`` of the next one.
    """

    def __init__(self, directory: Path) -> None:
        self.path = Path(directory) / FILE
        self.dropped = 0
        self._snapshot_at = -math.inf

    def write(self, event: str, **facts: Any) -> None:
        """Append an event of :data:`EVENTS` with its fields: plain values, mappings and sequences.

        Long texts are shortened; NaN and infinity become None. An unknown event or field is a programming error:
        ValueError.
        """
        unknown = facts.keys() - EVENTS.get(event, frozenset()) - EVERYWHERE
        if event not in EVENTS or unknown:
            raise ValueError(f"{event!r} with {sorted(unknown)} is not among EVENTS.")
        document = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **_plain(facts)}
        if self.dropped:
            document["dropped"] = self.dropped
        line = json.dumps(document, allow_nan=False)
        try:
            append_line(self.path, line.encode())
        except OSError:
            self.dropped += 1
        else:
            self.dropped = 0

    def snapshot(self, runs: Any, *, at_once: bool = False, **facts: Any) -> None:
        """Append an event ``progress`` with the progress on each device, at most once a minute unless `at_once`."""
        now = time.monotonic()
        if at_once or now - self._snapshot_at >= SNAPSHOT_EVERY_S:
            self._snapshot_at = now
            self.write("progress", runs=runs, **facts)


def read_events(path: Path, offset: int = 0) -> tuple[list[dict[str, Any]], int]:
    """Read at most :data:`MOST_BYTES` of events in a file from an offset on; return them and the offset that follows.

    An incomplete last line is left for the next call, and a file that is shorter than the offset is read from its
    beginning. Lines without an event are ignored, and so is a file that is missing or no regular one.
    Unknown events and fields are returned as they are. A known field of another type, and a number that is not finite,
    is None.
    """
    events: list[dict[str, Any]] = []
    at = 0
    with contextlib.suppress(OSError), os.fdopen(open_regular(path, inside=path.parent), "rb") as file:
        at = file.seek(offset if offset <= file.seek(0, os.SEEK_END) else 0)
        end = at + MOST_BYTES
        while at < end and (line := file.readline(LONGEST_LINE)):
            if not line.endswith(b"\n") and len(line) < LONGEST_LINE:
                break
            at += len(line)
            event = _event(line)
            if event is not None:
                events.append(event)
    return events, at


def planned(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the slugs of a plan's problems in its order, from the last event ``plan_started``; empty without one."""
    slugs = [event.get("problems") or [] for event in events if event["event"] == "plan_started"]
    return [slug for slug in slugs[-1] if isinstance(slug, str) and SLUG.fullmatch(slug)] if slugs else []


def _event(line: bytes) -> dict[str, Any] | None:
    """Return the event in a line, or None."""
    try:
        document = _plain(json.loads(line.decode()), levels=3)  # as deep as the runs in `progress`
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or not all(isinstance(document.get(name), str) for name in ("at", "event")):
        return None
    event = document["event"]
    fields_of_event = EVENTS.get(event, frozenset()) | EVERYWHERE
    return {
        name: None if name in fields_of_event and not _fits(event, name, value) else value
        for name, value in document.items()
    }


def _fits(event: str, name: str, value: Any) -> bool:
    """Return whether the value of a field is of its type."""
    number = name not in _TYPES or (event, name) == ("progress", "problems")
    return type(value) in ((int, float) if number else _TYPES[name])


def _plain(value: Any, levels: int = 8) -> Any:
    """Convert a value to strict JSON; what is nested more deeply becomes None."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, _NESTED):
        if not levels:
            return None
        if isinstance(value, Mapping):
            return {str(key): _plain(part, levels - 1) for key, part in value.items()}
        return [_plain(part, levels - 1) for part in (sorted(value) if isinstance(value, Set) else value)]
    if isinstance(value, numbers.Integral):
        return int(value) if abs(int(value)) < _LARGEST else None
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else None
    text = str(value)
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"


class EventWriter(Protocol):
    """A function that writes events: :meth:`EventLog.write`, or a partial of it."""

    def __call__(self, event: str, **facts: Any) -> None:
        """Write one event."""


def no_events(event: str, **facts: Any) -> None:
    """Write nothing."""
