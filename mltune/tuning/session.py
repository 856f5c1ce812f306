"""Tuning session: kernel, problem, device, search space, builder and runner, on a GPU or in replay."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from threading import TIMEOUT_MAX
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from mltune.device.facts import Device
from mltune.device.peaks import peak_flops
from mltune.errors import BundleError, DeviceError, MltuneWarning, RunError, UsageError
from mltune.kernel.bundle import Kernel, variables_of
from mltune.kernel.coding import crossed
from mltune.kernel.space import ConstrainedSpace, SearchSpace, TableSpace, default_configuration
from mltune.measure.pipeline import Builder, Runner, SamplingRule
from mltune.problem.problem import Problem, RunnableProblem
from mltune.records.header import DATASET_HASH, RunHeader
from mltune.records.trial import BATCH, Build, Measurement, TrialRecord, TrialState
from mltune.records.versions import installed_versions
from mltune.resolve.device import Target

if TYPE_CHECKING:
    from mltune.dataset.dataset import Dataset
    from mltune.measure.messages import Baseline, Outputs
    from mltune.measure.runner import GpuRunner
    from mltune.process.child import ChildPool


FEWEST = 4
"""Fewest proposals of a batch."""

BATCH_S = 5.0
"""Most seconds that the GPU may take for a first batch of more, which is planned before anything is known."""

REACHED = 0.6
"""Share of the device's limit that is assumed for the seconds of a batch."""


@dataclass(slots=True)
class Session:
    """The parts of a run. A context manager that starts and ends builder and runner.

    The `space` has all valid configurations on a GPU, in replay the recorded ones. `batch` is the most proposals of the
    first batch. In replay builds take no time: `compilers` is infinite. `default` is measured early; it is empty where
    there is none. The run's time counts from `begun`, on the clock of :func:`time.perf_counter`.
    """

    kernel: Kernel
    problem: Problem
    device: Device
    space: SearchSpace
    builder: Builder
    runner: Runner
    versions: Mapping[str, str]
    gpu: GpuRunner | None = None
    recorded: Dataset | None = None
    batch: int = BATCH
    compilers: float = math.inf
    default: Mapping[str, int] = field(default_factory=dict)
    begun: float = field(default_factory=time.perf_counter)
    _stack: ExitStack | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.builder)  # the first, because the runner may wait for a build
            stack.enter_context(self.runner)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stack is not None:
            self._stack.__exit__(kind, error, trace)

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
        for configuration, building in zip(configurations, builds, strict=True):
            remaining_s = until - time.perf_counter()
            if remaining_s <= 0 or not wait([building], min(remaining_s, TIMEOUT_MAX)).done:
                return
            build = building.result()
            if build.state is TrialState.OK:
                yield self.runner.submit(configuration, build).result()
            else:
                yield Measurement(build.state, build.detail)


def open_session(
    kernel: Kernel,
    problem: Problem,
    target: Target,
    *,
    values: Mapping[str, Sequence[int]] | None = None,
    space: SearchSpace | None = None,
    compilers: int | None = None,
    compile_on: str = "",
    pool: ChildPool | None = None,
) -> Session:
    """Make the session of a kernel, a problem and a target.

    `values` of some parameters make a sub-space; `space` replaces all that is valid. `compilers` processes work, by
    default one per core, besides the workers of the cluster `compile_on`; they wait for the next session in the `pool`.
    """
    begun = time.perf_counter()
    kernel.check_problem(problem)
    if target.dataset is not None:
        session = _replay(kernel, problem, target.dataset)
    elif kernel.source.text is None or not isinstance(problem, RunnableProblem):
        raise UsageError(
            f"only a kernel with a source can be built, but {kernel.name} has none; replay recorded timings with "
            "--device replay:DATASET (see `mltune datasets`)."
        )
    else:
        part = kernel.with_values(values) if values else kernel
        session = _on_gpu(part, problem, target.cuda or 0, {"workers": compilers, "pool": pool}, compile_on, space)
    session.begun = begun
    return session


def _replay(kernel: Kernel, problem: Problem, name: str) -> Session:
    from mltune.dataset.dataset import load_dataset
    from mltune.dataset.replay import ReplayBuilder, ReplayRunner

    if kernel.space.preset:
        raise UsageError(
            f"recorded timings are replayed as a whole, but {kernel.label} is a part of the space; "
            f"replay {kernel.name}, or tune the part on a GPU."
        )
    dataset = load_dataset(name)
    dataset.manifest.check_kernel(kernel)
    kernel = kernel.recorded_with(dataset.manifest.parameters)
    return Session(
        kernel,
        problem,
        dataset.manifest.device,
        dataset.space,
        ReplayBuilder(dataset),
        ReplayRunner(dataset),
        {f"recorded_{name}": version for name, version in dataset.manifest.versions.items()},
        recorded=dataset,
    )


def _on_gpu(
    kernel: Kernel,
    problem: RunnableProblem,
    index: int,
    compilers: Mapping[str, Any],
    compile_on: str,
    space_of_caller: SearchSpace | None,
) -> Session:
    from mltune.device.packages import cupy_packages
    from mltune.measure.assembler import nvjitlink_version
    from mltune.measure.build import NvrtcBuilder, default_cache, nvrtc_version, with_known_options
    from mltune.measure.compile_farm import farm_of
    from mltune.measure.runner import GpuRunner

    device, driver = gpu_facts(index, kernel, problem)
    kernel, notices = with_known_options(kernel, kernel.architecture_on(device.architecture))
    for notice in notices:
        warnings.warn(notice, MltuneWarning, stacklevel=4)
    space = make_space(kernel, variables_of(problem, device)) if space_of_caller is None else space_of_caller
    kernel = kernel.with_default(default_configuration(kernel, space))
    farm = farm_of(compile_on, bool(kernel.compiler.controls)) if compile_on else None
    builder = NvrtcBuilder(kernel, problem, device.architecture, cache=default_cache(), farm=farm, **compilers)
    linker = {"nvjitlink": nvjitlink_version()} if kernel.compiler.controls else {}
    baseline = partial(make_baseline, kernel, problem, device, builder) if problem.needs_baseline else None
    runner = GpuRunner(kernel, problem, index, device=device, baseline=baseline, pool=compilers["pool"])
    return Session(
        kernel,
        problem,
        device,
        space,
        builder,
        runner,
        {"nvrtc": nvrtc_version(), **linker, "driver": driver, **cupy_packages()},
        gpu=runner,
        batch=batch_size(problem, device),
        compilers=builder.workers,
        default=kernel.space.default,
    )


def gpu_facts(index: int, kernel: Kernel, problem: RunnableProblem) -> tuple[Device, str]:
    """Return a GPU's facts and driver; a mistake in a kernel of kind arrays is found even without a GPU."""
    from mltune.device.query import driver_version, query_device
    from mltune.measure.compiler import check_fits_driver

    try:
        device, driver = query_device(index), driver_version()
        check_fits_driver(driver)
    except DeviceError:
        if kernel.arrays is not None:
            from mltune.device.known import H200

            space = make_space(kernel, variables_of(problem, H200))
            check_source(kernel.with_default(default_configuration(kernel, space)), problem, H200)
        raise
    return device, driver


def check_source(kernel: Kernel, problem: RunnableProblem, device: Device) -> None:
    """Check the launch of a kernel's default and, where NVRTC is installed, its source and arguments."""
    from mltune.measure.build import NvrtcBuilder
    from mltune.measure.source_check import entry_probes, with_probe

    kernel.launch(kernel.space.default, variables_of(problem, device))
    with suppress(DeviceError), NvrtcBuilder(with_probe(kernel), problem, device.architecture, workers=1) as builder:
        make_baseline(kernel, problem, device, builder)
        plain = builder.submit(kernel.space.default).result()
        for text, read in entry_probes(kernel, problem, builder.definitions(kernel.space.default)):
            for fault in read(builder.build(text).result(), plain):
                raise BundleError(f"{fault}.")


def run_once(kernel: Kernel, index: int) -> dict[str, Any]:
    """Compile the first configuration of a kernel, run it once on a GPU, and return its arrays by name."""
    from mltune.measure.runner import GpuRunner

    assert kernel.arrays is not None  # noqa: S101 - it has arguments
    problem = kernel.arrays.problem()
    device, _ = gpu_facts(index, kernel, problem)
    configuration = {name: values[0] for name, values in kernel.space.parameters.items()}
    build = build_once(kernel, problem, device, configuration)
    with GpuRunner(kernel, problem, index, device=device) as runner:
        outcome = runner.run_once(configuration, build)
    _must_succeed(kernel, outcome)
    return dict(outcome.arrays)


def build_once(kernel: Kernel, problem: RunnableProblem, device: Device, configuration: Mapping[str, int]) -> Build:
    """Compile a configuration, or take it from the cache of cubins; a RunError where it cannot be compiled."""
    from mltune.measure.build import build_one

    build = build_one(kernel, problem, device.architecture, configuration)
    _must_succeed(kernel, build)
    return build


def _must_succeed(kernel: Kernel, outcome: Build | Outputs) -> None:
    if outcome.state is not TrialState.OK:
        raise RunError(f"a kernel must run to its end, but {kernel.name} ends with {outcome.state}: {outcome.detail}.")


def batch_size(problem: Problem, device: Device) -> int:
    """Return the most proposals of the first batch: 16, or where measurements are long, 8 or 4.

    Their seconds follow from the limits of the device, not from a clock: a resumed run has the same batches.

    >>> from mltune.device.known import find_device
    >>> from mltune.problem.gemm import parse_problem
    >>> device, _ = find_device("h200")
    >>> [batch_size(parse_problem(f"{p}gemm", trans="NT", size=n), device) for p, n in (("s", 4096), ("z", 8192))]
    [16, 4]
    """
    rule, limit_s = SamplingRule(), [problem.flops / peak_flops(device, problem.arithmetic)]
    if device.memory_bytes_per_s > 0.0:
        limit_s.append(problem.bytes / device.memory_bytes_per_s)
    run_s = max(limit_s) / REACHED
    samples_s = max(rule.min_samples * run_s, min(rule.max_s, rule.max_samples * run_s))
    batch = BATCH
    while batch > FEWEST and batch * (run_s + samples_s) > BATCH_S:  # one more run is verified
        batch //= 2
    return batch


def make_space(kernel: Kernel, variables: Mapping[str, int]) -> SearchSpace:
    """Return the search space of a kernel: what its restrictions leave, or the configurations that it lists."""
    listed = kernel.space.configurations
    if listed is None:
        return ConstrainedSpace(kernel, variables)
    return TableSpace(crossed(listed, {name: kernel.compiler.parameters[name] for name in kernel.compiler.varied}))


def make_baseline(kernel: Kernel, problem: RunnableProblem, device: Device, builder: Builder) -> Baseline:
    """Compile the default configuration, with whose results those of the others are compared."""
    build = builder.submit(kernel.space.default).result()
    if build.state is not TrialState.OK:
        raise BundleError(
            f"the default configuration of {kernel.name} must compile, but ends with {build.state}: {build.detail}; "
            f"see {kernel.folder / 'kernel.toml'}."
        )
    return baseline_of(kernel, problem, device, build)


def baseline_of(kernel: Kernel, problem: RunnableProblem, device: Device, build: Build) -> Baseline:
    """Return the baseline that is a build of the default configuration."""
    from mltune.measure.messages import Baseline

    assert kernel.source.entry is not None  # noqa: S101 - it is built
    verified = (case.problem for case in problem.verification_cases())
    variables = [variables_of(size, device) for size in verified]
    right, reference = kernel.reference_kernel, None
    if right is not None:
        assert right.source.entry is not None  # noqa: S101 - a reference has one
        reference = (
            right.source.entry,
            tuple(right.launch(kernel.space.default, variables_of_size) for variables_of_size in variables),
        )
    return Baseline(
        build.cubin,
        build.entry or kernel.source.entry,
        tuple(kernel.launch(kernel.space.default, variables_of_size) for variables_of_size in variables),
        reference,
        kernel.verify,
    )


def run_header(session: Session, seed: int, settings: Mapping[str, Any]) -> RunHeader:
    """Return the header of a run; in replay, its settings identify the content of the dataset."""
    content = {} if session.recorded is None else {DATASET_HASH: session.recorded.manifest.sha256}
    return RunHeader(
        kernel=session.kernel.name,
        source_hash=session.kernel.source.sha256,
        parameters={name: tuple(session.space.values[name]) for name in session.space.names},
        problem=session.problem.to_json(),
        device=session.device.to_json(),
        seed=seed,
        versions={**installed_versions("numpy", "scikit-learn", "optuna"), **session.versions},
        settings={"restrictions": session.kernel.space.sha256, **content, **settings},
        created_at=time.time(),
        labels={name: labels for name, labels in session.kernel.space.labels.items() if name in session.space.names},
    )
