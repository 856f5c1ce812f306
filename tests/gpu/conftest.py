"""Fixtures of the tests on a GPU: its facts, and a runner of the hostile kernel with its builds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mltune.device.facts import Device
from mltune.kernel.bundle import Kernel
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.measure.build import NvrtcBuilder
from mltune.measure.runner import GpuRunner
from mltune.problem.gemm import GemmProblem, parse_problem
from mltune.records.trial import Build, Measurement, TrialState

HOSTILE = Path(__file__).parent / "hostile"


class Rig:
    """Builder and runner of a kernel for a problem: from a configuration to a measurement in one call."""

    def __init__(self, kernel: Kernel, problem: GemmProblem, device: Device, timeout_s: float = 10.0) -> None:
        self.problem = problem
        self.builder = NvrtcBuilder(kernel, problem, device.architecture, cache=None, workers=2)
        self.runner = GpuRunner(PlacedKernel(kernel, problem, device), 0, timeout_s=timeout_s)

    def __enter__(self) -> Rig:
        self.builder.__enter__()
        self.runner.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        self.runner.__exit__(None, None, None)
        self.builder.__exit__(None, None, None)

    def build(self, **configuration: int) -> Build:
        build = self.builder.submit(configuration).result()
        assert build.state is TrialState.OK, f"{configuration} must compile: {build.detail}"
        return build

    def measure(self, best_s: float | None = None, **configuration: int) -> Measurement:
        return self.runner.submit(configuration, self.build(**configuration), best_s=best_s).result()


@pytest.fixture(scope="session")
def device() -> Device:
    from mltune.device.query import query_device

    return query_device(0)


@pytest.fixture(scope="session")
def hostile_kernel() -> Kernel:
    return load_kernel(HOSTILE)


@pytest.fixture(scope="module")
def hostile(hostile_kernel: Kernel, device: Device) -> Iterator[Rig]:
    problem = parse_problem("sgemm", trans="NT", m=512, n=512, k=512)
    with Rig(hostile_kernel, problem, device, timeout_s=4.0) as rig:
        yield rig
