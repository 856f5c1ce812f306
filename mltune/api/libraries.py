"""Build a library: a kernel in a few configurations for many sizes, with a dispatcher, callable from C and Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from mltune.api.campaigns import run as carry_out
from mltune.api.display import interruptible
from mltune.errors import LibraryError, RunError, UsageError
from mltune.files.text import printable

if TYPE_CHECKING:
    from mltune.device.facts import Device
    from mltune.kernel.bundle import Kernel
    from mltune.library.building import Tune
    from mltune.library.spec import Spec
    from mltune.problem.problem import RunnableProblem
    from mltune.process.child import ChildPool
    from mltune.resolve.plan import Plan
    from mltune.results.progress import CampaignReport


_CROSS_SHARE = 0.4
"""Most of the time that the timing of candidates takes."""

_CROSS_S = 0.25
"""Seconds that are kept for it, for each size and kernel: 40 candidates of 6 ms, as on an H200."""

_SLICE_S = 2.5
"""Seconds of a tune besides its compiles and the count of its space: all of it took 1 to 1.7 on an H200."""

_AT_ONCE, _COMPILERS = 4, 4
"""Most sizes that a GPU is tuned for at once, and compile processes of each; compiles take far longer than timing."""

_BATCHES = 3
"""Batches of compiles that a tune is worth beginning for."""


def build_library(
    spec: str | Path | Mapping[str, Any],
    out: str | Path,
    *,
    device: str = "auto",
    run: str | Path | None = None,
    overwrite: bool = False,
    compilers: int | None = None,
    progress: CampaignReport | Literal["auto"] | None = "auto",
    interrupt: Callable[[], bool] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Build a library: tune an operation at representative sizes, choose a few configurations, and write C source.

    The candidates are the fastest configurations of every tuned size, the fastest one there that is valid at all
    sizes, the default ones, and other launches of the best. They are timed at eight of the tuned sizes each, and a
    shortlist of them at further sizes. Those of the portfolio are chosen by the mean speed with a floor under the worst
    and timed at all sizes, and a dispatcher is learned that maps sizes to them. All of it keeps the time of the
    description: fewer sizes are tuned where a tune would be too short, and what cannot be timed is left out.

    Parameters
    ----------
    spec : str, pathlib.Path or mapping
        A TOML file, or a mapping of its form: the operation and its sizes (docs/reference/library.md).
    out : str or pathlib.Path
        The folder of the library; a library of mltune there is replaced as a whole.
    device : str
        ``"auto"``, ``"all"``, ``"cuda:N"``, or ``"replay"``: then every size needs recorded timings, candidates have
        times where they were recorded, and shares are 0 where what runs was not. It shows what is written without a
        GPU; ``"auto"`` is that where there is none.
    run : str or pathlib.Path, optional
        Directory of the run; a run of the same library there is resumed. By default a new one under ``runs/``.
    overwrite : bool
        Whether a folder that holds anything else gets another name, which a warning tells.
    compilers : int, optional
        Compile processes; by default one per core.
    progress, interrupt
        See :func:`mltune.run`.
    **options
        ``search``, ``skip``, ``stop``, ``variants``, ``enough``, ``prior`` and ``wisdom`` of :func:`mltune.tune`.

    Returns
    -------
    dict
        The content of ``library.json``, whose ``report`` says where each configuration is used and what is lost.

    Raises
    ------
    LibraryError
        The description is malformed, or the folder holds something else.
    UsageError
        The operation, or a kernel for it, cannot be in a library.
    DeviceError
        There is no NVRTC.
    RunError
        No candidate could be timed at any size, the run was interrupted, or a configuration cannot be compiled.

    Examples
    --------
    >>> import mltune
    >>> spec = {"library": {"operation": "sgemm", "trans": "NT"}, "sizes": {"shapes": [1024, 4096]}}
    >>> built = mltune.build_library(spec, "sgemm_nt", device="replay")  # doctest: +SKIP
    >>> built["name"], built["report"]["portfolio"]  # doctest: +SKIP
    ('sgemm_nt', {'mean': 1.0, 'least': 1.0})
    """
    if Path(out).name in ("", ".."):
        raise LibraryError(f"a library is written to a folder with a name of its own, got {printable(out, 300)}.")

    from mltune.library.building import Building
    from mltune.library.folder import check_place, write_library
    from mltune.library.spec import load_spec
    from mltune.measure.build import build_one, nvrtc_version
    from mltune.process.child import ChildPool
    from mltune.resolve.device import find_gpus
    from mltune.resolve.placement import place

    begun, description = perf_counter(), load_spec(spec)
    check_place(Path(out), overwrite=overwrite)
    nvrtc_version()  # raises where nothing can be compiled
    description, plan, problems, time_s = _plan(description, device, run, {**options, "compilers": compilers})
    with interruptible(interrupt) as interrupted, ExitStack() as ended:
        campaign = carry_out(plan, run=run, progress=progress, interrupt=interrupted)
        if campaign.interrupted:
            raise RunError(f"the tuning was interrupted: the same command with --run {campaign.directory} goes on.")
        placed = place(plan, *find_gpus())
        tunes = _tunes(placed, campaign.directory)
        tuned_s = sum(tune.run.elapsed_s for tune in tunes) / len(placed.devices)
        left_s = time_s - max(perf_counter() - begun, tuned_s)
        at_once = placed.devices.count(placed.devices[0])
        pools = SimpleQueue[ChildPool]()
        for _ in range(at_once):
            pools.put(ended.enter_context(closing(ChildPool())))
        building = Building(
            description,
            problems,
            tunes,
            partial(_time, placed, pools=pools, compilers=1),  # tunes have compiled what is timed
            build_one,
            campaign.directory,
            left_s,
            placed.replayed,
            interrupted,
            at_once,
        )
        content = building.content()
    return write_library(Path(out), content, overwrite=overwrite)


def _plan(
    spec: Spec, device: str, run: str | Path | None, options: Mapping[str, Any]
) -> tuple[Spec, Plan, list[RunnableProblem], float]:
    """Return the description and the plan for as many sizes as there is time to tune, all problems, and the seconds.

    These are infinite where trials are counted.
    """
    from mltune.library.content import kernel_parameters, name_of
    from mltune.library.source import check_name
    from mltune.library.spec import representatives
    from mltune.measure.build import available_cores
    from mltune.problem.problem import RunnableProblem
    from mltune.records.directory import PLAN_FILE, is_plan
    from mltune.resolve.device import find_gpus
    from mltune.resolve.plan import REPLAY
    from mltune.resolve.plan_file import load_plan
    from mltune.resolve.problems import contenders, kernels_for, named_kernel, shaped_problem
    from mltune.resolve.resolve import plan_of

    settings, gpus = spec.library, find_gpus()[0]
    subject, bundle = named_kernel(
        settings.operation, settings.kernel[0] if settings.kernel else None, settings.accuracy
    )
    of_arrays = bundle is not None and bundle.arrays is not None and subject in (None, bundle.name)
    problems = []
    for size in spec.sizes:
        shape: dict[str, Any] = {"size": size} if of_arrays else dict(size)
        problem = shaped_problem(subject, bundle, {"trans": settings.trans, **shape}, device)
        assert isinstance(problem, RunnableProblem)  # noqa: S101 - it has a name
        problems.append(problem)
    kernels = (
        kernels_for(problems[0], settings.kernel, settings.accuracy) if settings.kernel or bundle is None else [bundle]
    )
    if bundle is None and device != REPLAY:
        kernels = contenders(kernels, problems[0], gpus)
    check_name(settings.name or name_of(problems[0]))
    for kernel in kernels:
        kernel_parameters(kernel, problems[0])  # which has an error for arguments that a library cannot have
    if any(problem.macros() != problems[0].macros() for problem in problems):
        raise UsageError("the sizes of a library share machine code, but single products and batches have their own.")
    if not {*("" if of_arrays else "mnk")} <= {*spec.extents} <= {*problems[0].size_names}:
        raise UsageError(
            f"the sizes of a library are those of its operation, {', '.join(problems[0].size_names) or 'none'}, and "
            f"those of a product have m, n and k, got {', '.join(spec.extents)}."
        )
    set_options = {name: value for name, value in options.items() if value is not None}
    time_s, tunes_s = _times(spec, len(kernels), replayed=device == REPLAY or not gpus)
    slice_s, at_once = 0.0, 1
    if math.isfinite(time_s):
        used = () if device == REPLAY else gpus if device == "all" else gpus[:1]
        compilers = set_options.get("compilers") or available_cores() // max(1, len(used))
        at_once = max(1, min(_AT_ONCE, compilers // _COMPILERS)) if used else 1
        compilers //= at_once
        if "compilers" in set_options:
            set_options["compilers"] = compilers
        slice_s = _slice_s(problems[0], kernels, used, compilers)
        count = max(2, min(settings.tuned, int(tunes_s * max(1, len(used)) * at_once / slice_s)))
        goes_on = run is not None and is_plan(Path(run))  # with its sizes
        begun = {task.problem.label for task in load_plan(Path(str(run)) / PLAN_FILE).tasks} if goes_on else set()
        tuned = tuple(place for place, problem in enumerate(problems) if problem.label in begun)
        spec = replace(spec, tuned=tuned or representatives(spec.sizes, spec.weights, count))
    plan = plan_of(
        [problems[place] for place in spec.tuned],
        kernels,
        gpus,
        device=device,
        seed=settings.seed,
        trials=settings.trials,
        time=tunes_s if math.isfinite(time_s) else settings.time,
        least_s=slice_s,
        at_once=at_once,
        produce=(),
        options=set_options,
    )
    return spec, plan, problems, time_s


def _times(spec: Spec, kernels: int, *, replayed: bool) -> tuple[float, float]:
    """Return the seconds of a building, and those of its tunes; infinite where trials are counted."""
    from mltune.resolve.request import GPU_TIME_S, parse_duration

    settings = spec.library
    if settings.trials is not None or (replayed and settings.time is None):
        return math.inf, math.inf
    time_s = GPU_TIME_S * len(spec.tuned) if settings.time is None else parse_duration(settings.time)
    return time_s, round(time_s - min(_CROSS_SHARE * time_s, _CROSS_S * len(spec.sizes) * kernels), 3)


def _slice_s(problem: RunnableProblem, kernels: Sequence[Kernel], gpus: Sequence[Device], compilers: int) -> float:
    """Return the seconds that a size should be tuned for, by what its spaces and the default configurations take."""
    from mltune.kernel.bundle import variables_of
    from mltune.kernel.space import default_configuration
    from mltune.measure.build import build_one
    from mltune.records.trial import BATCH
    from mltune.tuning.session import make_space

    batches, slice_s = _BATCHES * BATCH / max(compilers, 1), _SLICE_S * len(kernels)
    for kernel in kernels if gpus else ():
        begun, space = perf_counter(), make_space(kernel, variables_of(problem, gpus[0]))
        default, _ = default_configuration(kernel, space), space.count
        slice_s += perf_counter() - begun
        if default:
            slice_s += batches * build_one(kernel, problem, gpus[0].architecture, default).compile_s
    return slice_s


def _tunes(plan: Plan, directory: Path) -> list[Tune]:
    """Return the runs that have trials."""
    from mltune.library.building import Tune
    from mltune.records.directory import PROBLEMS, is_begun
    from mltune.results.reader import read_run

    folders = [(task, directory / PROBLEMS / task.slug) for task in plan.tasks]
    tunes = [Tune(task.problem, task.kernel, read_run(at, task.slug)) for task, at in folders if is_begun(at)]  # type: ignore[arg-type]
    if not any(tune.run.best_record for tune in tunes):
        raise RunError(f"a library needs a configuration that runs, but there is none in {directory}.")
    return tunes


def _time(
    plan: Plan, kernel: Kernel, problem: RunnableProblem, *arguments: Any, pools: SimpleQueue[ChildPool], **options: Any
) -> list[float | None]:
    """Time configurations on the first GPU of a placed plan, or take their recorded times."""
    from mltune.resolve.device import Target
    from mltune.tuning.cross import time_configurations

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
