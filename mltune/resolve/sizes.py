"""The plan of a problem at several sizes, or with several kernels: what ``mltune tune`` carries out then."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from mltune.errors import UsageError
from mltune.problem.gemm import GemmProblem
from mltune.resolve.plan import REPLAY, Plan
from mltune.resolve.plan_reader import parse_plan
from mltune.resolve.request import (
    GPU_TIME_S,
    REPLAY_TRIALS,
    Shape,
    TuneRequest,
    named_kernels,
    named_problem,
    parse_duration,
    whole_number,
)

if TYPE_CHECKING:
    from mltune.device.facts import Device
    from mltune.problem.problem import Problem

FIRST_SHARE = 2 / 3
"""Share of an even share that every problem gets before the rest goes where more is expected."""

FIRST_SHARE_OF_KERNELS = 1 / 4
"""The same where kernels compete, for all kernels of a problem together: what the slower ones get is lost."""

FIRST_SLICE_S, FIRST_SLICE_TRIALS = 20.0, 96
"""Most that a kernel gets before they are compared for the first time."""

Sizes = Sequence[int | Mapping[str, int] | None]
"""Extents m = n = k of GEMMs, or sizes by name; None for a size that is given otherwise."""


def plan_of_sizes(
    problem: str | Problem | None,
    sizes: Sizes,
    gpus: Sequence[Device],
    *,
    shape: Shape | None = None,
    kernels: Sequence[str] = (),
    accuracy: str | None = None,
    device: str = "auto",
    trials: int | None = None,
    time: str | float | None = None,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Plan:
    """Make the plan of a problem at several sizes. Its text can be written to a file, as that of any plan.

    Parameters
    ----------
    problem, shape
        See :func:`mltune.resolve.request.named_problem`.
    sizes : sequence of int or mapping of str to int
        One, or several that differ; ``[None]`` is the size of `shape`.
    gpus : sequence of Device
        The GPUs of this machine (:func:`mltune.resolve.device.find_gpus`).
    kernels : sequence of str
        Kernels that compete; by default the candidates for the problem.
    accuracy : str, optional
        The accuracy class of the kernels.
    device : str
        ``"auto"``, ``"all"``, ``"cuda:N"``, or ``"replay"``: the recorded timings of each problem.
    trials, time : int, str or None
        The budget of all problems together, one of both. By default that of a single run for each problem.
    seed : int
    options : mapping, optional
        Options of every run: keys of ``[options]``.

    Raises
    ------
    UsageError
        There is no such problem, sizes are equal, or the budget cannot be shared out.

    Examples
    --------
    >>> plan = plan_of_sizes("sgemm", [512, 4096], (), shape={"trans": "NT"}, kernels=["gemm_simt"], trials=300)
    >>> [task.problem.label for task in plan.tasks], plan.tasks[0].minimum
    (['sgemm NT 512', 'sgemm NT 4096'], 100.0)
    """
    if device.startswith(f"{REPLAY}:"):
        several = f"{len(sizes)} sizes" if len(sizes) > 1 else f"{len(kernels)} kernels"
        raise UsageError(
            f"a dataset holds one problem of one kernel, but {several} were given with {device}; --device replay takes "
            "the recorded timings of each."
        )
    given = [shape or {} if size is None else {**(shape or {}), "size": size} for size in sizes]
    problems = [named_problem(problem, one, kernels[0] if kernels else None, accuracy=accuracy)[0] for one in given]
    if len({repr(one) for one in problems}) < len(problems):
        raise UsageError(f"several sizes differ, but one was given twice: {', '.join(map(_text, sizes))}.")
    _, names = named_kernels(problem, given[0], kernels, accuracy)
    title, table = _described(problems, sizes)
    replayed = device == REPLAY or (device in ("auto", "all") and not gpus)
    devices = len(gpus) if device == "all" and gpus else 1
    budget, minimum = _budget(len(problems), len(names), trials, time, replayed=replayed, devices=devices)
    plan: dict[str, Any] = {"title": title, "budget": budget, "minimum": minimum, "devices": [device], "seed": seed}
    if len(problems) == 1:
        plan["produce"] = ["winners"]
    tables = [f"[plan]\n{_lines(plan)}"]
    usual = {field.name: field.default for field in fields(TuneRequest)}
    others = {name: value for name, value in (options or {}).items() if value != usual[name]}
    if others:
        tables.append(f"[options]\n{_lines(others)}")
    kernel = names[0] if len(names) == 1 else names
    tables.append(f"[[problems]]\n{_lines({'kernel': kernel, **table})}")
    return parse_plan("\n".join(tables), title)


def _described(problems: Sequence[Problem], sizes: Sizes) -> tuple[str, dict[str, Any]]:
    """Return the title and the keys of a plan of problems that differ in their sizes."""
    first = problems[0]
    if not isinstance(first, GemmProblem):
        return f"{first.name} at {len(problems)} sizes", {"sizes": list(sizes)}
    extents = [[one.m, one.n, one.k] for one in problems if isinstance(one, GemmProblem)]
    plain = GemmProblem(first.precision, first.trans_a, first.trans_b, first.m, first.n, first.k).to_json()
    return first.label if len(problems) == 1 else f"{first.case} at {len(problems)} sizes", {
        "precisions": [first.precision],
        "trans": [first.trans_a + first.trans_b],
        "sizes": [one[0] if len(set(one)) == 1 else one for one in extents],
        **{name: value for name, value in first.to_json().items() if plain.get(name) != value},
    }


def _budget(
    count: int, kernels: int, trials: int | None, time: str | float | None, *, replayed: bool, devices: int
) -> tuple[str, str]:
    """Return the budget and the minimum of every problem, as a plan has them."""
    first_share, most = (FIRST_SHARE, math.inf) if kernels == 1 else (FIRST_SHARE_OF_KERNELS, float(kernels))
    if trials is not None and time is not None:
        raise UsageError(
            "several sizes or kernels share a number of trials or a time, but both were given; leave one out."
        )
    if trials is None and time is None and replayed:
        trials = REPLAY_TRIALS * count
    if trials is not None:
        whole_number("trials", trials, count)
        return f"{trials} trials", f"{max(1, int(min(first_share * trials / count, most * FIRST_SLICE_TRIALS)))} trials"
    total_s = GPU_TIME_S * count / devices if time is None else parse_duration(str(time))
    share_s = first_share * total_s * min(1.0, devices / count)
    return _seconds(total_s), _seconds(min(share_s, most * FIRST_SLICE_S))


def _seconds(duration_s: float) -> str:
    return f"{max(round(duration_s, 3), 0.001):.12g}s"


def _lines(table: Mapping[str, object]) -> str:
    return "".join(f"{key} = {_text(value)}\n" for key, value in table.items())


def _text(value: object) -> str:
    """Write a value as TOML."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key} = {_text(one)}' for key, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    return json.dumps(value, ensure_ascii=False)
