"""An upper bound on the speed of configurations: the least time of the units of a GPU, bank conflicts included.

The analysis is that of Lai and Seznec, "Performance upper bound analysis and optimization of SGEMM on Fermi and Kepler
GPUs" (CGO 2013), equations (1) to (9), for any kernel with resources and for the limits of any device: multiply-adds
share their issue slots with loads from shared memory, at the rate that was measured for such a mix of instructions with
as many threads (or at that of the schedulers), and no memory gives more than its bandwidth. Unlike the physical prior
it knows no latency and no imperfect overlap, so that no configuration can be faster. docs/explanation/bound.md derives
the formulas.

A bundle declares each load or store of its main loop as a layout of lanes (``[access]``,
docs/reference/kernel-toml.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mltune.device.facts import Device, Mix
from mltune.device.occupancy import occupancy
from mltune.device.peaks import fma_per_clock, issues_per_clock, peak_flops
from mltune.kernel.coding import Floats, Indices, number_rows
from mltune.problem.problem import Problem

BANKS = 32
BANK_BYTES = 4
PHASE_BYTES = BANKS * BANK_BYTES
"""Bytes that shared memory delivers at once: a phase is 32, 16 or 8 lanes for accesses of 4, 8 or 16 bytes."""

LINE_BYTES = 128
"""Size of a line of the first-level cache."""


@dataclass(frozen=True, slots=True)
class LaneLayout:
    """The addresses of one access of a warp, of ``width`` bytes a lane, in many configurations.

    The address follows from the lane l in mixed radix, the fastest digit first; each of the ``digits`` has a radix and
    a stride in bytes, of shape (n_configs,) like the width. With digits ``((8, 16), (4, 0))`` it is ``16 * (l % 8) + 0
    * (l // 8 % 4)``: eight vectors, four lanes on each.
    """

    width: Indices
    digits: Sequence[tuple[Indices, Indices]]


Access = tuple[Literal["shared", "global"], Floats, LaneLayout]
"""Kind of memory, the accesses of a thread in a step (shape (n_configs,)), and the layout."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """The cost of the accesses of a step, in arrays of shape (n_configs,).

    Instructions are those of a thread. Wavefronts of shared memory are passes of a warp over its banks, phases those
    without conflicts; global wavefronts are the distinct cache lines of each phase.
    """

    shared_instructions: Floats
    global_instructions: Floats
    shared_wavefronts: Floats
    shared_phases: Floats
    global_wavefronts: Floats

    @property
    def bank_conflicts(self) -> Floats:
        """Mean degree of bank conflicts, weighted by phases: 1 without conflicts, 32 where all lanes use one bank."""
        return np.where(self.shared_phases > 0, self.shared_wavefronts / np.maximum(self.shared_phases, 1e-9), 1.0)


def counted(loads: Floats, copies: Floats) -> Traffic:
    """Return the traffic of loads from shared memory and global copies without layouts."""
    return Traffic(loads, copies, loads, loads, copies)


def traffic(accesses: Iterable[Access], warp_size: int, size: int) -> Traffic:
    """Add up the accesses of a step of ``size`` configurations."""
    sums = {name: np.zeros(size) for name in Traffic.__slots__}
    for memory, count, layout in accesses:
        sums[f"{memory}_instructions"] += count
        if memory == "shared":
            sums["shared_wavefronts"] += count * shared_wavefronts(layout, warp_size)
            sums["shared_phases"] += count * np.ceil(warp_size * layout.width / PHASE_BYTES)
        else:
            sums["global_wavefronts"] += count * line_wavefronts(layout, warp_size)
    return Traffic(**sums)


def least_wavefronts(accesses: Iterable[Access], warp_size: int, size: int) -> Floats:
    """Return the passes over the banks if each distinct word of a warp were delivered once, and all banks were busy."""
    least = np.zeros(size)
    for memory, count, layout in accesses:
        if memory == "shared":
            least += count * distinct_words(layout, warp_size) / BANKS
    return least


def shared_wavefronts(layout: LaneLayout, warp_size: int) -> Floats:
    """Return the number of passes over the banks of shared memory that an access takes.

    The lanes are served in phases of 128 bytes. A phase takes as many passes as its busiest bank has distinct words
    (lanes that read the same word share it).

    Examples
    --------
    All lanes that read a column of a tile 32 words wide use one bank; with one word of padding, no two do.

    >>> lanes = [(np.array([32, 32]), np.array([128, 132]))]
    >>> shared_wavefronts(LaneLayout(np.array([4, 4]), lanes), 32).tolist()
    [32.0, 1.0]
    """

    def passes(width: int, addresses: Indices) -> Floats:
        words, distinct = _words(width, addresses, _phase_lanes(width))
        cells = np.arange(len(words))[:, None] * BANKS + words % BANKS
        in_bank = np.bincount(cells[distinct], minlength=len(words) * BANKS).reshape(-1, BANKS)
        busiest: Floats = in_bank.max(axis=1).reshape(len(addresses), -1).sum(axis=1).astype(np.float64)
        return busiest

    return _over_distinct(layout, warp_size, passes)


def distinct_words(layout: LaneLayout, warp_size: int) -> Floats:
    """Return the number of distinct words of four bytes that the lanes of a warp access."""

    def words(width: int, addresses: Indices) -> Floats:
        counts: Floats = np.count_nonzero(_words(width, addresses, warp_size)[1], axis=1).astype(np.float64)
        return counts

    return _over_distinct(layout, warp_size, words)


def _words(width: int, addresses: Indices, lanes: int) -> tuple[Indices, NDArray[np.bool_]]:
    """Return the words that groups of lanes access, sorted, and a mask of the distinct ones."""
    words_each = max(width // BANK_BYTES, 1)
    words = (addresses // BANK_BYTES)[:, :, None] + np.arange(words_each)
    words = np.sort(words.reshape(-1, lanes * words_each), axis=1)
    distinct = np.ones(words.shape, dtype=bool)
    distinct[:, 1:] = words[:, 1:] != words[:, :-1]
    return words, distinct


def line_wavefronts(layout: LaneLayout, warp_size: int) -> Floats:
    """Return the number of cache lines that an access touches, summed over phases; lane 0 is at the start of a line."""

    def lines(width: int, addresses: Indices) -> Floats:
        touched = np.sort((addresses // LINE_BYTES).reshape(-1, _phase_lanes(width)), axis=1)
        distinct = 1 + np.count_nonzero(touched[:, 1:] != touched[:, :-1], axis=1)
        total: Floats = distinct.reshape(len(addresses), -1).sum(axis=1).astype(np.float64)
        return total

    return _over_distinct(layout, warp_size, lines)


def _phase_lanes(width: int) -> int:
    return max(PHASE_BYTES // max(width, BANK_BYTES), 1)


def _over_distinct(layout: LaneLayout, warp_size: int, count: Callable[[int, Indices], Floats]) -> Floats:
    """Apply ``count(width, addresses of shape (n, warp_size))`` once to each distinct layout; expand the results."""
    columns = [layout.width, *(column for digit in layout.digits for column in digit)]
    if len(layout.width) == 0:
        return np.zeros(0)
    lowest = [int(column.min()) for column in columns]
    number, representative = number_rows(
        [column - low for column, low in zip(columns, lowest, strict=True)],
        [int(column.max()) - low + 1 for column, low in zip(columns, lowest, strict=True)],
    )
    distinct = np.column_stack(columns)[representative]
    result = np.empty(len(distinct))
    for width in np.unique(distinct[:, 0]):
        rows = distinct[:, 0] == width
        result[rows] = count(int(width), _addresses(distinct[rows, 1:], warp_size))
    return result[number]


def _addresses(digits: Indices, warp_size: int) -> Indices:
    """Return the byte address of every lane, from columns (radix, stride, radix, stride, ...)."""
    rest = np.broadcast_to(np.arange(warp_size), (len(digits), warp_size))
    addresses = np.zeros((len(digits), warp_size), dtype=np.int64)
    for position in range(0, digits.shape[1], 2):
        radix = np.maximum(digits[:, position, None], 1)
        addresses += rest % radix * digits[:, position + 1, None]
        rest = rest // radix
    return addresses


L2_BYTES_PER_CLOCK = 64.0
"""Most bytes per clock from the second-level cache to one multiprocessor: two sectors of 32 bytes."""

LIMITS = ("arithmetic", "issue", "shared memory", "L2 cache", "memory")
"""Limits of a configuration, in the order of naming where several are equal.

``arithmetic`` is the time of the multiply-adds on the multiprocessor with the most tiles, the work outside the problem
included; ``issue`` that of all instructions that the schedulers issue there.
"""


@dataclass(frozen=True, slots=True)
class Bound:
    """The least time of configurations: ``limits`` has the seconds that each of :data:`LIMITS` allows."""

    limits: Mapping[str, Floats]

    @property
    def time_s(self) -> Floats:
        """The least time, seconds: ndarray of shape (n_configs,)."""
        longest: Floats = np.max(list(self.limits.values()), axis=0)
        return longest

    @property
    def binding(self) -> Indices:
        """Position in ``limits`` of the limit that binds each configuration: ndarray of shape (n_configs,)."""
        positions: Indices = np.argmax(list(self.limits.values()), axis=0)
        return positions


def hardware_limits(device: Device, problem: Problem, unit: str | None = None) -> dict[str, float]:
    """Return the least seconds of a problem by its operations and its traffic with memory, whatever the kernel.

    A time is 0 where the work or the device's rate is unknown. ``unit`` does the operations, such as ``"tensor_fp64"``;
    by default it is that of the problem's arithmetic.

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
        The step's :func:`least_wavefronts`; if unknown, they are no limit, and measured mixes do not count: loads may
        be wider than they seem.
    unit : str, optional
        Unit of the multiply-adds (:func:`hardware_limits`).

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
    least = {name: turns * clock_count / device.clock_hz for name, clock_count in clocks.items()}
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


def _fastest(mixes: Sequence[Mix], needs: Sequence[Floats]) -> Floats:
    """Return the highest rate among the measured mixes next to each width, ratio and number of threads.

    Infinite where a mix may be faster than all that were measured: with narrower loads, or with fewer.
    """
    measured = np.array([(mix.load_bytes, mix.per_load, mix.threads) for mix in mixes], dtype=np.float64)
    levels = [np.unique(axis) for axis in measured.T]
    table = np.zeros([len(axis) for axis in levels])
    at = tuple(np.searchsorted(axis, values) for axis, values in zip(levels, measured.T, strict=True))
    np.maximum.at(table, at, [mix.per_clock for mix in mixes])
    axes = [*zip(levels, needs, strict=True)]
    below = (np.maximum(np.searchsorted(axis, values, side="right") - 1, 0) for axis, values in axes)
    above = (np.minimum(np.searchsorted(axis, values), len(axis) - 1) for axis, values in axes)
    sides = zip(below, above, strict=True)
    fastest = np.max([table[corner] for corner in product(*sides)], axis=0)
    width, ratio, _ = needs
    unknown = (width < levels[0][0]) | (ratio > levels[1][-1]) | (fastest == 0)
    return np.where(unknown, np.inf, fastest)
