"""Forecast a plan without running it: the document that ``mltune plan`` prints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from mltune.campaign.schedule import allot
from mltune.dataset.dataset import list_datasets, load_dataset
from mltune.dataset.manifest import Manifest
from mltune.device.facts import Device
from mltune.device.peaks import peak_flops
from mltune.errors import DeviceError, PlanError
from mltune.problem.problem import Problem
from mltune.resolve.placement import check_budget, place, recorded_for
from mltune.resolve.plan import REPLAY, Plan

_PREFERRED = 0.1
"""Share of the fastest rows of a dataset: a search mostly measures such, which take longer to compile and time."""

_ANY_GPU = ("cuda:0",)
_WRITES = {"report": ["report.html", "report.md", "winners.json"], "winners": ["winners/"], "datasets": ["datasets/"]}


def forecast(plan: Plan, gpus: Sequence[Device], reason: str, cores: int) -> dict[str, Any]:
    """Forecast an unplaced plan on this machine as plain JSON values; ``reason`` says why there is no GPU.

    ``obstacle`` is the reason why the plan cannot be carried out here; the rest is then a forecast for one GPU.
    ``share`` of a problem is its budget if all expected gains are equal, ``trials`` the most trials that it allows;
    None where unknown.
    """
    obstacle = None
    try:
        placed = place(plan, gpus, reason)
    except PlanError as error:
        obstacle = str(error)
        placed = replace(plan, devices=_ANY_GPU) if set(plan.devices) & {"auto", "all", REPLAY} else plan
        check_budget(placed)
    device = gpus[int(placed.devices[0].removeprefix("cuda:"))] if not obstacle and not placed.replayed else None
    problems = _problems(placed, device, cores / len(placed.devices))
    trials = [problem["trials"] for problem in problems]
    minima = sum(task.minimum for task in placed.tasks)
    produced = plan.produce - {"winners"} if placed.replayed else plan.produce  # nothing is compiled in replay
    products = (path for product in sorted(produced) for path in _WRITES[product])
    return {
        **{name: getattr(plan, name) for name in ("name", "title", "unit", "budget", "seed")},
        "devices": [
            {"spec": spec, "name": None if obstacle or placed.replayed else gpus[int(spec.removeprefix("cuda:"))].name}
            for spec in placed.devices
        ],
        "obstacle": obstacle,
        "cores": cores,
        "first_round": minima * plan.budget / placed.capacity,
        "trials": None if None in trials else sum(trials),
        "problems": problems,
        "writes": ["plan.toml", "events.jsonl", "problems/", *products],
    }


def _problems(plan: Plan, device: Device | None, cores: float) -> list[dict[str, Any]]:
    """Describe the tasks of a plan."""
    recorded = recorded_for(plan.tasks)
    rates = {} if plan.unit == "trials" or plan.replayed else _rates(plan, device)
    documents = []
    for task, share in zip(plan.tasks, even_shares(plan), strict=True):
        rate = rates.get(task.slug)
        counted = round(share) if plan.unit == "trials" else None
        documents.append(
            {
                "slug": task.slug,
                "kernel": task.kernel.label,
                "problem": task.problem.label,
                **{name: getattr(task, name) for name in ("priority", "minimum", "maximum")},
                "share": share,
                "trials": rate.trials(share, cores) if rate else counted,
                "rate_from": rate.recorded if rate else None,
                "operand_bytes": task.problem.operand_bytes or None,
                "recorded": recorded.get(task.slug),
            }
        )
    return documents


def even_shares(plan: Plan) -> list[float]:
    """Return the budget of each task if all expected gains are equal: shared out by priority alone."""
    minima = [task.minimum for task in plan.tasks]
    weights = [math.sqrt(task.priority) for task in plan.tasks]
    most = [math.inf if task.maximum is None else task.maximum for task in plan.tasks]
    return allot(plan.capacity - sum(minima), minima, weights, most)


def _rates(plan: Plan, device: Device | None) -> dict[str, Rate]:
    """Return the cost of a trial of each task that has a dataset."""
    manifests = list_datasets()
    rates = {task.slug: recorded_rate(task.kernel.name, task.problem, manifests, device) for task in plan.tasks}
    return {slug: rate for slug, rate in rates.items() if rate is not None}


@dataclass(frozen=True, slots=True)
class Rate:
    """The cost of a trial in the dataset ``recorded``: seconds of one core to compile, and seconds of the GPU."""

    compile_s: float
    verify_s: float
    time_s: float
    recorded: str

    def trials(self, seconds: float, cores: float) -> int:
        """Return the number of trials without skips and waiting; a real run has about half of them (H200, 16 cores)."""
        return int(seconds / max(self.compile_s / cores, self.verify_s + self.time_s))


def recorded_rate(kernel: str, problem: Problem, manifests: Sequence[Manifest], device: Device | None) -> Rate | None:
    """Estimate the cost of a trial from the dataset of the same kernel and precision with the nearest size, if any.

    The time is scaled by the number of operations (of bytes, where operations are not counted) and, for another device,
    by the ratio of the peaks.
    """
    if not problem.cost_class:
        return None
    work, of_class = _work(problem), (kernel, problem.cost_class)
    alike = [manifest for manifest in manifests if (manifest.kernel, manifest.problem.cost_class) == of_class]
    related = [manifest for manifest in alike if work and _work(manifest.problem)]
    if not related:
        return None
    nearest = min(
        related, key=lambda manifest: (abs(math.log(work / _work(manifest.problem))), -manifest.rows, manifest.name)
    )
    rate = _rate_in(nearest.name)
    scale = work / _work(nearest.problem) * _slower(nearest.device, device, problem.arithmetic)
    return rate and replace(rate, time_s=rate.time_s * scale)


def _work(problem: Problem) -> int:
    """Return the operations of a problem, or its bytes where they are not counted."""
    return problem.flops if problem.flops > 1 else problem.bytes


@cache
def _rate_in(name: str) -> Rate | None:
    """Return the mean seconds to compile, verify and time the fastest rows of a dataset; None where no row ran."""
    dataset = load_dataset(name)
    median_s = dataset.numbers("median_s")
    if not np.isfinite(median_s).any():
        return None
    preferred = median_s <= np.nanquantile(median_s, _PREFERRED)
    columns = (dataset.numbers(column)[preferred] for column in ("compile_s", "verify_s", "time_s"))
    compile_s, verify_s, time_s = (float(np.nan_to_num(seconds).mean()) for seconds in columns)
    return Rate(compile_s, verify_s, time_s, name)


def _slower(recorded: Device, device: Device | None, arithmetic: str) -> float:
    """Return the ratio of the peaks of two devices; 1 where one is unknown."""
    try:
        return 1.0 if device is None else peak_flops(recorded, arithmetic) / peak_flops(device, arithmetic)
    except DeviceError:
        return 1.0
