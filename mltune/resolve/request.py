"""Tuning requests: what one run tunes, on which device, with which budget; the options of commands and plans."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from mltune.errors import UsageError
from mltune.files.text import did_you_mean, printable
from mltune.problem.problem import Problem
from mltune.records.trial import SEARCHES
from mltune.resolve.device import Target

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
class RunOptions:
    """The options of every run: of :func:`mltune.tune`, of ``mltune tune``, and of ``[options]`` in a plan.

    Attributes
    ----------
    search : str
        One of :data:`mltune.records.trial.SEARCHES`; the others than ``"model"`` are for comparison.
    skip : bool
        Whether gates skip configurations that are predicted to be slow.
    stop : bool
        Whether a search by ``"model"`` ends by itself when it has gained little for long.
    variants : bool
        Whether the fastest configurations are tried with other options of the compiler, too
        (:mod:`mltune.kernel.compiler_parameters`). A run that goes on does as it began.
    enough : float or None
        The run ends once the best reaches this share of the upper bound (:mod:`mltune.cost.bound`); None never.
    compilers : int or None
        Compile processes; None is one per core.
    prior : str
        The pretrained model that the search starts from (:func:`mltune.cost.model_file.choose_model`).
    wisdom : str
        File of the best known configurations, which are measured first and to which the winner is added. ``"none"`` for
        none; ``"auto"`` is the user's file on a GPU (:func:`mltune.known.wisdom_file.default_file`), none in replay.
    """

    search: str = "model"
    skip: bool = True
    stop: bool = True
    variants: bool = True
    enough: float | None = None
    compilers: int | None = None
    prior: str = "auto"
    wisdom: str = "auto"

    @property
    def fits_models(self) -> bool:
        """Whether the search fits models: to propose, or to skip."""
        return self.search == "model" or self.skip


USUAL: Mapping[str, Any] = {option.name: option.default for option in fields(RunOptions)}
"""The defaults of :class:`RunOptions`."""


def unusual(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that differ from their defaults.

    Examples
    --------
    >>> unusual({"search": "model", "skip": False})
    {'skip': False}
    """
    return {name: value for name, value in options.items() if value != USUAL[name]}


REPLAY_TRIALS = 300
"""Trials of a run in replay without a budget."""

GPU_TIME_S = 60.0
"""Seconds of a run on a GPU without a budget."""

LARGEST_SEED = 2**31 - 1
"""Largest seed: that of all random generators in use."""

LONGEST_S = 366 * 86_400.0
"""Longest time of a run, seconds."""

_LONGEST_VALUE = 60

_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", re.ASCII)


@dataclass(frozen=True)
class TuneRequest(RunOptions):
    """The input of a tuning run: objects, no names.

    Attributes
    ----------
    problem : Problem
    kernel : Kernel
    target : Target
        A GPU, or the dataset that is replayed.
    trials : int or None
        Most configurations that are compiled; 0 only declares the winner of a run on record.
    time_s : float or None
        Most seconds, those of earlier runs in the same directory included.
    seed : int
    run : pathlib.Path or None
        Directory of the run; None makes a new one under ``runs/``.
    store : str
        URL of the PostgreSQL database for the records of a new run; empty for a file in its directory.
    compile_on : str
        Cluster whose compile workers help (:func:`mltune.measure.compile_farm.connect`); empty for none.
    choice : str
        Name of the choice among kernels that the run belongs to; empty if there is none.
    finals : bool
        Whether the run ends with finals. Without them the winner follows from the times on record, is not verified
        again, and is written nowhere.
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
        for name, value, least in (("trials", self.trials, 0), ("compilers", self.compilers, 1)):
            if value is not None:
                whole_number(name, value, least)
        if self.enough is not None and not 0 < self.enough <= 1:
            raise UsageError(f"enough is a share of the upper bound, above 0 and at most 1, got {self.enough:g}.")
        if self.time_s is not None and not 0 <= self.time_s <= LONGEST_S:
            raise UsageError(f"the time of a run is at most 366 days, got {self.time_s:g} s.")
        if self.search not in SEARCHES:
            hint = did_you_mean(str(self.search), SEARCHES) or "."
            raise UsageError(f"search is one of {', '.join(SEARCHES)}, got {self.search!r}{hint}")


def whole_number(name: str, value: object, least: int, most: int | None = None) -> int:
    """Return the value of an option that is a whole number from ``least`` to ``most``.

    Examples
    --------
    >>> whole_number("trials", 300, 1)
    300
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least or (most is not None and number > most):
        law = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise UsageError(f"{name} is a whole number {law}, got {printable(repr(value), _LONGEST_VALUE)}.")
    return number


def parse_duration(text: str) -> float:
    """Read a duration, such as ``90``, ``20s``, ``30m`` or ``1h30m``, in seconds.

    Examples
    --------
    >>> parse_duration("1h30m")
    5400.0
    """
    match = _DURATION.fullmatch(text.strip())
    hours, minutes, seconds = (float(part or 0) for part in match.groups()) if match else (0.0, 0.0, 0.0)
    total = 3600 * hours + 60 * minutes + seconds
    if total <= 0:
        raise UsageError(
            f"a time is a positive number of hours, minutes and seconds, got {text!r}; write 20s, 30m or 1h30m."
        )
    return total
