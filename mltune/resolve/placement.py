"""Placement of a plan on the GPUs of this machine, on the workers of a cluster, or on recorded timings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from mltune.dataset.dataset import list_datasets, load_manifest
from mltune.device.facts import Device
from mltune.errors import PlanError
from mltune.resolve.device import fits
from mltune.resolve.plan import REPLAY, Plan, Task

_NAMED = 3


def place(plan: Plan, gpus: Sequence[Device], reason: str = "") -> Plan:
    """Return a plan with its devices resolved and, in a replay, the dataset of each problem.

    ``auto`` is the first of the `gpus` of this machine, ``all`` is all of them. Without a GPU, for which there is a
    `reason`, both are a replay, if all problems have recorded timings. Kernels that compete are left out where they
    cannot be built for the devices, or in a replay have no timings. Without what it needs, such as a named GPU, enough
    memory or the budget for the minima, a plan raises a PlanError.
    """
    devices = _devices(plan, gpus, reason)
    if devices == (REPLAY,):
        tasks = _recorded(plan, f"no GPU was found ({reason})" if not gpus else "the plan is replayed")
    else:
        tasks = _measured(plan, [gpus[int(device.removeprefix("cuda:"))] for device in devices])
    placed = replace(plan, tasks=tasks, devices=devices)
    check_budget(placed)
    return placed


def place_on_workers(plan: Plan, gpus: Mapping[str, Device | None]) -> Plan:
    """Return a plan with the workers of a cluster as its devices, given the GPU of each by name, None without one.

    GPUs of different models have their own tasks, whose slugs then name the model. Where no worker has a GPU, or the
    plan is a replay, all of them replay recorded timings. It raises what :func:`place` raises.
    """
    models: dict[str, dict[str, Device]] = {}
    for name, gpu in gpus.items():
        if gpu is not None and plan.devices != (REPLAY,):
            models.setdefault(gpu.name, {})[name] = gpu
    tasks: list[Task] = []
    for model, workers in models.items():
        own = _measured(plan, list(workers.values()))
        tasks += own if len(models) == 1 else [_of_model(task, model) for task in own]
    names = tuple(name for workers in models.values() for name in workers)
    if not models:
        tasks, names = list(_recorded(plan, "no GPU was found (no worker has one)")), tuple(gpus)
    placed = replace(plan, tasks=tuple(tasks), devices=names)
    check_budget(placed)
    return placed


def notices(plan: Plan) -> list[str]:
    """Return notices on a placed plan's recorded timings: another kernel source, or GPUs that differ among rivals."""
    notices: list[str] = []
    recorded: dict[str, set[str]] = {}
    for task in plan.tasks:
        if task.dataset is not None:
            manifest = load_manifest(task.dataset)
            notices.append(manifest.check_kernel(task.kernel))
            recorded.setdefault(task.choice, set()).add(manifest.device.name)
    notices += [
        f"kernels compete on one GPU, but the timings of {choice} were recorded on {', '.join(sorted(names))}"
        for choice, names in recorded.items()
        if choice and len(names) > 1
    ]
    return list(filter(None, notices))


def check_budget(plan: Plan) -> None:
    """Check that the budget holds the minima of all tasks."""
    needed = sum(task.minimum for task in plan.tasks)
    if needed > plan.capacity:
        counted = "trials" if plan.unit == "trials" else "s"
        count = len(set(plan.devices))
        of_each = "" if count == 1 else f" on each of {count} devices"
        raise PlanError(
            f"{plan.name}: the budget of {plan.budget:g} {counted} is below the minimum of {len(plan.tasks)} problems, "
            f"{needed / (plan.capacity / plan.budget):g} {counted}{of_each}; raise `budget` or lower `minimum`."
        )


def recorded_for(tasks: Iterable[Task]) -> dict[str, str]:
    """Return the dataset of each task with recorded timings, by slug: the one it names, or the largest."""
    tasks = list(tasks)
    datasets = {task.slug: task.dataset for task in tasks if task.dataset is not None}
    unnamed = [task for task in tasks if task.dataset is None]
    manifests = list_datasets() if unnamed else []
    for task in unnamed:
        subject = task.kernel.label, task.problem
        fitting = [manifest for manifest in manifests if (manifest.kernel, manifest.problem) == subject]
        if fitting:
            datasets[task.slug] = max(fitting, key=lambda manifest: manifest.rows).name
    return datasets


def _devices(plan: Plan, gpus: Sequence[Device], reason: str) -> tuple[str, ...]:
    """Return the devices of a plan on this machine."""
    if plan.devices == (REPLAY,) or (plan.devices in (("auto",), ("all",)) and not gpus):
        return (REPLAY,)
    devices = tuple(f"cuda:{index}" for index in range(len(gpus)))
    if plan.devices == ("auto",):
        return devices[:1]
    if plan.devices == ("all",):
        return devices
    for device in plan.devices:
        if device not in devices:
            raise PlanError(
                f"{plan.name}: {device} is no GPU of this machine ({', '.join(devices) or reason or 'none'}); see "
                "`mltune device`."
            )
    return plan.devices


def _recorded(plan: Plan, why: str) -> tuple[Task, ...]:
    """Return the tasks with their datasets."""
    datasets = recorded_for(plan.tasks)
    tasks = _only(plan, lambda task: task.slug in datasets)
    missing = [task.problem.label for task in tasks if task.slug not in datasets]
    if missing:
        listed = ", ".join(missing[:_NAMED]) + (", ..." if missing[_NAMED:] else "")
        raise PlanError(
            f"{plan.name}: {why}, and {len(missing)} of {len(tasks)} problems have no recorded timings to replay "
            f"({listed}); run it on a GPU, or see `mltune datasets`."
        )
    return tuple(replace(task, dataset=datasets[task.slug]) for task in tasks)


def _measured(plan: Plan, gpus: Sequence[Device]) -> tuple[Task, ...]:
    """Return the tasks without the kernels of a choice that do not fit all GPUs, and check that the GPUs hold them."""
    tasks = _only(plan, lambda task: all(fits(task.kernel, gpu) for gpu in gpus))
    for task in tasks:
        if task.kernel.source.text is None:
            raise PlanError(
                f"{plan.name}: {task.kernel.label} has no source and cannot be measured; replay its recorded timings "
                "with `datasets`."
            )
    smallest = min(gpus, key=lambda gpu: gpu.memory_bytes)
    largest = max((task.problem for task in tasks), key=lambda problem: problem.operand_bytes)
    if largest.operand_bytes > smallest.memory_bytes:
        raise PlanError(
            f"{plan.name}: the operands of {largest.label} take {largest.operand_bytes / 1e9:.1f} GB, but "
            f"{smallest.name} has {smallest.memory_bytes / 1e9:.1f} GB; ask for a smaller size."
        )
    return tasks


def _only(plan: Plan, keeps: Callable[[Task], bool]) -> tuple[Task, ...]:
    """Return the tasks without some kernels of choices, whose minima go to the others; one that loses all is kept."""
    before = Counter(task.choice for task in plan.tasks)
    choices = Counter(task.choice for task in plan.tasks if task.choice and keeps(task))
    tasks = []
    for task in plan.tasks:
        if not choices[task.choice]:
            tasks.append(task)
        elif keeps(task):
            minimum = task.minimum * before[task.choice] / choices[task.choice]
            tasks.append(replace(task, minimum=minimum, choice=task.choice if choices[task.choice] > 1 else ""))
    return tuple(tasks)


def _of_model(task: Task, model: str) -> Task:
    """Return a task for the GPUs of one model."""
    suffix = re.sub("[^a-z0-9]+", "-", model.lower()).strip("-")
    choice = f"{task.choice}-{suffix}" if task.choice else ""
    return replace(task, slug=f"{task.slug}-{suffix}", choice=choice, model=model)
