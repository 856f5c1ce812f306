"""What a run works with: kernel, problem, device, search space, builder and runner, on a GPU or in replay."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from mltune import __version__
from mltune.errors import UsageError
from mltune.kernel.bundle import Kernel, device_variables
from mltune.kernel.reader import load_kernel
from mltune.kernel.space import ConstrainedSpace, SearchSpace, TableSpace
from mltune.problem.runnable import RunnableProblem
from mltune.records.header import RunHeader

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mltune.dataset.dataset import Dataset
    from mltune.device.facts import Device
    from mltune.measure.protocols import Builder, Runner
    from mltune.measure.runner import GpuRunner
    from mltune.problem.problem import Problem
    from mltune.records.trial import Measurement, TrialRecord
    from mltune.tune.target import Target


@dataclass(slots=True)
class Session:
    """The parts that a run joins. A context manager: builder and runner work inside it.

    Attributes
    ----------
    kernel : Kernel
    problem : Problem
    device : Device
    space : SearchSpace
        On a GPU every valid configuration; in replay the recorded ones.
    builder : Builder
    runner : Runner
    versions : mapping of str to str
        Of all that decides a measurement.
    gpu : GpuRunner or None
        The runner when it is a GPU's.
    recorded : Dataset or None
        What is replayed.
    batches : int
        Batches of proposals under way at a time. On a GPU the compile pool must be kept busy while one batch is planned
        and another runs; in replay one less, so that the loop is the same.
    compilers : float
        Builds that are made side by side; in replay, where a build is there at once, infinitely many.
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
    batches: int = 2
    compilers: float = math.inf
    _stack: ExitStack | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.runner)
            stack.enter_context(self.builder)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stack is not None:
            self._stack.__exit__(kind, error, trace)

    def reference(self) -> Measurement | None:
        """Time the reference kernel, cuBLAS on the problem; None in replay."""
        return None if self.gpu is None else self.gpu.time_reference()

    @property
    def recorded_reference_s(self) -> float | None:
        """The median time of cuBLAS as recorded, in replay; None where it was not."""
        return None if self.recorded is None else self.recorded.manifest.reference_median_s

    def verified(self, record: TrialRecord) -> str:
        """Verify a winner at its full size and at others; return what is wrong, empty when nothing is.

        In replay there is nothing to verify.
        """
        if self.gpu is None:
            return ""
        build = self.builder.submit(record.configuration).result()
        checks = self.gpu.verify_winner(record.configuration, build).items()
        wrong = [f"{problem.label}: {check.state} {check.detail}" for problem, check in checks if check.state != "ok"]
        return "; ".join(wrong)


def open_session(
    kernel: str,
    problem: Problem,
    target: Target,
    *,
    values: Mapping[str, Sequence[int]] | None = None,
    compilers: int | None = None,
) -> Session:
    """Join the parts for one kernel, problem and target.

    Parameters
    ----------
    kernel : str
        Name or folder of the bundle.
    problem : Problem
    target : Target
    values : mapping of str to sequence of int, optional
        Chosen values of some parameters: a sub-space.
    compilers : int or None
        Compile processes; None is one per core.

    Raises
    ------
    UsageError
        The kernel does not solve the problem or cannot be built, the space is empty, or the device or dataset does not
        exist.
    """
    bundle = load_kernel(kernel)
    bundle.check_problem(problem)
    if target.dataset is not None:
        return _replay(bundle, problem, target.dataset)
    if bundle.source is None or not isinstance(problem, RunnableProblem):
        raise UsageError(
            f"only a kernel with a source can be built, but {bundle.name} describes a space whose timings were "
            f"recorded elsewhere; replay them with --device replay:DATASET (see `mltune datasets`)."
        )
    return _on_gpu(bundle.with_values(values) if values else bundle, problem, target.cuda or 0, compilers)


def _replay(kernel: Kernel, problem: Problem, name: str) -> Session:
    from mltune.dataset.dataset import load_dataset
    from mltune.measure.replay import ReplayBuilder, ReplayRunner

    dataset = load_dataset(name)
    dataset.check_kernel(kernel)
    return Session(
        kernel,
        problem,
        dataset.manifest.device,
        TableSpace(dataset.columns),
        ReplayBuilder(dataset),
        ReplayRunner(dataset),
        {f"recorded_{name}": version for name, version in dataset.manifest.versions.items()},
        recorded=dataset,
    )


def _on_gpu(kernel: Kernel, problem: RunnableProblem, index: int, compilers: int | None) -> Session:
    from mltune.device.query import driver_version, query_device
    from mltune.measure.build import NvrtcBuilder, default_cache, nvrtc_version
    from mltune.measure.runner import GpuRunner

    device = query_device(index)
    runner = GpuRunner(kernel, problem, index, device=device)
    builder = NvrtcBuilder(kernel, problem, device.architecture, cache=default_cache(), workers=compilers)
    return Session(
        kernel,
        problem,
        device,
        ConstrainedSpace(kernel, {**problem.variables(), **device_variables(device)}),
        builder,
        runner,
        {"nvrtc": nvrtc_version(), "driver": driver_version(), **installed_versions("cupy-cuda13x", "cupy-cuda12x")},
        gpu=runner,
        batches=3,
        compilers=builder.workers,
    )


def installed_versions(*packages: str) -> dict[str, str]:
    """Return the versions of those of some packages that are installed."""
    import importlib.metadata

    installed = {}
    for package in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            installed[package] = importlib.metadata.version(package)
    return installed


def run_header(session: Session, seed: int, settings: Mapping[str, Any]) -> RunHeader:
    """Return the header of a run on a workbench."""
    return RunHeader(
        kernel=session.kernel.name,
        source_hash=session.kernel.source_hash,
        parameters={name: tuple(session.space.values[name]) for name in session.space.names},
        problem=session.problem.to_json(),
        device=session.device.to_json(),
        seed=seed,
        versions={"mltune": __version__, **installed_versions("numpy", "scikit-learn", "optuna"), **session.versions},
        settings={"restrictions": session.kernel.space_hash, **settings},
        created_at=time.time(),
    )
