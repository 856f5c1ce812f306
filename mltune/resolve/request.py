"""Tuning requests: what one run tunes, on which device, with which budget."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from mltune.errors import UsageError
from mltune.kernel.bundle import Kernel
from mltune.problem.problem import Problem
from mltune.resolve.device import Target
from mltune.resolve.options import LARGEST_SEED, RunOptions, check_options, whole_number

REPLAY_TRIALS = 300
"""Trials of a run in replay without a budget."""

GPU_TIME_S = 60.0
"""Seconds of a run on a GPU without a budget."""

LONGEST_S = 366 * 86_400.0
"""Longest time of a run, seconds."""

_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", re.ASCII)


@dataclass(frozen=True)
class TuneRequest(RunOptions):
    """The input of a tuning run: objects, no names.

    `trials` are the most that are compiled; 0 only declares the winner of a run on record. `time_s` includes earlier
    runs in the same directory, `run`; None makes a new one under ``runs/``. `store` is the URL of the PostgreSQL
    database of a new run, empty for a file; `compile_on` the cluster whose compile workers help
    (:func:`mltune.measure.compile_farm.connect`); `slug` the name of its task in a campaign; `choice` the name of its
    choice among kernels. Without `finals`
    the winner follows from the times on record, is not verified again, and is written nowhere.
    """

    problem: Problem
    kernel: Kernel
    target: Target
    trials: int | None = None
    time_s: float | None = None
    seed: int = 0
    run: Path | None = None
    store: str = ""
    compile_on: str = ""
    slug: str = ""
    choice: str = ""
    finals: bool = True

    def __post_init__(self) -> None:
        whole_number("seed", self.seed, 0, LARGEST_SEED)
        if self.trials is not None:
            whole_number("trials", self.trials, 0)
        check_options(self)
        if self.time_s is not None and not 0 <= self.time_s <= LONGEST_S:
            raise UsageError(f"the time of a run cannot be {self.time_s:g} s: it is at most 366 days.")


def parse_duration(text: str) -> float:
    """Return the seconds of a duration, such as ``90``, ``20s``, ``30m`` or ``1h30m``."""
    match = _DURATION.fullmatch(text.strip())
    hours, minutes, seconds = (float(part or 0) for part in match.groups()) if match else (0.0, 0.0, 0.0)
    total = 3600 * hours + 60 * minutes + seconds
    if total <= 0:
        raise UsageError(f"{text!r} is no positive time; write hours, minutes or seconds, such as 20s, 30m or 1h30m.")
    return total
