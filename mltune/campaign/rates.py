"""Estimates of the cost of a trial, from recorded timings of the same kernel and precision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from mltune.device.peaks import peak_flops
from mltune.errors import DeviceError

if TYPE_CHECKING:
    from mltune.dataset.manifest import Manifest
    from mltune.device.facts import Device
    from mltune.problem.problem import Problem

_PREFERRED = 0.1
"""Share of the fastest rows of a dataset: a search mostly measures such, whose compilation and timing take longer."""


@dataclass(frozen=True, slots=True)
class Rate:
    """The cost of a trial: seconds of one core to compile, and seconds of the GPU, as in the dataset ``recorded``."""

    compile_s: float
    verify_s: float
    time_s: float
    recorded: str

    def trials(self, seconds: float, cores: float) -> int:
        """Return the number of trials if compilers and GPU work in parallel, without skips and waiting.

        A real run has about half of them (H200, 16 cores).
        """
        return int(seconds / max(self.compile_s / cores, self.verify_s + self.time_s))


def recorded_rate(kernel: str, problem: Problem, manifests: Sequence[Manifest], device: Device | None) -> Rate | None:
    """Estimate the cost of a trial from the dataset of the same kernel and precision with the nearest size.

    The time is scaled by the number of operations (of bytes, where operations are not counted) and, for another device,
    by the ratio of the peaks. Without a device the estimate is for that of the dataset; without such a dataset it is
    None.
    """
    if not problem.cost_class:
        return None
    related = [one for one in manifests if one.kernel == kernel and one.problem.cost_class == problem.cost_class]
    work = _work(problem)
    related = [one for one in related if work and _work(one.problem)]
    if not related:
        return None
    nearest = min(related, key=lambda one: (abs(math.log(work / _work(one.problem))), -one.rows, one.name))
    costs = _costs(nearest.name)
    if costs is None:
        return None
    compile_s, verify_s, time_s = costs
    scale = work / _work(nearest.problem) * _slower(nearest.device, device, problem.arithmetic)
    return Rate(compile_s, verify_s, time_s * scale, nearest.name)


def _work(problem: Problem) -> int:
    """Return the operations of a problem, or its bytes where they are not counted."""
    return problem.flops if problem.flops > 1 else problem.bytes


@cache
def _costs(name: str) -> tuple[float, float, float] | None:
    """Return the mean seconds to compile, verify and time the fastest rows; None where no row ran."""
    from mltune.dataset.dataset import load_dataset

    dataset = load_dataset(name)
    median_s = dataset.numbers("median_s")
    if not np.isfinite(median_s).any():
        return None
    preferred = median_s <= np.nanquantile(median_s, _PREFERRED)
    compile_s, verify_s, time_s = (
        float(np.nan_to_num(dataset.numbers(column)[preferred]).mean())
        for column in ("compile_s", "verify_s", "time_s")
    )
    return compile_s, verify_s, time_s


def _slower(recorded: Device, device: Device | None, arithmetic: str) -> float:
    """Return the ratio of the peaks of two devices; 1 where one is unknown."""
    try:
        return 1.0 if device is None else peak_flops(recorded, arithmetic) / peak_flops(device, arithmetic)
    except DeviceError:
        return 1.0
