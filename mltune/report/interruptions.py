"""Interruptions of a run or of a campaign, counted from its event log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mltune.records.events import BEGINNINGS, ENDS

LONGEST_SIGNAL = 20


@dataclass(frozen=True, slots=True)
class Interruptions:
    """The interruptions of a run or of a campaign.

    Attributes
    ----------
    signals : tuple of str
        The signal of each interruption; empty for one without a record, such as a kill or a power failure.
    resumed : int
        How many of them were followed by a resumption.
    """

    signals: tuple[str, ...]
    resumed: int

    def __bool__(self) -> bool:
        """Return whether there was any."""
        return bool(self.signals)

    def text(self) -> str:
        """Return a sentence."""
        count, known = len(self.signals), Counter(filter(None, self.signals))
        by = ", ".join(
            f"{times(number)} by {signal}" if count > 1 else f"by {signal}" for signal, number in known.items()
        )
        resumed = ""
        if self.resumed:
            resumed = " and resumed" + ("" if self.resumed == count else f" {times(self.resumed)}")
        return f"interrupted {times(count)}{f' ({by})' if by else ''}{resumed}"


def interruptions(events: Sequence[Mapping[str, Any]]) -> Interruptions:
    """Count interruptions.

    A part that neither ended nor was interrupted by a signal before the next one began was killed. Events do not
    show whether the last part was killed or still goes on.

    Parameters
    ----------
    events : sequence of mapping
        The result of :func:`mltune.records.events.read_events`.

    Examples
    --------
    >>> interruptions([{"event": "run_started"}, {"event": "interrupted", "signal": "SIGTERM"}]).text()
    'interrupted once (by SIGTERM)'
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
    return Interruptions(tuple(signals), resumed)


def times(count: int) -> str:
    """Write a number of times."""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
