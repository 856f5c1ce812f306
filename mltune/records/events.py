"""What happened in a run, and when: one JSON line an event, for people, for ``mltune show --follow`` and the report.

The stores are the truth of a run, this is its diary. Nothing is resumed from it: a line that cannot be written is let
go, and a line that cannot be read is passed over.
"""

from __future__ import annotations

import json
import math
import numbers
import os
import time
from collections.abc import Iterable, Mapping, Set
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

FILE = "events.jsonl"

EVENTS: dict[str, frozenset[str]] = {
    "run_started": frozenset({"problem", "kernel", "seed", "trials", "time_s", "versions", "pid"}),
    "plan_started": frozenset({"plan", "problems", "devices", "budget_s", "budget_trials", "versions", "pid"}),
    "resumed": frozenset({"trials", "pid"}),
    "slice_started": frozenset({"problem", "limit"}),
    "slice_ended": frozenset({"problem", "trials", "best_s", "outcome", "detail"}),
    "progress": frozenset({"runs", "done", "problems", "left_s", "message"}),
    "best": frozenset({"number", "tflops", "share_of_reference", "share_of_peak"}),
    "failure": frozenset({"number", "state", "detail"}),
    "reference": frozenset(
        {"after", "median_s", "noise", "sm_clock_hz", "temperature_c", "power_w", "throttle_reasons"}
    ),
    "drift": frozenset({"first", "last", "ratio"}),
    "throttled": frozenset({"number", "discarded", "throttle_reasons"}),
    "gpu_lost": frozenset({"detail"}),
    "gpu_back": frozenset({"lost_s"}),
    "worker_died": frozenset({"detail", "exit"}),
    "disk_full": frozenset({"detail"}),
    "disk_back": frozenset({"lost_s"}),
    "declared": frozenset({"number", "tflops", "share_of_reference", "ties", "rejected"}),
    "interrupted": frozenset({"signal"}),
    "report_written": frozenset({"path"}),
    "run_ended": frozenset({"outcome", "detail", "trials", "best_s", "seconds"}),
    "plan_ended": frozenset({"outcome", "detail", "trials", "seconds"}),
}
"""Every event, and the fields that it may have besides those of :data:`EVERYWHERE`: docs/watching.md explains them.

A field that is not known is left out or None.
"""

EVERYWHERE = frozenset({"slug", "device", "elapsed_s"})
"""Fields of any event: the problem of a plan, the device, and the seconds of the run's own clock."""

ENDS = frozenset({"run_ended", "plan_ended"})
"""After which nothing comes, unless the run is resumed."""

BEGINNINGS = frozenset({"run_started", "plan_started", "resumed"})

SNAPSHOT_EVERY_S = 60.0
"""Seconds between two events ``progress``."""

LONGEST_TEXT = 300
"""Characters of a text; what a compiler says may be megabytes."""

LONGEST_LINE = 1 << 16
"""Bytes of a line that is read."""


class EventLog:
    """Appends events to ``events.jsonl`` in the directory of a run or of a plan.

    An event is one line, appended by one write, so several processes may log to one file. Nothing here ends a run: on a
    full disk events are dropped, and the next one that can be written says how many in its field ``dropped``.

    Parameters
    ----------
    directory : pathlib.Path

    Attributes
    ----------
    path : pathlib.Path
    dropped : int
        Events that could not be written since the last one that could.
    """

    def __init__(self, directory: Path) -> None:
        self.path = Path(directory) / FILE
        self.dropped = 0
        self._snapshot_at = -math.inf

    def write(self, event: str, **facts: Any) -> None:
        """Append one event.

        Parameters
        ----------
        event : str
            One of :data:`EVENTS`.
        **facts
            Its fields: plain values, mappings and sequences. Texts are cut; NaN and infinities become None.

        Raises
        ------
        ValueError
            There is no such event, or it has no such field: a mistake in the program.
        """
        unknown = facts.keys() - EVENTS.get(event, frozenset()) - EVERYWHERE
        if event not in EVENTS or unknown:
            raise ValueError(f"an event and its fields are those of EVENTS, not {event!r} with {sorted(unknown)}.")
        document = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **_plain(facts)}
        if self.dropped:
            document["dropped"] = self.dropped
        line = json.dumps(document, allow_nan=False) + "\n"
        try:
            _append(self.path, line.encode())
        except OSError:
            self.dropped += 1
        else:
            self.dropped = 0

    def snapshot(self, runs: Any, *, at_once: bool = False, **facts: Any) -> None:
        """Append an event ``progress``, unless there was one in the last minute.

        Parameters
        ----------
        runs : sequence of mapping
            The progress on each device: :meth:`mltune.results.progress.Progress.to_json`.
        at_once : bool
            Whether to write it all the same: at the beginning, at the end.
        **facts
            The other fields of ``progress``.
        """
        now = time.monotonic()
        if at_once or now - self._snapshot_at >= SNAPSHOT_EVERY_S:
            self._snapshot_at = now
            self.write("progress", runs=runs, **facts)


def read_events(path: Path, offset: int = 0) -> tuple[list[dict[str, Any]], int]:
    """Read the events in a file from an offset on.

    A last line that is not complete yet is left for the next call. Lines that hold no event are passed over. Events of
    other versions are returned as they are: whoever reads takes what it knows.

    Parameters
    ----------
    path : pathlib.Path
        ``events.jsonl``; it need not exist yet.
    offset : int
        Where to begin: 0, or what the last call returned. A file that is shorter is read from its beginning.

    Returns
    -------
    list of dict
        The events, in the order in which they were written.
    int
        The offset of what was not read.
    """
    events: list[dict[str, Any]] = []
    if not path.is_file():
        return events, 0
    try:
        with path.open("rb") as file:
            offset = offset if offset <= file.seek(0, os.SEEK_END) else 0
            file.seek(offset)
            while (line := file.readline(LONGEST_LINE)) and (line.endswith(b"\n") or _skip_line(file)):
                offset = file.tell()
                event = _event(line)
                if event is not None:
                    events.append(event)
    except OSError:
        pass
    return events, offset


def planned(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the slugs of a plan's problems in its order, as the last event that tells them; none where none does."""
    told = [event.get("problems") for event in events if event["event"] == "plan_started"]
    return [slug for slug in told[-1] if isinstance(slug, str)] if told and isinstance(told[-1], list) else []


def _skip_line(file: Any) -> bool:
    """Skip the rest of a line that is too long; return whether it had an end."""
    while part := file.readline(LONGEST_LINE):
        if part.endswith(b"\n"):
            return True
    return False


def _event(line: bytes) -> dict[str, Any] | None:
    """Return the event in a line, or None."""
    try:
        document = json.loads(line.decode(), parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    if isinstance(document, dict) and all(isinstance(document.get(name), str) for name in ("at", "event")):
        return document
    return None


def _append(path: Path, line: bytes) -> None:
    """Append a line in one write, on a line of its own: a full disk may have torn the one before it.

    Raises
    ------
    OSError
        It cannot be written, or not all of it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        line = b"\n" + line if torn else line
        if os.write(descriptor, line) < len(line):
            raise OSError(f"{path} holds a part of a line only")
    finally:
        os.close(descriptor)


def _plain(value: Any) -> Any:
    """Return a value as strict JSON knows it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | Set):
        return [_plain(part) for part in (sorted(value) if isinstance(value, Set) else value)]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else None
    text = str(value)
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"


class EventWriter(Protocol):
    """Where events are written: :meth:`mltune.records.events.EventLog.write`, or a part of it."""

    def __call__(self, event: str, **facts: Any) -> None:
        """Write one event."""
        ...


def no_events(event: str, **facts: Any) -> None:
    """Write nothing."""
