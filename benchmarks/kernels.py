"""The built-in kernels of kind arrays on a GPU: against their bars, their default configuration and random search.

Results: benchmarks/results/kernels.json. Each kernel is tuned at two sizes: with 60 trials (several seeds), at random
with 60 trials, with the first 60 configurations in the order of Kernel Tuner's default strategy (brute force), and for
a time in which about ten times as many are measured. The bars are timed as the kernels are: with a cold L2 cache,
medians of 20 runs in the same process.

    python benchmarks/kernels.py --output benchmarks/results/kernels.json --sweeps 400 --datasets datasets
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import RESULTS, gpu_provenance, parser_of, write

import mltune
from mltune.kernel.coding import row
from mltune.resolve.device import Target
from mltune.resolve.problems import named_problem
from mltune.resolve.request import TuneRequest
from mltune.results.run import TuneResult
from mltune.tuning.session import open_session
from mltune.tuning.sweep import sweep

CASES: dict[str, list[dict[str, int]]] = {
    "transpose": [{"rows": 8192, "columns": 8192}, {"rows": 16384, "columns": 16384}],
    "reduction": [{"n": 2**26}, {"n": 2**28}],
    "softmax": [{"rows": 16384, "columns": 4096}, {"rows": 65536, "columns": 1024}],
    "stencil": [{"nx": 8192, "ny": 8192}, {"nx": 16384, "ny": 16384}],
    "convolution_cuda": [{"width": 4096, "height": 4096}, {"width": 8192, "height": 8192}],
}
RUNS = 20


class Bars:
    """Times what a kernel is compared with, in this process."""

    def __init__(self) -> None:
        import cupy

        from mltune.device.query import query_device
        from mltune.measure.stopwatch import SeriesStopwatch

        self.cupy = cupy
        self.device = query_device(0)
        self._stopwatch = SeriesStopwatch(self.device.l2_bytes)

    def seconds(self, launch: Callable[[], Any]) -> float:
        """Return the median time of some work on the default stream."""
        for _ in range(3):
            launch()
        return statistics.median(self._stopwatch.take(launch, RUNS))

    def of(self, kernel: str, sizes: dict[str, int]) -> dict[str, float]:
        """Return the times of the bars of a kernel by name, seconds."""
        found = getattr(self, f"_{kernel}", lambda sizes: {})(sizes)
        self.cupy.get_default_memory_pool().free_all_blocks()
        return {name: self.seconds(launch) for name, launch in found.items()}

    def _transpose(self, sizes: dict[str, int]) -> dict[str, Callable[[], Any]]:
        a = self.cupy.ones((sizes["rows"], sizes["columns"]), dtype=self.cupy.float32)
        b = self.cupy.empty_like(a)
        return {"copy": lambda: b.data.copy_from_device_async(a.data, a.nbytes)}

    def _reduction(self, sizes: dict[str, int]) -> dict[str, Callable[[], Any]]:
        import torch

        self.cupy._core.set_reduction_accelerators(["cub"])  # CuPy's sum is then CUB's DeviceReduce
        a = self.cupy.ones(sizes["n"], dtype=self.cupy.float32)
        out = self.cupy.empty((), dtype=self.cupy.float32)
        t = torch.as_tensor(a, device="cuda")
        return {
            "CUB": lambda: a.sum(out=out),
            "PyTorch sum": lambda: torch.sum(t),
        }

    def _softmax(self, sizes: dict[str, int]) -> dict[str, Callable[[], Any]]:
        import torch
        from cupyx.scipy.special import softmax

        a = self.cupy.random.rand(sizes["rows"], sizes["columns"], dtype=self.cupy.float32).astype(self.cupy.float16)
        b, t = self.cupy.empty_like(a), torch.as_tensor(a, device="cuda")
        return {
            "copy": lambda: b.data.copy_from_device_async(a.data, a.nbytes),
            "CuPy softmax": lambda: softmax(a, axis=1),
            "PyTorch softmax": lambda: torch.softmax(t, dim=1),
        }


def tuned(kernel: str, sizes: dict[str, int], **options: Any) -> tuple[TuneResult, float]:
    """Tune a kernel; return the result and the seconds that it took."""
    begin = time.perf_counter()
    result = mltune.tune(kernel, size=sizes, device="cuda:0", stop=False, wisdom="none", progress=None, **options)
    return result, time.perf_counter() - begin


def first(kernel: str, sizes: dict[str, int], count: int) -> dict[str, Any]:
    """Measure the first configurations of a space, in the order in which Kernel Tuner's brute force does."""
    import numpy as np

    begin = time.perf_counter()
    problem, bundle = named_problem(kernel, {"size": sizes})
    with open_session(TuneRequest(problem, bundle, Target(cuda=0))) as session:
        rows = session.placed.space.rows(np.arange(min(count, session.placed.space.count)))
        configurations = [row(rows, number) for number in range(len(rows[next(iter(rows))]))]
        builds = [session.builder.submit(one) for one in configurations]
        measured = [
            session.runner.submit(one, build.result()).result()
            for one, build in zip(configurations, builds, strict=True)
            if build.result().state == "ok"
        ]
    times_s = [one.median_s for one in measured if one.state == "ok" and one.median_s is not None]
    return {
        "best_s": min(times_s, default=None),
        "trials": count,
        "ok": len(times_s),
        "wall_s": time.perf_counter() - begin,
    }


def figures(result: TuneResult, wall_s: float) -> dict[str, Any]:
    """Return the figures of a result."""
    rated = result.best_rating or {}
    defaults = [record.median_s for record in result.records if record.proposed_by == "default"]
    return {
        "best_s": result.best_time_s,
        "interval_s": rated.get("interval_s"),
        "speed_up_over_default": rated.get("share_of_reference"),
        "default_s": defaults[0] if defaults else None,
        "verified": rated.get("verified"),
        "configuration": result.best_config,
        "trials": len(result.records),
        "counts": {state: count for state, count in result.counts.items() if count},
        "wall_s": wall_s,
        "seconds": dict(result.seconds),
        "curve": [[int(at), best_s] for at, best_s in result.improvements(by_time=False)],
    }


def main() -> None:
    """Measure every kernel."""
    parser = parser_of(__doc__, RESULTS / "kernels.json")
    parser.add_argument("--kernels", default=",".join(CASES))
    parser.add_argument("--long", default="25s", help="time of the long runs")
    parser.add_argument("--seeds", type=int, default=3, help="runs with 60 trials")
    parser.add_argument("--sweeps", type=int, default=0, help="configurations of a dataset of each kernel")
    parser.add_argument("--datasets", type=Path, help="folder that the datasets are copied to")
    options = parser.parse_args()
    bars, kernels = Bars(), {}
    header = gpu_provenance()
    for kernel in options.kernels.split(","):
        for position, sizes in enumerate(CASES[kernel]):
            problem, bundle = named_problem(kernel, {"size": sizes})
            entry: dict[str, Any] = {"bytes": problem.bytes, "flops": problem.flops, "bars_s": bars.of(kernel, sizes)}
            entry["short"] = [figures(*tuned(kernel, sizes, trials=60, seed=seed)) for seed in range(options.seeds)]
            entry["random"] = figures(*tuned(kernel, sizes, trials=60, search="random"))
            entry["brute_force"] = first(kernel, sizes, 60)
            entry["long"] = figures(*tuned(kernel, sizes, time=options.long, seed=100))
            kernels[problem.label] = entry
            write(options.output, header | {"kernels": kernels})
            print(
                problem.label,
                json.dumps(entry["bars_s"]),
                *(one["best_s"] for one in (*entry["short"], entry["random"], entry["brute_force"], entry["long"])),
                flush=True,
            )
            if position == 0 and options.sweeps:
                with tempfile.TemporaryDirectory() as folder:
                    request = TuneRequest(problem, bundle, Target(cuda=0), run=Path(folder) / "run")
                    path = sweep(request, options.sweeps)
                    for file in (path, path.with_suffix(".json")):
                        shutil.copy(file, options.datasets)


if __name__ == "__main__":
    main()
