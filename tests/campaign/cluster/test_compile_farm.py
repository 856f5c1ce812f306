"""Compile workers of a cluster make the same builds as this host, whoever dies."""

import os
import signal

import numpy as np
import pytest

from mltune.device.known import find_device
from mltune.errors import MltuneWarning, WorkerError
from mltune.kernel.coding import row
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.measure import compile_pool
from mltune.measure.build import NvrtcBuilder, compile_options
from mltune.measure.compile_farm import CompileFarm, farm_of
from mltune.measure.compile_pool import CompilePool, Job
from mltune.measure.compiler import CudaSource
from mltune.problem.gemm import parse_problem
from tests.campaign.cluster.conftest import WORKERS

pytest.importorskip("distributed")
pytestmark = pytest.mark.system

KERNEL, PROBLEM = load_kernel("gemm_naive"), parse_problem("sgemm", trans="NT", size=512)


def configurations(count, seed=0):
    device, _ = find_device("h200")
    space = PlacedKernel(KERNEL, PROBLEM, device).space
    rows = space.rows(space.sample(count, np.random.default_rng(seed)))
    return [row(rows, at) for at in range(count)]


class Recorded(CompileFarm):
    """A farm that records who compiled."""

    def __init__(self, where, **options):
        super().__init__(where, **options)
        self.given, self.returned = [], []

    def compile(self, source, jobs):
        self.given += [job.key for job in jobs]
        return super().compile(source, jobs)

    def result(self, build):
        self.returned.append(super().result(build))
        return self.returned[-1]


def test_the_builds_are_those_of_this_host_and_a_dead_worker_costs_nothing(cluster):
    some = configurations(8)
    farm = Recorded(cluster.address)
    assert farm.cores == 2
    with NvrtcBuilder(KERNEL, PROBLEM, "sm_90", workers=1, farm=farm) as builder:
        assert builder.workers == 3
        futures = [builder.submit(one) for one in some]
        os.kill(cluster.worker_pid("gpu-a"), signal.SIGKILL)
        builds = [future.result(timeout=300) for future in futures]
    with NvrtcBuilder(KERNEL, PROBLEM, "sm_90", workers=2) as builder:
        alone = [future.result() for future in [builder.submit(one) for one in some]]
    assert [(one.state, one.cubin, one.registers) for one in builds] == [
        (one.state, one.cubin, one.registers) for one in alone
    ]
    assert len(farm.given) >= 3
    assert any(build is not None for build in farm.returned), "the workers have made some"


def test_what_a_stopped_worker_does_not_return_is_made_here(cluster, monkeypatch):
    monkeypatch.setattr(compile_pool, "SLOW_S", 2.0)
    pids = [*map(cluster.worker_pid, WORKERS)]
    farm = Recorded(cluster.address)
    with NvrtcBuilder(KERNEL, PROBLEM, "sm_90", workers=1, farm=farm) as builder:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        builds = [future.result(timeout=300) for future in [builder.submit(one) for one in configurations(4)]]
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    assert farm.given
    assert {build.state for build in builds} == {"ok"}


def test_without_its_scheduler_this_host_goes_on_alone(start_cluster, monkeypatch):
    cluster = start_cluster()
    cluster.start_worker("a", "COMPILE=1")
    cluster.wait_for_workers(1)
    monkeypatch.setattr("mltune.measure.compile_farm._ANSWER_S", 2.0)
    some = configurations(6)
    farm = Recorded(cluster.address)
    with NvrtcBuilder(KERNEL, PROBLEM, "sm_90", workers=1, farm=farm) as builder:
        first = builder.submit(some[0])
        cluster.kill("scheduler")
        builds = [future.result(timeout=300) for future in [first, *(builder.submit(one) for one in some[1:])]]
    assert {build.state for build in builds} == {"ok"}


def test_equal_builds_are_one_task(cluster):
    farms = Recorded(cluster.address), Recorded(cluster.address)
    seen, (one,) = [], configurations(1, seed=1)  # none that another test has built
    for farm in farms:
        with NvrtcBuilder(KERNEL, PROBLEM, "sm_90", workers=1, farm=farm) as builder:
            (build,) = farm.compile(builder.source, [Job("k" * 64, builder.definitions(one))])
            seen.append(build.result(timeout=300))
    assert [build.cached for build in seen] == [False, True]


def test_a_worker_with_another_compiler_is_left_out(cluster):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mltune.measure.compile_farm.__version__", "0.0")
        with pytest.raises(WorkerError, match=r"tcp://.* has mltune .* this host \(mltune 0\.0, "):
            CompileFarm(cluster.address)


def test_of_a_kernel_with_controls_the_workers_need_the_same_nvjitlink_too(cluster, monkeypatch):
    assert CompileFarm(cluster.address, controls=True).cores == 2
    monkeypatch.setattr("mltune.measure.compile_farm.nvjitlink_version", lambda: "0.0")
    with pytest.raises(WorkerError, match=r"tcp://.* has mltune .* this host \(.*nvjitlink 0\.0\)"):
        CompileFarm(cluster.address, controls=True)
    assert CompileFarm(cluster.address).cores == 2


def test_controls_reach_the_workers(cluster):
    source = CudaSource("", "entry", compile_options("sm_90"), controls={"fast.acf": b"none"})
    text = 'extern "C" __global__ void entry() {}\n'
    farm = Recorded(cluster.address, controls=True)
    with CompilePool(source, workers=1, farm=farm):
        (build,) = farm.compile(source, [Job("c" * 64, text, ("--ptxas-options=--apply-controls=fast.acf",))])
        assert "Invalid compiler controls file" in build.result(timeout=300).detail


def test_a_run_goes_on_where_the_cluster_has_no_compile_workers(start_cluster):
    cluster = start_cluster()
    with pytest.warns(MltuneWarning, match=r"compiles alone: .*resource COMPILE"):
        assert farm_of(cluster.address) is None
