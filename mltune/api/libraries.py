"""Build a library: a kernel in a few configurations for many sizes, with a dispatcher, callable from C and Python."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mltune.api.campaigns import run as carry_out
from mltune.api.display import interruptible
from mltune.errors import DamagedRunError, RunError, UsageError
from mltune.files.reading import read_file
from mltune.records.trial import Build, TrialState
from mltune.records.versions import __version__

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mltune.device.facts import Device
    from mltune.kernel.bundle import Kernel
    from mltune.kernel.coding import Floats
    from mltune.library.measured import Measured
    from mltune.library.source import Configuration, Content
    from mltune.library.spec import Spec
    from mltune.problem.problem import RunnableProblem
    from mltune.resolve.device import Target
    from mltune.resolve.plan import Plan, Task
    from mltune.results.progress import CampaignReport
    from mltune.results.run import TuneResult


CROSS = "cross.json"
"""The file in the directory of the run with the times of candidates at sizes."""

_CROSS_BYTES = 1 << 26
_MOST_LOOKED_AT = 1000
_CROSSED = 64


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A configuration of a kernel that may be in a library, and the sizes whose tuning found it."""

    kernel: Kernel
    configuration: Mapping[str, int]
    found_at: set[int]

    @property
    def key(self) -> str:
        """Its name in the file of times: the kernel with its source, and its parameters."""
        values = json.dumps(self.kernel.labelled(self.configuration), sort_keys=True)
        return f"{self.kernel.label} {self.kernel.source_hash} {values}"


def build_library(
    spec: str | Path | Mapping[str, Any],
    out: str | Path,
    *,
    device: str = "auto",
    run: str | Path | None = None,
    compilers: int | None = None,
    progress: CampaignReport | Literal["auto"] | None = "auto",
    interrupt: Callable[[], bool] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Build a library: tune an operation at representative sizes, choose a few configurations, and write C source.

    The candidates are the fastest configuration of every tuned size, and the fastest one there that is valid at all
    sizes. Each is timed at the tuned sizes and 64 more. Those of the portfolio are chosen by the mean speed with a
    floor under the worst, timed at all sizes, and a dispatcher is learned that maps sizes to them.

    Parameters
    ----------
    spec : str, pathlib.Path or mapping
        A TOML file, or a mapping of its form: the operation and its sizes (docs/reference/library.md).
    out : str or pathlib.Path
        The folder of the library, which is replaced as a whole.
    device : str
        ``"auto"``, ``"all"``, ``"cuda:N"``, or ``"replay"``: then candidates have times where they were recorded.
    run : str or pathlib.Path, optional
        Directory of the run; a run of the same library there is resumed. By default a new one under ``runs/``.
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
    RunError
        At some size no candidate could be timed, the run was interrupted, or a configuration cannot be compiled.

    Examples
    --------
    >>> import mltune
    >>> spec = {"library": {"operation": "sgemm", "trans": "NT"}, "sizes": {"shapes": [1024, 4096]}}
    >>> built = mltune.build_library(spec, "sgemm_nt", device="replay")  # doctest: +SKIP
    >>> built["report"]["dispatched"]["least"] > 0.8  # doctest: +SKIP
    True
    """
    import numpy as np

    from mltune.library.folder import check_place, write_library
    from mltune.library.spec import load_spec
    from mltune.resolve.device import Target, find_gpus
    from mltune.resolve.placement import place

    wanted = load_spec(spec)
    check_place(Path(out))
    plan, problems = _plan(wanted, device, {**options, "compilers": compilers})
    with interruptible(interrupt) as interrupted:
        campaign = carry_out(plan, run=run, progress=progress, interrupt=interrupted)
        if campaign.interrupted:
            raise RunError(f"the tuning was interrupted: the same command with --run {campaign.directory} goes on.")
        placed = place(plan, *find_gpus())
        runs = _runs(placed, campaign.directory)
        candidates = _candidates(runs, [problems[one] for one in wanted.tuned], wanted.tuned)
        cuda = None if placed.replayed else Target(cuda=int(placed.devices[0].removeprefix("cuda:")))
        crossed = [place in {*wanted.tuned, *range(_CROSSED)} for place in range(len(problems))]
        building = _Building(
            wanted, problems, runs, candidates, crossed, campaign.directory, cuda, interrupted, compilers
        )
        asked = np.repeat(np.array(crossed)[:, None], len(candidates), axis=1)
        portfolio = building.measured(asked).portfolio(most=wanted.library.most, floor=wanted.library.floor)
        asked[:, portfolio] = True
        measured = building.measured(asked)
    return write_library(Path(out), building.content(measured))


def _plan(spec: Spec, device: str, options: Mapping[str, Any]) -> tuple[Plan, list[RunnableProblem]]:
    """Return the plan that tunes the representative sizes, and the problems of all sizes."""
    from mltune.library.content import kernel_parameters
    from mltune.problem.problem import RunnableProblem
    from mltune.resolve.device import find_gpus
    from mltune.resolve.problems import kernels_for, named_kernel, shaped_problem
    from mltune.resolve.resolve import plan_of

    asked = spec.library
    subject, bundle = named_kernel(asked.operation, asked.kernel[0] if asked.kernel else None, asked.accuracy)
    of_arrays = bundle is not None and bundle.arrays is not None
    problems = []
    for size in spec.sizes:
        shape: dict[str, Any] = {"size": size} if of_arrays else dict(size)
        problem = shaped_problem(subject, bundle, {"trans": asked.trans, **shape}, device)
        assert isinstance(problem, RunnableProblem)  # noqa: S101 - it has a name
        problems.append(problem)
    named = asked.kernel or bundle is None
    kernels = kernels_for(problems[0], asked.kernel, asked.accuracy) if named or bundle is None else [bundle]
    for kernel in kernels:
        kernel_parameters(kernel, problems[0])
    if any(one.macros() != problems[0].macros() for one in problems):
        raise UsageError("the sizes of a library share machine code, but single products and batches have their own.")
    if not {*spec.extents} <= {*problems[0].size_names}:
        raise UsageError(
            f"the sizes of a library are those of its operation, {', '.join(problems[0].size_names) or 'none'}, got "
            f"{', '.join(spec.extents)}."
        )
    given = {name: value for name, value in options.items() if value is not None}
    budget: dict[str, Any] = {"trials": asked.trials, "time": asked.time}
    tuned = [problems[place] for place in spec.tuned]
    return plan_of(tuned, kernels, find_gpus()[0], device=device, seed=asked.seed, options=given, **budget), problems


@dataclass(frozen=True)
class _Building:
    """A library that is being built: its candidates, its sizes, and where candidates are timed.

    ``crossed`` says at which sizes all are timed; ``cuda`` is None without a GPU: times are then those on record.
    """

    spec: Spec
    problems: Sequence[RunnableProblem]
    runs: Sequence[tuple[Task, TuneResult]]
    candidates: Sequence[_Candidate]
    crossed: Sequence[bool]
    directory: Path
    cuda: Target | None
    stop: Callable[[], bool]
    compilers: int | None

    @property
    def device(self) -> Device:
        return self.runs[0][1].device

    @cached_property
    def blocks(self) -> Floats:
        """The numbers of blocks of launches, of shape (n_sizes, n_candidates); NaN where one is not valid."""
        import numpy as np

        from mltune.kernel.bundle import variables_of
        from mltune.library.content import is_valid

        def blocks(one: _Candidate, problem: RunnableProblem) -> float:
            if not is_valid(one.kernel, problem, self.device, one.configuration):
                return math.nan
            return math.prod(one.kernel.launch(one.configuration, variables_of(problem, self.device)).grid)

        return np.array([[blocks(one, problem) for one in self.candidates] for problem in self.problems])

    def times(self, asked: NDArray[np.bool_]) -> Floats:
        """Return the times of candidates at sizes, seconds; NaN where one is not asked for, not valid, or not timed.

        They are kept in a file, to which those of each size are added. Without a GPU they are those on record; on one a
        candidate that fails at a size has no times at all.
        """
        import numpy as np

        from mltune.files.atomic import write_file_atomically
        from mltune.process.child import ChildPool
        from mltune.tuning.cross import time_configurations

        known = _known_times(self.directory / CROSS)
        recorded = {(*task.bundle, task.problem): task.target for task, _ in self.runs}
        times, failed = np.full(asked.shape, np.nan), np.zeros(asked.shape[1], dtype=bool)
        with closing(ChildPool()) as pool:
            for row, problem in enumerate(self.problems):
                of_size = known.setdefault(problem.label, {})
                wanted = asked[row] & np.isfinite(self.blocks[row])
                valid = [one for one, here in zip(self.candidates, wanted, strict=True) if here]
                lacking = [one for one in valid if one.key not in of_size]
                for kernel in {_id(one.kernel): one.kernel for one in lacking}.values():
                    target = self.cuda or recorded.get((kernel.folder, kernel.preset, problem))
                    some = [one for one in lacking if _id(one.kernel) == _id(kernel)]
                    configurations = [one.configuration for one in some]
                    if target is None:
                        continue
                    found = time_configurations(
                        kernel, problem, target, configurations, pool=pool, compilers=self.compilers
                    )
                    of_size.update(zip((one.key for one in some), found, strict=True))
                if lacking:
                    write_file_atomically(self.directory / CROSS, json.dumps(known).encode(), inside=self.directory)
                if self.stop():
                    raise RunError(
                        f"the times of candidates are incomplete: the same command with --run {self.directory} goes on."
                    )
                for column in np.flatnonzero(wanted).tolist():
                    candidate = self.candidates[column]
                    times[row, column] = of_size.get(candidate.key) or np.nan
                    failed[column] |= self.cuda is not None and of_size.get(candidate.key, 0.0) is None
        times[:, failed] = np.nan
        return times

    def measured(self, asked: NDArray[np.bool_]) -> Measured:
        """Return what is known at the sizes that have a time, where candidates are timed that are asked for."""
        import numpy as np

        from mltune.library.measured import Measured

        times_s, device, problem = self.times(asked), self.device, self.problems[0]
        timed = np.flatnonzero(np.isfinite(times_s).any(axis=1)).tolist()
        if not any(self.crossed[row] for row in timed):
            raise RunError("a library needs times of its candidates, but none could be timed at any size.")
        place_of = {row: place for place, row in enumerate(timed)}
        return Measured(
            np.array([list(one.values()) for one in self.spec.sizes], dtype=np.int64)[timed],
            times_s[timed],
            np.array(self.spec.weights)[timed],
            np.array([_described(one, problem, device, Build(TrialState.OK)).is_fallback for one in self.candidates]),
            tuple(frozenset(place_of.get(row, -1) for row in one.found_at) for one in self.candidates),
            self.blocks[timed],
            device.sm_count,
            np.array(self.crossed)[timed],
        )

    def content(self, measured: Measured) -> Content:
        """Choose, compile what is chosen, and return what the library consists of."""
        from mltune.library.content import alignment_of, kernel_parameters, name_of
        from mltune.library.measured import choose
        from mltune.library.source import Content

        spec, problem, run = self.spec, self.problems[0], self.runs[0][1]
        chosen = choose(measured, most=spec.library.most, floor=spec.library.floor)
        known = {*map(tuple, measured.sizes.tolist())}
        used = [self.candidates[number] for number in chosen.chosen]
        first = used[0].kernel
        return Content(
            spec.library.name or name_of(problem),
            {"kind": problem.kind, **problem.to_json()},
            problem.formula,
            problem.size_names,
            spec.extents,
            kernel_parameters(first, problem),
            max(alignment_of(one.kernel) for one in used),
            {
                "name": run.device.name,
                "compute_capability": list(run.device.compute_capability or (0, 0)),
                "sm_count": run.device.sm_count,
            },
            tuple(_built(used, problem, run.device)),
            chosen.dispatcher,
            {"mltune": __version__, **run.header.versions},
            {**chosen.report(measured), "not_timed": [one for one in spec.sizes if tuple(one.values()) not in known]},
        )


def _runs(plan: Plan, directory: Path) -> list[tuple[Task, TuneResult]]:
    """Return the tasks that have trials, with their runs."""
    from mltune.records.directory import PROBLEMS, is_begun
    from mltune.results.reader import read_run

    folders = [(task, directory / PROBLEMS / task.slug) for task in plan.tasks]
    found = [(task, read_run(folder, task.slug)) for task, folder in folders if is_begun(folder)]
    if not any(run.best_record for _, run in found):
        raise RunError(f"a library needs a configuration that runs, but there is none in {directory}.")
    return found


def _candidates(
    runs: Sequence[tuple[Task, TuneResult]], tuned: Sequence[RunnableProblem], places: Sequence[int]
) -> list[_Candidate]:
    """Return the winner of each size, and the fastest of the same or the next kernel that is valid at every size."""
    found: dict[str, _Candidate] = {}
    for place, problem in zip(places, tuned, strict=True):
        of_size = [(run, task.kernel) for task, run in runs if task.problem == problem and run.best_record is not None]
        of_size.sort(key=lambda one: one[0].best_time_s or math.inf)
        ordered = [
            _Candidate(kernel.recorded_with(run.header.parameters), record.configuration, set())
            for run, kernel in of_size
            for record in (run.best_record, *run.records.fastest(_MOST_LOOKED_AT))
            if record is not None
        ]
        device, nothing = runs[0][1].device, Build(TrialState.OK)
        anywhere = (one for one in ordered if _described(one, problem, device, nothing).is_fallback)
        for one in (*ordered[:1], *itertools.islice(anywhere, 1)):
            found.setdefault(one.key, one).found_at.add(place)
    return list(found.values())


def _known_times(file: Path) -> dict[str, dict[str, float | None]]:
    """Return the times on record by size and candidate; a file of another form is refused."""
    from pydantic import PositiveFloat, TypeAdapter

    if not file.is_file():
        return {}
    try:
        return TypeAdapter(dict[str, dict[str, PositiveFloat | None]]).validate_json(
            read_file(file, _CROSS_BYTES, inside=file.parent)
        )
    except (OSError, ValueError) as error:
        raise DamagedRunError(f"{file} holds times by size and candidate, but it cannot be read; delete it.") from error


def _id(kernel: Kernel) -> tuple[Path, str, tuple[str, ...]]:
    """Return what two kernels differ in whose configurations cannot be timed together."""
    return kernel.folder, kernel.preset, kernel.varied


def _described(one: _Candidate, problem: RunnableProblem, device: Device, build: Build) -> Configuration:
    from mltune.library.content import configuration_of

    return configuration_of(one.kernel, problem, device, one.configuration, build)


def _built(used: Sequence[_Candidate], problem: RunnableProblem, device: Device) -> Iterator[Configuration]:
    """Yield configurations with their machine code, which is the same at all sizes."""
    from mltune.measure.build import build_one

    for one in used:
        build = build_one(one.kernel, problem, device.architecture, one.configuration)
        if build.state is not TrialState.OK:
            raise RunError(
                f"a configuration of a library must compile, but {one.key} ends with {build.state}: {build.detail}."
            )
        yield _described(one, problem, device, build)
