"""The same short tune in different surroundings, in turns: where its records are, and who compiles for it.

    python benchmarks/surroundings.py --arms file,postgresql --store postgresql://me@host/name --name database_tunes
    python benchmarks/surroundings.py --arms few,farm,all --name farm_tunes

``few`` has the first ``--cores`` cores of the host, ``farm`` has them and the compile workers of a cluster on the other
cores, ``all`` has all. Each tune is one of 20 seconds of SGEMM at 2048 with a seed and empty caches of its own, which
does not end by itself.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mltune.measure.cluster_connection import versions

TUNE = "tune sgemm --kernel gemm_simt --size 2048 --time 20s --no-stop --prior none --wisdom none --json"
WORKERS = 3


def pinned(cores: Sequence[int], *command: str) -> list[str]:
    """Return a command that runs on some cores."""
    return ["taskset", "-c", ",".join(map(str, cores)), *command]


@contextlib.contextmanager
def compile_workers(folder: Path, cores: Sequence[int]) -> Iterator[Path]:
    """Start a cluster on some cores, and yield its scheduler file."""
    file, own = folder / "scheduler.json", os.environ | {"XDG_CACHE_HOME": str(folder / "cache of the workers")}
    dask = [sys.executable, "-m", "dask"]
    each = len(cores) // WORKERS
    commands = [[*dask, "scheduler", "--host", "tcp://127.0.0.1", "--port", "0", "--scheduler-file", str(file)]]
    options = ["--scheduler-file", str(file), "--nthreads", str(each), "--resources", f"COMPILE={each}"]
    commands += [[*dask, "worker", *options, "--name", f"worker-{at}", "--memory-limit", "0"] for at in range(WORKERS)]
    processes = []
    try:
        for command in commands:
            process = subprocess.Popen(pinned(cores, *command), env=own, stderr=subprocess.DEVNULL)
            processes.append(process)
            while not file.exists():
                time.sleep(0.1)
        time.sleep(8.0)  # until the workers have joined and imported what they need
        yield file
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait()


def tune(arm: str, seed: int, cores: Sequence[int], few: int, store: str, folder: Path) -> dict[str, Any]:
    """Tune once, in a process of its own."""
    command = [sys.executable, "-m", "mltune", *TUNE.split(), "--seed", str(seed), "--run", str(folder / "run")]
    own = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
    with contextlib.ExitStack() as stack:
        if arm == "postgresql":
            command += ["--store", store]
        if arm == "farm":
            file = stack.enter_context(compile_workers(folder, cores[few:]))
            command += ["--compile-on", str(file)]
        mine = cores[:few] if arm in ("few", "farm") else cores
        done = subprocess.run(pinned(mine, *command), capture_output=True, text=True, env=own)
    if done.returncode:
        raise RuntimeError(done.stderr)
    document = json.loads(done.stdout)
    seconds = document["seconds"]
    return {
        "seed": seed,
        "trials": document["trials"],
        "counts": document["counts"],
        "total_s": round(seconds["total"], 2),
        "record_s": round(seconds["record"], 3),
        "compile_s": round(seconds["compile"], 1),
        "tflops": round(document["best"]["tflops"], 2),
    }


def main() -> None:
    """Tune in turns, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", default="few,farm,all")
    parser.add_argument("--cores", type=int, default=4, help="cores of the arms few and farm")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--store", default="", help="URL of a PostgreSQL database")
    parser.add_argument("--name", required=True)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    found: dict[str, list[dict[str, Any]]] = {arm: [] for arm in arguments.arms.split(",")}
    for seed in range(arguments.rounds):
        for arm in sorted(found, reverse=seed % 2 == 1):
            with tempfile.TemporaryDirectory() as folder:
                row = tune(arm, seed, cores, arguments.cores, arguments.store, Path(folder))
            found[arm].append(row)
            print(arm, json.dumps(row), flush=True)
    document = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": f"python benchmarks/surroundings.py --arms {arguments.arms} --rounds {arguments.rounds}",
        "tune": f"mltune {TUNE}",
        "cores": len(cores),
        "cores_of_few": arguments.cores,
        "versions": versions() | {"python": platform.python_version()},
        "median_trials": {arm: statistics.median(row["trials"] for row in rows) for arm, rows in found.items()},
        "tunes": found,
    }
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / f"{arguments.name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
