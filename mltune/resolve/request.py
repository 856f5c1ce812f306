"""Tuning requests: what one run tunes, on which device, with which budget."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from mltune.errors import UsageError
from mltune.problem.problem import Problem
from mltune.resolve.device import Target
from mltune.resolve.options import DECLARED, RunOptions, whole_number

if TYPE_CHECKING:
    from mltune.kernel.bundle import Kernel


class ShapeOptions(TypedDict, total=False):
    """The shape of a problem; None, as a missing key, where an option is not given.

    ``trans`` is op(A) and op(B) of a GEMM, ``size`` its m = n = k, or maps the names of another kernel's sizes to
    sizes; ``m``, ``n``, ``k`` are single extents, and ``batch`` is the number of products.
    """

    trans: str | None
    size: int | Mapping[str, int] | None
    m: int | None
    n: int | None
    k: int | None
    batch: int | None


SHAPE: tuple[str, ...] = tuple(ShapeOptions.__annotations__)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """On what, for how long and with which seed is tuned, as it is named: see :func:`mltune.tune`."""

    device: str = "auto"
    trials: int | None = None
    time: str | float | None = None
    seed: int = 0


REPLAY_TRIALS = 300
"""Trials of a run in replay without a budget."""

GPU_TIME_S = 60.0
"""Seconds of a run on a GPU without a budget."""

LARGEST_SEED = 2**31 - 1
"""Largest seed: that of all random generators in use."""

LONGEST_S = 366 * 86_400.0
"""Longest time of a run, seconds."""

_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", re.ASCII)


@dataclass(frozen=True)
class TuneRequest(RunOptions):
    """The input of a tuning run: objects, no names.

    `trials` are the most that are compiled; 0 only declares the winner of a run on record. `time_s` includes earlier
    runs in the same directory, `run`; None makes a new one under ``runs/``. `store` is the URL of the PostgreSQL
    database of a new run, empty for a file; `compile_on` the cluster whose compile workers help
    (:func:`mltune.measure.compile_farm.connect`); `choice` the name of the run's choice among kernels. Without `finals`
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
    choice: str = ""
    finals: bool = True

    def __post_init__(self) -> None:
        whole_number("seed", self.seed, 0, LARGEST_SEED)
        if self.trials is not None:
            whole_number("trials", self.trials, 0)
        for name, (_, option) in DECLARED.items():
            option.check(name, getattr(self, name))
        if self.time_s is not None and not 0 <= self.time_s <= LONGEST_S:
            raise UsageError(f"the time of a run is at most 366 days, got {self.time_s:g} s.")


def parse_duration(text: str) -> float:
    """Return the seconds of a duration, such as ``90``, ``20s``, ``30m`` or ``1h30m``."""
    match = _DURATION.fullmatch(text.strip())
    hours, minutes, seconds = (float(part or 0) for part in match.groups()) if match else (0.0, 0.0, 0.0)
    total = 3600 * hours + 60 * minutes + seconds
    if total <= 0:
        raise UsageError(
            f"a time is a positive number of hours, minutes and seconds, got {text!r}; write 20s, 30m or 1h30m."
        )
    return total
