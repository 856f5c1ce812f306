"""Interruptions of a run or of a campaign, counted from its event log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mltune.records.events import BEGINNINGS, ENDS

LONGEST_SIGNAL = 20


def interruptions(events: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence on the interruptions and their signals; empty where there was none.

    A part that neither ended nor was interrupted by a signal before the next one began was killed. Events do not show
    whether the last part was killed or still goes on.

    Parameters
    ----------
    events : sequence of mapping
        The result of :func:`mltune.records.events.read_events`.

    Examples
    --------
    >>> interruptions([{"event": "run_started"}, {"event": "interrupted", "signal": "SIGTERM"}, {"event": "resumed"}])
    'interrupted once (by SIGTERM) and resumed'
    """
    signals: list[str] = []  # empty for an interruption without a record: a kill, a power failure
    resumed, running, broken = 0, False, False
    for event in events:
        name = event["event"]
        if name in BEGINNINGS:
            if running:
                signals.append("")
            resumed += running or broken
            running, broken = True, False
        elif name == "interrupted":
            signals.append(str(event.get("signal") or "")[:LONGEST_SIGNAL])
            running, broken = False, True
        elif name in ENDS:
            if event.get("outcome") == "interrupted" and not broken:
                signals.append("")
                broken = True
            running = False
    return _text(signals, resumed)


def _text(signals: Sequence[str], resumed: int) -> str:
    count, known = len(signals), Counter(filter(None, signals))
    if not count:
        return ""
    by = ", ".join(f"{times(number)} by {signal}" if count > 1 else f"by {signal}" for signal, number in known.items())
    again = "" if resumed == count else f" {times(resumed)}"
    return f"interrupted {times(count)}{f' ({by})' if by else ''}{f' and resumed{again}' if resumed else ''}"


def times(count: int) -> str:
    """Write a number of times."""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
