"""Compile rate of the builder with a cold cache, on 1, 2, ... all cores.

Random valid configurations of ``gemm_simt`` for sgemm NT are compiled for an H200; no GPU is needed. Every number of
cores compiles the same configurations in the same order. The clock runs from an idle pool of started processes until it
runs dry (as many builds are missing as there are workers), because in a tune it never does. Targets:
at least 40 configurations/s on 16 cores, and at least 1.8 times as many on two cores as on one.

    python benchmarks/compile_rate.py [--configurations 256] [--workers 1,2,4] [--output compile_rate.json]
"""

from __future__ import annotations

import platform
import statistics
import time
from collections import Counter
from concurrent.futures import as_completed, wait
from pathlib import Path
from typing import Any

import numpy as np
from harness import parser_of, provenance, write

from mltune.device.known import H200
from mltune.kernel.bundle import variables_of
from mltune.kernel.reader import load_kernel
from mltune.kernel.space import ConstrainedSpace
from mltune.measure.build import NvrtcBuilder, available_cores, nvrtc_version
from mltune.problem.gemm import parse_problem

KERNEL = load_kernel("gemm_simt")
PROBLEM = parse_problem("sgemm", trans="NT", m=4096, n=4096, k=4096)


def random_configurations(count: int, seed: int) -> list[dict[str, int]]:
    """Return configurations drawn uniformly from the search space, no two of which share a build."""
    space = ConstrainedSpace(KERNEL, variables_of(PROBLEM, H200))
    rows = space.rows(space.sample(2 * count, np.random.default_rng(seed)))
    table = np.stack([rows[name] for name in space.names], axis=1)
    distinct = {tuple(row[: len(KERNEL.space.parameters)]): row for row in table}
    return [dict(zip(space.names, map(int, row), strict=True)) for row in distinct.values()][:count]


def compile_all(configurations: list[dict[str, int]], warm_up: list[dict[str, int]], workers: int) -> dict[str, Any]:
    """Compile everything on some cores, without a cache; return the seconds. The warm-up is not counted."""
    with NvrtcBuilder(KERNEL, PROBLEM, H200.architecture, cache=None, workers=workers) as builder:
        wait([builder.submit(configuration) for configuration in warm_up[: 2 * workers]])
        started = time.perf_counter()
        builds, finished_s = [], []
        for future in as_completed([builder.submit(configuration) for configuration in configurations]):
            builds.append(future.result())
            finished_s.append(time.perf_counter() - started)
    busy = max(len(builds) - workers, 1)
    elapsed_s = finished_s[busy - 1]
    seconds = sorted(build.compile_s for build in builds)
    return {
        "workers": workers,
        "configurations": len(builds),
        "elapsed_s": elapsed_s,
        "last_s": finished_s[-1],
        "configurations_per_s": busy / elapsed_s,
        "compile_s_mean": statistics.fmean(seconds),
        "compile_s_median": statistics.median(seconds),
        "compile_s_max": seconds[-1],
        "states": Counter(str(build.state) for build in builds),
    }


def main() -> None:
    """Measure, print a table, and write the JSON."""
    cores = available_cores()
    doubling = sorted({2**power for power in range(cores.bit_length())} | {cores})
    parser = parser_of(__doc__)
    parser.add_argument("--configurations", type=int, default=256)
    parser.add_argument("--workers", default=",".join(map(str, doubling)))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    count = arguments.configurations
    configurations = random_configurations(count + 2 * cores, arguments.seed)
    document: dict[str, Any] = {
        **provenance(of="wall time"),
        "kernel": KERNEL.name,
        "source_hash": KERNEL.source.sha256,
        "problem": PROBLEM.label,
        "architecture": H200.architecture,
        "nvrtc": nvrtc_version(),
        "cores": cores,
        "processor": _processor(),
        "seed": arguments.seed,
        "runs": [],
    }
    print(f"{KERNEL.name}, {PROBLEM.label}, {H200.architecture}, NVRTC {nvrtc_version()}, {cores} x {_processor()}")
    print(f"{'workers':>8} {'conf/s':>8} {'speed-up':>9} {'mean s':>7} {'max s':>6}  states")
    for workers in map(int, arguments.workers.split(",")):
        run = compile_all(configurations[:count], configurations[count:], workers)
        document["runs"].append(run)
        speed_up = run["configurations_per_s"] / document["runs"][0]["configurations_per_s"]
        print(
            f"{workers:>8} {run['configurations_per_s']:>8.2f} {speed_up:>9.2f} "
            f"{run['compile_s_mean']:>7.3f} {run['compile_s_max']:>6.2f}  {dict(run['states'])}"
        )
    write(arguments.output, document)


def _processor() -> str:
    """Return the name of the processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    main()
