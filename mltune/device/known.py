"""GPUs whose facts are known without one at hand: what ``mltune space`` counts a search space for."""

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
"""NVIDIA H200 (SXM, compute capability 9.0): cuda_occupancy.h of CUDA 13.0 and the vendor's data sheet."""
