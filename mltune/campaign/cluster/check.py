"""Check of a cluster before it is used: latency, versions, devices, and the rate of compiling."""

from __future__ import annotations

import contextlib
import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from mltune.campaign.cluster.gpu_workers import worker_facts
from mltune.device.known import find_device
from mltune.errors import WorkerError
from mltune.kernel.coding import row
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.measure.build import NvrtcBuilder
from mltune.measure.compile_farm import COMPILE, GPU, CompileFarm, connect, versions, workers_with
from mltune.measure.compile_pool import Job
from mltune.measure.compiler import CudaSource
from mltune.measure.cubin_cache import cache_key
from mltune.problem.kinds import problem_from_name
from mltune.records.trial import Build

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distributed import Client

ROUND_TRIPS = 20
"""Empty calls whose median time is the latency."""

LONGEST_S = 60.0
"""Longest time for the builds, seconds."""


def check_cluster(where: str, builds: int) -> dict[str, Any]:
    """Check a cluster (:func:`mltune.measure.compile_farm.connect`); return the facts as plain JSON values.

    They are ``scheduler``, ``latency_s`` (seconds of a call to a worker, median), ``workers`` (``name``, ``address``,
    ``resources``, ``versions``, ``device``, ``fits``: whether its versions are those of this host), and ``compile``
    (``cores``, ``builds``, ``seconds``, ``per_second``; None without compile workers). At least two ``builds``, never
    from a cache, measure the rate of compiling.
    """
    client = connect(where)
    try:
        document = {
            "scheduler": client.scheduler_info(n_workers=0)["address"],
            "versions": versions(),
            "workers": _workers(client),
            "latency_s": _latency(client),
        }
    finally:
        client.close()
    return {**document, "compile": _rate(where, *random_builds(builds))}


def random_builds(count: int) -> tuple[CudaSource, list[str]]:
    """Return a source, and the macros of random configurations: of ``gemm_simt`` for sgemm NT 4096 on an H200."""
    kernel, problem = load_kernel("gemm_simt"), problem_from_name("sgemm", trans="NT", size=4096)
    device, _ = find_device("h200")
    space = PlacedKernel(kernel, problem, device).space
    rows = space.rows(space.sample(count, np.random.default_rng(0)))
    builder = NvrtcBuilder(kernel, problem, device.architecture, workers=1)
    return builder.source, [builder.definitions(row(rows, at)) for at in range(count)]


def _workers(client: Client) -> list[dict[str, Any]]:
    workers = {**workers_with(client, GPU), **workers_with(client, COMPILE)}
    answers = client.run(worker_facts, workers=list(workers), on_error="return") if workers else {}
    rows = []
    for address, facts in workers.items():
        answer = answers.get(address)
        versions_there, devices, _ = answer if isinstance(answer, tuple) else ({"error": str(answer)}, (), "")
        rows.append(
            {
                "name": str(facts["name"]),
                "address": address,
                "resources": {name: facts["resources"][name] for name in (GPU, COMPILE) if name in facts["resources"]},
                "versions": versions_there,
                "device": devices[0].name if devices and GPU in facts["resources"] else None,
                "fits": versions_there == versions(),
            }
        )
    return sorted(rows, key=lambda row: (row["name"], row["address"]))


def _latency(client: Client) -> float | None:
    """Return the median seconds of a call to a worker and back; None without workers."""
    address = next(iter(client.nthreads()), None)
    if address is None:
        return None
    times_s = []
    for _ in range(ROUND_TRIPS):
        begun = time.perf_counter()
        client.run(int, workers=[address])
        times_s.append(time.perf_counter() - begun)
    return statistics.median(times_s)


def _rate(where: str, source: CudaSource, macros: Sequence[str]) -> dict[str, Any] | None:
    """Return the rate of all compile workers together; None where there are none."""
    try:
        farm = CompileFarm(where)
    except WorkerError:
        return None
    fresh = f"// {time.time_ns()}\n"  # in no cache
    jobs = [Job(cache_key(source, fresh + macro, "check"), fresh + macro) for macro in macros]
    try:
        _build(farm, source, jobs[:1])  # the compile processes start
        begun = time.perf_counter()
        built = _build(farm, source, jobs[1:])
        seconds = time.perf_counter() - begun
        return {"cores": farm.cores, "builds": built, "seconds": seconds, "per_second": built / seconds}
    finally:
        farm.close()


def _build(farm: CompileFarm, source: CudaSource, jobs: Sequence[Job]) -> int:
    """Return how many builds of a source are ready in time."""
    built, deadline = 0, time.monotonic() + LONGEST_S
    for build in farm.compile(source, jobs):
        with contextlib.suppress(Exception):  # of a task, a worker or the connection
            built += isinstance(build.result(timeout=max(0.0, deadline - time.monotonic())), Build)
    return built
