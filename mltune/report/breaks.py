"""How often a night broke off, and was gone on with: as far as its diary tells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mltune.records.events import BEGINNINGS, ENDS

LONGEST_SIGNAL = 20


@dataclass(frozen=True, slots=True)
class Breaks:
    """When a night broke off.

    Attributes
    ----------
    signals : tuple of str
        What ended each part of the night that did not end by itself; empty for one that was killed, or lost its power,
        and could not say so.
    resumed : int
        How many of them were gone on with.
    """

    signals: tuple[str, ...]
    resumed: int

    def __bool__(self) -> bool:
        """Return whether it broke off at all."""
        return bool(self.signals)

    def told(self) -> str:
        """Return a sentence."""
        count, known = len(self.signals), Counter(filter(None, self.signals))
        by = ", ".join(
            f"{times(number)} by {signal}" if count > 1 else f"by {signal}" for signal, number in known.items()
        )
        on = (
            ""
            if not self.resumed
            else " and gone on with" + ("" if self.resumed == count else f" {times(self.resumed)}")
        )
        return f"the night was broken off {times(count)}{f' ({by})' if by else ''}{on}"


def breaks(events: Sequence[Mapping[str, Any]]) -> Breaks:
    """Return how often a night broke off.

    A part that neither ended nor was interrupted before the next one began was killed. Whether the last one was cannot
    be told from a night that goes on.

    Parameters
    ----------
    events : sequence of mapping
        As :func:`mltune.records.events.read_events` returns them.
    """
    signals: list[str] = []
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
    return Breaks(tuple(signals), resumed)


def times(count: int) -> str:
    """Say how often."""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
