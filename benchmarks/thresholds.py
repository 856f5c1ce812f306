"""What hand-set thresholds cost: ASTRA's pruning (LAPACK Working Note 267) on every recorded GEMM.

For each recorded space, and each of the two thresholds that play a role (threads on a multiprocessor, register reuse):
the share of the configurations that it removes, and the fastest of what it removes and of what it keeps, as shares of
the fastest of all. Then the values of the ten fastest; what thresholds would be left if somebody had known these; and
the search with learned gates: the fastest after 25 and 100 measurements, and how many it needs to pass the fastest
kernel that the thresholds keep.

    python benchmarks/thresholds.py [--seeds 10] [--jobs 2] [--output thresholds.json]
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import mltune
from mltune.comparison.recording import record
from mltune.comparison.shipped import ShippedSearch
from mltune.comparison.simulation import simulate
from mltune.cost.features import BUILD_COLUMNS, Features
from mltune.dataset.dataset import Dataset, list_datasets, load_dataset
from mltune.kernel.reader import load_kernel
from mltune.search.astra import NEEDED, AstraThresholds, Thresholds

MEASUREMENTS = 200
AT = (25, 100)
FASTEST = 10
NOTHING = Thresholds(0, 0.0)


def speeds(dataset: Dataset) -> np.ndarray:
    """Return the speed of each configuration as a share of the fastest; 0 for one that failed."""
    times_s = np.where(dataset.states == "ok", dataset.numbers("median_s"), np.inf)
    return np.min(times_s) / times_s


def row_of(name: str) -> dict[str, Any]:
    """Return what the thresholds do to one recorded space."""
    dataset = load_dataset(name)
    manifest, speed = dataset.manifest, speeds(dataset)
    kernel = load_kernel(manifest.kernel)
    paper = AstraThresholds(kernel, manifest.problem, manifest.device).thresholds

    def kept(thresholds: Thresholds) -> np.ndarray:
        return AstraThresholds(kernel, manifest.problem, manifest.device, thresholds).keeps(dataset.columns)

    parts = {
        "threads": kept(replace(paper, register_reuse=0.0)),
        "reuse": kept(replace(paper, threads_per_sm=0)),
        "both": kept(paper),
    }
    builds = {each: dataset.numbers(each) for each in BUILD_COLUMNS if each in dataset.table.column_names}
    derived = Features(kernel, manifest.problem, manifest.device).derived(dataset.columns, builds)
    scalars = 2.0 if manifest.problem.variables().get("is_complex", 0) else 1.0
    threads = derived["blocks_per_sm"] * derived["threads"]
    reuse = scalars * derived["register_reuse"]
    best = np.argsort(-speed, kind="stable")[:FASTEST]
    known = kept(Thresholds(float(threads[best[0]]), float(reuse[best[0]])))
    return {
        "dataset": name,
        "configurations": len(dataset),
        "thresholds": [paper.threads_per_sm, paper.register_reuse],
        **{f"removed by {part}": float(1.0 - keeps.mean()) for part, keeps in parts.items()},
        **{f"best kept by {part}": float(speed[keeps].max(initial=0.0)) for part, keeps in parts.items()},
        "best removed": float(speed[~parts["both"]].max(initial=0.0)),
        "faster than what is kept": int(np.count_nonzero(speed > speed[parts["both"]].max(initial=0.0))),
        "threads of the fastest": [int(threads[best[0]]), int(threads[best].min()), int(threads[best].max())],
        "reuse of the fastest": [float(reuse[best[0]]), float(reuse[best].min()), float(reuse[best].max())],
        "kept if known": float(known.mean()),
    }


def search(name: str, seed: int) -> list[float]:
    """Replay a search, and return the fastest after each measurement as a share of the fastest of all."""
    dataset = load_dataset(name)
    recording = record(dataset, load_kernel(dataset.manifest.kernel))
    trace = simulate(ShippedSearch(), recording, MEASUREMENTS, seed)
    speed = np.nan_to_num(np.nanmin(recording.median_s) / recording.median_s)
    return np.maximum.accumulate(speed[trace.indices]).tolist()


def passed(curve: list[float], kept: float) -> int:
    """Return the measurements after which a search has passed what thresholds keep; one more than it made if never."""
    better = np.array(curve) > kept
    return int(np.argmax(better)) + 1 if better.any() else MEASUREMENTS + 1


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the rows as two tables."""
    first = [
        "space | thresholds | removed: threads | reuse | both | best kept: threads | reuse | both | faster ones lost"
    ]
    second = ["space | threads of the fastest | reuse of the fastest | kept if known | search: 25 | 100 | to pass"]
    for row in rows:
        shares = [
            f"{row[f'{what} by {part}']:.3f}"
            for what in ("removed", "best kept")
            for part in ("threads", "reuse", "both")
        ]
        least = " and ".join(f"{value:g}" for value in row["thresholds"])
        first.append(" | ".join([row["dataset"], least, *shares, f"{row['faster than what is kept']:,}"]))
        values = [
            f"{one:.3g} ({low:.3g} to {high:.3g})"
            for one, low, high in (row["threads of the fastest"], row["reuse of the fastest"])
        ]
        found = [f"{row['search'][str(at)]:.3f}" for at in AT]
        second.append(
            " | ".join([row["dataset"], *values, f"{row['kept if known']:.3f}", *found, f"{row['to pass']:g}"])
        )
    tables = []
    for lines in (first, second):
        header, *body = (f"| {line} |" for line in lines)
        tables.append("\n".join([header, f"|{'---|' * (header.count('|') - 1)}", *body]))
    return "\n\n".join(tables)


def main() -> None:
    """Run the study and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "thresholds.json")
    arguments = parser.parse_args()
    names = [one.name for one in list_datasets() if set(NEEDED) <= set(load_kernel(one.kernel).resources)]
    rows = [row_of(name) for name in names]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        jobs = {name: [pool.submit(search, name, seed) for seed in range(arguments.seeds)] for name in names}
        for row in rows:
            curves = [job.result() for job in jobs[row["dataset"]]]
            row["search"] = {str(at): float(np.mean([curve[min(at, len(curve)) - 1] for curve in curves])) for at in AT}
            row["to pass"] = float(np.median([passed(curve, row["best kept by both"]) for curve in curves]))
    document = {
        "date": time.strftime("%Y-%m-%d"),
        "command": f"python benchmarks/thresholds.py --seeds {arguments.seeds}",
        "versions": {"mltune": mltune.__version__, "python": platform.python_version(), "numpy": np.__version__},
        "rows": rows,
    }
    arguments.output.write_text(f"{json.dumps(document, indent=1)}\n", encoding="utf-8")
    print(markdown(rows))


if __name__ == "__main__":
    main()
