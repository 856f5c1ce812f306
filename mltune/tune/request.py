"""The input of a tuning run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from mltune.errors import UsageError
from mltune.problem.problem import Problem

DEFAULT_KERNEL = "gemm_simt"

_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """What to tune, on what, for how long.

    Attributes
    ----------
    problem : Problem
    kernel : str
        Name or folder of the bundle.
    device : str
        ``"auto"``, ``"cuda:N"`` or ``"replay:NAME"``.
    trials : int or None
        Most trials, skipped ones included.
    time_s : float or None
        Most seconds, those of earlier runs in the same directory included.
    seed : int
    search : str
        One of :data:`mltune.learn.search.SEARCHES`: ``"model"`` is ours, the others are there to be compared with.
    skip : bool
        Whether gates skip what is predicted to be slow.
    stop : bool
        Whether the run ends by itself once nothing untried can be expected to be faster.
    run : pathlib.Path or None
        Directory of the run; None makes a new one under ``runs/``.
    compilers : int or None
        Compile processes; None is one per core.
    """

    problem: Problem
    kernel: str = DEFAULT_KERNEL
    device: str = "auto"
    trials: int | None = None
    time_s: float | None = None
    seed: int = 0
    search: str = "model"
    skip: bool = True
    stop: bool = True
    run: Path | None = None
    compilers: int | None = None


def parse_duration(text: str) -> float:
    """Read a time such as ``90``, ``20s``, ``30m``, ``1h30m``.

    Returns
    -------
    float
        Seconds.

    Raises
    ------
    UsageError
        It is not a time, or not a positive one.
    """
    match = _DURATION.fullmatch(text.strip())
    hours, minutes, seconds = (float(part or 0) for part in match.groups()) if match else (0.0, 0.0, 0.0)
    total = 3600 * hours + 60 * minutes + seconds
    if total <= 0:
        raise UsageError(
            f"a time is a positive number of hours, minutes and seconds, got {text!r}; write 20s, 30m or 1h30m."
        )
    return total
