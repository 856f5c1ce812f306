"""The least time that the kernel of a task can take on the devices of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mltune.errors import MltuneError
from mltune.resolve.plan import Task
from mltune.tuning.bound import find_bound

if TYPE_CHECKING:
    from mltune.device.facts import Device


def least_time(task: Task, devices: Sequence[str | Device]) -> float:
    """Return the least time in seconds that the kernel of a task can take on any device; 0 where that is not known.

    Parameters
    ----------
    task : Task
    devices : sequence of str or Device
        Those of a placed plan (:func:`mltune.resolve.placement.place`), or their facts.
    """
    try:
        found = [_device(task, spec) for spec in devices]
        distinct = [device for at, device in enumerate(found) if device not in found[:at]]
        return min(find_bound(task.problem, task.kernel, device).best.time_s for device in distinct)
    except (MltuneError, ArithmeticError, LookupError, ValueError):  # such as a kernel without resources
        return 0.0


def _device(task: Task, spec: str | Device) -> Device:
    if task.dataset is not None:
        from mltune.dataset.dataset import load_manifest

        return load_manifest(task.dataset).device
    from mltune.device.query import query_device

    if not isinstance(spec, str):
        return spec
    return query_device(int(spec.removeprefix("cuda:")))
