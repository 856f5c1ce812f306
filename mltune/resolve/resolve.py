"""Resolution of names to objects, once: what ``mltune tune`` and ``mltune sweep`` name becomes a request or a plan."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mltune.dataset.dataset import find_datasets, load_manifest
from mltune.device.facts import Device
from mltune.errors import UsageError
from mltune.files.text import many
from mltune.kernel.bundle import Kernel
from mltune.problem.problem import Problem
from mltune.records.directory import is_begun
from mltune.resolve.device import Target, choose, find_gpus, fits, parse_device
from mltune.resolve.options import Limits, unusual, whole_number
from mltune.resolve.plan import MAX_BUDGET_TRIALS, MAX_RIVALS, MAX_TASKS, REPLAY, Plan, Task, Unit, in_order, rivals
from mltune.resolve.problems import (
    Shape,
    check_accuracies,
    contenders,
    given_options,
    kernels_for,
    named_kernel,
    named_problem,
    recorded_problem,
    shaped_problem,
)
from mltune.resolve.request import GPU_TIME_S, REPLAY_TRIALS, TuneRequest, parse_duration

FIRST_SHARE = 2 / 3
"""Share of an even share that every problem gets before the rest goes where more is expected."""

FIRST_SHARE_OF_KERNELS = 1 / 4
"""The same where kernels compete, for all kernels of a problem together: what the slower ones get is lost."""

FIRST_SLICE_S, FIRST_SLICE_TRIALS = 20.0, 96
"""Most that a kernel gets before they are compared for the first time."""

Sizes = Sequence[int | Mapping[str, int] | None]
"""Extents m = n = k of GEMMs, or sizes by name; None for a size that is given otherwise."""


def resolve(
    problem: str | Path | Problem | None,
    shape: Shape,
    *,
    sizes: Sizes = (None,),
    kernels: Sequence[str | Path] = (),
    accuracy: str | None = None,
    limits: Limits | None = None,
    run: Path | None = None,
    as_plan: bool = False,
    **options: Any,
) -> tuple[TuneRequest | Plan, tuple[str, ...]]:
    """Resolve the options of ``mltune tune``: one kernel on one problem is a request, several sizes or kernels a plan.

    With `as_plan` one kernel at one size is a plan, too.

    Without a named kernel the candidates that can be measured compete; in replay kernel and problem are the recorded
    ones. A device is that of :func:`mltune.tune`; for a plan also ``"all"``, or ``"replay"``: the recorded timings of
    each problem. The budget is that of all problems together. The run of a single kernel goes on with that kernel.
    Further options are those of :class:`mltune.resolve.options.RunOptions`. The plan is not placed; the notices are
    about a device that was chosen and a dataset of another source.
    """
    limits = limits or Limits()
    single = {"run": run, **vars(limits), **options}
    device = str(single.pop("device"))
    if device.startswith(f"{REPLAY}:"):
        if as_plan or len(sizes) > 1 or len(kernels) > 1:
            several = f"{len(kernels)} kernels" if len(kernels) > 1 else f"a list of {many(len(sizes), 'size')}"
            raise UsageError(
                f"{device} cannot be given with {several}: a dataset holds one problem of one kernel; --device replay "
                "takes the recorded timings of each."
            )
        return _replay(problem, shape, kernels[0] if kernels else None, accuracy, parse_device(device), **single)
    subject, bundle = named_kernel(problem, kernels[0] if kernels else None, accuracy)
    shapes = [shape if size is None else {**shape, "size": size} for size in sizes]
    problems = [shaped_problem(subject, bundle, sizes, device) for sizes in shapes]
    competing = kernels_for(problems[0], kernels, accuracy) if kernels or bundle is None else [bundle]
    if bundle is None and len(sizes) == 1 and not as_plan:
        competing = _measurable(competing, problems[0], device, run)
    elif bundle is None and device != REPLAY:
        competing = contenders(competing, problems[0], find_gpus()[0])
    if as_plan or len(problems) > 1 or len(competing) > 1:
        return plan_of(problems, competing, find_gpus()[0], limits, options=options), ()
    any_shape = not given_options(shape) and isinstance(problem, str | Path)
    target = parse_device(device) or choose(competing[0], problems[0], any_shape=any_shape)
    resolved = load_manifest(target.dataset).problem if target.dataset is not None and any_shape else problems[0]
    return _request(resolved, competing[0], target, accuracy, **single)


def resolve_sweep(
    problem: str | Path | Problem | None,
    shape: Shape,
    *,
    kernel: str | Path | None = None,
    device: str = "auto",
    **options: Any,
) -> TuneRequest:
    """Resolve the options of ``mltune sweep``, which takes a GPU where no device is named."""
    target = parse_device(device)
    if target is not None and target.dataset is not None:
        return _replay(problem, shape, kernel, None, target, **options)[0]
    resolved, bundle = named_problem(problem, shape, kernel, device)
    return TuneRequest(resolved, bundle, target or Target(cuda=0), **options)


def plan_of(
    problems: Sequence[Problem],
    kernels: Sequence[Kernel],
    gpus: Sequence[Device],
    limits: Limits,
    *,
    least_s: float = 0.0,
    at_once: int = 1,
    produce: Collection[str] = ("report", "winners"),
    options: Mapping[str, Any] | None = None,
) -> Plan:
    """Make the plan of problems that differ in their sizes, with kernels that compete for each.

    `gpus` are those of this machine. Every problem should get `least_s` seconds at first, as far as they are there, and
    a GPU is tuned for `at_once` problems at the same time. A single problem has no report.
    """
    from mltune.resolve.plan_file import write_plan

    if len({repr(problem) for problem in problems}) < len(problems):
        raise UsageError(f"a size was given twice: {', '.join(problem.label for problem in problems)}; leave one out.")
    if len(kernels) > MAX_RIVALS or len(problems) * len(kernels) > MAX_TASKS:
        raise UsageError(
            f"{len(kernels)} kernels at {len(problems)} sizes are too many: at most {MAX_RIVALS} kernels compete, for "
            f"at most {MAX_TASKS} tasks in all."
        )
    device, trials, time = limits.device, limits.trials, limits.time
    target = None if device in ("all", REPLAY) else parse_device(device)
    for kernel in kernels:
        for problem in problems:
            kernel.check_problem(problem)
    unusual_options = unusual(options or {})
    replayed = device == REPLAY or (device in ("auto", "all") and not gpus)
    devices: tuple[str, ...] = (device,)
    workers = (len(gpus) if device == "all" and gpus else 1) * at_once
    if at_once > 1 and not replayed:
        numbers = range(len(gpus)) if device == "all" else [0 if target is None else target.cuda]
        devices = tuple(f"cuda:{number}" for number in numbers for _ in range(at_once))
    trials = REPLAY_TRIALS * len(problems) if trials is None and time is None and replayed else trials
    if trials is not None:
        budget, minimum = _shared_trials(trials, time, len(problems), len(kernels))
    else:
        budget, minimum = _shared_time(time, len(problems), len(kernels), workers, least_s)
    unit: Unit = "s" if trials is None else "trials"
    first, count = problems[0], len(problems)
    checked = {"time_s": budget} if unit == "s" else {}
    TuneRequest(first, kernels[0], Target(), seed=limits.seed, **{**checked, **unusual_options})
    title = first.label if count == 1 else f"{first.case or first.name} at {count} sizes"
    drafts = [Task("", kernels[0], problem, None, 1.0, minimum) for problem in problems]
    tasks = in_order(rivals(draft, kernels, unit) for draft in drafts)
    written = frozenset(produce) - ({"report"} if count == 1 else set())
    plan = Plan(title, title, unit, budget, tasks, devices, limits.seed, written, unusual_options)
    return replace(plan, text=write_plan(plan))


def _shared_trials(trials: int, time: str | float | None, count: int, kernels: int) -> tuple[float, float]:
    """Return a budget of trials, and the minimum of every problem."""
    if time is not None:
        raise UsageError(
            "both trials and a time were given, but several sizes or kernels share one of them; leave one out."
        )
    share, most = _first_share(kernels)
    whole_number("trials", trials, count, MAX_BUDGET_TRIALS)
    return float(trials), float(max(1, int(min(share * trials / count, most * FIRST_SLICE_TRIALS))))


def _shared_time(
    time: str | float | None, count: int, kernels: int, devices: int, least_s: float
) -> tuple[float, float]:
    """Return a budget in seconds of each device, and the minimum of every problem."""
    share, most = _first_share(kernels)
    total_s = GPU_TIME_S * count / devices if time is None else parse_duration(str(time))
    even_s = total_s * min(1.0, devices / count)
    first_s = max(min(share * even_s, most * FIRST_SLICE_S), min(least_s, 0.99 * even_s))  # minima are rounded
    budget_s, minimum_s = (max(round(seconds, 3), 0.001) for seconds in (total_s, first_s))
    return budget_s, minimum_s


def _first_share(kernels: int) -> tuple[float, float]:
    """Return the share that a problem gets at first, and the most, in first slices."""
    return (FIRST_SHARE, math.inf) if kernels == 1 else (FIRST_SHARE_OF_KERNELS, float(kernels))


def _measurable(kernels: list[Kernel], problem: Problem, device: str, run: Path | None) -> list[Kernel]:
    """Return the candidates that a GPU has a reason to try, or without one have recorded timings; at least one.

    The run of a single kernel goes on with that one.
    """
    from mltune.records.store import Store

    if len(kernels) > 1 and run is not None and is_begun(run):
        with Store.read_only(run) as store:
            kernels = [kernel for kernel in kernels if kernel.name == store.header.kernel] or kernels[:1]
    if len(kernels) == 1:
        return kernels
    gpus = () if device == REPLAY else find_gpus()[0]
    if not gpus:
        return [kernel for kernel in kernels if find_datasets(kernel.name, problem)] or kernels[:1]
    target = parse_device(device) if device != "all" else None
    index = 0 if target is None or target.cuda is None else target.cuda
    tried = contenders(kernels, problem, gpus[index : index + 1])
    return [kernel for kernel in tried if index >= len(gpus) or fits(kernel, gpus[index])] or kernels[:1]


def _replay(
    problem: str | Path | Problem | None,
    shape: Shape,
    kernel: str | Path | None,
    accuracy: str | None,
    target: Target | None,
    **options: Any,
) -> tuple[TuneRequest, tuple[str, ...]]:
    """Return the request of a replay: kernel and problem are the recorded ones by default, and must be the same."""
    from mltune.dataset.replay import recorded_kernel
    from mltune.kernel.reader import load_kernel

    assert target is not None  # noqa: S101 - only auto has none
    assert target.dataset is not None  # noqa: S101
    recorded = load_manifest(target.dataset)
    bundle, notice = recorded_kernel(recorded) if kernel is None else (load_kernel(kernel), "")
    replayed = recorded_problem(problem, shape, recorded.problem, str(target))
    request, notices = _request(replayed, bundle, target, accuracy, **options)
    return request, (notice, *notices) if notice else notices


def _request(
    problem: Problem,
    kernel: Kernel,
    target: Target,
    accuracy: str | None,
    *,
    trials: int | None = None,
    time: str | float | None = None,
    **options: Any,
) -> tuple[TuneRequest, tuple[str, ...]]:
    """Return a request with a budget, and notices."""
    time_s = time if time is None else parse_duration(str(time))
    if trials is None and time_s is None:
        trials, time_s = (None, GPU_TIME_S) if target.dataset is None else (REPLAY_TRIALS, None)
    request = TuneRequest(problem, kernel, target, trials=trials, time_s=time_s, **options)
    notices = [target.notice]
    if target.dataset is not None:
        check_accuracies([kernel], accuracy)
        notices.append(load_manifest(target.dataset).check_kernel(kernel))
        kernel.check_problem(problem)
    return request, tuple(filter(None, notices))
