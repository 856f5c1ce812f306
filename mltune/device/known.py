"""Devices with known facts, for use without a GPU: one in full, and a table of others from data sheets.

Beside them are the measured rates of mixes of instructions, by architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from mltune.device.facts import Device, Mix
from mltune.files.documents import parse_toml

DATA_SHEET = "data sheet"
"""The origin of the facts of :func:`known_devices`."""

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


@cache
def known_devices() -> Mapping[str, Device]:
    """Return GPUs by a short name, from Kepler to Blackwell, CDNA and RDNA.

    The values are those of data sheets: boost clock, nominal memory and bandwidth. A driver may report others.

    Examples
    --------
    >>> known_devices()["rtx_4090"].architecture
    'sm_89'
    """
    table = _table()
    return {key: _device(gpu, table["architectures"][gpu["architecture"]]) for key, gpu in table["gpus"].items()} | {
        "h200": H200
    }


@cache
def unsure_facts() -> Mapping[str, tuple[str, ...]]:
    """Return the facts of known GPUs on which published sources differ, by short name."""
    return {key: tuple(_FIELDS[name] for name in gpu.get("unsure", ())) for key, gpu in _table()["gpus"].items()}


def with_mixes(device: Device) -> Device:
    """Return a device with the rates of mixes of instructions, its own or those of its architecture, if they are known.

    Examples
    --------
    >>> len(with_mixes(known_devices()["h100"]).mixes), len(with_mixes(known_devices()["a100"]).mixes)
    (446, 0)
    """
    return device if device.mixes else replace(device, mixes=_mixes(device.architecture))


@cache
def _mixes(architecture: str) -> tuple[Mix, ...]:
    path = Path(__file__).parent / "mixes" / f"{architecture}.csv"
    if not path.is_file():
        return ()
    import pandas as pd

    table = pd.read_csv(path, comment="#").astype({"per_load": float, "dependent": bool})
    return tuple(Mix(**{str(name): value for name, value in row.items()}) for row in table.to_dict("records"))


_FIELDS = {
    "clock_mhz": "clock_hz",
    "memory_gib": "memory_bytes",
    "bandwidth_gb_per_s": "memory_bytes_per_s",
    "l2_kib": "l2_bytes",
}


@cache
def _table() -> dict[str, Any]:
    return parse_toml((Path(__file__).parent / "gpus.toml").read_text())


def _device(gpu: Mapping[str, Any], limits: Mapping[str, Any]) -> Device:
    return Device.from_json(
        {
            "compute_capability": None,
            **limits,
            "name": gpu["name"],
            "sm_count": gpu["sm_count"],
            "clock_hz": 1e6 * gpu["clock_mhz"],
            "memory_bytes": gpu["memory_gib"] * 2**30,
            "memory_bytes_per_s": 1e9 * gpu["bandwidth_gb_per_s"],
            "l2_bytes": gpu["l2_kib"] * 2**10,
        }
    )
