"""A roofline model with latencies: bounds on the speed of configurations, computed without measurements.

A step of a block takes the clocks of its busiest unit, or its latency if too few blocks are resident to hide it
(Little's law; Volkov, "Understanding latency hiding on GPUs", 2016). docs/explanation/features.md derives the formulas.
The constants are properties of hardware; nothing is fitted to run times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mltune.cost.bound import Traffic, counted
from mltune.device.facts import Device
from mltune.device.occupancy import Occupancy, occupancy
from mltune.device.peaks import fma_per_clock
from mltune.kernel.coding import Floats

SCHEDULERS = 4
"""Warp instructions that a multiprocessor issues per clock."""

L2_BYTES_PER_CLOCK = 32.0
"""Bytes per clock from the second-level cache to one multiprocessor."""

GLOBAL_LATENCY = 400.0
SHARED_LATENCY = 30.0
BARRIER_LATENCY = 30.0
"""Clocks of a load that misses the first-level cache, of a load from shared memory, and of a barrier."""

START_CLOCKS = 2000.0
"""Clocks of a block outside its main loop: launch, first loads, last stores."""

SPILL_ACCESSES = 2.0
"""Local-memory instructions per use of a spilled register: one store, one load."""

REGISTER_ERROR = 16.0
"""Standard error of a register estimate, registers: 14 to 31 over 240 random compiles of tiled GEMMs."""

OVERLAP = 3.0
"""Exponent of the sum of bounds: infinite for perfect overlap of the units, 1 for none."""

SMALLEST_SHARE = 1e-4


@dataclass(frozen=True, slots=True)
class Physics:
    """The bounds and the speed that follow from the resources of configurations, of shape (n_configs,).

    ``columns`` are derived columns by name, in their own units; ``share`` is that of the device's peak that the bounds
    allow, 0 if a configuration cannot run.
    """

    columns: dict[str, Floats]
    share: Floats


def physics(
    device: Device,
    arithmetic: str,
    resources: Mapping[str, Floats],
    traffic: Traffic | None,
    spilled: Floats | None = None,
) -> Physics:
    """Compute bounds and speeds from resources of shape (n_configs,): at least threads, registers, tiles and fma.

    ``arithmetic`` is the unit of the multiply-adds: ``"fp32"``, ``"fp64"`` or one of the tensor cores. Without
    ``traffic`` the resources ``shared_loads`` and ``copies`` stand for it, without bank conflicts. ``spilled``
    registers follow by default from the error of the register estimate.
    """
    of = _Resources(resources)
    limit = float(device.max_registers_per_thread)
    cap = np.minimum(of.get("register_cap", limit), limit)
    resident = occupancy(device, of["threads"], np.minimum(of["registers"], cap), of["shared_bytes"])
    blocks = np.maximum(resident.blocks_per_sm, 0).astype(np.float64)
    if spilled is None:
        spilled = _expected_spills(of["registers"] - cap)
    loads, copies = of["shared_loads"], of["copies"]
    step = _step(device, arithmetic, of, traffic or counted(loads, copies), spilled, blocks)
    fma = step.bounds["fma"]
    clocks, waves, tail = _launch(device, of, step, blocks)
    useful = 1.0 / np.maximum(of.get("covered", 1.0), 1.0)
    work = of["tiles"] * of.get("steps", 1.0) * fma * useful / device.sm_count
    share = np.where(blocks > 0, work / np.maximum(clocks, 1.0), 0.0)
    columns = _occupancy_columns(device, of, resident, blocks) | {
        "register_pressure": of["registers"] / np.maximum(cap, 1.0),
        "spilled_registers": spilled,
        "waves": waves,
        "tail_efficiency": tail,
        "useful_share": useful,
        **{f"{name}_bound": fma / np.maximum(fma, bound) for name, bound in step.bounds.items() if name != "fma"},
        "latency_bound": blocks * step.throughput / np.maximum(blocks * step.throughput, np.maximum(step.latency, 1.0)),
        "fma_resident": of["fma"] * blocks * step.warps,
        "wave_bytes": step.wave_bytes,
    }
    if traffic is not None:
        columns["bank_conflicts"] = traffic.bank_conflicts
    if traffic is not None or "shared_loads" in resources:
        columns["fma_per_shared_load"] = of["fma"] / np.maximum(step.traffic.shared_instructions, 1.0)
    if "bytes_in_flight" in resources:
        columns["bytes_in_flight_per_sm"] = of["bytes_in_flight"] * blocks
    return Physics(columns, np.clip(share, 0.0, 1.0))


class _Resources:
    """Resources by name; one that a bundle does not define is 0 or the default of :meth:`get`."""

    def __init__(self, resources: Mapping[str, Floats]) -> None:
        self._resources = resources
        self._zero = np.zeros_like(resources["threads"])

    def __getitem__(self, name: str) -> Floats:
        return self._resources.get(name, self._zero)

    def get(self, name: str, default: float | Floats) -> Floats:
        return self._resources.get(name, self._zero + default)


@dataclass(frozen=True, slots=True)
class _Step:
    """A step of one block: the clocks that each unit needs, and the clocks from its start to its end."""

    warps: Floats
    bounds: dict[str, Floats]
    throughput: Floats
    latency: Floats
    wave_bytes: Floats
    traffic: Traffic


def _expected_spills(excess: Floats) -> Floats:
    """Return the mean number of registers above the cap, for a logistic error of the estimate."""
    scale = REGISTER_ERROR * np.sqrt(3.0) / np.pi
    expected: Floats = scale * np.logaddexp(0.0, excess / scale)
    return expected


def _step(device: Device, arithmetic: str, of: _Resources, traffic: Traffic, spilled: Floats, blocks: Floats) -> _Step:
    warps = np.ceil(of["threads"] / device.warp_size)
    per_clock = fma_per_clock(device, arithmetic)
    instructions = of.get("fma_instructions", of["fma"])
    spills = SPILL_ACCESSES * instructions * np.minimum(spilled / np.maximum(of["registers"], 1.0), 1.0)
    slots = instructions + traffic.shared_instructions + traffic.global_instructions + of["overhead"] + spills
    wave_bytes = _wave_bytes(device, of, blocks)
    memory_clocks = device.clock_hz * wave_bytes / max(device.memory_bytes_per_s, 1.0)
    bounds = {
        "fma": warps * of["fma"] * device.warp_size / per_clock,
        "issue": warps * slots / SCHEDULERS,
        "cache": warps * (traffic.shared_wavefronts + traffic.global_wavefronts + spills),
        "l2": of["global_bytes"] / L2_BYTES_PER_CLOCK,
        "memory": memory_clocks / np.maximum(blocks, 1.0),
    }
    throughput = _joined(*bounds.values())
    fma_clocks = np.maximum(instructions, device.warp_size * SCHEDULERS / per_clock * of["fma"])
    serial = np.ceil(warps / SCHEDULERS) * (slots - instructions + fma_clocks)
    waits = of["shared_waits"] * SHARED_LATENCY + of["global_waits"] * GLOBAL_LATENCY + of["barriers"] * BARRIER_LATENCY
    hidden = np.where(of["ahead"] > 0, GLOBAL_LATENCY / np.maximum(of["ahead"], 1.0), 0.0)
    latency = np.maximum(serial + waits, hidden)
    # Tiles at the edge of the problem may be slower; every tile is assigned the mean.
    edge = np.minimum(of.get("edge_tiles", np.inf) / np.maximum(of["tiles"], 1.0), 1.0)
    throughput = throughput + edge * warps * of["edge_overhead"] / SCHEDULERS
    latency = latency + edge * (of["edge_overhead"] + of["edge_waits"] * GLOBAL_LATENCY)
    return _Step(warps, bounds, throughput, latency, wave_bytes, traffic)


def _joined(*bounds: Floats) -> Floats:
    """Return the clocks of work on several units that overlaps imperfectly: a p-norm."""
    most = np.maximum(np.max(bounds, axis=0), 1e-9)
    joined: Floats = most * np.sum([(bound / most) ** OVERLAP for bound in bounds], axis=0) ** (1.0 / OVERLAP)
    return joined


def _launch(device: Device, of: _Resources, step: _Step, blocks: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the clocks of the launch, the number of waves and the tail efficiency.

    Every multiprocessor has its full occupancy in all waves but the last, which spreads the remaining blocks.
    """
    steps = np.maximum(of.get("steps", 1.0), 1.0)

    def wave(resident: Floats) -> Floats:
        return _joined(resident * steps * step.throughput, steps * step.latency + START_CLOCKS)

    capacity = device.sm_count * np.maximum(blocks, 1.0)
    full = np.floor(of["tiles"] / capacity)
    rest = of["tiles"] - full * capacity
    clocks = full * wave(np.maximum(blocks, 1.0)) + np.where(rest > 0, wave(np.ceil(rest / device.sm_count)), 0.0)
    waves = of["tiles"] / capacity
    return clocks, waves, waves / np.maximum(np.ceil(waves), 1.0)


def _wave_bytes(device: Device, of: _Resources, blocks: Floats) -> Floats:
    """Return the bytes that a step of a wave moves to and from memory.

    Each row and column of tiles is counted once, because the blocks that share it read it from the second-level cache;
    bytes used by one block alone are counted for each block.
    """
    resident = np.maximum(np.minimum(device.sm_count * np.maximum(blocks, 1.0), of["tiles"]), 1.0)
    rows = np.maximum(np.minimum(of.get("raster_rows", 1.0), resident), 1.0)
    tiles = rows * of["row_bytes"] + np.ceil(resident / rows) * of["column_bytes"]
    total: Floats = tiles + resident * of["own_bytes"]
    return total


def _occupancy_columns(device: Device, of: _Resources, resident: Occupancy, blocks: Floats) -> dict[str, Floats]:
    most = device.max_blocks_per_sm
    by = [
        np.minimum(limit, most).astype(np.float64)
        for limit in (resident.blocks_by_warps, resident.blocks_by_registers, resident.blocks_by_shared)
    ]
    warps = np.maximum(resident.warps_per_sm, 0).astype(np.float64)
    return {
        "blocks_per_sm": blocks,
        "warps_per_sm": warps,
        "occupancy": warps * device.warp_size / max(device.max_threads_per_sm, 1),
        "blocks_by_registers": by[1],
        "blocks_by_shared": by[2],
        "limiter": np.argmin(by, axis=0).astype(np.float64),
    }
