"""Theoretical arithmetic peaks from the throughput of a multiprocessor, by compute capability."""

from __future__ import annotations

import math

from mltune.device.facts import Device
from mltune.errors import DeviceError

FMA_PER_CLOCK: dict[tuple[int, int], tuple[int, int]] = {
    **dict.fromkeys([(3, 0), (3, 2)], (192, 8)),
    **dict.fromkeys([(3, 5), (3, 7)], (192, 64)),
    **dict.fromkeys([(5, 0), (5, 2), (5, 3), (6, 1), (6, 2)], (128, 4)),
    **dict.fromkeys([(6, 0), (7, 0), (7, 2), (8, 0)], (64, 32)),
    (7, 5): (64, 2),
    **dict.fromkeys([(8, 6), (8, 7), (8, 9), (10, 3), (11, 0), (12, 0), (12, 1)], (128, 2)),
    **dict.fromkeys([(9, 0), (10, 0)], (128, 64)),
}
"""Fused multiply-adds per clock and multiprocessor outside the tensor cores, (FP32, FP64), by compute capability.

From the throughput table of the CUDA C++ Programming Guide ("Throughput of Native Arithmetic Instructions"); entries
that it lacks, from the vendor's data sheets: peak / (2 x clock x multiprocessors).
"""

TENSOR_FMA_PER_CLOCK: dict[str, dict[tuple[int, int], int]] = {
    "tensor_fp64": {(8, 0): 64, (9, 0): 128, (10, 0): 64},
    "tensor_fp16": {
        **dict.fromkeys([(7, 0), (7, 2), (7, 5), (8, 6), (8, 9)], 512),
        **dict.fromkeys([(8, 0), (8, 7)], 1024),
        (9, 0): 2048,
        (10, 0): 4096,
    },
    "tensor_fp8": {(8, 9): 1024, (9, 0): 4096, (10, 0): 8192},
    "tensor_tf32": {
        **dict.fromkeys([(8, 6), (8, 9), (12, 0)], 256),
        **dict.fromkeys([(8, 0), (8, 7)], 512),
        (9, 0): 1024,
        (10, 0): 2048,
    },
}
"""Multiply-adds per clock and multiprocessor of the tensor cores, without sparsity, by unit and compute capability.

From the vendor's architecture white papers and data sheets: peak / (2 x clock x multiprocessors).
"""


def peak_flops(device: Device, unit: str) -> float:
    """Return the theoretical peak of a unit, flop/s, with two operations in each multiply-add.

    Units are ``"fp32"`` and ``"fp64"``, outside the tensor cores, and those of :data:`TENSOR_FMA_PER_CLOCK`. A
    DeviceError says that the throughput is not known, or that there is no such unit.

    Examples
    --------
    >>> from mltune.device.known import H200
    >>> [round(peak_flops(H200, unit) / 1e12, 1) for unit in ("fp32", "fp64", "tensor_fp64", "tensor_fp16")]
    [66.9, 33.5, 66.9, 1070.5]
    """
    return 2.0 * fma_per_clock(device, unit) * device.sm_count * device.clock_hz


def fma_per_clock(device: Device, unit: str) -> float:
    """Return the fused multiply-adds of a unit per clock and multiprocessor; see :func:`peak_flops`."""
    if unit in ("fp32", "fp64"):
        return _fma_per_clock(device)[0 if unit == "fp32" else 1]
    if unit not in TENSOR_FMA_PER_CLOCK:
        raise ValueError(f"{unit!r} is no unit: it is fp32, fp64 or one of {', '.join(TENSOR_FMA_PER_CLOCK)}")
    rate = TENSOR_FMA_PER_CLOCK[unit].get(device.compute_capability or (0, 0))
    if rate is None:
        raise DeviceError(f"{device.name} has no unit {unit} that is known, which problem and kernel need.")
    return float(rate)


def has_unit(device: Device, unit: str) -> bool:
    """Return whether a device has a unit of :func:`peak_flops`; every device has those outside the tensor cores.

    >>> from mltune.device.known import H200, known_devices
    >>> [has_unit(device, "tensor_fp64") for device in (H200, known_devices()["gtx_680"])]
    [True, False]
    """
    return unit not in TENSOR_FMA_PER_CLOCK or device.compute_capability in TENSOR_FMA_PER_CLOCK[unit]


def issues_per_clock(device: Device) -> float:
    """Return the most warp instructions that an SM issues per clock (CUDA's tuning guides); infinite if unknown."""
    if device.compute_capability is None:
        return math.inf
    return 4.0 if device.compute_capability == (6, 0) or device.compute_capability >= (7, 0) else 8.0


def data_sheet(device: Device, quantity: str) -> float | None:
    """Return a data sheet's value of a quantity (:data:`mltune.device.facts.Quantity`), if a device's facts have it."""
    if quantity == "memory_bytes_per_s":
        return device.memory_bytes_per_s or None
    if quantity not in ("fp32_flops", "fp64_flops"):
        return None
    try:
        return peak_flops(device, quantity.removesuffix("_flops"))
    except DeviceError:
        return None


def _fma_per_clock(device: Device) -> tuple[float, float]:
    """Return the throughput of a compute capability; one newer than the table counts as the last of its generation."""
    if device.fma_per_clock is not None:
        return device.fma_per_clock
    capability = device.compute_capability or (0, 0)
    entries = [entry for entry in FMA_PER_CLOCK if entry[0] == capability[0] and entry <= capability]
    if not entries:
        has = "none" if device.compute_capability is None else f"{capability[0]}.{capability[1]}"
        raise DeviceError(
            f"the throughput of {device.name} is not known, whose compute capability is {has}; add it to "
            "mltune/device/peaks.py."
        )
    return FMA_PER_CLOCK[max(entries)]
