"""Expectations of a problem without a measurement: its upper bound, and the configurations to choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from mltune.cost.bound import hardware_limits
from mltune.cost.features import NEEDED, Features
from mltune.cost.model_file import AUTO, TOLERATED_LOSS, Card, choose_model, shipped_card
from mltune.cost.pretrained import are_near
from mltune.cost.regressors import log_share
from mltune.device.facts import Device
from mltune.device.known import UNKNOWN
from mltune.device.peaks import fma_per_clock, issues_per_clock, peak_flops
from mltune.errors import BundleError, UsageError, WisdomError
from mltune.files.text import printable
from mltune.kernel.bundle import Kernel, variables_of
from mltune.kernel.coding import Floats, Indices, columns_of, row
from mltune.kernel.space import SearchSpace
from mltune.known.wisdom import Wisdom
from mltune.known.wisdom_file import file_of_run
from mltune.problem.problem import Problem, RunnableProblem
from mltune.records.trial import TrialState
from mltune.resolve.problems import fits
from mltune.search.proposers import offspring
from mltune.tuning.session import make_space
from mltune.tuning.wisdom import load_wisdom

if TYPE_CHECKING:
    from mltune.measure.machine_code import LoopCode


MOST_LISTED = 100_000
"""Configurations of a space that are all examined; of a larger one as many samples, and variants of the best."""

_EQUAL = 1e-3  # of configurations whose bounds differ by less, physics chooses
_PARENTS, _VARIANTS, _PATIENCE = 64, 4_000, 3


@dataclass(frozen=True, slots=True)
class LimitedConfiguration:
    """A configuration with the least time that it can take.

    Attributes
    ----------
    codes : mapping of str to int
        The configuration with the positions of values that are not integers.
    limits : mapping of str to float
        Least time in seconds by what limits it: :data:`mltune.cost.bound.LIMITS`.
    """

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

    Attributes
    ----------
    unit : str
        The unit that does the operations, such as ``"tensor_fp64"``.
    hardware : mapping of str to float
        Least time in seconds of any kernel on that unit, by ``"arithmetic"`` and ``"memory"``.
    best, given : LimitedConfiguration
        The configuration that can take the least time: of the kernel, and among those that were asked for.
    examined, count : int
        Configurations among which the best was found, and those of the space.
    """

    unit: str
    hardware: Mapping[str, float]
    best: LimitedConfiguration
    given: LimitedConfiguration | None
    examined: int
    count: int


def find_bound(
    problem: Problem,
    kernel: Kernel,
    device: Device,
    *,
    configuration: Mapping[str, int] | None = None,
    seed: int = 0,
) -> ProblemBound:
    """Compute the upper bound on a problem from the facts of a GPU, without a measurement.

    The bound of a configuration, or of the best one that has its values, is ``given``. The seed is that of the samples
    of a large space.

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
    if not set(NEEDED) <= set(kernel.resources):
        raise BundleError(
            f"a bound follows from the [resources] {', '.join(NEEDED)}, but {kernel.name} does not name all of them; "
            f"add them to {kernel.folder / 'kernel.toml'}."
        )
    values = {} if configuration is None else {name: (value,) for name, value in configuration.items()}
    part = None if configuration is None else kernel.with_values(values)
    best, examined, count = _best(kernel, problem, device, seed)
    given = None if part is None else _best(part, problem, device, seed)[0]
    unit = kernel.unit or problem.arithmetic
    return ProblemBound(unit, hardware_limits(device, problem, unit), best, given, examined, count)


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
    found = [(kernel, find_bound(problem, kernel, device)) for kernel in kernels if fits(kernel, device)]
    if not found:
        names = ", ".join(kernel.label for kernel in kernels)
        raise UsageError(f"a kernel must fit the device, but none of {names} fits {device.name}.")
    return sorted(found, key=lambda one: one[1].best.time_s)


def _best(kernel: Kernel, problem: Problem, device: Device, seed: int) -> tuple[LimitedConfiguration, int, int]:
    """Return the configuration that can take the least time, of how many examined ones, and of how many."""
    space = make_space(kernel, variables_of(problem, device))
    features = Features(kernel, problem, device)
    examined, times_s = _examine(space, features, np.random.default_rng(seed))
    equal = examined[times_s <= (1.0 + _EQUAL) * times_s.min()]
    rows = space.rows(equal[[np.argmax(features.prior(space.rows(equal)))]])
    limits = {name: float(least[0]) for name, least in features.bound(rows).limits.items()}
    codes = row(rows, 0)
    return LimitedConfiguration(kernel.labelled(codes), codes, limits), len(examined), space.count


def read_code(problem: Problem, kernel: Kernel, device: Device, found: LimitedConfiguration) -> tuple[LoopCode, float]:
    """Compile a configuration and count the instructions of its main loop.

    The seconds are those that the schedulers need to issue all instructions of the loop, not only those that the bound
    counts.
    """
    from mltune.measure.build import NvrtcBuilder
    from mltune.measure.machine_code import disassemble, main_loop

    if kernel.source is None or device.compute_capability is None or not isinstance(problem, RunnableProblem):
        raise UsageError(
            f"machine code needs a kernel with a source and a CUDA GPU, got {kernel.name} for {device.name}."
        )
    with NvrtcBuilder(kernel, problem, device.architecture, workers=1) as builder:
        build = builder.submit(dict(found.codes)).result()
    if build.state is not TrialState.OK:
        raise UsageError(f"the configuration must compile for {device.architecture}, but: {build.detail}.")
    loop = main_loop(disassemble(build.cubin))
    if loop is None or not loop.arithmetic:
        raise UsageError(f"the main loop is the one with the most multiply-adds, but {kernel.name} has none.")
    slots = issues_per_clock(device) * device.warp_size
    share = (
        fma_per_clock(device, kernel.unit or problem.arithmetic)
        / slots
        / _fma_of_an_instruction(kernel, problem, device, found)
    )
    return loop, found.limits["arithmetic"] * share * loop.total / loop.arithmetic


def _fma_of_an_instruction(kernel: Kernel, problem: Problem, device: Device, found: LimitedConfiguration) -> float:
    """Return the multiply-adds of a thread that an instruction makes: on tensor cores many."""
    if "fma_instructions" not in kernel.resources:
        return 1.0
    known = kernel.evaluate(columns_of(found.codes), variables_of(problem, device), kernel.resources)
    return float(known["fma"][0] / known["fma_instructions"][0])


def enough_share(share: float, problem: Problem, device: Device, space: SearchSpace, features: Features) -> float:
    """Return a share of the upper bound on a problem as a log share of the device's peak, the score of a search."""
    _, times_s = _examine(space, features, np.random.default_rng(0))
    return log_share(problem.flops, float(times_s.min()) / share, peak_flops(device, problem.arithmetic))


def _examine(space: SearchSpace, features: Features, rng: np.random.Generator) -> tuple[Indices, Floats]:
    """Return the configurations that were examined, and their least times."""
    if space.count <= MOST_LISTED:
        everything = np.arange(space.count)
        return everything, features.bound(space.rows(everything)).time_s
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


KNOWN, EXPECTED = "known", "expected"
"""Where a choice comes from: it was the fastest of a run, or a model or physics expects it to be fast."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A configuration that is expected to be fast, from the source :data:`KNOWN` or :data:`EXPECTED`."""

    source: str
    configuration: Mapping[str, int | float | str]


@dataclass(frozen=True, slots=True)
class Expected:
    """Shares of the optimum that the best of the first choices reached on recorded spaces.

    Attributes
    ----------
    source : {"model", "physics"}
        What ranks the choices, and ranked those spaces: the model together with physics, or physics alone.
    learned_from : str
        What the model had learned from that chose on a space; empty for physics, which learns from no recordings.
    choices : int
        Number of first choices: the most that was judged, and not more than was asked for.
    share, least, most : float
        Mean, lowest and highest share of the ``held_out`` spaces.
    by_model : float or None
        The mean share by a model that was left out, because physics alone has more.
    """

    source: Literal["model", "physics"]
    learned_from: str
    choices: int
    share: float
    least: float
    most: float
    held_out: int
    by_model: float | None = None


CONFIDENCE = 0.9
"""Probability that the time of the first choice is promised to lie in its interval."""

FEWEST_SWEEPS = 5
"""Fewest recorded sweeps of similar problems that a time follows from. Five of five inside would be luck in 3 % of
cases if their intervals held every second time."""


@dataclass(frozen=True, slots=True)
class ExpectedTime:
    """The time of the first choice, with an interval.

    Measured time over that of physics is log-normal among recorded sweeps of similar problems on the architecture: the
    interval is that of Student's t for one sweep more.

    Attributes
    ----------
    time_s, least_s, most_s : float
        The time, and the ends of the interval, seconds.
    confidence : float
        Probability that the interval promises: :data:`CONFIDENCE`.
    sweeps, inside : int
        Recorded sweeps, and those of which the first choice lay in the interval from the others.
    """

    time_s: float
    least_s: float
    most_s: float
    confidence: float
    sweeps: int
    inside: int


@dataclass(frozen=True, slots=True)
class Prediction:
    """Configurations that are expected to be fast, the best first.

    Attributes
    ----------
    expected : Expected or None
        That of the model, or where none is used that of physics; None where it was not judged.
    time : ExpectedTime or None
        That of the first choice.
    no_time : str
        Why there is none.
    notices : tuple of str
        Differences of the problem and the device from all training data of the model.
    """

    choices: tuple[Choice, ...]
    expected: Expected | None
    time: ExpectedTime | None
    no_time: str
    notices: tuple[str, ...]


def predict(
    problem: Problem,
    kernel: Kernel,
    device: Device,
    *,
    top: int = 1,
    prior: str = AUTO,
    wisdom: str | Path = AUTO,
    driver: str | None = None,
) -> Prediction:
    """Choose configurations without measuring any: the known ones first, then those that a search would measure first.

    The best known configurations are those of a wisdom for any driver, or for the version of one. A wisdom of the user
    that cannot be read is left out with a warning. Physics alone ranks the others where the model of ``"auto"`` lost
    more than :data:`~mltune.cost.model_file.TOLERATED_LOSS` against it on what it had not seen, unless the model
    remembers what was the fastest for similar problems.

    Examples
    --------
    >>> from mltune.device.known import find_device
    >>> from mltune.kernel.reader import load_kernel
    >>> from mltune.problem.kinds import problem_from_name
    >>> device, _ = find_device("a100")
    >>> kernel = load_kernel("gemm_simt")
    >>> found = predict(problem_from_name("sgemm", trans="NN", size=2048), kernel, device, top=2, wisdom="none")
    >>> [choice.source for choice in found.choices]
    ['expected', 'expected']
    """
    from mltune.search.sampling import SamplerOptions
    from mltune.search.search import Search

    most = SamplerOptions().start_trials
    if not 1 <= top <= most:
        raise UsageError(f"1 to {most} configurations are chosen without a measurement, got {top}.")
    if device == UNKNOWN:
        raise UsageError(
            "a choice without a measurement follows from the facts of a device, but those of `unknown` are not known; "
            "name a GPU (`mltune device --known`), or a file with its facts."
        )
    kernel.check_problem(problem)
    model = choose_model(prior, kernel)
    file = file_of_run(wisdom, replayed=False)
    if wisdom != AUTO and file is not None and not file.exists():
        raise WisdomError(f"a wisdom is a file, but there is no {printable(file, 300)}.")
    loaded = Wisdom() if file is None else load_wisdom(file, required=wisdom != AUTO)
    matches = loaded.lookup(kernel, problem, device, driver, most=top)
    kernel = kernel.recorded_with({name for match in matches for name in match.entry.configuration})
    space = make_space(kernel, variables_of(problem, device))
    known = [codes for match in matches if (codes := match.entry.codes(kernel)) is not None]
    pretrained = None if model is None else model.load(problem, device)
    card = shipped_card(kernel) if model is None else model.card
    by_model, by_physics = (_expected(card, "model", top), _expected(card, "physics", top))
    expected = by_physics if pretrained is None else by_model
    may_fall_back = pretrained is not None and prior == AUTO and not pretrained.first
    if may_fall_back and by_model and by_physics and by_physics.share > by_model.share + TOLERATED_LOSS:
        pretrained, expected = None, replace(by_physics, by_model=by_model.share)
    features = Features(kernel, problem, device)
    candidates = Search(space, features, batch=top, known=known, pretrained=pretrained).ask().candidates
    sources = (KNOWN if one.proposed_by == "wisdom" else EXPECTED for one in candidates)
    labelled = (kernel.labelled(one.configuration) for one in candidates)
    choices = tuple(map(Choice, sources, labelled))
    time, no_time = None, "the first choice is known: the wisdom has its time"
    if choices[0].source == EXPECTED:
        ranked_by = "physics" if pretrained is None else "model"
        time, no_time = _expected_time(card, ranked_by, features, candidates[0].configuration)
    return Prediction(choices, expected, time, no_time, () if model is None else model.notices(problem, device))


def _expected(card: Card | None, source: Literal["model", "physics"], top: int) -> Expected | None:
    shares = {} if card is None else card.shares(source)
    counts = [count for count in shares if count <= top]
    if card is None or not counts:
        return None
    found = shares[max(counts)]
    learned_from = card.learned_from if source == "model" else ""
    return Expected(source, learned_from, max(counts), sum(found) / len(found), min(found), max(found), len(found))


def _expected_time(
    card: Card | None, source: str, features: Features, first: Mapping[str, int]
) -> tuple[ExpectedTime | None, str]:
    """Return the time of a first choice, or why there is none."""
    members = card.members if card and features.has_prior else []
    if not all("over_physics" in one.model_fields_set for one in members):
        return None, "the card of the model has no times of first choices; train the model again"
    architecture, flops = features.device.architecture, float(features.problem.flops)
    similar = (one for one in members if one.flops == flops or are_near(one.flops, flops))
    near = [one for one in similar if one.architecture == architecture]
    ratios = np.array([one.over_physics[source] for one in near if source in one.over_physics])
    if len(ratios) < FEWEST_SWEEPS:
        sweeps = f"{FEWEST_SWEEPS} recorded sweeps of similar size on {architecture}, each judged by others"
        return None, f"that takes {sweeps}; known: {len(near) if len(near) < FEWEST_SWEEPS else len(ratios)}"
    physical_s = features.physical_s(columns_of(first))
    left_out = [interval(np.delete(ratios, at)) for at in range(len(ratios))]
    inside = sum(least <= ratio <= most for ratio, (least, _, most) in zip(ratios, left_out, strict=True))
    least_s, time_s, most_s = (physical_s * interval(ratios)).tolist()
    return ExpectedTime(time_s, least_s, most_s, CONFIDENCE, len(ratios), int(inside)), ""


def interval(ratios: Floats) -> Floats:
    """Return the interval of one more of some log-normal numbers: its lower end, its middle and its upper end."""
    from scipy.special import stdtrit

    logs = np.log(ratios)
    half = stdtrit(len(logs) - 1, (1.0 + CONFIDENCE) / 2.0) * logs.std(ddof=1) * np.sqrt(1.0 + 1.0 / len(logs))
    ends: Floats = np.exp(logs.mean() + half * np.array([-1.0, 0.0, 1.0]))
    return ends
