"""The campaign of a library: the sizes that are tuned in its time, their tunes, and its building."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter
from typing import Any

from mltune.campaign.products import CampaignResult
from mltune.device.facts import Device
from mltune.errors import RunError, UsageError
from mltune.kernel.bundle import Kernel
from mltune.kernel.placed import PlacedKernel
from mltune.library import spec as specs
from mltune.library.building import Building, Tune, crossing_s
from mltune.library.content import Content, kernel_parameters, name_of
from mltune.library.source import check_name
from mltune.library.spec import Spec
from mltune.measure import build as builds
from mltune.problem.problem import RunnableProblem
from mltune.process.child import ChildPool
from mltune.records.directory import PLAN_FILE, PROBLEMS, is_begun, is_plan
from mltune.records.trial import BATCH
from mltune.resolve import device as devices
from mltune.resolve.device import Target
from mltune.resolve.options import Limits
from mltune.resolve.placement import place
from mltune.resolve.plan import REPLAY, Plan
from mltune.resolve.plan_file import load_plan
from mltune.resolve.problems import contenders, kernels_for, named_kernel, shaped_problem
from mltune.resolve.request import GPU_TIME_S, parse_duration
from mltune.resolve.resolve import plan_of
from mltune.results.reader import read_run
from mltune.tuning.cross import model_of_times, time_configurations

_CROSS_SHARE = 0.5
"""Largest share of the time for the timing of candidates."""

_SLICE_S = 2.5
"""Seconds of a tune besides its compilation and the count of its space: 1 to 1.7 in all on an H200."""

_AT_ONCE, _COMPILERS = 4, 4
"""Most sizes that a GPU is tuned for at once, and compile processes of each; compiles take far longer than timing."""

_BATCHES = 3
"""Fewest batches of compilation that are worth a tune."""

_AROUND = 400
"""Sizes of products around listed ones, of which the dispatcher learns what is expected there."""


@dataclass(frozen=True, slots=True)
class PlannedLibrary:
    """A library to build, by a plan; ``time_s`` is in seconds from ``begun`` on, infinite for a budget in trials."""

    spec: Spec
    plan: Plan
    problems: Sequence[RunnableProblem]
    around: Sequence[RunnableProblem]
    time_s: float
    begun: float

    def content(self, carry_out: Callable[..., CampaignResult], stop: Callable[[], bool]) -> Content:
        """Tune, time the candidates, and choose them; ``carry_out`` runs a plan."""
        with ExitStack() as stack:
            campaign = carry_out(self.plan, interrupt=stop)
            if campaign.interrupted:
                raise RunError(f"the tuning was interrupted; it goes on with --run {campaign.directory}.")
            placed = place(self.plan, *devices.find_gpus())
            tunes = _tunes(placed, campaign.directory)
            tuned_s = sum(tune.run.elapsed_s for tune in tunes) / len(placed.devices)
            left_s = self.time_s - max(perf_counter() - self.begun, tuned_s)
            at_once = placed.devices.count(placed.devices[0])
            pools = SimpleQueue[ChildPool]()
            for _ in range(at_once):
                pools.put(stack.enter_context(closing(ChildPool())))
            compilers = self.plan.options.get("compilers") or max(1, builds.available_cores() // at_once)
            time = partial(_time, placed, pools=pools, compilers=compilers)
            building = Building(
                self.spec,
                self.problems,
                tunes,
                time,
                builds.build_all,
                model_of_times,
                campaign.directory,
                around=self.around,
                left_s=left_s,
                replayed=placed.replayed,
                stop=stop,
                at_once=at_once,
            )
            return building.content()


def plan_library(
    spec: Spec, device: str, run: str | Path | None, options: Mapping[str, Any], begun: float
) -> PlannedLibrary:
    """Plan the tunes of as many sizes as there is time for."""
    gpus = devices.find_gpus()[0]
    builds.nvrtc_version()  # raises where nothing can be compiled
    problems, around, kernels = _subjects(spec, device, gpus)
    options = {name: value for name, value in options.items() if value is not None}
    time_s, tunes_s = _times(spec, len(kernels), replayed=device == REPLAY or not gpus)
    slice_s, at_once = 0.0, 1
    if math.isfinite(time_s):
        used = () if device == REPLAY else gpus if device == "all" else gpus[:1]
        compilers = options.get("compilers") or builds.available_cores() // max(1, len(used))
        at_once = max(1, min(_AT_ONCE, compilers // _COMPILERS)) if used else 1
        compilers //= at_once
        options |= {"compilers": compilers} if "compilers" in options else {}
        slice_s = _slice_s(problems[0], kernels, used, compilers)
        count = max(2, min(spec.library.tuned, int(tunes_s * max(1, len(used)) * at_once / slice_s)))
        spec = replace(spec, tuned=_begun(run, problems) or specs.representatives(spec.sizes, spec.weights, count))
    time = tunes_s if math.isfinite(time_s) else spec.library.time
    limits = Limits(device=device, trials=spec.library.trials, time=time, seed=spec.library.seed)
    tuned = [problems[place] for place in spec.tuned]
    plan = plan_of(tuned, kernels, gpus, limits, least_s=slice_s, at_once=at_once, produce=(), options=options)
    return PlannedLibrary(spec, plan, problems, around, time_s, begun)


def _subjects(
    spec: Spec, device: str, gpus: Sequence[Device]
) -> tuple[list[RunnableProblem], list[RunnableProblem], list[Kernel]]:
    """Return the problems of all sizes, those of sizes around, and the competing kernels that can be in one library."""
    settings = spec.library
    named = next(iter(settings.kernel), None)
    subject, bundle = named_kernel(settings.operation, named, settings.accuracy)
    of_arrays = bundle is not None and bundle.has_own_problem(subject)

    def problem_at(size: Mapping[str, int]) -> RunnableProblem:
        facts: dict[str, Any] = {"trans": settings.trans, "epilogue": settings.epilogue}
        problem = shaped_problem(subject, bundle, facts | ({"size": size} if of_arrays else dict(size)), device)
        assert isinstance(problem, RunnableProblem)  # noqa: S101 - it has a name
        return problem

    problems = [problem_at(size) for size in spec.sizes]
    around = [] if of_arrays else [problem_at(size) for size in specs.sizes_around(spec, _AROUND)]
    first = problems[0]
    kernels = kernels_for(first, settings.kernel, settings.accuracy) if settings.kernel or bundle is None else [bundle]
    if bundle is None and device != REPLAY:
        kernels = contenders(kernels, first, gpus)
    check_name(settings.name or name_of(first))
    for kernel in kernels:
        kernel_parameters(kernel, first)  # which has an error for arguments that a library cannot have
    if any(problem.macros() != first.macros() for problem in problems):
        raise UsageError("there are single products and batches, which do not share machine code: build two libraries.")
    needed = set() if of_arrays else {*"mnk"} & {*first.size_names}
    if not needed <= {*spec.extents} <= {*first.size_names}:
        raise UsageError(
            f"the sizes {', '.join(spec.extents)} are not those of the operation, "
            f"{', '.join(first.size_names) or 'none'}; those of a product have m, n and k."
        )
    return problems, around, kernels


def _begun(run: str | Path | None, problems: Sequence[RunnableProblem]) -> tuple[int, ...]:
    """Return the positions of the problems that a run has begun to tune: it goes on with its sizes."""
    if run is None or not is_plan(Path(run)):
        return ()
    labels = {task.problem.label for task in load_plan(Path(run) / PLAN_FILE).tasks}
    return tuple(place for place, problem in enumerate(problems) if problem.label in labels)


def _times(spec: Spec, kernels: int, *, replayed: bool) -> tuple[float, float]:
    """Return the seconds of a building, and those of its tunes; infinite for a budget in trials."""
    settings = spec.library
    if settings.trials is not None or (replayed and settings.time is None):
        return math.inf, math.inf
    time_s = GPU_TIME_S * len(spec.tuned) if settings.time is None else parse_duration(settings.time)
    return time_s, round(time_s - min(_CROSS_SHARE * time_s, crossing_s(len(spec.sizes), kernels)), 3)


def _slice_s(problem: RunnableProblem, kernels: Sequence[Kernel], gpus: Sequence[Device], compilers: int) -> float:
    """Return the seconds to tune a size for, from the times of its spaces and the default configurations."""
    batches, slice_s = _BATCHES * BATCH / max(compilers, 1), _SLICE_S * len(kernels)
    for kernel in kernels if gpus else ():
        begun, placed = perf_counter(), PlacedKernel(kernel, problem, gpus[0])
        default, _ = placed.default, placed.space.count
        slice_s += perf_counter() - begun
        if default:
            slice_s += batches * builds.build_one(placed, default).compile_s
    return slice_s


def _tunes(plan: Plan, directory: Path) -> list[Tune]:
    """Return the runs that have trials."""
    folders = [(task, directory / PROBLEMS / task.slug) for task in plan.tasks]
    tunes = [Tune(task.problem, task.kernel, read_run(at, task.slug)) for task, at in folders if is_begun(at)]  # type: ignore[arg-type]
    if not any(tune.run.best_record for tune in tunes):
        raise RunError(f"there is no configuration that runs in {directory}, and a library needs one.")
    return tunes


def _time(
    plan: Plan, kernel: Kernel, problem: RunnableProblem, *arguments: Any, pools: SimpleQueue[ChildPool], **options: Any
) -> list[float | None]:
    """Time configurations on the first GPU of a placed plan, or take their recorded times."""
    recorded = {(*task.bundle, task.problem): task.target for task in plan.tasks}
    target = recorded.get((kernel.folder, kernel.space.preset, problem))
    if not plan.replayed:
        target = Target(cuda=int(plan.devices[0].removeprefix("cuda:")))
    if target is None:
        return []
    pool = pools.get()
    try:
        return time_configurations(kernel, problem, target, *arguments, pool=pool, **options)
    finally:
        pools.put(pool)
