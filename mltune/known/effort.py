"""The effort of programs that tune as they run, ``none``, ``quick`` or ``full``, from an environment variable."""

from __future__ import annotations

import os

from mltune.errors import UsageError
from mltune.files.text import printable

VARIABLE = "MLTUNE_EFFORT"
"""``none`` uses what is known and measures nothing, ``quick`` measures little, ``full`` all that a program asks for."""

EFFORTS = ("none", "quick", "full")


def effort(level: str = "") -> str:
    """Return the effort that a program gives, else that of the environment; empty where neither says anything."""
    chosen = level or os.environ.get(VARIABLE, "")
    if chosen and chosen not in EFFORTS:
        name = "effort" if level else VARIABLE
        raise UsageError(f"{name} cannot be {printable(chosen, 80)!r}: it is one of {', '.join(EFFORTS)}.")
    return chosen
