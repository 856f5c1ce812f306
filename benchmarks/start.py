"""Seconds of a tune from the start of its process to its first submitted build, on an imaginary H200.

Everything is as on a GPU with NVRTC, but for the queries of the GPU and its worker process. `session` is the moment
when compilers start, `build` that of the first build that they get, `batch` that of the rest of the first batch. Each
tune is run in a process of its own, and there once more (`again`, from its call). The result has the wall and the
processor seconds of each.

    python benchmarks/start.py --repeat 7 --output benchmarks/results/start.json
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any, NoReturn

import harness
import numpy as np

N = 1 << 20
ADD = """
__global__ void add(float* c, const float* a, const float* b, int n) {
  int i = blockIdx.x * block_size_x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}
"""
KINDS = ("sgemm", "add")


class Planned(BaseException):
    """The first batch is planned: the tune ends."""


def tune(kind: str, begun: float, run: str) -> None:
    """Run one tune in this process twice, each up to its first batch: print the seconds until then."""
    import mltune
    from mltune.device.known import H200
    from mltune.measure import build, runner
    from mltune.resolve import device as devices
    from mltune.tuning import session

    marks: dict[str, tuple[float, float]] = {}
    since = begun, 0.0

    def note(name: str) -> None:
        marks.setdefault(name, (time.time() - since[0], time.process_time() - since[1]))

    class Builder(build.NvrtcBuilder):
        def __enter__(self) -> Builder:
            note("session")
            super().__enter__()
            return self

        def foresee(self, configuration: Mapping[str, int]) -> None:
            note("build")
            super().foresee(configuration)

        def submit(self, configuration: Mapping[str, int]) -> NoReturn:
            note("build")
            note("batch")
            raise Planned

    class Runner:
        def __init__(self, *arguments: Any, **options: Any) -> None: ...

        def __enter__(self) -> Runner:
            return self

        def __exit__(self, *error: object) -> None: ...

        def abandon(self) -> None: ...

        def expect_winner(self) -> None: ...

    devices.find_gpus = lambda: ([H200], "")
    session.gpu_facts = lambda *_: (H200, "13.0")
    build.NvrtcBuilder, runner.GpuRunner, runner.start_worker = Builder, Runner, lambda *_: None
    options = {"device": "cuda:0", "time": 20.0, "wisdom": "none", "progress": None}
    seconds = {}
    for name in ("fresh", "again"):
        with contextlib.suppress(Planned):
            if kind == "sgemm":
                mltune.tune("sgemm", trans="NN", kernel="gemm_simt", run=f"{run}-{name}", **options)
            else:
                array, sizes = np.ones(N, np.float32), {"block_size_x": [32 * i for i in range(1, 33)]}
                arguments = [array, array, array, np.int32(N)]
                mltune.tune_kernel("add", ADD, N, arguments, sizes, run=f"{run}-{name}", **options)
        seconds[name], marks = marks, {}
        since = time.time(), time.process_time()
    print(json.dumps(seconds), flush=True)
    os._exit(0)


def main() -> None:
    """Run the tunes in turns, and print the medians."""
    parser = harness.parser_of(__doc__)
    parser.add_argument("--repeat", type=int, default=7)
    options = parser.parse_args()
    found: dict[str, list[dict[str, dict[str, tuple[float, float]]]]] = {kind: [] for kind in KINDS}
    for _ in range(options.repeat):
        for kind in KINDS:
            with tempfile.TemporaryDirectory() as folder:
                command = [sys.executable, __file__, "--tune", kind, str(time.time()), f"{folder}/run"]
                found[kind].append(json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout))
    medians = {
        f"{kind} {turn}": {
            name: [round(statistics.median(row[turn][name][at] for row in rows), 2) for at in (0, 1)]
            for name in rows[0][turn]
        }
        for kind, rows in found.items()
        for turn in rows[0]
    }
    print(json.dumps(medians))
    head = harness.provenance(*harness.SEARCHING, of="wall and processor time")
    harness.write(options.output, {**head, "medians": medians, "rows": found})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--tune"]:
        tune(sys.argv[2], float(sys.argv[3]), sys.argv[4])
    else:
        main()
