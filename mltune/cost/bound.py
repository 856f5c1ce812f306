"""An upper bound on the speed of configurations: the least time that the units of a GPU need for their work.

The analysis is that of Lai and Seznec, "Performance upper bound analysis and optimization of SGEMM on Fermi and Kepler
GPUs" (CGO 2013), equations (1) to (9), for any kernel with resources and for the limits of any device: multiply-adds
share their issue slots with loads from shared memory, at the rate that was measured for such a mix of instructions with
as many threads (or at that of the schedulers), and no memory gives more than its bandwidth. Unlike the physical prior
it knows no latency and no imperfect overlap, so that no configuration can be faster. docs/explanation/bound.md derives
the formulas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from mltune.cost.access import BANK_BYTES, Traffic, counted
from mltune.device.facts import Device, Mix
from mltune.device.occupancy import occupancy
from mltune.device.peaks import fma_per_clock, issues_per_clock, peak_flops
from mltune.kernel.columns import Floats, Indices
from mltune.problem.problem import Problem

L2_BYTES_PER_CLOCK = 64.0
"""Most bytes per clock from the second-level cache to one multiprocessor: two sectors of 32 bytes."""

LIMITS = ("arithmetic", "issue", "shared memory", "L2 cache", "memory")
"""What limits a configuration, in the order in which they are named where several limit it equally.

``arithmetic`` is the time of the multiply-adds on the multiprocessor with the most tiles, the work outside the problem
included; ``issue`` that of all instructions that the schedulers issue there.
"""


@dataclass(frozen=True, slots=True)
class Bound:
    """The least time of configurations, by what limits it.

    Attributes
    ----------
    limits : mapping of str to ndarray of shape (n_configs,)
        Least time in seconds that each of :data:`LIMITS` allows.
    """

    limits: Mapping[str, Floats]

    @property
    def time_s(self) -> Floats:
        """The least time, seconds: ndarray of shape (n_configs,)."""
        longest: Floats = np.max(list(self.limits.values()), axis=0)
        return longest

    @property
    def binding(self) -> Indices:
        """Position in ``limits`` of what limits each configuration: ndarray of shape (n_configs,)."""
        positions: Indices = np.argmax(list(self.limits.values()), axis=0)
        return positions


def hardware_limits(device: Device, problem: Problem, unit: str | None = None) -> dict[str, float]:
    """Return the least times of a problem, whatever the kernel: its operations, and its traffic with memory.

    Parameters
    ----------
    unit : str, optional
        What does the operations, such as ``"tensor_fp64"``; by default the unit of the problem's arithmetic.

    Returns
    -------
    dict of str to float
        ``"arithmetic"`` and ``"memory"``, seconds; 0 where the work or the device's rate is not known.

    Examples
    --------
    >>> from mltune.device.known import H200
    >>> from mltune.problem.gemm import GemmProblem
    >>> limits = hardware_limits(H200, GemmProblem("s", "N", "T", 4096, 4096, 4096))
    >>> {name: f"{1e3 * time_s:.3f} ms" for name, time_s in limits.items()}
    {'arithmetic': '2.054 ms', 'memory': '0.042 ms'}
    """
    bandwidth = device.memory_bytes_per_s
    return {
        "arithmetic": problem.flops / peak_flops(device, unit or problem.arithmetic),
        "memory": problem.bytes / bandwidth if bandwidth > 0 else 0.0,
    }


def bound(
    device: Device,
    problem: Problem,
    resources: Mapping[str, Floats],
    traffic: Traffic | None,
    shared_least: Floats | None = None,
    unit: str | None = None,
) -> Bound:
    """Compute the least time of configurations from their resources.

    Parameters
    ----------
    resources : mapping of str to ndarray of shape (n_configs,)
        At least ``threads``, ``registers``, ``tiles`` and ``fma`` (docs/explanation/features.md).
    traffic : Traffic or None
        Accesses of a step; None stands for the resource ``shared_loads``, whose bytes are then not known.
    shared_least : ndarray of shape (n_configs,), optional
        Least passes of a warp over the banks of shared memory in a step (:func:`mltune.cost.access.least_wavefronts`);
        where it is not known, they are no limit, and measured mixes do not count: loads may be wider than they seem.
    unit : str, optional
        What does the multiply-adds (:func:`hardware_limits`).

    Examples
    --------
    A tile of 6 x 6 outputs a thread, of which a step of k loads its operands from shared memory, two at a time, on a
    GTX 580, for which 30.8 instructions per clock were measured with six multiply-adds to a load (Lai and Seznec,
    section 4.5):

    >>> from mltune.device.facts import Mix
    >>> from mltune.device.known import H200
    >>> from mltune.problem.gemm import GemmProblem
    >>> import dataclasses
    >>> mix = Mix("fp32", load_bytes=8, per_load=6, threads=512, dependent=True, per_clock=30.8)
    >>> fermi = dataclasses.replace(H200, sm_count=16, clock_hz=1.544e9, fma_per_clock=(32, 2), mixes=(mix,))
    >>> step = {"threads": 256.0, "registers": 63.0, "tiles": 1600.0, "steps": 4800.0, "fma": 36.0, "shared_loads": 6.0}
    >>> resources = {name: np.array([value]) for name, value in step.items()}
    >>> problem = GemmProblem("s", "N", "N", 3840, 3840, 4800)
    >>> found = bound(fermi, problem, resources, None, shared_least=np.array([6 * 8 / 4]))
    >>> LIMITS[found.binding[0]], f"{hardware_limits(fermi, problem)['arithmetic'] / found.time_s[0]:.3f}"
    ('issue', '0.825')
    """
    unit = unit or problem.arithmetic
    zero = np.zeros_like(resources["threads"])
    loads = resources.get("shared_loads", zero)
    traffic = traffic or counted(loads, resources.get("copies", zero))
    most = float(device.max_registers_per_thread)
    registers = np.minimum(resources["registers"], np.minimum(resources.get("register_cap", zero + most), most))
    shared_bytes = resources.get("shared_bytes", zero)
    resident = np.maximum(occupancy(device, resources["threads"], registers, shared_bytes).blocks_per_sm, 1)
    warps = np.ceil(resources["threads"] / device.warp_size)
    lanes = warps * device.warp_size
    clocks = {
        "arithmetic": lanes * resources["fma"] / fma_per_clock(device, unit),
        "issue": lanes * _issue(device, unit, resources, traffic, shared_least, resident),
        "shared memory": warps * (zero if shared_least is None else shared_least) / _bank_words(device),
        "L2 cache": resources.get("global_bytes", zero) / L2_BYTES_PER_CLOCK,
    }
    turns = np.ceil(resources["tiles"] / device.sm_count) * np.maximum(resources.get("steps", zero + 1.0), 1.0)
    least = {name: turns * each / device.clock_hz for name, each in clocks.items()}
    least["memory"] = zero + hardware_limits(device, problem, unit)["memory"]
    return Bound({name: least[name] for name in LIMITS})


def _bank_words(device: Device) -> float:
    """Return the words of four bytes that a bank of shared memory delivers in a clock: two on Kepler, else one."""
    return 2.0 if device.compute_capability is not None and device.compute_capability[0] == 3 else 1.0


def _issue(
    device: Device,
    arithmetic: str,
    resources: Mapping[str, Floats],
    traffic: Traffic,
    shared_least: Floats | None,
    resident: Floats,
) -> Floats:
    """Return the clocks that the instructions of one thread take from a multiprocessor that does nothing else.

    Of the measured mixes next to that of the configuration, with more and fewer loads and threads, the fastest counts.
    A load counts as one of as many bytes as the banks deliver for it: lanes that read the same word share it.
    """
    fma, loads = resources.get("fma_instructions", resources["fma"]), traffic.shared_instructions
    by_schedulers = (fma + loads + traffic.global_instructions) / (issues_per_clock(device) * device.warp_size)
    mixes = [] if arithmetic.startswith("tensor") else [mix for mix in device.mixes if mix.arithmetic == arithmetic]
    if not mixes or shared_least is None:
        return by_schedulers
    loaded = np.maximum(loads, 1e-9)
    width = np.maximum(BANK_BYTES * shared_least / loaded, BANK_BYTES)
    fastest = _fastest(mixes, (width, fma / loaded, resident * resources["threads"]))
    return np.maximum(by_schedulers, (fma + loads) / fastest)


def _fastest(mixes: Sequence[Mix], wanted: Sequence[Floats]) -> Floats:
    """Return the highest rate among the mixes next to each wanted width, ratio and number of threads.

    Infinite where a mix may be faster than all that were measured: with narrower loads, or with fewer.
    """
    measured = np.array([(mix.load_bytes, mix.per_load, mix.threads) for mix in mixes], dtype=np.float64)
    levels = [np.unique(axis) for axis in measured.T]
    table = np.zeros([len(axis) for axis in levels])
    at = tuple(np.searchsorted(axis, values) for axis, values in zip(levels, measured.T, strict=True))
    np.maximum.at(table, at, [mix.per_clock for mix in mixes])
    sides = [
        (
            np.maximum(np.searchsorted(axis, values, side="right") - 1, 0),
            np.minimum(np.searchsorted(axis, values), len(axis) - 1),
        )
        for axis, values in zip(levels, wanted, strict=True)
    ]
    fastest = np.max([table[corner] for corner in product(*sides)], axis=0)
    width, ratio, _ = wanted
    unknown = (width < levels[0][0]) | (ratio > levels[1][-1]) | (fastest == 0)
    return np.where(unknown, np.inf, fastest)
