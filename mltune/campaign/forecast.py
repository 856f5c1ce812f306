"""Forecast of a plan without running it: the document that ``mltune plan`` prints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mltune.campaign.gain import allot
from mltune.campaign.rates import Rate, recorded_rate
from mltune.errors import PlanError
from mltune.resolve.placement import check_budget, place, recorded_for
from mltune.resolve.plan import REPLAY, Plan

if TYPE_CHECKING:
    from mltune.device.facts import Device

_ANY_GPU = ("cuda:0",)
_WRITES = {"report": ["report.html", "report.md", "winners.json"], "winners": ["winners/"], "datasets": ["datasets/"]}


def forecast(plan: Plan, gpus: Sequence[Device], reason: str, cores: int) -> dict[str, Any]:
    """Forecast what a plan would do on this machine. No GPU is needed.

    Parameters
    ----------
    plan : Plan
        As read, not placed.
    gpus : sequence of Device
        The GPUs of this machine (:func:`mltune.resolve.device.find_gpus`).
    reason : str
        The reason if there is none.
    cores : int
        Number of cores for compilers.

    Returns
    -------
    dict
        Plain JSON values. ``obstacle`` is the reason why the plan cannot be carried out here; the rest is then a
        forecast for one GPU. ``share`` of a problem is its budget if all expected gains are equal, ``trials`` the most
        trials that it allows; None where unknown.

    Raises
    ------
    PlanError
        The budget is smaller than the minima.
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
    return {
        "name": plan.name,
        "title": plan.title,
        "unit": plan.unit,
        "budget": plan.budget,
        "seed": plan.seed,
        "devices": [
            {"spec": spec, "name": None if obstacle or placed.replayed else gpus[int(spec.removeprefix("cuda:"))].name}
            for spec in placed.devices
        ],
        "obstacle": obstacle,
        "cores": cores,
        "first_round": minima * plan.budget / placed.capacity,
        "trials": None if None in trials else sum(trials),
        "problems": problems,
        "writes": [
            "plan.toml",
            "events.jsonl",
            "problems/",
            *(path for one in sorted(plan.produce) for path in _WRITES[one]),
        ],
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
                "priority": task.priority,
                "minimum": task.minimum,
                "maximum": task.maximum,
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
    """Return the cost of a trial of each task, where a dataset tells it."""
    from mltune.dataset.dataset import list_datasets

    manifests = list_datasets()
    found = {task.slug: recorded_rate(task.kernel.name, task.problem, manifests, device) for task in plan.tasks}
    return {slug: rate for slug, rate in found.items() if rate is not None}
