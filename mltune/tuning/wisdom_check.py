"""Check a wisdom: whether sources and problems are still those of its entries, and whether its times still hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mltune.device.facts import Device
from mltune.errors import MltuneError, UsageError
from mltune.files.text import many
from mltune.kernel.bundle import Kernel
from mltune.kernel.reader import built_in, load_kernel
from mltune.kernel.space import find
from mltune.known.entry import Entry, Gpu, canonical
from mltune.known.wisdom import Wisdom
from mltune.problem.problem import Problem
from mltune.records.trial import Measurement, TrialState
from mltune.resolve.device import Target
from mltune.resolve.request import TuneRequest
from mltune.tuning.finals import rank_records
from mltune.tuning.session import open_session

TOLERANCE = 0.05
"""Share by which a time may exceed the upper end of the recorded interval."""

_DEFAULT_TOLERANCE = 0.01
"""Share by which the default configuration may be faster: the two are not timed in turn."""


class Verdict(StrEnum):
    """The result of checking an entry."""

    HOLDS = "holds"
    SLOWER = "slower"
    SLOWER_THAN_DEFAULT = "slower than the default"
    FAILED = "failed"
    STALE = "stale"
    UNCHECKED = "unchecked"

    @property
    def is_miss(self) -> bool:
        """Whether the entry must not be used any more."""
        return self not in (Verdict.HOLDS, Verdict.UNCHECKED)


@dataclass(frozen=True, slots=True)
class Checked:
    """An entry with the verdict of its check, and the median times measured now of it and of the default, seconds."""

    entry: Entry
    verdict: Verdict
    detail: str = ""
    median_s: float | None = None
    default_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain JSON values."""
        names = "kernel", "problem", "driver", "configuration", "measured_at"
        facts = {name: value for name, value in self.entry.to_json().items() if name in names}
        label = {"label": self.entry.to_problem().label, "device": self.entry.device.name}
        measured = {name: value for name, value in asdict(self).items() if name in ("median_s", "default_s")}
        recorded = {"recorded_s": self.entry.median_s, "recorded_high_s": self.entry.high_s}
        return {**facts, **label, **recorded, **measured, "verdict": self.verdict.value, "detail": self.detail}


def check_wisdom(
    wisdom: Wisdom,
    target: Target,
    *,
    kernels: Sequence[str] = (),
    sample: int | None = None,
    seed: int = 0,
) -> list[Checked]:
    """Check the best entries of a wisdom: kernel and problem against today's, and a sample of this GPU's by measuring.

    The sample, by default all, is measured whatever its driver. `kernels` are folders of bundles besides the built-in
    ones: a wisdom may come from somebody else, so no folder that it names is read.
    """
    bundles = {bundle.name: bundle for bundle in map(load_kernel, (*built_in(), *kernels))}
    entries = wisdom.best
    results: dict[int, Checked] = {}
    runnable: dict[int, tuple[Kernel, Problem]] = {}
    for number, entry in enumerate(entries):
        kernel_today = _today(entry, bundles)
        if isinstance(kernel_today, Checked):
            results[number] = kernel_today
        else:
            runnable[number] = kernel_today
    device, recorded = _device_and_problem(target)
    gpu = Gpu.of(device)
    of_problem = [number for number, (_, problem) in runnable.items() if recorded in (None, problem)]
    here = [number for number in of_problem if entries[number].device == gpu]
    for number in runnable.keys() - set(here):
        results[number] = Checked(entries[number], Verdict.UNCHECKED, f"it cannot be measured on {target} ({gpu.name})")
    for number in set(here) - set(drawn := _drawn(here, sample, seed)):
        results[number] = Checked(entries[number], Verdict.UNCHECKED, "it is not in the sample")
    for number in drawn:
        results[number] = _measured_again(entries[number], *runnable[number], target)
    return [results[number] for number in sorted(results)]


def _device_and_problem(target: Target) -> tuple[Device, Problem | None]:
    """Return the GPU, and in replay the only problem that can be measured."""
    if target.dataset is None:
        from mltune.device.query import query_device

        return query_device(target.cuda or 0), None
    from mltune.dataset.dataset import load_manifest

    manifest = load_manifest(target.dataset)
    return manifest.device, manifest.problem


def _drawn(numbers: Sequence[int], sample: int | None, seed: int) -> list[int]:
    if sample is None or sample >= len(numbers):
        return list(numbers)
    return sorted(np.random.default_rng(seed).choice(numbers, sample, replace=False).tolist())


def _today(entry: Entry, bundles: Mapping[str, Kernel]) -> Checked | tuple[Kernel, Problem]:
    """Return the kernel and the problem of an entry as they are today, or why the entry is not measured."""
    kernel, problem = bundles.get(entry.kernel), entry.to_problem()
    if kernel is None:
        return Checked(entry, Verdict.UNCHECKED, f"there is no kernel {entry.kernel} here: name its folder")
    if not kernel.source.is_version(entry.source_hash):
        return Checked(entry, Verdict.STALE, f"the source of {kernel.name} has changed since")
    try:
        problem = kernel.restated(problem)
        kernel.check_problem(problem)
    except MltuneError as error:
        return Checked(entry, Verdict.STALE, str(error))
    if canonical(problem.to_json()) != canonical(entry.problem):
        return Checked(entry, Verdict.STALE, f"the problem {problem.label} of {kernel.name} has changed since")
    return kernel, problem


def _measured_again(entry: Entry, kernel: Kernel, problem: Problem, target: Target) -> Checked:
    """Measure an entry and the default configuration."""
    try:
        with open_session(TuneRequest(problem, kernel.recorded_with(entry.configuration), target)) as session:
            configuration = entry.codes(session.placed.kernel)
            if configuration is None or find(session.placed.space, configuration) < 0:
                return Checked(entry, Verdict.STALE, "its configuration is not in the search space any more")
            defaults = [session.default] if session.default else []
            *measured_defaults, measured = session.measure([*defaults, configuration])
            return _judge(entry, measured, next(iter(measured_defaults), None))
    except UsageError as error:
        return Checked(entry, Verdict.FAILED, str(error))


def _judge(entry: Entry, measured: Measurement, default: Measurement | None) -> Checked:
    """Compare the measurement of an entry with its record, and with the default configuration."""
    if measured.state is not TrialState.OK or measured.median_s is None:
        return Checked(entry, Verdict.FAILED, f"it ends with {measured.state}: {measured.detail}", measured.median_s)
    ranked = rank_records({0: measured} | ({1: default} if default is not None and default.median_s else {}))
    incumbent = next(finalist for finalist in ranked if finalist.number == 0)
    misses: dict[Verdict, str] = {}
    if measured.median_s > entry.high_s * (1 + TOLERANCE):
        misses[Verdict.SLOWER] = f"it takes {measured.median_s / entry.median_s:.3f} of its recorded time"
    if incumbent.ratio_low > 1 + _DEFAULT_TOLERANCE:
        misses[Verdict.SLOWER_THAN_DEFAULT] = f"it takes {incumbent.ratio:.3f} of the time of the default configuration"
    default_s = None if default is None else default.median_s
    verdict = next(iter(misses), Verdict.HOLDS)
    return Checked(entry, verdict, "; ".join(misses.values()), measured.median_s, default_s)


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

    def __repr__(self) -> str:
        return f"WisdomCheck({many(len(self.entries), 'entry')}, {self.misses} not to be used, {self.wisdom})"

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
