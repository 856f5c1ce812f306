"""Devices with known facts, for use without a GPU."""

from mltune.device.facts import Device

H200 = Device(
    name="NVIDIA H200",
    compute_capability=(9, 0),
    sm_count=132,
    clock_hz=1.98e9,
    memory_bytes=150_754_820_096,  # approximate: it differs by some MiB with the driver
    memory_bytes_per_s=4.8e12,
    l2_bytes=62_914_560,
    shared_bytes_per_sm=233_472,
    shared_bytes_per_block=232_448,
    reserved_shared_bytes=1024,
    registers_per_sm=65_536,
    max_registers_per_thread=255,
    max_threads_per_sm=2048,
    max_threads_per_block=1024,
    max_blocks_per_sm=32,
)
"""NVIDIA H200 (SXM, compute capability 9.0): cuda_occupancy.h of CUDA 13.0 and the vendor's data sheet.

``mltune space`` uses it.
"""

UNKNOWN = Device(
    name="unknown",
    compute_capability=None,
    sm_count=1,
    clock_hz=1e9,
    memory_bytes=0,
    memory_bytes_per_s=0.0,
    l2_bytes=0,
    shared_bytes_per_sm=0,
    shared_bytes_per_block=0,
    reserved_shared_bytes=0,
    registers_per_sm=0,
    max_registers_per_thread=0,
    max_threads_per_sm=0,
    max_threads_per_block=0,
    max_blocks_per_sm=0,
    fma_per_clock=(1.0, 1.0),
)
"""The device of a table without device facts. Its peak only scales times."""
