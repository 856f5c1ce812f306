"""Five kernels of which no dataset and no model knows anything, tuned cold: how good after seconds, on a GPU.

Kernels are in benchmarks/unknown_kernels. Each tune is a call of :func:`mltune.tune_kernel` in a process of its own,
with an empty cache of cubins. ``--package FOLDER`` takes another version of the package, in turns with this one, and
``--long`` adds one long run for each kernel, so that the best is known better.

    python benchmarks/unknown_kernels.py --time 40 --seeds 0,1,2 --long 60 --output FILE
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import numpy as np

AFTER_S = (2, 5, 10, 20, 40)
"""Seconds after the beginning of a call at which the best so far is noted."""

SOURCES = Path(__file__).parent / "unknown_kernels"
UNROLLED = [1, 2, 4, 8]


def nbody(rng: np.random.Generator) -> dict[str, Any]:
    """Return the call that tunes the forces between 16384 bodies: 1,260 configurations."""
    bodies = rng.standard_normal((16384, 4), np.float32)
    return {
        "kernel_name": "accelerate",
        "problem_size": (len(bodies), 1),
        "arguments": [np.zeros_like(bodies), bodies, np.int32(len(bodies))],
        "tune_params": {
            "block_size_x": [32, 64, 128, 256, 512, 1024],
            "bodies": [1, 2, 3, 4, 6, 8],
            "use_shared": [1, 0],
            "unrolled": [1, 2, 4, 8, 16, 32],
            "root": [0, 1, 2],
        },
        "restrictions": ["block_size_x * bodies <= 4096"],
        "grid_div_x": ["block_size_x", "bodies"],
        "atol": 1e-1,
    }


def stencil3d(rng: np.random.Generator) -> dict[str, Any]:
    """Return the call that tunes a star of 25 points over 520 by 520 by 264."""
    nx, ny, nz = np.int32(520), np.int32(520), np.int32(264)
    grid = rng.standard_normal(int(nx) * int(ny) * int(nz), np.float32)
    return {
        "kernel_name": "star",
        "problem_size": (512, 512, 256),
        "arguments": [np.zeros_like(grid), grid, nx, ny, nz],
        "tune_params": {
            "block_size_x": [32, 16, 64, 128],
            "block_size_y": [4, 1, 2, 8, 16],
            "rows": [1, 2, 4],
            "planes": [32, 4, 8, 16, 64, 128, 256],
            "queue": [0, 1],
            "use_shared": [0, 1],
            "unrolled": [1, 2, 4],
        },
        "restrictions": ["block_size_x * block_size_y <= 1024", "block_size_x * block_size_y >= 32"],
        "grid_div_x": ["block_size_x"],
        "grid_div_y": ["block_size_y", "rows"],
        "grid_div_z": ["planes"],
        "atol": 1e-4,
    }


def dedispersion(rng: np.random.Generator) -> dict[str, Any]:
    """Return the call that tunes sums over 512 channels for 512 dispersion measures of 8192 samples."""
    channels, measures, length, padded = 512, 512, 8192, 12288
    squares = 1 / np.linspace(1.2, 1.5, channels) ** 2
    delays = (np.arange(measures)[:, None] * (squares - squares.min()) * 24).astype(np.int32)
    return {
        "kernel_name": "dedisperse",
        "problem_size": (length, measures),
        "arguments": [
            np.zeros(measures * length, np.float32),
            rng.standard_normal(channels * padded, np.float32),
            np.minimum(delays, padded - length - 1).ravel(),
            *(np.int32(one) for one in (channels, length, padded)),
        ],
        "tune_params": {
            "block_size_x": [64, 32, 128, 256, 512],
            "block_size_y": [4, 1, 2, 8, 16],
            "samples": [1, 2, 4, 8],
            "measures": [1, 2, 4, 8],
            "adjacent": [0, 1],
            "staged": [0, 16, 64],
            "unrolled": UNROLLED,
        },
        "restrictions": [
            "block_size_x * block_size_y <= 1024",
            "samples * measures <= 32",
            "samples > 1 or adjacent == 0",
        ],
        "grid_div_x": ["block_size_x", "samples"],
        "grid_div_y": ["block_size_y", "measures"],
        "atol": 1e-3,
    }


def bilateral(rng: np.random.Generator) -> dict[str, Any]:
    """Return the call that tunes a bilateral filter of 11 by 11 over 2048 by 2048."""
    image = rng.random(2048 * 2048, np.float32)
    return {
        "kernel_name": "bilateral",
        "problem_size": (2048, 2048),
        "arguments": [np.zeros_like(image), image, np.int32(2048), np.int32(2048)],
        "tune_params": {
            "block_size_x": [32, 8, 16, 64, 128],
            "block_size_y": [4, 1, 2, 8, 16],
            "tile_x": [1, 2, 4, 8],
            "tile_y": [1, 2, 4],
            "use_shared": [0, 1],
            "padding": [0, 1],
            "near": [0, 1],
            "unrolled": [1, 2, 11],
            "fast": [0, 1],
        },
        "restrictions": [
            "32 <= block_size_x * block_size_y <= 1024",
            "use_shared or padding == 0",
            "tile_x > 1 or near == 0",
        ],
        "grid_div_x": ["block_size_x", "tile_x"],
        "grid_div_y": ["block_size_y", "tile_y"],
        "atol": 1e-3,
    }


def assign(rng: np.random.Generator) -> dict[str, Any]:
    """Return the call that tunes distances of 2e6 points to the nearest of 64 centres."""
    count = 2_000_000
    centres = rng.standard_normal(64 * 16, np.float32)
    return {
        "kernel_name": "assign",
        "problem_size": (count, 1),
        "arguments": [
            np.zeros(count, np.float32),
            rng.standard_normal(count * 16, np.float32),
            centres,
            np.int32(count),
        ],
        "tune_params": {
            "block_size_x": [128, 32, 64, 192, 256, 384, 512, 1024],
            "points_each": [1, 2, 3, 4],
            "centres_each": [1, 2, 4, 8],
            "place": [0, 1, 2],
            "unrolled": UNROLLED,
        },
        "grid_div_x": ["block_size_x", "points_each"],
        "cmem_args": {"fixed": centres},
        "atol": 1e-3,
    }


CASES: dict[str, Callable[[np.random.Generator], dict[str, Any]]] = {
    one.__name__: one for one in (nbody, stencil3d, dedispersion, bilateral, assign)
}


def tune(case: str, seed: int, budget_s: float) -> dict[str, Any]:
    """Run one tune in this process; return what it found."""
    import mltune

    begun, call = time.time(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = mltune.tune_kernel(
            kernel_source=SOURCES / f"{case}.cu", time=budget_s, seed=seed, stop=False, wisdom="none", progress=None,
            run=f"{folder}/run", **CASES[case](np.random.default_rng(0)),
        )  # fmt: skip
        trace = harness.improvements(result.records, begun)
        return {
            "case": case,
            "seed": seed,
            "budget_s": budget_s,
            "trials": len(result.records),
            "states": {name: count for name, count in result.counts.items() if count},
            "best_s": result.best_time_s,
            "configuration": result.best_config,
            "after_s": harness.best_after(trace, AFTER_S),
            "trace": trace,
            "call_s": time.perf_counter() - call,
        }


def table(rows: list[dict[str, Any]]) -> str:
    """Return a line for each kernel and version: the share of the best of all runs after seconds, a mean of seeds."""
    lines = [
        f"| kernel | version | {' | '.join(f'{at} s' for at in AFTER_S)} | best, us |",
        "|" + "---|" * (len(AFTER_S) + 3),
    ]
    means: dict[str, list[list[float]]] = {}
    for case in dict.fromkeys(row["case"] for row in rows):
        of_case = [row for row in rows if row["case"] == case and row["best_s"]]
        best = min(time_s for row in of_case for _, time_s in row["trace"])
        for version in dict.fromkeys(row["version"] for row in of_case if not row["long"]):
            runs = [row for row in of_case if row["version"] == version and not row["long"]]
            shares = [
                statistics.mean(best / time_s if (time_s := row["after_s"][str(at)]) else 0.0 for row in runs)
                for at in AFTER_S if at <= runs[0]["budget_s"]
            ]  # fmt: skip
            means.setdefault(version, []).append(shares)
            cells = [f"{one:.3f}" for one in shares] + [""] * (len(AFTER_S) - len(shares))
            lines.append(f"| {case} | {version} | {' | '.join(cells)} | {1e6 * best:.1f} |")
    for version, shares in means.items():
        cells = [f"{statistics.mean(one):.3f}" for one in zip(*shares, strict=True)]
        lines.append(f"| mean | {version} | {' | '.join(cells + [''] * (len(AFTER_S) - len(cells)))} | |")
    return "\n".join(lines)


def main() -> None:
    """Run all tunes, or one in this process."""
    parser = harness.parser_of(__doc__)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--time", type=float, default=40.0, help="seconds")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--long", type=float, default=0.0, help="seconds of one further run for each kernel")
    parser.add_argument("--package", type=Path, help="folder of another version")
    parser.add_argument("--package-time", type=float, default=20.0, help="seconds of its tunes")
    parser.add_argument("--join", type=Path, nargs="*", help="results of several calls: write their table")
    parser.add_argument("--one", nargs=3, metavar=("CASE", "SEED", "SECONDS"), help="one tune, in this process")
    given = parser.parse_args()
    if given.one:
        case, seed, seconds = given.one
        print(json.dumps({"head": harness.gpu_provenance(), **tune(case, int(seed), float(seconds))}))
        return
    if given.join:
        documents = [json.loads(one.read_text(encoding="utf-8")) for one in given.join]
        rows = [row for one in documents for row in one["all"]]
        harness.write(given.output, {**documents[0], "all": rows}, table(rows))
        print(table(rows))
        return
    here, seeds = Path(__file__).parents[1], [int(one) for one in given.seeds.split(",")]
    head: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    for case in given.cases.split(","):
        plan = [("now", here, seed, given.time) for seed in seeds]
        if given.package:
            before = [("before", given.package, seed, given.package_time) for seed in seeds]
            plan = [one for pair in zip(plan, before, strict=True) for one in pair]
        if given.long:
            plan.append(("now", here, 100, given.long))
        for version, folder, seed, seconds in plan:
            with tempfile.TemporaryDirectory() as cache:
                own = {**os.environ, "XDG_CACHE_HOME": cache, "PYTHONPATH": str(folder)}
                command = [sys.executable, __file__, "--one", case, str(seed), str(seconds)]
                done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, env=own)
            if done.returncode:
                print(case, seed, version, "exit code", done.returncode, flush=True)
                continue
            row = json.loads(done.stdout.splitlines()[-1])
            head = row.pop("head") | {"command": harness.provenance()["command"]}
            rows.append({**row, "version": version, "long": seed == 100})
            print(case, version, seed, row["trials"], row["best_s"], round(row["call_s"], 1), row["states"], flush=True)
            harness.write(given.output, {**head, "all": rows}, table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
