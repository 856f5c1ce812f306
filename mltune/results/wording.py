"""Text forms of values: rates, shares, times, durations, configurations, trial states."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mltune.problem.problem import STRICTEST

UNKNOWN = "-"
"""Stands for a value that is not known."""

MOST, MOST_SECONDS = 1e6, 1e10
"""Values from which on a number is written with a power of ten: it is from a damaged record."""

REFERENCE = "cuBLAS"
"""Name of the reference kernel where a record does not name it."""


REPLAYED = "replayed from recorded times: nothing was compiled or verified"
"""The note on a winner of a replay."""

RECORDED_PHASES = ("compile", "time")
"""Phases of a replay with the seconds of the recording; the others have those of this machine."""


def verification(verified: bool, replayed: bool) -> str:
    """Say whether a winner was verified."""
    return REPLAYED if replayed else "verified" if verified else "not verified"


def configuration(values: Mapping[str, object] | None) -> str:
    """Write a configuration as ``NAME=VALUE`` pairs."""
    return UNKNOWN if values is None else " ".join(f"{name}={value}" for name, value in values.items())


def kernel_of_class(name: str, accuracy: str) -> str:
    """Write a kernel, with its accuracy class unless that is the strictest."""
    return name if accuracy == STRICTEST else f"{name} ({accuracy})"


def percent(share: float | None, digits: int = 1) -> str:
    """Write a share as a percentage."""
    if share is None or not math.isfinite(share):
        return UNKNOWN
    return f"{100 * share:.{digits}f} %" if abs(share) < MOST else f"{100 * share:.3g} %"


def error(share: float | None) -> str:
    """Write an error as a share of the bound on rounding errors, with two significant digits."""
    return UNKNOWN if share is None else f"{share:.2g} of bound"


def tflops(value: float | None) -> str:
    """Write TFLOPS with two decimals, values below 10 with three significant digits."""
    if value is None:
        return UNKNOWN
    return f"{value:.2f}" if 10 <= value < MOST or value == 0 else f"{value:.3g}"


def gb_per_s(value: float | None) -> str:
    """Write GB/s with four significant digits."""
    if value is None:
        return UNKNOWN
    return f"{value:.0f}" if 1000 <= value < MOST else f"{value:#.4g}"


def milliseconds(seconds: float | None) -> str:
    """Write the time of a kernel with four decimals, times below 0.1 ms with four significant digits."""
    if seconds is None:
        return UNKNOWN
    return f"{1e3 * seconds:.4f} ms" if 1e-4 <= seconds < MOST else f"{1e3 * seconds:.4g} ms"


def of_optimum(figures: Mapping[str, Any]) -> str:
    """Write how near a trial came to the optimum of its dataset: the fields of :class:`mltune.results.summary.Optimum`.

    >>> of_optimum({"share": 0.9921, "median_s": 1.234e-3, "rank": 3, "configurations": 4362})
    "99.2 % of the dataset's optimum (1.2340 ms), rank 3 of 4,362"
    """
    share, optimum = percent(figures["share"]), milliseconds(figures["median_s"])
    return f"{share} of the dataset's optimum ({optimum}), rank {figures['rank']:,} of {figures['configurations']:,}"


def of_skipped(figures: Mapping[str, Any]) -> str:
    """Write what a dataset knows of the skipped: the fields of :class:`mltune.results.summary.Optimum`.

    >>> of_skipped({"skipped": 90, "skipped_faster": 1, "best_skipped": 84, "best_skipped_ratio": 0.973})
    'faster than the winner: 1 of the 90 skipped trials; the fastest of them, trial 84, takes 97.3 % of its time'
    """
    text = f"faster than the winner: {figures['skipped_faster']:,} of the {figures['skipped']:,} skipped trials"
    if figures["best_skipped"] is None:
        return text
    ratio = percent(figures["best_skipped_ratio"])
    return f"{text}; the fastest of them, trial {figures['best_skipped']}, takes {ratio} of its time"


def skip_check(skips: Mapping[str, Any]) -> str:
    """Write how many skips were wrong of those that were measured to check: fields of the audit.

    >>> skip_check({"audited": 0, "false": 0}), skip_check({"audited": 9, "false": 0, "false_share_at_most": 0.283})
    ('none measured to check', 'wrong: 0 of 9 measured to check (at most 28.3 % of all, 95 % confidence)')
    """
    if not skips["audited"]:
        return "none measured to check"
    bound = percent(skips["false_share_at_most"])
    return f"wrong: {skips['false']} of {skips['audited']} measured to check (at most {bound} of all, 95 % confidence)"


def phases(seconds: Mapping[str, float], replayed: bool) -> str:
    """Write the seconds of a run by phase; in replay those of the recording apart."""
    parts: dict[bool, list[str]] = {False: [], True: []}
    for phase, value in seconds.items():
        parts[replayed and phase in RECORDED_PHASES].append(f"{phase} {value:.1f}")
    return "; recorded: ".join(", ".join(texts) for texts in parts.values() if texts)


def states(counts: Mapping[str, int]) -> str:
    """Write the states that occur, the most frequent first."""
    counted = sorted(((count, state) for state, count in counts.items() if count), reverse=True)
    return ", ".join(f"{count} {state}" for count, state in counted) or "none"


def duration(seconds: float) -> str:
    """Write seconds as ``45s``, ``12m05s`` or ``8h30m``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}m{rest:02}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02}m"


def spaced_duration(seconds: float | None) -> str:
    """Write seconds with spaces and decimals, for running text: ``4.50 s``, ``12 min 05 s``, ``8 h 30 min``."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    if seconds >= MOST_SECONDS:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
