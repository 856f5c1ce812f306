"""Lookup of the facts of a device by name: a GPU of this machine, a known GPU, or a file."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

from mltune.device.facts import Device
from mltune.device.known import DATA_SHEET, UNKNOWN, known_devices, unsure_facts
from mltune.errors import DeviceError
from mltune.files.documents import parse_json, parse_toml
from mltune.files.reading import read_file, reason
from mltune.files.text import did_you_mean, printable

_MAX_BYTES = 4_000_000
_MAY_BE_ZERO = {"memory_bytes", "memory_bytes_per_s", "l2_bytes", "reserved_shared_bytes"}


def find_device(text: str) -> tuple[Device, str]:
    """Find the facts of a device, and where they come from.

    Parameters
    ----------
    text : str
        ``"cuda:0"``, a GPU of this machine; the name or the short name of a known GPU; the path of a ``.json`` or
        ``.toml`` file (:func:`read_device`); or ``"unknown"``.

    Returns
    -------
    Device
    str
        ``"driver"``; ``"data sheet"``, and which facts are unsure; the name of the file; empty for ``"unknown"``.

    Raises
    ------
    DeviceError
        There is no such GPU or file.

    Examples
    --------
    >>> device, source = find_device("a100")
    >>> device.name, device.sm_count, source
    ('NVIDIA A100-SXM4-80GB', 108, 'data sheet')
    """
    if re.fullmatch(r"cuda:\d{1,3}", text):
        from mltune.device.query import query_device

        return query_device(int(text.removeprefix("cuda:"))), "driver"
    if text == UNKNOWN.name:
        return UNKNOWN, ""
    if Path(text).suffix.lower() in (".json", ".toml"):
        return read_device(Path(text)), Path(text).name
    known = known_devices()
    names = {device.name.lower(): key for key, device in known.items()}
    key = names.get(text.lower(), text.lower().replace("-", "_").replace(" ", "_"))
    if key not in known:
        raise DeviceError(
            f"a device is cuda:N, a known GPU (`mltune device --known` lists them), or a .json or .toml file with its "
            f"facts, got {printable(text, 100)!r}{did_you_mean(text, [*known, *names]) or '.'}"
        )
    unsure = ", ".join(unsure_facts().get(key, ()))
    return known[key], f"{DATA_SHEET} ({unsure} unsure)" if unsure else DATA_SHEET


def read_device(path: Path) -> Device:
    """Read the facts of a device from a JSON or TOML file; a file without those of one device raises a DeviceError.

    The document is that of ``mltune device --json`` with one kind of GPU in it, a document with the facts under
    ``device`` (such as the manifest of a dataset), or the facts themselves.
    """
    try:
        data = read_file(path, _MAX_BYTES)
        document = parse_toml(data.decode()) if path.suffix.lower() == ".toml" else parse_json(data)
        device = Device.from_json(_facts(document))
        _check_known(device)
    except OSError as error:
        raise DeviceError(f"the facts of a device must be readable, but {path} is not: {reason(error)}.") from error
    except ValueError as error:
        raise DeviceError(
            f"{path} must hold the facts of a device, but {printable(error, longest=300)}; "
            "`mltune device a100 --json` shows them."
        ) from error
    return device


def _facts(document: Any) -> dict[str, Any]:
    """Return the facts of the one kind of GPU in a document."""
    if isinstance(document, dict) and isinstance(document.get("devices"), list):
        entries = {json.dumps(_facts(entry), sort_keys=True) for entry in document["devices"]}
        if len(entries) != 1:
            raise ValueError(f"it must describe one kind of GPU, but there are {len(entries)}")
        document = json.loads(entries.pop())
    elif isinstance(document, dict) and "device" in document:
        document = document["device"]
    if not isinstance(document, dict):
        raise ValueError(f"facts are an object or a table, not {type(document).__name__}")
    return document


def _check_known(device: Device) -> None:
    """Check that the facts are known on which an occupancy or a peak depends."""
    if not device.name.isprintable() or not 1 <= len(device.name) <= 200:
        raise ValueError("the name of a device is printable and has 1 to 200 characters")
    if device.compute_capability is None and device.fma_per_clock is None:
        raise ValueError("a device without compute_capability must have fma_per_clock (FP32, FP64)")
    for field in dataclasses.fields(device):
        value = getattr(device, field.name)
        if isinstance(value, int | float) and value < 1 and field.name not in _MAY_BE_ZERO:
            raise ValueError(f"{field.name} must be at least 1, got {value}")
