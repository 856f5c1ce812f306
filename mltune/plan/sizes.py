"""The plan of one problem at several sizes: what ``mltune tune`` carries out when several are given."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mltune.errors import UsageError
from mltune.plan.plan import REPLAY, Plan
from mltune.plan.reader import parse_plan
from mltune.problem.gemm import GemmProblem
from mltune.tuning.request import GPU_TIME_S, REPLAY_TRIALS, named_problem, parse_duration, whole_number

if TYPE_CHECKING:
    from mltune.device.facts import Device

FIRST_SHARE = 2 / 3
"""Share of an even share that every problem gets before the rest goes where more is expected."""

Sizes = Sequence[int] | Sequence[Mapping[str, int]]
"""Extents m = n = k of GEMMs, or sizes by name."""


def plan_of_sizes(
    problem: str | None,
    sizes: Sizes,
    gpus: Sequence[Device],
    *,
    trans: str | None = None,
    kernel: str | None = None,
    device: str = "auto",
    trials: int | None = None,
    time: str | None = None,
    seed: int = 0,
) -> Plan:
    """Make the plan of a problem at several sizes. Its text can be written to a file, as that of any plan.

    Parameters
    ----------
    problem, trans, kernel
        See :func:`mltune.tuning.request.named_problem`.
    sizes : sequence of int or mapping of str to int
        At least two.
    gpus : sequence of Device
        The GPUs of this machine (:func:`mltune.tuning.target.find_gpus`).
    device : str
        ``"auto"``, ``"all"``, ``"cuda:N"``, or ``"replay"``: the recorded timings of each problem.
    trials, time : int, str or None
        The budget of all problems together, one of both. By default that of a single run for each problem.
    seed : int

    Raises
    ------
    UsageError
        There is no such problem, sizes are equal, or the budget cannot be shared out.

    Examples
    --------
    >>> plan = plan_of_sizes("sgemm", [512, 4096], (), trans="NT", trials=300)
    >>> [task.problem.label for task in plan.tasks], plan.tasks[0].minimum
    (['sgemm NT 512', 'sgemm NT 4096'], 100.0)
    """
    if device.startswith(f"{REPLAY}:"):
        raise UsageError(
            f"a dataset holds one problem, but {len(sizes)} sizes were given with {device}; --device replay takes the "
            "recorded timings of each."
        )
    named = [named_problem(problem, {"trans": trans, "size": size}, kernel) for size in sizes]
    problems, bundle = [one for one, _ in named], named[0][1]
    if len({repr(one) for one in problems}) < len(problems):
        raise UsageError(f"several sizes differ, but one was given twice: {', '.join(map(_text, sizes))}.")
    replayed = device == REPLAY or (device in ("auto", "all") and not gpus)
    devices = len(gpus) if device == "all" and gpus else 1
    first = problems[0]
    if isinstance(first, GemmProblem):
        title = f"{first.case} at {len(problems)} sizes"
        table = {"precisions": [first.precision], "trans": [first.trans_a + first.trans_b], "sizes": list(sizes)}
    else:
        title = f"{first.name} at {len(problems)} sizes"
        table = {"sizes": list(sizes)}
    budget, minimum = _budget(len(problems), trials, time, replayed=replayed, devices=devices)
    plan = {"title": title, "budget": budget, "minimum": minimum, "devices": [device], "seed": seed}
    text = f"[plan]\n{_lines(plan)}\n[[problems]]\n{_lines({'kernel': bundle, **table})}"
    return parse_plan(text, title)


def _budget(count: int, trials: int | None, time: str | None, *, replayed: bool, devices: int) -> tuple[str, str]:
    """Return the budget and the minimum of every problem, as a plan has them."""
    if trials is not None and time is not None:
        raise UsageError("several sizes share a number of trials or a time, but both were given; leave one out.")
    if trials is None and time is None and replayed:
        trials = REPLAY_TRIALS * count
    if trials is not None:
        whole_number("trials", trials, count)
        return f"{trials} trials", f"{max(1, int(FIRST_SHARE * trials / count))} trials"
    total_s = GPU_TIME_S * count / devices if time is None else parse_duration(time)
    return _seconds(total_s), _seconds(FIRST_SHARE * total_s * min(1.0, devices / count))


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
