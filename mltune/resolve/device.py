"""Target of a run: a GPU, or timings recorded on one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mltune.device.peaks import has_unit
from mltune.errors import DatasetError, DeviceError, UsageError
from mltune.files.text import no_such
from mltune.records.header import REPLAY

if TYPE_CHECKING:
    from mltune.device.facts import Device
    from mltune.kernel.bundle import Kernel
    from mltune.problem.problem import Problem

_CUDA = re.compile("cuda:([0-9]{1,3})")


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU by its index, or a dataset to replay by name or path; `notice` tells of an automatic choice."""

    cuda: int | None = None
    dataset: str | None = None
    notice: str = ""

    def __str__(self) -> str:
        """Return the specification: ``"cuda:0"`` or ``"replay:NAME"``."""
        return f"cuda:{self.cuda}" if self.dataset is None else f"{REPLAY}{self.dataset}"


def parse_device(text: str) -> Target | None:
    """Read a device specification; None for ``"auto"``, where :func:`choose` decides."""
    text = str(text)  # from Python it may be a number
    if text == "auto":
        return None
    if match := _CUDA.fullmatch(text):
        return Target(cuda=int(match[1]))
    if text.startswith(REPLAY) and len(text) > len(REPLAY):
        return Target(dataset=text.removeprefix(REPLAY))
    from mltune.dataset.dataset import shipped_datasets

    targets = ["auto", "cuda:0", *(f"{REPLAY}{name}" for name in shipped_datasets())]
    see = "; see `mltune device` for the GPUs and `mltune datasets` for the recorded timings"
    raise UsageError(no_such("device", text, targets, f"A device is auto, cuda:N or replay:NAME{see}"))


def find_gpus() -> tuple[tuple[Device, ...], str]:
    """Return the GPUs of this machine, ``cuda:0`` first, and the reason if there is none."""
    from mltune.device.query import WITHOUT_GPU, available_devices

    try:
        devices = available_devices()
    except DeviceError as error:
        return (), str(error).removesuffix(WITHOUT_GPU).removesuffix(".")
    return devices, "" if devices else "the NVIDIA driver shows none"


def facts_of(device: str) -> Device:
    """Return the device that facts name: ``auto`` is the first GPU of this machine."""
    from mltune.device.known import find_device

    if device != "auto":
        return find_device(device)[0]
    gpus, reason = find_gpus()
    if not gpus:
        raise UsageError(f"no GPU was found: {reason}; name one, such as --gpu h200 (`mltune device --known`).")
    return gpus[0]


def fits(kernel: Kernel, device: Device) -> bool:
    """Return whether a device has the architecture and the unit that a kernel needs."""
    architecture = kernel.source.architecture.rstrip("af")
    return has_unit(device, kernel.resources.unit) and architecture in ("", device.architecture)


def choose(kernel: Kernel, problem: Problem, *, any_shape: bool = False) -> Target:
    """Choose the first GPU, or without a GPU the largest dataset of a kernel and a problem, else raise a DatasetError.

    With `any_shape` a dataset of another transposition or size is accepted where there is none of this one: the shape
    was a default.
    """
    gpus, reason = find_gpus()
    if gpus:
        return Target(cuda=0)
    from mltune.dataset.dataset import find_datasets, list_datasets

    datasets = find_datasets(kernel.name, problem)
    of_kernel = [] if datasets else [manifest for manifest in list_datasets() if manifest.kernel == kernel.name]
    if any_shape and not datasets:
        datasets = [manifest for manifest in of_kernel if manifest.problem.name == problem.name]
    if not datasets:
        recorded = sorted({manifest.problem.label for manifest in of_kernel})
        fact = f"no timings of {kernel.name} are recorded"
        if recorded:
            fact = f"timings of {kernel.name} are recorded for {', '.join(recorded)}, not for {problem.label}"
        raise DatasetError(
            f"no GPU was found ({reason}), and {fact}. Tuning needs a GPU, or recorded timings to replay (`mltune "
            f"datasets`){'' if recorded else '; `mltune check` compiles a sample without either'}."
        )
    manifest = max(datasets, key=lambda manifest: manifest.rows)
    notice = (
        f"no GPU found ({reason}): replaying timings of {manifest.problem.label} recorded on "
        f"{manifest.device.name} (dataset {manifest.name})"
    )
    return Target(dataset=manifest.name, notice=notice)
