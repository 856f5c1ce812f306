"""The results of functions of the Python interface that have no class in a lower room."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mltune.device.facts import Device
from mltune.kernel.bundle import Kernel
from mltune.measure.bundle_check import BundleCheck
from mltune.measure.machine_code import LoopCode
from mltune.problem.problem import Problem
from mltune.results.rating import Rate, rate_of
from mltune.tuning.bound import LimitedConfiguration, ProblemBound
from mltune.tuning.prediction import ExpectedTime, PredictedChoice, Prediction
from mltune.tuning.sweep import Pruned
from mltune.tuning.wisdom_check import Checked, Verdict


@dataclass(frozen=True)
class UpperBound:
    """How fast a problem can be at best: the result of :func:`mltune.bound`.

    Attributes
    ----------
    problem : Problem
    device : Device
    bounds : mapping of str to ProblemBound
        By kernel, that of the least time first.
    code : (LoopCode, float) or None
        The instructions of the main loop, and the least seconds that they take; where they were asked for.
    """

    problem: Problem
    device: Device
    bounds: Mapping[str, ProblemBound]
    code: tuple[LoopCode, float] | None = None

    @property
    def kernel(self) -> str:
        """The kernel with the highest bound."""
        return next(iter(self.bounds))

    @property
    def hardware(self) -> Mapping[str, float]:
        """Least time in seconds of any kernel, by ``"arithmetic"`` and ``"memory"``."""
        return self.bounds[self.kernel].hardware

    @property
    def best(self) -> LimitedConfiguration:
        """The configuration that can take the least time, with its limits."""
        return self.bounds[self.kernel].best

    @property
    def rate(self) -> Rate:
        """How times of the problem are shown: in TFLOPS, GB/s or milliseconds."""
        return rate_of(self.problem, self.device)

    @property
    def given(self) -> LimitedConfiguration | None:
        """The best configuration with the values that were given."""
        return self.bounds[self.kernel].stated

    def to_json(self) -> dict[str, Any]:
        """Return the bound as plain JSON values: what ``mltune bound --json`` prints."""
        from mltune.device.known import with_mixes

        first, *rivals = self.bounds.items()
        best = first[1]
        return {
            "problem": self.problem.label,
            "device": self.device.name,
            "kernel": self.kernel,
            "unit": best.unit,
            "hardware": dict(best.hardware),
            "best": _limited(best.best),
            "given": None if best.stated is None else _limited(best.stated),
            "examined": best.examined,
            "configurations": best.count,
            "rivals": [{"kernel": name, "unit": rival.unit, "best": _limited(rival.best)} for name, rival in rivals],
            "mixes": len(with_mixes(self.device).mixes),
            "code": None if self.code is None else _loop(*self.code),
        }


def _limited(limited: LimitedConfiguration) -> dict[str, object]:
    limits = dict(limited.limits)
    return {
        "time_s": limited.time_s,
        "binding": limited.binding,
        "limits": limits,
        "configuration": limited.configuration,
    }


def _loop(loop: LoopCode, issue_s: float) -> dict[str, object]:
    return {
        "instructions": loop.total,
        "multiply_adds": loop.arithmetic,
        "counts": loop.counts,
        "bank_conflicts": loop.conflicts,
        "issue_s": issue_s,
    }


@dataclass(frozen=True)
class Predicted:
    """Configurations that are expected to be fast: the result of :func:`mltune.predict`.

    Attributes
    ----------
    problem : Problem
    device : Device
    kernel : str
    prediction : Prediction
        With what the best of the first choices reached on recorded spaces, the time of the first one, and notices.
    """

    problem: Problem
    device: Device
    kernel: str
    prediction: Prediction

    @property
    def choices(self) -> tuple[PredictedChoice, ...]:
        """The configurations, the best first, each with its source: ``"known"`` or ``"expected"``."""
        return self.prediction.choices

    @property
    def time(self) -> ExpectedTime | None:
        """The time of the first choice with its interval, seconds; None where ``prediction.no_time`` says why."""
        return self.prediction.time

    def to_json(self) -> dict[str, Any]:
        """Return the choices as plain JSON values: what ``mltune predict --json`` prints."""
        facts = {"problem": self.problem.label, "device": self.device.name, "kernel": self.kernel}
        return facts | asdict(self.prediction)


@dataclass(frozen=True)
class Swept:
    """A recorded dataset: the result of :func:`mltune.sweep`.

    Attributes
    ----------
    dataset : pathlib.Path
        The Parquet file; its manifest is beside it.
    pruned : Pruned or None
        Of a pruned sweep: its promise, its audit, and the seconds that it saved.
    """

    dataset: Path
    pruned: Pruned | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain JSON values: what ``mltune sweep --json`` prints."""
        document: dict[str, Any] = {"dataset": str(self.dataset)}
        if self.pruned is not None:
            document["pruning"] = self.pruned.to_json() | {"replayed": self.pruned.replayed}
        return document


@dataclass(frozen=True)
class KernelCheck:
    """The result of :func:`mltune.check`.

    Attributes
    ----------
    kernel : Kernel
    problem : Problem
        The problem that it was checked for.
    device : Device
    checked : BundleCheck
        What was found.
    """

    kernel: Kernel
    problem: Problem
    device: Device
    checked: BundleCheck

    @property
    def passed(self) -> bool:
        """Whether nothing that was checked is wrong, and something was compiled; see :func:`mltune.check`."""
        return self.checked.passed

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain JSON values: what ``mltune check --json`` prints."""
        return {
            "kernel": self.kernel.name,
            "problem": self.problem.to_json(),
            "label": self.problem.label,
            "device": self.device.to_json(),
            **self.checked.to_json(),
        }


@dataclass(frozen=True)
class WisdomCheck:
    """The result of :func:`mltune.check_wisdom`.

    Attributes
    ----------
    wisdom : pathlib.Path
    entries : tuple of Checked
        The best entries of the wisdom, each with a verdict.
    """

    wisdom: Path
    entries: tuple[Checked, ...]

    @cached_property
    def misses(self) -> int:
        """Number of entries that must not be used any more."""
        return sum(entry.verdict.is_miss for entry in self.entries)

    @property
    def passed(self) -> bool:
        """Whether no entry is a miss, and at least one was checked."""
        return not self.misses and any(entry.verdict is not Verdict.UNCHECKED for entry in self.entries)

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain JSON values: what ``mltune wisdom check --json`` prints."""
        return {
            "wisdom": str(self.wisdom),
            "measured": sum(entry.median_s is not None for entry in self.entries),
            "misses": self.misses,
            "entries": [entry.to_json() for entry in self.entries],
        }
