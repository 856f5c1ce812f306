"""The upper bound on a problem, without a measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mltune.cost.bound import hardware_limits
from mltune.cost.features import NEEDED, Features
from mltune.cost.regressors import log_share
from mltune.device.facts import Device
from mltune.device.known import UNKNOWN
from mltune.device.peaks import fma_per_clock, issues_per_clock, peak_flops
from mltune.errors import BundleError, UsageError
from mltune.kernel.bundle import Kernel, variables_of
from mltune.kernel.coding import Floats, Indices, columns_of, row
from mltune.kernel.space import SearchSpace
from mltune.problem.problem import Problem, RunnableProblem
from mltune.records.trial import TrialState
from mltune.resolve.problems import fits
from mltune.results.rating import Rate, rate_of
from mltune.search.proposers import offspring
from mltune.tuning.session import make_space

if TYPE_CHECKING:
    from mltune.measure.machine_code import LoopCode


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

    ``hardware`` is the least time in seconds of any kernel on the unit that does the operations, by ``"arithmetic"``
    and ``"memory"``. The ``best`` configuration of the kernel was found among ``examined`` of ``count``; ``stated`` is
    the best one with the values that were asked for.
    """

    unit: str
    hardware: Mapping[str, float]
    best: LimitedConfiguration
    stated: LimitedConfiguration | None
    examined: int
    count: int


def find_bound(
    problem: Problem, kernel: Kernel, device: Device, *, configuration: Mapping[str, int] | None = None
) -> ProblemBound:
    """Compute the upper bound on a problem from the facts of a GPU, without a measurement.

    The bound of a configuration, or of the best one that has its values, is ``stated``.

    Examples
    --------
    >>> from mltune.device.known import find_device
    >>> from mltune.kernel.reader import load_kernel
    >>> from mltune.problem.kinds import problem_from_name
    >>> device, _ = find_device("a100")
    >>> kernel = load_kernel("gemm_shared")
    >>> found = find_bound(problem_from_name("sgemm", trans="NN", size=2048), kernel, device)
    >>> found.best.binding, found.best.time_s > found.hardware["arithmetic"]
    ('arithmetic', True)
    """
    if device == UNKNOWN:
        raise UsageError("a bound follows from the facts of a GPU, but those of `unknown` are not known; name one.")
    kernel.check_problem(problem)
    if not set(NEEDED) <= set(kernel.resources.estimates):
        raise BundleError(
            f"a bound follows from the [resources] {', '.join(NEEDED)}, but {kernel.name} does not name all of them; "
            f"add them to {kernel.folder / 'kernel.toml'}."
        )
    values = {} if configuration is None else {name: (value,) for name, value in configuration.items()}
    part = None if configuration is None else kernel.with_values(values)
    best, examined, count = _best(kernel, problem, device)
    limited = None if part is None else _best(part, problem, device)[0]
    unit = kernel.resources.unit or problem.arithmetic
    return ProblemBound(unit, hardware_limits(device, problem, unit), best, limited, examined, count)


def hardware_time(problem: Problem, kernel: Kernel, device: Device) -> float:
    """Return the least time in seconds of any kernel on the same unit, whatever its configurations.

    Examples
    --------
    >>> from mltune.device.known import H200
    >>> from mltune.kernel.reader import load_kernel
    >>> from mltune.problem.kinds import problem_from_name
    >>> problem = problem_from_name("dgemm", size=4096)
    >>> times_s = (hardware_time(problem, load_kernel(name), H200) for name in ("gemm_mma64", "gemm_simt"))
    >>> [f"{1e3 * time_s:.1f} ms" for time_s in times_s]
    ['2.1 ms', '4.1 ms']
    """
    return max(hardware_limits(device, problem, kernel.resources.unit).values())


def find_bounds(problem: Problem, kernels: Sequence[Kernel], device: Device) -> list[tuple[Kernel, ProblemBound]]:
    """Compute the upper bounds of the kernels that can be built for a device, that of the least time first.

    Examples
    --------
    >>> from mltune.device.known import H200
    >>> from mltune.kernel.reader import load_kernel
    >>> from mltune.problem.kinds import problem_from_name
    >>> kernels = [load_kernel("gemm_naive"), load_kernel("gemm_mma64")]
    >>> [kernel.name for kernel, _ in find_bounds(problem_from_name("dgemm"), kernels, H200)]
    ['gemm_mma64', 'gemm_naive']
    """
    bounds = [(kernel, find_bound(problem, kernel, device)) for kernel in kernels if fits(kernel, device)]
    if not bounds:
        names = ", ".join(kernel.label for kernel in kernels)
        raise UsageError(f"a kernel must fit the device, but none of {names} fits {device.name}.")
    return sorted(bounds, key=lambda entry: entry[1].best.time_s)


def _best(kernel: Kernel, problem: Problem, device: Device) -> tuple[LimitedConfiguration, int, int]:
    """Return the configuration that can take the least time, of how many examined ones, and of how many."""
    space = make_space(kernel, variables_of(problem, device))
    features = Features(kernel, problem, device)
    examined, times_s = _examine(space, features)
    equal = examined[times_s <= (1.0 + _EQUAL) * times_s.min()]
    rows = space.rows(equal[[np.argmax(features.prior(space.rows(equal)))]])
    limits = {name: float(least[0]) for name, least in features.bound(rows).limits.items()}
    codes = row(rows, 0)
    return LimitedConfiguration(kernel.space.labelled(codes), codes, limits), len(examined), space.count


def read_code(
    problem: Problem, kernel: Kernel, device: Device, limited: LimitedConfiguration
) -> tuple[LoopCode, float]:
    """Compile a configuration and count the instructions of its main loop.

    The seconds are those that the schedulers need to issue all instructions of the loop, not only those that the bound
    counts.
    """
    from mltune.measure.build import build_one
    from mltune.measure.machine_code import disassemble, main_loop

    if kernel.source.text is None or device.compute_capability is None or not isinstance(problem, RunnableProblem):
        raise UsageError(
            f"machine code needs a kernel with a source and a CUDA GPU, got {kernel.name} for {device.name}."
        )
    build = build_one(kernel, problem, device.architecture, limited.codes)
    if build.state is not TrialState.OK:
        raise UsageError(f"the configuration must compile for {device.architecture}, but: {build.detail}.")
    loop = main_loop(disassemble(build.cubin))
    if loop is None or not loop.arithmetic:
        raise UsageError(f"the main loop is the one with the most multiply-adds, but {kernel.name} has none.")
    slots = issues_per_clock(device) * device.warp_size
    share = (
        fma_per_clock(device, kernel.resources.unit or problem.arithmetic)
        / slots
        / _fma_of_an_instruction(kernel, problem, device, limited)
    )
    return loop, limited.limits["arithmetic"] * share * loop.total / loop.arithmetic


def _fma_of_an_instruction(kernel: Kernel, problem: Problem, device: Device, limited: LimitedConfiguration) -> float:
    """Return the multiply-adds of a thread that an instruction makes: on tensor cores many."""
    if "fma_instructions" not in kernel.resources.estimates:
        return 1.0
    resources = kernel.space.evaluate(
        columns_of(limited.codes), variables_of(problem, device), kernel.resources.estimates
    )
    return float(resources["fma"][0] / resources["fma_instructions"][0])


def enough_share(share: float, problem: Problem, device: Device, space: SearchSpace, features: Features) -> float:
    """Return a share of the upper bound on a problem as a log share of the device's peak, the score of a search."""
    _, times_s = _examine(space, features)
    return log_share(problem.flops, float(times_s.min()) / share, peak_flops(device, problem.arithmetic))


def _examine(space: SearchSpace, features: Features) -> tuple[Indices, Floats]:
    """Return the configurations that were examined, and their least times."""
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
        bounds = [(kernels[0], find_bound(problem, kernels[0], device, configuration=configuration))]
    kernel, best = bounds[0]
    loop = read_code(problem, kernel, device, best.stated or best.best) if code else None
    return UpperBound(problem, device, {rival.label: bound for rival, bound in bounds}, loop)


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
        from mltune.device.known import with_mixes

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
    limits = dict(limited.limits)
    return {
        "time_s": limited.time_s,
        "binding": limited.binding,
        "limits": limits,
        "configuration": limited.configuration,
    }


def _loop(loop: LoopCode, issue_s: float) -> dict[str, object]:
    return {
        "instructions": loop.total,
        "multiply_adds": loop.arithmetic,
        "counts": loop.counts,
        "bank_conflicts": loop.conflicts,
        "issue_s": issue_s,
    }
