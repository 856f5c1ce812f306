"""Placement of a plan on the GPUs of this machine, or on recorded timings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mltune.errors import PlanError
from mltune.kernel.reader import load_kernel
from mltune.resolve.kernels import fits
from mltune.resolve.plan import REPLAY, Plan, Task

if TYPE_CHECKING:
    from mltune.device.facts import Device

_NAMED = 3


def place(plan: Plan, gpus: Sequence[Device], reason: str = "") -> Plan:
    """Return a plan with its devices resolved and, in a replay, the dataset of each problem.

    ``auto`` is the first GPU, ``all`` is all of them. Without a GPU both are a replay, if all problems have recorded
    timings. Of several kernels for a problem those are left out that cannot be built for the devices, or in a replay
    have no recorded timings.

    Parameters
    ----------
    plan : Plan
    gpus : sequence of Device
        The GPUs of this machine, ``cuda:0`` first (:func:`mltune.resolve.device.find_gpus`).
    reason : str
        The reason if there is none.

    Raises
    ------
    PlanError
        A named GPU does not exist, there is no GPU and some problem has no recorded timings, a problem does not fit
        into the memory of a GPU, or the budget is smaller than the minima.
    """
    devices = _devices(plan, gpus, reason)
    if devices == (REPLAY,):
        placed = replace(plan, tasks=tuple(_recorded(plan, gpus, reason)), devices=devices)
    else:
        placed = replace(plan, tasks=_buildable(plan, [gpus[_index(device)] for device in devices]), devices=devices)
        _check_gpus(placed, [gpus[_index(device)] for device in devices])
    check_budget(placed)
    return placed


def place_on_workers(plan: Plan, gpus: Mapping[str, Device | None]) -> Plan:
    """Return a plan with the workers of a cluster as its devices.

    GPUs of different models have their own tasks, whose slugs then name the model. Where no worker has a GPU, or the
    plan is a replay, all of them replay recorded timings.

    Parameters
    ----------
    plan : Plan
        Its ``devices`` matter only if they are ``("replay",)``.
    gpus : mapping of str to Device
        The GPU of each worker, by name; None where it has none.

    Raises
    ------
    PlanError
        See :func:`place`.
    """
    models: dict[str, list[str]] = {}
    for name, gpu in gpus.items():
        if gpu is not None and plan.devices != (REPLAY,):
            models.setdefault(gpu.name, []).append(name)
    if not models:
        placed = replace(plan, tasks=tuple(_recorded(plan, (), "no worker has one")), devices=tuple(gpus))
        check_budget(placed)
        return placed
    tasks: list[Task] = []
    for model, names in models.items():
        found = [gpu for name in names if (gpu := gpus[name]) is not None]
        own = _buildable(plan, found)
        _check_gpus(replace(plan, tasks=own), found)
        tasks += own if len(models) == 1 else [_of_model(task, model) for task in own]
    placed = replace(plan, tasks=tuple(tasks), devices=tuple(name for names in models.values() for name in names))
    check_budget(placed)
    return placed


def _of_model(task: Task, model: str) -> Task:
    """Return a task for the GPUs of one model."""
    suffix = re.sub("[^a-z0-9]+", "-", model.lower()).strip("-")
    choice = f"{task.choice}-{suffix}" if task.choice else ""
    return replace(task, slug=f"{task.slug}-{suffix}", choice=choice, model=model)


def notices(plan: Plan) -> list[str]:
    """Return what the user should know about the recorded timings of a placed plan.

    They may be of another kernel source, or those of competing kernels of different GPUs.
    """
    from mltune.dataset.dataset import load_manifest

    kernels = {name: load_kernel(name) for name in {task.kernel for task in plan.tasks}}
    pairs = [(load_manifest(task.dataset), task.kernel) for task in plan.tasks if task.dataset is not None]
    found = [manifest.check_kernel(kernels[kernel]) for manifest, kernel in pairs]
    recorded: dict[str, set[str]] = {}
    for task in plan.tasks:
        if task.choice and task.dataset is not None:
            recorded.setdefault(task.choice, set()).add(load_manifest(task.dataset).device.name)
    found += [
        f"kernels compete on one GPU, but the timings of {choice} were recorded on {', '.join(sorted(names))}"
        for choice, names in recorded.items()
        if len(names) > 1
    ]
    return list(filter(None, found))


def check_budget(plan: Plan) -> None:
    """Check that the budget holds the minima of all tasks.

    Raises
    ------
    PlanError
        It does not.
    """
    needed = sum(task.minimum for task in plan.tasks)
    if needed > plan.capacity:
        counted = "trials" if plan.unit == "trials" else "s"
        of_each = "" if len(plan.devices) == 1 else f" on each of {len(plan.devices)} devices"
        raise PlanError(
            f"{plan.name}: the budget must hold every problem's minimum, but {len(plan.tasks)} problems need "
            f"{needed / (plan.capacity / plan.budget):g} {counted}{of_each} and the budget is {plan.budget:g}; "
            f"raise `budget` or lower `minimum`."
        )


def recorded_for(tasks: Iterable[Task]) -> dict[str, str]:
    """Return the dataset of each task with recorded timings, by slug: the one it names, or the largest."""
    from mltune.dataset.dataset import list_datasets

    manifests = list_datasets()
    tasks = tuple(tasks)
    kernels = {name: load_kernel(name).label for name in {task.kernel for task in tasks}}
    found: dict[str, str] = {}
    for task in tasks:
        fitting = [one for one in manifests if one.kernel == kernels[task.kernel] and one.problem == task.problem]
        if task.dataset is not None:
            found[task.slug] = task.dataset
        elif fitting:
            found[task.slug] = max(fitting, key=lambda manifest: manifest.rows).name
    return found


def _devices(plan: Plan, gpus: Sequence[Device], reason: str) -> tuple[str, ...]:
    """Return the devices of a plan on this machine."""
    if plan.devices == (REPLAY,) or (plan.devices in (("auto",), ("all",)) and not gpus):
        return (REPLAY,)
    ours = tuple(f"cuda:{index}" for index in range(len(gpus)))
    if plan.devices == ("auto",):
        return ours[:1]
    if plan.devices == ("all",):
        return ours
    for device in plan.devices:
        if device not in ours:
            raise PlanError(
                f"{plan.name}: a plan's devices are GPUs of this machine ({', '.join(ours) or reason or 'none'}), "
                f"got {device}; see `mltune device`."
            )
    return plan.devices


def _recorded(plan: Plan, gpus: Sequence[Device], reason: str) -> list[Task]:
    """Return the tasks with their datasets."""
    found = recorded_for(plan.tasks)
    tasks = _only(plan, lambda task: task.slug in found)
    missing = [task for task in tasks if task.slug not in found]
    if missing:
        some = ", ".join(task.problem.label for task in missing[:_NAMED]) + (", ..." if missing[_NAMED:] else "")
        why = "the plan is replayed" if gpus else f"no GPU was found ({reason})"
        raise PlanError(
            f"{plan.name}: without a GPU every problem must be one whose timings are recorded, but {why} and there are "
            f"none of {len(missing)} of {len(tasks)} ({some}); run it on a GPU, or see `mltune datasets`."
        )
    return [replace(task, dataset=found[task.slug]) for task in tasks]


def _buildable(plan: Plan, devices: Sequence[Device]) -> tuple[Task, ...]:
    """Return the tasks without the kernels of a choice that do not fit all devices."""
    kernels = {name: load_kernel(name) for name in {task.kernel for task in plan.tasks if task.choice}}
    return _only(plan, lambda task: all(fits(kernels[task.kernel], device) for device in devices))


def _only(plan: Plan, keeps: Callable[[Task], bool]) -> tuple[Task, ...]:
    """Return the tasks without some kernels of choices, whose minima go to the others; one that loses all is kept."""
    before = Counter(task.choice for task in plan.tasks)
    left = Counter(task.choice for task in plan.tasks if task.choice and keeps(task))
    tasks = []
    for task in plan.tasks:
        if not left[task.choice]:
            tasks.append(task)
        elif keeps(task):
            minimum = task.minimum * before[task.choice] / left[task.choice]
            tasks.append(replace(task, minimum=minimum, choice=task.choice if left[task.choice] > 1 else ""))
    return tuple(tasks)


def _index(device: str) -> int:
    return int(device.removeprefix("cuda:"))


def _check_gpus(plan: Plan, gpus: Sequence[Device]) -> None:
    """Check that every kernel has a source, and every problem fits into every GPU of the plan."""
    smallest = min(gpus, key=lambda device: device.memory_bytes)
    for name in dict.fromkeys(task.kernel for task in plan.tasks):
        if load_kernel(name).source is None:
            raise PlanError(
                f"{plan.name}: only a kernel with a source can be measured, but {name} has none; replay its recorded "
                "timings with `datasets`."
            )
    largest = max((task.problem for task in plan.tasks), key=lambda problem: problem.operand_bytes)
    if largest.operand_bytes > smallest.memory_bytes:
        raise PlanError(
            f"{plan.name}: operands must fit into the memory of every device, but those of {largest.label} "
            f"take {largest.operand_bytes / 1e9:.1f} GB and {smallest.name} has {smallest.memory_bytes / 1e9:.1f} GB; "
            "ask for a smaller size."
        )
