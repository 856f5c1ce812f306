"""Configurations chosen without a measurement for random shapes of GEMM, and some of these shapes tuned.

Of each precision, shapes with m, n and k between 64 and 8192 (the logarithm is uniform) and random transpositions. For
all of them the first choice is made (`mltune predict`); some are tuned in a campaign in which no problem knows what
another has found. The share is the speed of a run's first choice (it depends on the seed which configurations were
considered) over that of the fastest configuration found.

    python benchmarks/shapes.py [--shapes 200] [--tuned 20] [--time 5] [--precisions s,d,c,z] [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from cost_models import document
from sharing import campaign

from mltune.kernel.reader import load_kernel
from mltune.measure.build import available_cores
from mltune.problem.gemm import CASES, GemmProblem
from mltune.resolve.device import find_gpus

SMALLEST, LARGEST = 64, 8192


def shapes(precision: str, count: int, seed: int) -> list[tuple[str, list[int]]]:
    """Return transpositions and extents."""
    rng = np.random.default_rng([seed, ord(precision)])
    cases = [case[1] + case[2] for case in CASES if case[0] == precision]
    extents = np.exp(rng.uniform(np.log(SMALLEST), np.log(LARGEST), (count, 3))).astype(int)
    return [(cases[rng.integers(len(cases))], extent.tolist()) for extent in extents]


def choose(precision: str, trans: str, extents: list[int]) -> dict[str, Any]:
    """Return the first choice for a shape, and the seconds of choosing."""
    from mltune.tuning.prediction import predict

    started = time.perf_counter()
    problem = GemmProblem(precision, trans[0], trans[1], *extents)
    found = predict(problem, load_kernel("gemm_simt"), find_gpus()[0][0], wisdom="none")
    return {
        "label": problem.label,
        "configuration": dict(found.choices[0].configuration),
        "seconds": time.perf_counter() - started,
    }


def main() -> None:
    """Choose, tune, compare, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precisions", default="s,d,c,z")
    parser.add_argument("--shapes", type=int, default=200)
    parser.add_argument("--tuned", type=int, default=20)
    parser.add_argument("--time", type=float, default=5.0, help="seconds of each tuned shape")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="all")
    parser.add_argument("--keep", type=Path, help="folder for the runs as datasets")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/shapes.json"))
    arguments = parser.parse_args()
    os.environ["MLTUNE_WISDOM"] = "none"
    os.environ["OMP_NUM_THREADS"] = "1"
    drawn = {one: shapes(one, arguments.shapes, arguments.seed) for one in arguments.precisions.split(",")}
    jobs = [(precision, *shape) for precision, some in drawn.items() for shape in some]
    with ProcessPoolExecutor(available_cores(), mp_context=get_context("spawn")) as pool:
        choices = list(pool.map(choose, *zip(*jobs, strict=True)))
    tables = [
        {"precisions": [precision], "trans": [trans], "sizes": [extents]}
        for precision, some in drawn.items()
        for trans, extents in some[: arguments.tuned]
    ]
    rows = campaign(tables, arguments.time, device=arguments.device, seed=arguments.seed, keep=arguments.keep)
    for row in rows.values():
        row["share"] = row["best_s"] / row["first"]["median_s"]
    summary = {}
    for precision in drawn:
        shares = sorted(row["share"] for label, row in rows.items() if label.startswith(precision))
        summary[precision] = {
            "tuned": len(shares),
            "mean": statistics.mean(shares),
            "median": statistics.median(shares),
            "least": shares[0],
            "at_least_90_percent": sum(share >= 0.9 for share in shares),
        }
    made = {
        "shapes": len(choices),
        "distinct": len({json.dumps(one["configuration"], sort_keys=True) for one in choices}),
        "mean_seconds": statistics.mean(one["seconds"] for one in choices),
    }
    machine = f"{', '.join(one.name for one in find_gpus()[0])}; {available_cores()} cores"
    results = {"time_s": arguments.time, "summary": summary, "tuned": rows, "choices": made}
    found = document(results, machine)
    arguments.output.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
