"""Tuning session: kernel, problem, device, search space, builder and runner, on a GPU or in replay."""

from __future__ import annotations

import itertools
import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from mltune.cost.bound import hardware_limits
from mltune.cost.pretrained import PretrainedModel
from mltune.device.facts import Device
from mltune.errors import DeviceError, MltuneWarning, RunError, UsageError
from mltune.kernel.bundle import Kernel
from mltune.kernel.layers import BEAM
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.space import ConstrainedSpace, SearchSpace
from mltune.measure.pipeline import Builder, Runner, SamplingRule
from mltune.problem.problem import Problem, RunnableProblem
from mltune.process.child import ChildPool, done_until, fulfilled
from mltune.records.header import DATASET_HASH, RunHeader
from mltune.records.trial import BATCH, Build, Measurement, TrialRecord, TrialState
from mltune.records.versions import installed_versions
from mltune.resolve.request import TuneRequest

if TYPE_CHECKING:
    from mltune.dataset.dataset import Dataset
    from mltune.measure.messages import Outputs
    from mltune.measure.runner import GpuRunner


FEWEST = 4
"""Fewest proposals of a batch."""

BATCH_S = 5.0
"""Most seconds that the GPU may take for a first batch of more, which is planned before anything is known."""

REACHED = 0.6
"""Share of the device's limit that is assumed for the seconds of a batch."""


@dataclass(slots=True)
class Session:
    """The parts of a run. A context manager that starts and ends builder and runner.

    The space of the ``placed`` kernel has all valid configurations on a GPU, in replay the recorded ones. ``batch`` is
    the most proposals of the first batch; the later ones follow from the seconds of trials. In replay builds take no
    time: ``compilers`` is infinite. The ``default`` configuration is measured early; it is empty where there is none.
    The run's time includes its start: it has ``begun`` when it was opened, on the clock of :func:`time.perf_counter`.
    """

    placed: PlacedKernel
    builder: Builder
    runner: Runner
    versions: Mapping[str, str]
    gpu: GpuRunner | None = None
    recorded: Dataset | None = None
    batch: int = BATCH
    compilers: float = math.inf
    default: Mapping[str, int] = field(default_factory=dict)
    begun: float = field(default_factory=time.perf_counter)
    foresee: Callable[[Mapping[str, int]], None] | None = None
    _stack: ExitStack | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.builder)  # the first, because the runner may wait for a build
            stack.enter_context(self.runner)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._stack is not None:
            self._stack.__exit__(*error)

    def begin_builds(self, model: PretrainedModel | None) -> None:
        """Begin to build what the first batch has in any case, before the space is counted: it takes a second."""
        if self.foresee is None:
            return
        first = map(self.placed.kernel.compiler.completed, () if model is None else model.first)
        certain = filter(self.placed.contains, [self.default, *first])
        for configuration in itertools.islice(certain, int(min(self.batch, self.compilers))):
            self.foresee(configuration)

    def reference(self) -> Measurement | None:
        """Time the reference implementation of the problem; None in replay."""
        return None if self.gpu is None else self.gpu.time_reference()

    @property
    def recorded_reference_s(self) -> float | None:
        """The recorded median time of the reference implementation, in replay; None where it was not recorded."""
        return None if self.recorded is None else self.recorded.manifest.reference_median_s

    def verify(self, record: TrialRecord) -> str:
        """Verify a winner at its own size and at others; return the failures, empty when it passes or in replay."""
        if self.gpu is None:
            return ""
        build = self.builder.submit(record.configuration).result()
        checks = self.gpu.verify_winner(record.configuration, build).items()
        wrong = [f"{problem.label}: {check.state} {check.detail}" for problem, check in checks if check.state != "ok"]
        return "; ".join(wrong)

    def measure(self, configurations: Sequence[Mapping[str, int]], *, until: float = math.inf) -> Iterator[Measurement]:
        """Build configurations side by side, and measure them in turn; the last ones are missing after `until`."""
        builds = [self.builder.submit(configuration) for configuration in configurations]
        if self.gpu is not None:
            self.gpu.expect(configurations)
        measuring = deque[Future[Measurement]]()
        for configuration, building in zip(configurations, builds, strict=True):
            if time.perf_counter() >= until or not done_until([building], until):
                break
            build = building.result()
            is_built = build.state is TrialState.OK
            failed = Measurement(build.state, build.detail)
            measuring.append(self.runner.submit(configuration, build) if is_built else fulfilled(failed))
        while measuring and (
            done_until([measuring[0]], until) or not measuring[0].cancel()
        ):  # one that runs comes to its end
            yield measuring.popleft().result()
        for future in measuring:
            future.cancel()


def open_session(request: TuneRequest, *, space: SearchSpace | None = None, pool: ChildPool | None = None) -> Session:
    """Make the session of a request: on its target, of its kernel as it stands, at its problem.

    ``space`` is a space in place of all that is valid. Processes wait for the next session in the ``pool``.

    >>> from mltune.dataset.dataset import load_manifest
    >>> from mltune.kernel.reader import load_kernel
    >>> from mltune.resolve.device import Target
    >>> name = "h200-sgemm-nt-4096-random"
    >>> request = TuneRequest(load_manifest(name).problem, load_kernel("gemm_simt"), Target(dataset=name))
    >>> session = open_session(request)
    >>> session.placed.device.name
    'NVIDIA H200'
    """
    begun = time.perf_counter()
    request.kernel.check_problem(request.problem)
    if request.target.dataset is not None:
        session = _replay(request.kernel, request.problem, request.target.dataset)
    elif request.kernel.source.text is None or not isinstance(request.problem, RunnableProblem):
        raise UsageError(
            f"{request.kernel.name} has no source and cannot be built; replay recorded timings with --device "
            "replay:DATASET (see `mltune datasets`)."
        )
    else:
        session = _on_gpu(request, request.problem, space, pool)
    session.begun = begun
    return session


def _replay(kernel: Kernel, problem: Problem, name: str) -> Session:
    from mltune.dataset.dataset import load_dataset
    from mltune.dataset.replay import ReplayBuilder, ReplayRunner

    if kernel.space.preset:
        raise UsageError(
            f"{kernel.label} is a part of the space, and recorded timings are replayed as a whole; replay "
            f"{kernel.name}, or tune the part on a GPU."
        )
    dataset = load_dataset(name)
    dataset.manifest.check_kernel(kernel)
    kernel = kernel.recorded_with(dataset.manifest.parameters)
    return Session(
        PlacedKernel(kernel, problem, dataset.manifest.device, dataset.space),
        ReplayBuilder(dataset),
        ReplayRunner(dataset),
        {f"recorded_{name}": version for name, version in dataset.manifest.versions.items()},
        recorded=dataset,
    )


def _on_gpu(
    request: TuneRequest, problem: RunnableProblem, space: SearchSpace | None, pool: ChildPool | None
) -> Session:
    from mltune.device.packages import cupy_packages
    from mltune.measure.assembler import nvjitlink_version
    from mltune.measure.baseline import make_baseline
    from mltune.measure.build import NvrtcBuilder, default_cache, nvrtc_version, with_known_options
    from mltune.measure.compile_farm import farm_of
    from mltune.measure.runner import GpuRunner

    index = request.target.cuda or 0
    device, driver = gpu_facts(index, request.kernel, problem)
    kernel, notices = with_known_options(request.kernel, request.kernel.architecture_on(device.architecture))
    for notice in notices:
        warnings.warn(notice, MltuneWarning, stacklevel=4)
    placed = PlacedKernel(kernel, problem, device, space)
    farm = farm_of(request.compile_on, bool(kernel.compiler.controls)) if request.compile_on else None
    compilers = {"workers": request.compilers, "pool": pool, "cache": default_cache(), "farm": farm}
    builder = NvrtcBuilder(kernel, problem, device.architecture, **compilers)
    linker = {"nvjitlink": nvjitlink_version()} if kernel.compiler.controls else {}
    baseline = partial(make_baseline, placed, builder) if problem.needs_baseline else None
    runner = GpuRunner(placed, index, baseline=baseline, pool=pool)
    return Session(
        placed,
        builder,
        runner,
        {"nvrtc": nvrtc_version(), **linker, "driver": driver, **cupy_packages()},
        gpu=runner,
        batch=batch_size(problem, device),
        compilers=builder.workers,
        default=placed.default,
        foresee=builder.foresee,
    )


def gpu_facts(index: int, kernel: Kernel, problem: RunnableProblem) -> tuple[Device, str]:
    """Return a GPU's facts and driver; a mistake in a kernel of kind arrays is found even without a GPU."""
    from mltune.device.query import driver_version, query_device
    from mltune.measure.compiler import check_fits_driver

    try:
        device, driver = query_device(index), driver_version()
        check_fits_driver(driver)
    except DeviceError:
        if kernel.has_own_problem():
            from mltune.device.known import H200
            from mltune.measure.baseline import check_source

            check_source(PlacedKernel(kernel, problem, H200))
        raise
    return device, driver


def run_once(kernel: Kernel, index: int) -> dict[str, Any]:
    """Compile the first configuration of a kernel, run it once on a GPU, and return its arrays by name."""
    from mltune.measure.runner import GpuRunner

    problem = kernel.own_problem()
    device, _ = gpu_facts(index, kernel, problem)
    configuration = {name: values[0] for name, values in kernel.space.parameters.items()}
    placed = PlacedKernel(kernel, problem, device)
    build = build_once(placed, configuration)
    with GpuRunner(placed, index) as runner:
        outcome = runner.run_once(configuration, build)
    _must_succeed(kernel, outcome)
    return dict(outcome.arrays)


def build_once(placed: PlacedKernel, configuration: Mapping[str, int]) -> Build:
    """Compile a configuration, or take it from the cache of cubins; a RunError where it cannot be compiled."""
    from mltune.measure.build import build_one

    build = build_one(placed, configuration)
    _must_succeed(placed.kernel, build)
    return build


def _must_succeed(kernel: Kernel, outcome: Build | Outputs) -> None:
    if outcome.state is not TrialState.OK:
        raise RunError(f"{kernel.name} ends with {outcome.state}: {outcome.detail}.")


def batch_size(problem: Problem, device: Device) -> int:
    """Return the most proposals of the first batch: 16, or where measurements are long, 8 or 4.

    Their seconds follow from the limits of the device, not from a clock: a resumed run has the same batches.

    >>> from mltune.device.known import find_device
    >>> from mltune.problem.gemm import parse_problem
    >>> device, _ = find_device("h200")
    >>> [batch_size(parse_problem(f"{p}gemm", trans="NT", size=n), device) for p, n in (("s", 4096), ("z", 8192))]
    [16, 4]
    """
    rule, run_s = SamplingRule(), max(hardware_limits(device, problem).values()) / REACHED
    samples_s = max(rule.min_samples * run_s, min(rule.max_s, rule.max_samples * run_s))
    batch = BATCH
    while batch > FEWEST and batch * (run_s + samples_s) > BATCH_S:  # one more run is verified
        batch //= 2
    return batch


def run_header(session: Session, seed: int, settings: Mapping[str, Any]) -> RunHeader:
    """Return the header of a run; its settings identify the content of the dataset, or the order of a counted space."""
    counted, recorded = session.placed.space, session.recorded
    content: dict[str, Any] = {"beam": BEAM} if isinstance(counted, ConstrainedSpace) else {}
    content |= {} if recorded is None else {DATASET_HASH: recorded.manifest.sha256}
    placed = session.placed
    kernel, space = placed.kernel, placed.space
    return RunHeader(
        kernel=kernel.name,
        source_hash=kernel.source.sha256,
        parameters={name: tuple(space.values[name]) for name in space.names},
        problem=placed.problem.to_json(),
        device=placed.device.to_json(),
        seed=seed,
        versions={**installed_versions("numpy", "scikit-learn", "optuna"), **session.versions},
        settings={"restrictions": kernel.space.sha256, **content, **settings},
        created_at=time.time(),
        labels={name: labels for name, labels in kernel.space.labels.items() if name in space.names},
    )
