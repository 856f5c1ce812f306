"""Lookup of the facts of a device by name: a GPU of this machine, a known GPU, or a file."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from mltune.device.facts import Device, Mix
from mltune.errors import DeviceError
from mltune.files.reading import parse_json, parse_toml, read_file, reason
from mltune.files.text import no_such, printable
from mltune.files.validation import adapter

DATA_SHEET = "data sheet"
"""The origin of the facts of :func:`known_devices`."""

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
    """Return GPUs by a short name, with data sheets' boost clock, nominal memory and bandwidth; a driver may differ."""
    return {key: _device(key) for key in _table()["gpus"]}


@cache
def unsure_facts() -> Mapping[str, tuple[str, ...]]:
    """Return the facts of known GPUs on which published sources differ, by short name."""
    return {key: tuple(_FIELDS[name] for name in gpu.get("unsure", ())) for key, gpu in _table()["gpus"].items()}


def with_mixes(device: Device) -> Device:
    """Return a device with the rates of mixes of instructions, its own or those of its architecture, if known.

    >>> len(with_mixes(known_devices()["h100"]).mixes), len(with_mixes(known_devices()["a100"]).mixes)
    (446, 0)
    """
    return device if device.mixes else replace(device, mixes=_mixes(device.architecture))


@cache
def _mixes(architecture: str) -> tuple[Mix, ...]:
    path = Path(__file__).parent / "mixes" / f"{architecture}.csv"
    if not path.is_file():
        return ()
    rows = csv.DictReader(line for line in path.read_text("utf-8").splitlines() if not line.startswith("#"))
    return tuple(map(adapter(Mix).validate_strings, rows))


_FIELDS = {
    "clock_mhz": "clock_hz",
    "memory_gib": "memory_bytes",
    "bandwidth_gb_per_s": "memory_bytes_per_s",
    "l2_kib": "l2_bytes",
}


@cache
def _table() -> dict[str, Any]:
    return parse_toml((Path(__file__).parent / "gpus.toml").read_text("utf-8"))


def _device(key: str) -> Device:
    gpu = _table()["gpus"][key]
    limits = _table()["architectures"][gpu["architecture"]]
    facts: dict[str, Any] = {name: tuple(limit) if type(limit) is list else limit for name, limit in limits.items()}
    return Device(
        **{"compute_capability": None, **facts},
        name=gpu["name"],
        sm_count=gpu["sm_count"],
        clock_hz=1e6 * gpu["clock_mhz"],
        memory_bytes=int(gpu["memory_gib"] * 2**30),
        memory_bytes_per_s=1e9 * gpu["bandwidth_gb_per_s"],
        l2_bytes=gpu["l2_kib"] * 2**10,
    )


H200 = _device("h200")
"""NVIDIA H200 (SXM), the device of ``mltune space``."""

_MAX_BYTES = 4_000_000
_MAY_BE_ZERO = {"memory_bytes", "memory_bytes_per_s", "l2_bytes", "reserved_shared_bytes"}


def find_device(text: str) -> tuple[Device, str]:
    """Find the facts of a device, and their origin: a GPU of this machine (``"cuda:0"``), a known GPU, or a file.

    The origin is ``"driver"``; ``"data sheet"``, with the unsure facts; the name of a ``.json`` or ``.toml`` file
    (:func:`read_device`); or empty for ``"unknown"``. A :class:`~mltune.errors.DeviceError` says if there is none.
    """
    if re.fullmatch("cuda:[0-9]{1,3}", text):
        from mltune.device.query import query_device

        return query_device(int(text.removeprefix("cuda:"))), "driver"
    if text == UNKNOWN.name:
        return UNKNOWN, ""
    if Path(text).suffix.lower() in (".json", ".toml"):
        return read_device(Path(text)), Path(text).name
    devices = known_devices()
    names = {device.name.lower(): key for key, device in devices.items()}
    key = names.get(text.lower(), text.lower().replace("-", "_").replace(" ", "_"))
    if key not in devices:
        law = "The facts are those of cuda:N, of a known GPU (`mltune device --known`), or of a .json or .toml file"
        raise DeviceError(no_such("GPU", text, [*devices, *names], law))
    unsure = ", ".join(unsure_facts().get(key, ()))
    return devices[key], f"{DATA_SHEET} ({unsure} unsure)" if unsure else DATA_SHEET


def read_device(path: Path) -> Device:
    """Read the facts of a device from a JSON or TOML file; a DeviceError says what is wrong with it.

    The document is that of ``mltune device --json`` with one kind of GPU in it, a document with the facts under
    ``device`` (such as the manifest of a dataset), or the facts themselves.
    """
    try:
        data = read_file(path, _MAX_BYTES)
        document = parse_toml(data.decode()) if path.suffix.lower() == ".toml" else parse_json(data)
        device = Device.from_json(_facts(document))
        _check_known(device)
    except OSError as error:
        raise DeviceError(f"{path}, the facts of a device, cannot be read: {reason(error)}.") from error
    except ValueError as error:
        raise DeviceError(
            f"{path} does not hold the facts of a device: {printable(error, longest=300)}; "
            "`mltune device a100 --json` shows some."
        ) from error
    return device


def _facts(document: Any) -> dict[str, Any]:
    """Return the facts of the one kind of GPU in a document."""
    if isinstance(document, dict) and isinstance(document.get("devices"), list):
        entries = {json.dumps(_facts(entry), sort_keys=True) for entry in document["devices"]}
        if len(entries) != 1:
            raise ValueError(f"it describes {len(entries)} kinds of GPU, not one")
        document = json.loads(entries.pop())
    elif isinstance(document, dict) and "device" in document:
        document = document["device"]
    if not isinstance(document, dict):
        raise ValueError(f"it is a {type(document).__name__}, not an object or a table")
    return document


def _check_known(device: Device) -> None:
    """Check that the facts are known that occupancy and peak need."""
    if not device.name.isprintable() or not 1 <= len(device.name) <= 200:
        raise ValueError("its `name` is empty, has more than 200 characters, or one that is not printable")
    if device.compute_capability is None and device.fma_per_clock is None:
        raise ValueError("it has neither compute_capability nor fma_per_clock (FP32, FP64)")
    for field in dataclasses.fields(device):
        value = getattr(device, field.name)
        if isinstance(value, int | float) and value < 1 and field.name not in _MAY_BE_ZERO:
            raise ValueError(f"{field.name} cannot be {value}: it is at least 1")
