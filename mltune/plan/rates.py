"""How long a trial takes, judged by recorded timings of the same kernel and precision."""

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
"""The fastest share of a dataset: a search mostly measures such, which take longer to compile and more samples."""


@dataclass(frozen=True, slots=True)
class Rate:
    """What a trial costs.

    Attributes
    ----------
    compile_s : float
        Seconds of one core for a build.
    verify_s : float
        Seconds of the GPU to verify a build, whatever the size.
    time_s : float
        Seconds of the GPU to time a build.
    recorded : str
        The dataset that says so.
    """

    compile_s: float
    verify_s: float
    time_s: float
    recorded: str

    def trials(self, seconds: float, cores: float) -> int:
        """Return how many trials fit, where nothing is skipped and nothing is waited for: builders and GPU overlap.

        A real run has fewer (about half, on an H200 with 16 cores): it also plans, begins and ends.
        """
        return int(seconds / max(self.compile_s / cores, self.verify_s + self.time_s))


def recorded_rate(kernel: str, problem: Problem, manifests: Sequence[Manifest], device: Device | None) -> Rate | None:
    """Estimate what a trial costs from the dataset of the same kernel and precision whose size is nearest.

    Timing is scaled by the work and, where the device is another one, by the peaks of the two.

    Parameters
    ----------
    kernel : str
        Name of the kernel.
    problem : Problem
    manifests : sequence of Manifest
        The datasets there are.
    device : Device or None
        The GPU; None where it is not known: then it is that of the dataset.

    Returns
    -------
    Rate or None
        None where nothing is recorded.
    """
    if not problem.cost_class:
        return None
    related = [one for one in manifests if one.kernel == kernel and one.problem.cost_class == problem.cost_class]
    if not related:
        return None
    nearest = min(related, key=lambda one: (abs(math.log(problem.flops / one.problem.flops)), -one.rows, one.name))
    costs = _costs(nearest.name)
    if costs is None:
        return None
    compile_s, verify_s, time_s = costs
    scale = problem.flops / nearest.problem.flops * _slower(nearest.device, device, problem.arithmetic)
    return Rate(compile_s, verify_s, time_s * scale, nearest.name)


@cache
def _costs(name: str) -> tuple[float, float, float] | None:
    """Return the mean seconds to compile, verify and time what a search prefers; None where nothing ran."""
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
    """Return by how much a device is slower than that of a dataset; 1 where nobody knows."""
    try:
        return 1.0 if device is None else peak_flops(recorded, arithmetic) / peak_flops(device, arithmetic)
    except DeviceError:
        return 1.0
