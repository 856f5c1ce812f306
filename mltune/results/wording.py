"""Text forms of values: shares, durations, configurations, trial states."""

from __future__ import annotations

from collections.abc import Mapping


def configuration(values: Mapping[str, int]) -> str:
    """Write a configuration as ``NAME=VALUE`` pairs."""
    return " ".join(f"{name}={value}" for name, value in values.items())


def percent(share: float | None) -> str:
    """Write a share as a percentage; a dash when it is not known."""
    return "-" if share is None else f"{100 * share:.1f} %"


def states(counts: Mapping[str, int]) -> str:
    """Write the states that occur, the most frequent first."""
    some = sorted(((count, state) for state, count in counts.items() if count), reverse=True)
    return ", ".join(f"{count} {state}" for count, state in some) or "none"


def duration(seconds: float) -> str:
    """Write seconds as ``45s``, ``12m05s`` or ``8h30m``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}m{rest:02}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02}m"
