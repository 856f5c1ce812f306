"""Where a plan is carried out: on which GPUs, or from which recorded timings; and whether it can be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mltune.errors import PlanError
from mltune.kernel.reader import load_kernel
from mltune.plan.plan import REPLAY, Plan, Task

if TYPE_CHECKING:
    from mltune.device.facts import Device

_NAMED = 3


def place(plan: Plan, gpus: Sequence[Device], reason: str = "") -> Plan:
    """Return a plan whose devices are known, and where each problem is replayed, if it is.

    ``auto`` is the first GPU, ``all`` is all of them; without a GPU both are a replay, where every problem has recorded
    timings.

    Parameters
    ----------
    plan : Plan
    gpus : sequence of Device
        The GPUs of this machine, ``cuda:0`` first: see :func:`mltune.tune.target.find_gpus`.
    reason : str
        Why there is none.

    Raises
    ------
    PlanError
        The plan cannot be carried out here: a GPU that it names does not exist, there is none and some timings are not
        recorded, a problem does not fit into a GPU's memory, or the budget is smaller than the minima.
    """
    devices = _devices(plan, gpus, reason)
    if devices == (REPLAY,):
        placed = replace(plan, tasks=tuple(_recorded(plan, gpus, reason)), devices=devices)
    else:
        placed = replace(plan, devices=devices)
        _check_gpus(placed, gpus)
    check_budget(placed)
    return placed


def check_budget(plan: Plan) -> None:
    """Check that every task can have its minimum.

    Raises
    ------
    PlanError
        They need more than the budget.
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
    """Return for each task that timings are recorded of the name of the dataset: its own, or that with most rows."""
    from mltune.dataset.dataset import list_datasets

    manifests = list_datasets()
    tasks = tuple(tasks)
    kernels = {name: load_kernel(name).name for name in {task.kernel for task in tasks}}
    found: dict[str, str] = {}
    for task in tasks:
        fitting = [one for one in manifests if one.kernel == kernels[task.kernel] and one.problem == task.problem]
        if task.dataset is not None:
            found[task.slug] = task.dataset
        elif fitting:
            found[task.slug] = max(fitting, key=lambda manifest: manifest.rows).name
    return found


def _devices(plan: Plan, gpus: Sequence[Device], reason: str) -> tuple[str, ...]:
    """Return what the devices of a plan stand for on this machine."""
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
    """Return the tasks with the datasets that they are replayed from."""
    found = recorded_for(plan.tasks)
    missing = [task for task in plan.tasks if task.slug not in found]
    if missing:
        some = ", ".join(task.problem.label for task in missing[:_NAMED]) + (", ..." if missing[_NAMED:] else "")
        why = "the plan is replayed" if gpus else f"no GPU was found ({reason})"
        raise PlanError(
            f"{plan.name}: without a GPU every problem must be one whose timings are recorded, but {why} and there are "
            f"none of {len(missing)} of {len(plan.tasks)} ({some}); run it on a GPU, or see `mltune datasets`."
        )
    return [replace(task, dataset=found[task.slug]) for task in plan.tasks]


def _check_gpus(plan: Plan, gpus: Sequence[Device]) -> None:
    """Check that every task can be built, and fits into every GPU of the plan."""
    used = [gpus[int(device.removeprefix("cuda:"))] for device in plan.devices]
    smallest = min(used, key=lambda device: device.memory_bytes)
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
