"""The first seconds of a tune on a GPU, without and with a pretrained model: fastest so far by time and by trials.

Every run starts in a process of its own with an empty cache of cubins, without a wisdom, and without the stopping rule.
On a host with several GPUs one run goes on each, with its share of the cores.

    python benchmarks/warm_start.py [--cases sgemm:NT,cgemm:NN,sgemm:TN] [--seeds 4] [--time 10s] [--output FILE]
    python benchmarks/warm_start.py --starts cold --time 30s --keep FOLDER     # also the runs, as datasets
    python benchmarks/warm_start.py --model 'FOLDER/without-{problem}-{trans}.json'
    python benchmarks/warm_start.py --multiprocessors 16,32,64                 # parts of the GPU, as smaller GPUs

A part of a GPU is a green context: it has fewer multiprocessors, and all of the memory's bandwidth and cache.
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

import gpu_part

import mltune
from mltune.dataset.dataset import export_run
from mltune.records.versions import installed_versions

SECONDS = (2, 3, 4, 5, 7, 10, 20, 30)
TRIALS = (1, 8, 16, 32, 64, 128, 256)


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Tune one case, and return the fastest so far in TFLOPS."""
    if case["multiprocessors"]:
        gpu_part.use(case["multiprocessors"])
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp()) / "{problem}-{trans}-{start}-{seed}".format_map(case)
    result = mltune.tune(
        case["problem"],
        trans=case["trans"],
        size=4096,
        time=case["time"],
        seed=case["seed"],
        prior="none" if case["start"] == "cold" else case["model"].format_map(case),
        wisdom="none",
        stop=False,
        run=folder,
        device="cuda:0",
        progress=None,
    )
    if case["keep"]:
        export_run(folder, Path(case["keep"]))
    timed = [(one.elapsed_s, one.number, result.flops / one.median_s / 1e12) for one in result.measured()]
    return case | {
        "by_seconds": [round(max((rate for at, _, rate in timed if at <= limit), default=0.0), 2) for limit in SECONDS],
        "by_trials": [round(max((rate for _, at, rate in timed if at < limit), default=0.0), 2) for limit in TRIALS],
        "best_tflops": round(result.flops / result.best_time_s / 1e12, 2),
        "trials": len(result.records),
        "phases_s": {phase: round(seconds, 2) for phase, seconds in result.seconds.items()},
        "wall_s": round(time.monotonic() - started, 1),
    }


def main() -> None:
    """Run all cases, each in a process on the next free GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="sgemm:NT,cgemm:NN,sgemm:TN")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--time", default="10s")
    parser.add_argument("--starts", default="cold,warm")
    parser.add_argument("--model", default="gemm_simt", help="name or file of the model, with {problem} and {trans}")
    parser.add_argument("--multiprocessors", default="0", help="of each part of the GPU; 0 for all")
    parser.add_argument("--gpus", default="", help="numbers of the GPUs to use, such as 0,1; all by default")
    parser.add_argument("--keep", default="", metavar="FOLDER", help="export the runs there as datasets")
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
    used = [int(one) for one in arguments.gpus.split(",")] if arguments.gpus else list(range(len(gpus)))
    for gpu in used:
        free.put(gpu)

    def measure(case: dict[str, Any]) -> dict[str, Any]:
        gpu = free.get()
        try:
            pinned = ["taskset", "-c", f"{gpu * cores}-{gpu * cores + cores - 1}"]
            with tempfile.TemporaryDirectory() as cache:
                found = subprocess.run(
                    [*pinned, sys.executable, __file__, "--one", json.dumps(case)],
                    env=os.environ | {"CUDA_VISIBLE_DEVICES": str(gpu), "XDG_CACHE_HOME": cache},
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
        finally:
            free.put(gpu)
        print(found.stdout, end="", flush=True)
        return json.loads(found.stdout)

    cases = [
        {"problem": problem, "trans": trans, "multiprocessors": part, "start": start, "seed": seed}
        | {name: getattr(arguments, name) for name in ("time", "model", "keep")}
        for part in map(int, arguments.multiprocessors.split(","))
        for seed in range(1, arguments.seeds + 1)
        for problem, trans in (case.split(":") for case in arguments.cases.split(","))
        for start in arguments.starts.split(",")
    ]
    with ThreadPoolExecutor(len(used)) as pool:
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
