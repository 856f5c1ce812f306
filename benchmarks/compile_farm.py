"""How fast a farm of compile workers is beside the compile processes of one host, in turns, on this machine.

Each arm makes the same builds, which no cache knows: 1, 2, ... processes of a pool, and as many Dask workers
of one core.

    python benchmarks/compile_farm.py --workers 1,2 --builds 24 --rounds 3

The results are written after every round.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import logging
import platform
import queue
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from distributed import Nanny, Scheduler, SpecCluster

from mltune.campaign.cluster.check import random_builds
from mltune.measure.cluster_connection import COMPILE, versions
from mltune.measure.compile_farm import CompileFarm
from mltune.measure.compile_pool import CompilePool, available_cores

FRESH = itertools.count(time.time_ns())


def seconds(submit: Any, macros: list[str]) -> float:
    """Return the seconds that builds take together, made anew."""
    begun = time.perf_counter()
    futures = [submit(f"// {next(FRESH)}\n{one}") for one in macros]
    states = {future.result().state for future in futures}
    if states != {"ok"}:
        raise RuntimeError(f"every build must succeed, but there are {states}")
    return time.perf_counter() - begun


def farm_seconds(farm: CompileFarm, source: Any, macros: list[str]) -> float:
    """Return the seconds that the workers of a farm take for builds, without this host."""
    done: queue.SimpleQueue[Any] = queue.SimpleQueue()
    begun, waiting, out = time.perf_counter(), [f"// {next(FRESH)}\n{one}" for one in macros], 0
    while waiting or out:
        batch = [waiting.pop() for _ in range(min(len(waiting), max(0, farm.room)))]
        if batch:
            farm.compile(source, [(f"{next(FRESH):064d}", one) for one in batch], lambda _, build: done.put(build))
            out += len(batch)
        build = done.get()
        if build is None:
            raise RuntimeError("a worker was lost")
        out -= 1
    return time.perf_counter() - begun


def seconds_of_pool(source: Any, macros: list[str], count: int) -> float:
    """Return the seconds that processes of this host take for builds."""
    with CompilePool(source, workers=count) as pool:
        seconds(pool.submit, macros[:count])  # the processes start
        return seconds(pool.submit, macros)


def seconds_of_cluster(source: Any, macros: list[str], count: int) -> float:
    """Return the seconds that workers of one core take for builds."""
    scheduler = {"cls": Scheduler, "options": {"host": "127.0.0.1", "port": 0, "dashboard": False}}
    with tempfile.TemporaryDirectory() as scratch:
        options = {
            "host": "127.0.0.1",
            "nthreads": 1,
            "resources": {COMPILE: 1},
            "memory_limit": 0,
            "dashboard": False,
            "env": {"XDG_CACHE_HOME": scratch},
            "silence_logs": logging.CRITICAL,
        }
        workers = {f"c{at}": {"cls": Nanny, "options": options | {"name": f"c{at}"}} for at in range(count)}
        with SpecCluster(workers=workers, scheduler=scheduler, silence_logs=logging.CRITICAL) as cluster:
            farm = CompileFarm(cluster.scheduler_address)
            farm_seconds(farm, source, macros[: 2 * count])  # the processes start
            taken_s = farm_seconds(farm, source, macros)
            farm.close()
            return taken_s


def main() -> None:
    """Measure in turns, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="1,2", help="numbers of workers, and of processes of the pool")
    parser.add_argument("--builds", type=int, default=24, help="builds for each worker")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--name", default="compile_farm")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    counts = [int(one) for one in arguments.workers.split(",")]
    times_s: dict[str, list[float]] = {f"{kind} {count}": [] for count in counts for kind in ("pool", "farm")}
    for _ in range(arguments.rounds):
        for count in counts:
            source, macros = random_builds(arguments.builds * count)
            times_s[f"pool {count}"].append(seconds_of_pool(source, macros, count))
            times_s[f"farm {count}"].append(seconds_of_cluster(source, macros, count))
            print(count, times_s[f"pool {count}"], times_s[f"farm {count}"], flush=True)
        rates = {arm: [arguments.builds * int(arm.split()[1]) / one for one in found] for arm, found in times_s.items()}
        document = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "command": " ".join(["python", *sys.argv]),
            "cores": available_cores(),
            "versions": versions() | {"python": platform.python_version()},
            "builds_for_each_worker": arguments.builds,
            "rounds": len(times_s[f"pool {counts[0]}"]),
            "per_second": {
                arm: {"median": statistics.median(found), "least": min(found), "most": max(found)}
                for arm, found in rates.items()
            },
            "farm_over_pool": {
                count: statistics.median(rates[f"farm {count}"]) / statistics.median(rates[f"pool {count}"])
                for count in counts
            },
        }
        arguments.output.mkdir(parents=True, exist_ok=True)
        (arguments.output / f"{arguments.name}.json").write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
