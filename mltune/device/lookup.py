"""Find the facts of a device by name: a GPU of this machine, a known GPU, or a file."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

from mltune.device.facts import LARGEST, Device
from mltune.device.known import DATA_SHEET, UNKNOWN, known_devices, unsure_facts
from mltune.errors import DeviceError
from mltune.files.documents import parse_json, parse_toml
from mltune.files.reading import read_file, reason
from mltune.files.text import did_you_mean, printable
from mltune.files.validation import problems_of

_MAX_BYTES = 4_000_000
_FIELDS = tuple(field.name for field in dataclasses.fields(Device))
_OPTIONAL = {"warp_size", "fma_per_clock", "measured", "mixes"}
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
    """Read the facts of a device from a JSON or TOML file.

    The document is that of ``mltune device --json`` with one kind of GPU in it, a document with the facts under
    ``device`` (such as the manifest of a dataset), or the facts themselves.

    Raises
    ------
    DeviceError
        The file cannot be read, or does not hold the facts of one device.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        data = read_file(path, _MAX_BYTES)
        facts = _facts(parse_toml(data.decode()) if path.suffix.lower() == ".toml" else parse_json(data))
        device = TypeAdapter(Device).validate_python(facts)
    except ValidationError as error:
        raise DeviceError(f"{path}: {problems_of(error, facts)}.") from error
    except OSError as error:
        raise DeviceError(f"the facts of a device must be readable, but {path} is not: {reason(error)}.") from error
    except ValueError as error:
        raise DeviceError(f"{path} must hold the facts of a device: {printable(error, longest=300)}.") from error
    _check(device, path)
    return device


def _facts(document: Any) -> dict[str, Any]:
    """Return the facts in a document, as fields of a device."""
    if isinstance(document, dict) and isinstance(document.get("devices"), list):
        entries = {json.dumps(_facts(entry), sort_keys=True) for entry in document["devices"]}
        if len(entries) != 1:
            raise ValueError(f"it must describe one kind of GPU, but there are {len(entries)}")
        document = json.loads(entries.pop())
    elif isinstance(document, dict) and "device" in document:
        document = document["device"]
    if not isinstance(document, dict):
        raise ValueError(f"facts are an object or a table, not {type(document).__name__}")
    unknown = sorted(document.keys() - set(_FIELDS))
    missing = [name for name in _FIELDS if name not in document and name not in _OPTIONAL | {"compute_capability"}]
    if unknown or missing:
        wrong = {"unknown": unknown[:20], "missing": missing}
        found = "; ".join(f"{what}: {', '.join(names)}" for what, names in wrong.items() if names)
        raise ValueError(f"{found}; `mltune device a100 --json` shows the fields")
    capability = document.get("compute_capability")
    return {**document, "compute_capability": None if capability == [0, 0] else capability}


def _check(device: Device, path: Path) -> None:
    """Check that facts are possible; zero stands for an unknown one where nothing is divided by it."""
    if not device.name.isprintable() or not 1 <= len(device.name) <= 200:
        raise DeviceError(f"{path}: the name of a device is printable and has 1 to 200 characters.")
    if not all(0 <= part < 100 for part in device.compute_capability or ()):
        raise DeviceError(f"{path}: compute_capability is [major, minor] or null, got {device.compute_capability}.")
    if device.compute_capability is None and device.fma_per_clock is None:
        raise DeviceError(f"{path}: a device without compute_capability must have fma_per_clock (FP32, FP64).")
    for field in dataclasses.fields(device):
        value = getattr(device, field.name)
        if isinstance(value, int | float):
            least = 0 if field.name in _MAY_BE_ZERO else 1
            if not least <= value <= LARGEST:
                raise DeviceError(f"{path}: {least} <= {field.name} <= {LARGEST:g} must hold, got {value}.")
    if device.fma_per_clock is not None and not all(0 < value <= LARGEST for value in device.fma_per_clock):
        raise DeviceError(f"{path}: fma_per_clock must be positive, got {device.fma_per_clock}.")
