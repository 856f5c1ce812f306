"""The upper bound on a problem, without a measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mltune.cost.bound import hardware_limits
from mltune.cost.features import NEEDED, Features
from mltune.cost.regressors import log_share
from mltune.device.facts import Device
from mltune.device.known import UNKNOWN, with_mixes
from mltune.device.peaks import fma_per_clock, issues_per_clock, peak_flops
from mltune.errors import BundleError, UsageError
from mltune.files.text import many
from mltune.kernel.bundle import Kernel
from mltune.kernel.coding import Floats, Indices, columns_of, row
from mltune.kernel.placed import PlacedKernel
from mltune.measure.machine_code import LoopCode, disassemble, main_loop
from mltune.problem.problem import Problem, RunnableProblem
from mltune.records.trial import TrialState
from mltune.resolve.device import fits
from mltune.results.rating import Rate, rate_of
from mltune.search.proposers import offspring

MOST_LISTED = 100_000
"""Configurations of a space that are all examined; of a larger one as many samples, and variants of the best."""

_EQUAL = 1e-3  # of configurations whose bounds differ by less, physics chooses
_PARENTS, _VARIANTS, _PATIENCE = 64, 4_000, 3


@dataclass(frozen=True, slots=True)
class LimitedConfiguration:
    """A configuration, also in codes, with the least seconds it can take by :data:`mltune.cost.bound.LIMITS`."""

    configuration: Mapping[str, int | float | str]
    codes: Mapping[str, int]
    limits: Mapping[str, float]

    @property
    def binding(self) -> str:
        """The limit that takes the most time."""
        return max(self.limits, key=self.limits.__getitem__)

    @property
    def time_s(self) -> float:
        """The least time, seconds."""
        return self.limits[self.binding]


@dataclass(frozen=True, slots=True)
class ProblemBound:
    """The upper bound on a problem.

    `hardware` is the least time in seconds of any kernel on the unit that does the operations, by ``"arithmetic"`` and
    ``"memory"``. The `best` configuration was found among `examined` of `count`; `stated` has the values asked for.
    """

    unit: str
    hardware: Mapping[str, float]
    best: LimitedConfiguration
    stated: LimitedConfiguration | None
    examined: int
    count: int


def find_bound(placed: PlacedKernel, *, configuration: Mapping[str, int] | None = None) -> ProblemBound:
    """Compute the upper bound on a problem; `stated` is that of a configuration, or of the best with its values."""
    kernel, problem, device = placed.kernel, placed.problem, placed.device
    if device == UNKNOWN:
        raise UsageError("the facts of `unknown` are not known, and a bound needs those of a GPU; name one.")
    kernel.check_problem(problem)
    if not set(NEEDED) <= set(kernel.resources.estimates):
        raise BundleError(
            f"{kernel.name} does not name all [resources] that a bound needs, {', '.join(NEEDED)}; add them to "
            f"{kernel.described_in}."
        )
    values = {} if configuration is None else {name: (value,) for name, value in configuration.items()}
    part = None if configuration is None else kernel.with_values(values)
    best, examined, count = _best(placed)
    limited = None if part is None else _best(replace(placed, kernel=part))[0]
    unit = kernel.resources.unit or problem.arithmetic
    return ProblemBound(unit, hardware_limits(device, problem, unit), best, limited, examined, count)


def hardware_time(placed: PlacedKernel) -> float:
    """Return the least time in seconds of any kernel on the same unit, whatever its configurations.

    >>> from mltune.device.known import H200
    >>> from mltune.kernel.reader import load_kernel
    >>> from mltune.problem.kinds import problem_from_name
    >>> problem = problem_from_name("dgemm", size=4096)
    >>> placed = [PlacedKernel(load_kernel(name), problem, H200) for name in ("gemm_mma64", "gemm_simt")]
    >>> [f"{1e3 * time_s:.1f} ms" for time_s in map(hardware_time, placed)]
    ['2.1 ms', '4.1 ms']
    """
    return max(hardware_limits(placed.device, placed.problem, placed.kernel.resources.unit).values())


def find_bounds(problem: Problem, kernels: Sequence[Kernel], device: Device) -> list[tuple[PlacedKernel, ProblemBound]]:
    """Compute the upper bounds of the kernels that can be built for a device, that of the least time first.

    >>> from mltune.device.known import H200
    >>> from mltune.kernel.reader import load_kernel
    >>> from mltune.problem.kinds import problem_from_name
    >>> kernels = [load_kernel("gemm_naive"), load_kernel("gemm_mma64")]
    >>> [placed.kernel.name for placed, _ in find_bounds(problem_from_name("dgemm"), kernels, H200)]
    ['gemm_mma64', 'gemm_naive']
    """
    fitting = [PlacedKernel(kernel, problem, device) for kernel in kernels if fits(kernel, device)]
    bounds = [(placed, find_bound(placed)) for placed in fitting]
    if not bounds:
        names = ", ".join(kernel.label for kernel in kernels)
        raise UsageError(f"none of {names} fits {device.name}.")
    return sorted(bounds, key=lambda entry: entry[1].best.time_s)


def _best(placed: PlacedKernel) -> tuple[LimitedConfiguration, int, int]:
    """Return the configuration that can take the least time, of how many examined ones, and of how many."""
    space, features = placed.space, Features(placed)
    examined, times_s = _examine(features)
    equal = examined[times_s <= (1.0 + _EQUAL) * times_s.min()]
    rows = space.rows(equal[[np.argmax(features.prior(space.rows(equal)))]])
    limits = {name: float(least[0]) for name, least in features.bound(rows).limits.items()}
    codes = row(rows, 0)
    labelled = placed.kernel.space.labelled(codes)
    return LimitedConfiguration(labelled, codes, limits), len(examined), space.count


def read_code(placed: PlacedKernel, limited: LimitedConfiguration) -> tuple[LoopCode, float]:
    """Compile a configuration; return its main loop, and the seconds that schedulers need to issue all of it."""
    from mltune.measure.build import build_one

    kernel, problem, device = placed.kernel, placed.problem, placed.device
    if kernel.source.text is None or device.compute_capability is None or not isinstance(problem, RunnableProblem):
        raise UsageError(
            f"there is no machine code of {kernel.name} for {device.name}: it needs a source and a CUDA GPU."
        )
    build = build_one(placed, limited.codes)
    if build.state is not TrialState.OK:
        raise UsageError(f"the configuration does not compile for {device.architecture}: {build.detail}.")
    loop = main_loop(disassemble(build.cubin))
    if loop is None or not loop.arithmetic:
        raise UsageError(f"{kernel.name} has no main loop: no loop of it has multiply-adds.")
    slots = issues_per_clock(device) * device.warp_size
    unit = kernel.resources.unit or problem.arithmetic
    share = fma_per_clock(device, unit) / slots / _fma_of_an_instruction(placed, limited)
    return loop, limited.limits["arithmetic"] * share * loop.total / loop.arithmetic


def _fma_of_an_instruction(placed: PlacedKernel, limited: LimitedConfiguration) -> float:
    """Return the multiply-adds of a thread that an instruction makes: on tensor cores many."""
    estimates = placed.kernel.resources.estimates
    if "fma_instructions" not in estimates:
        return 1.0
    resources = placed.kernel.space.evaluate(columns_of(limited.codes), placed.variables, estimates)
    return float(resources["fma"][0] / resources["fma_instructions"][0])


def enough_share(share: float, features: Features) -> float:
    """Return a share of the upper bound on a problem as a log share of the device's peak, the score of a search."""
    problem, (_, times_s) = features.placed.problem, _examine(features)
    peak = peak_flops(features.placed.device, problem.arithmetic)
    return log_share(problem.flops, float(times_s.min()) / share, peak)


def _examine(features: Features) -> tuple[Indices, Floats]:
    """Return the configurations that were examined, and their least times."""
    space = features.placed.space
    if space.count <= MOST_LISTED:
        everything = np.arange(space.count)
        return everything, features.bound(space.rows(everything)).time_s
    rng = np.random.default_rng(0)
    examined = space.sample(MOST_LISTED, rng)
    times_s = features.bound(space.rows(examined)).time_s
    unchanged = 0
    while unchanged < _PATIENCE:
        best = times_s.min()
        parents = examined[np.argsort(times_s, kind="stable")[:_PARENTS]]
        new = np.setdiff1d(offspring(space, parents, _VARIANTS, rng), examined)
        examined = np.concatenate([examined, new])
        times_s = np.concatenate([times_s, features.bound(space.rows(new)).time_s])
        unchanged = 0 if times_s.min() < best else unchanged + 1
    return examined, times_s


def upper_bound(
    problem: Problem,
    kernels: Sequence[Kernel],
    device: Device,
    configuration: Mapping[str, int] | None = None,
    *,
    code: bool = False,
) -> UpperBound:
    """Return the bound of kernels on a problem; with a configuration that of the first kernel alone."""
    if configuration is None:
        bounds = find_bounds(problem, kernels, device)
    else:
        placed = PlacedKernel(kernels[0], problem, device)
        bounds = [(placed, find_bound(placed, configuration=configuration))]
    fastest, best = bounds[0]
    loop = read_code(fastest, best.stated or best.best) if code else None
    return UpperBound(problem, device, {rival.kernel.label: bound for rival, bound in bounds}, loop)


@dataclass(frozen=True)
class UpperBound:
    """How fast a problem can be at best: the result of :func:`mltune.bound`.

    Attributes
    ----------
    problem : Problem
    device : Device
    bounds : mapping of str to ProblemBound
        By kernel, that of the least time first.
    code : (LoopCode, float) or None
        The instructions of the main loop, and the least seconds that they take; where they were asked for.
    """

    problem: Problem
    device: Device
    bounds: Mapping[str, ProblemBound]
    code: tuple[LoopCode, float] | None = None

    def __repr__(self) -> str:
        kernels = many(len(self.bounds), "kernel")
        return f"UpperBound({self.problem.label} on {self.device.name}: {kernels}, {self.kernel} with the highest)"

    @property
    def kernel(self) -> str:
        """The kernel with the highest bound."""
        return next(iter(self.bounds))

    @property
    def hardware(self) -> Mapping[str, float]:
        """Least time in seconds of any kernel, by ``"arithmetic"`` and ``"memory"``."""
        return self.bounds[self.kernel].hardware

    @property
    def best(self) -> LimitedConfiguration:
        """The configuration that can take the least time, with its limits."""
        return self.bounds[self.kernel].best

    @property
    def rate(self) -> Rate:
        """How times of the problem are shown: in TFLOPS, GB/s or milliseconds."""
        return rate_of(self.problem, self.device)

    @property
    def given(self) -> LimitedConfiguration | None:
        """The best configuration with the values that were given."""
        return self.bounds[self.kernel].stated

    def to_json(self) -> dict[str, Any]:
        """Return the bound as plain JSON values: what ``mltune bound --json`` prints."""
        first, *rivals = self.bounds.items()
        best = first[1]
        return {
            "problem": self.problem.label,
            "device": self.device.name,
            "kernel": self.kernel,
            "unit": best.unit,
            "hardware": dict(best.hardware),
            "best": _limited(best.best),
            "given": None if best.stated is None else _limited(best.stated),
            "examined": best.examined,
            "configurations": best.count,
            "rivals": [{"kernel": name, "unit": rival.unit, "best": _limited(rival.best)} for name, rival in rivals],
            "mixes": len(with_mixes(self.device).mixes),
            "code": None if self.code is None else _loop(*self.code),
        }


def _limited(limited: LimitedConfiguration) -> dict[str, object]:
    return {name: getattr(limited, name) for name in ("time_s", "binding", "limits", "configuration")}


def _loop(loop: LoopCode, issue_s: float) -> dict[str, object]:
    return {
        "instructions": loop.total,
        "multiply_adds": loop.arithmetic,
        "counts": loop.counts,
        "bank_conflicts": loop.conflicts,
        "issue_s": issue_s,
    }
