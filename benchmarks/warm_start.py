"""The first seconds of a tune on a GPU, without and with a pretrained model: fastest so far by time and by trials.

Every run starts in a process of its own with an empty cache of cubins, without a wisdom, and without the stopping rule.
On a host with several GPUs one run goes on each, with its share of the cores.

    python benchmarks/warm_start.py [--cases sgemm:NT,cgemm:NN,sgemm:TN] [--seeds 4] [--time 10s] [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import mltune
from mltune.records.versions import installed_versions

SECONDS = (2, 3, 4, 5, 7, 10, 20)
TRIALS = (1, 8, 16, 32, 64, 128)
PRIORS = {"cold": "none", "warm": "gemm_simt"}


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Tune one case, and return the fastest so far in TFLOPS."""
    started = time.monotonic()
    result = mltune.tune(
        case["problem"],
        trans=case["trans"],
        size=4096,
        time=case["time"],
        seed=case["seed"],
        prior=PRIORS[case["start"]],
        wisdom="none",
        stop=False,
        run=Path(tempfile.mkdtemp()) / "run",
        device="cuda:0",
        progress=None,
    )
    timed = [(one.elapsed_s, one.number, result.flops / one.median_s / 1e12) for one in result.measured()]
    return case | {
        "by_seconds": [round(max((rate for at, _, rate in timed if at <= limit), default=0.0), 2) for limit in SECONDS],
        "by_trials": [round(max((rate for _, at, rate in timed if at < limit), default=0.0), 2) for limit in TRIALS],
        "best_tflops": round(result.flops / result.best_time_s / 1e12, 2),
        "trials": len(result.records),
        "search_s": round(result.seconds.get("search", 0.0), 2),
        "wall_s": round(time.monotonic() - started, 1),
    }


def main() -> None:
    """Run all cases, each in a process on the next free GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="sgemm:NT,cgemm:NN,sgemm:TN")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--time", default="10s")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "warm_start.json")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(run(json.loads(arguments.one))))
        return
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    gpus = [line for line in listed.splitlines() if line.startswith("GPU")]
    cores = (os.cpu_count() or 1) // len(gpus)
    free: SimpleQueue[int] = SimpleQueue()
    for gpu in range(len(gpus)):
        free.put(gpu)

    def measure(case: dict[str, Any]) -> dict[str, Any]:
        gpu = free.get()
        try:
            pinned = ["taskset", "-c", f"{gpu * cores}-{gpu * cores + cores - 1}"]
            with tempfile.TemporaryDirectory() as cache:
                found = subprocess.run(
                    [*pinned, sys.executable, __file__, "--one", json.dumps(case)],
                    env=os.environ | {"CUDA_VISIBLE_DEVICES": str(gpu), "XDG_CACHE_HOME": cache},
                    capture_output=True,
                    text=True,
                    check=True,
                )
        finally:
            free.put(gpu)
        print(found.stdout, end="", flush=True)
        return json.loads(found.stdout)

    cases = [
        {"problem": problem, "trans": trans, "start": start, "seed": seed, "time": arguments.time}
        for seed in range(1, arguments.seeds + 1)
        for problem, trans in (case.split(":") for case in arguments.cases.split(","))
        for start in PRIORS
    ]
    with ThreadPoolExecutor(len(gpus)) as pool:
        rows = list(pool.map(measure, cases))
    document = {
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(["python", *sys.argv]),
        "gpu": gpus[0].partition(":")[2].partition("(")[0].strip(),
        "cores_of_a_run": cores,
        "versions": {"mltune": mltune.__version__, **installed_versions("numpy", "scikit-learn", "cupy-cuda13x")},
        "seconds": SECONDS,
        "counts": TRIALS,
        "rows": rows,
    }
    arguments.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
