"""Exact occupancy: the resident blocks of a kernel on one SM, for columns of configurations.

The rules are those of NVIDIA's occupancy calculator (``cuda_occupancy.h`` of CUDA 13.0) with the whole carve-out given
to shared memory, for compute capability 3.0 to 12.x. For a device without CUDA they are an approximation: waves count
as warps and compute units as multiprocessors (as on CDNA, whose four SIMD units correspond to the four partitions).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mltune.device.facts import Device
from mltune.errors import DeviceError

REGISTER_UNIT = 256
"""Number of registers in one unit of allocation to a warp."""

_GENERATIONS = (3, *range(5, 13))
_REGISTERS_PER_BLOCK = {(3, 2): 32768, (3, 7): 65536, (5, 3): 32768, (6, 2): 32768}
"""Registers of the largest block where they are fewer than those of an SM, by compute capability."""

NO_LIMIT = np.iinfo(np.int64).max
"""Number of blocks that an unused resource allows."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Resident blocks and warps of an SM, 0 without a launch, and blocks that each resource allows: (n_configs,)."""

    blocks_per_sm: NDArray[np.int64]
    warps_per_sm: NDArray[np.int64]
    blocks_by_registers: NDArray[np.int64]
    blocks_by_shared: NDArray[np.int64]
    blocks_by_warps: NDArray[np.int64]


def occupancy(device: Device, threads: ArrayLike, registers: ArrayLike, shared_bytes: ArrayLike) -> Occupancy:
    """Return the occupancy of configurations from threads per block and registers per thread, of shape (n_configs,).

    ``shared_bytes`` are static plus dynamic shared memory per block, without the driver's reserved share. A DeviceError
    says that the rules of the compute capability are not known.
    """
    capability = device.compute_capability
    if capability is not None and capability[0] not in _GENERATIONS:
        raise DeviceError(
            f"the occupancy of {device.name} is not known: its compute capability is {capability[0]}.{capability[1]}, "
            "not 3.0 to 12.x; add its rules to mltune/device/occupancy.py."
        )
    threads, registers, shared_bytes = np.broadcast_arrays(
        *(np.atleast_1d(np.asarray(column, dtype=np.int64)) for column in (threads, registers, shared_bytes))
    )
    warps = _ceil_div(threads, device.warp_size)
    by_registers = _blocks_by_registers(device, warps, registers)
    by_shared = _blocks_by_shared(device, shared_bytes)
    is_possible = (threads >= 1) & (threads <= device.max_threads_per_block)
    by_warps = is_possible * (device.max_threads_per_sm // device.warp_size // np.maximum(warps, 1))
    blocks = np.minimum(np.minimum(by_registers, by_shared), np.minimum(by_warps, device.max_blocks_per_sm))
    return Occupancy(blocks, blocks * warps, by_registers, by_shared, by_warps)


def _ceil_div(numerator: NDArray[np.int64], denominator: int) -> NDArray[np.int64]:
    return -(-numerator // denominator)


def _blocks_by_registers(device: Device, warps: NDArray[np.int64], registers: NDArray[np.int64]) -> NDArray[np.int64]:
    # GP100 has two partitions, but it also rejects a kernel that does not fit the four of other GPUs.
    partitions = 2 if device.compute_capability == (6, 0) else 4
    per_block = _REGISTERS_PER_BLOCK.get(device.compute_capability or (0, 0), device.registers_per_sm)
    per_warp = _ceil_div(registers * device.warp_size, REGISTER_UNIT) * REGISTER_UNIT
    resident_warps = device.registers_per_sm // partitions // np.maximum(per_warp, 1) * partitions
    blocks = np.where(per_warp > 0, resident_warps // np.maximum(warps, 1), NO_LIMIT)
    # The launch check assumes that a block's warps fill all four partitions evenly.
    rejected = (per_warp * _ceil_div(warps, 4) * 4 > per_block) | (registers > device.max_registers_per_thread)
    return np.where(rejected, 0, blocks)


def _blocks_by_shared(device: Device, shared_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
    unit = 128 if device.compute_capability is not None and device.compute_capability[0] >= 8 else 256
    reserved = device.reserved_shared_bytes
    allocated = _ceil_div(shared_bytes + reserved, unit) * unit
    blocks = np.where(allocated > 0, device.shared_bytes_per_sm // np.maximum(allocated, 1), NO_LIMIT)
    return np.where(allocated > device.shared_bytes_per_block + reserved, 0, blocks)
