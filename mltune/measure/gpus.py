"""The GPUs of this machine and the known ones as a document, with what is measured of one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from mltune.device.facts import Device
from mltune.device.known import find_device, known_devices
from mltune.device.peaks import data_sheet, peak_flops
from mltune.errors import UsageError
from mltune.files.text import printable
from mltune.measure.libraries import CudaLibrary, find_libraries


def describe_gpus(
    facts: str | None, find_gpus: Callable[[], tuple[Sequence[Device], str]], *, of_data_sheets: bool, measure: bool
) -> dict[str, Any]:
    """Describe the GPU of some facts, the known ones, or those that are found here; see :func:`mltune.devices`."""
    devices: Mapping[str, Device]
    reason, libraries, problems = "", list[CudaLibrary](), list[str]()
    unmeasured: dict[str, str] = {}
    if measure:
        from mltune.measure.device_rates import measure_device

        spec = "--known" if of_data_sheets else facts or "cuda:0"
        if not re.fullmatch("cuda:[0-9]{1,3}", spec):
            raise UsageError(f"{printable(spec, 100)!r} cannot be measured: only a GPU of this machine, cuda:N.")
        gpu, unmeasured = measure_device(int(spec.removeprefix("cuda:")))
        devices = {spec: gpu}
    elif of_data_sheets:
        devices = known_devices()
    elif facts is not None:
        devices = {facts: find_device(facts)[0]}
    else:
        gpus, reason = find_gpus()
        devices = {f"cuda:{index}": gpu for index, gpu in enumerate(gpus)}
        libraries, problems = find_libraries()
    return {
        "devices": [_entry(spec, gpu) for spec, gpu in devices.items()],
        "reason": reason or None,
        "libraries": [asdict(library) for library in libraries],
        "problems": problems,
        "unmeasured": unmeasured,
    }


def _entry(spec: str, facts: Device) -> dict[str, Any]:
    sheets = {name: data_sheet(facts, name) for name in facts.measured}
    shares = {name: facts.measured[name].median / sheet if sheet else None for name, sheet in sheets.items()}
    return {
        "spec": spec,
        "architecture": facts.architecture,
        "peak_flops": {arithmetic: peak_flops(facts, arithmetic) for arithmetic in ("fp32", "fp64")},
        "device": facts.to_json(),
        **({"share_of_data_sheet": shares} if shares else {}),
    }
