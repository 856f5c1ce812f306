"""Searches on a GPU, each with the same wall clock: the best over time, and the seconds of each phase.

Every run begins without a model or cubins from before. The searches of one seed follow each other, so that all see the
same GPU. ``astra`` is random search within the hand-set thresholds of LAWN 267, ``tpe`` is Optuna's TPE restricted to
valid configurations.

    python benchmarks/gpu_search.py --cases sNT --seeds 3 --time 60 --name gpu_search_s
    python benchmarks/gpu_search.py --cases cNT --seeds 1 --time 60 --name gpu_search_c
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from harness import RESULTS, curve, gpu_provenance, parser_of, rates, write

from mltune.kernel.reader import load_kernel
from mltune.measure.build import available_cores
from mltune.problem.gemm import parse_problem
from mltune.records.store import Store
from mltune.resolve.device import Target
from mltune.resolve.request import TuneRequest
from mltune.tuning.tuner import tune

SEARCHES: dict[str, dict[str, Any]] = {
    "mltune": {"search": "model", "skip": True},
    "mltune-noskip": {"search": "model", "skip": False},
    "tpe": {"search": "tpe", "skip": False},
    "random": {"search": "random", "skip": False},
    "astra": {"search": "astra", "skip": False},
}

MOMENTS = (5, 10, 20, 30, 45, 60)
"""Seconds at which the table shows the best so far."""


def measure(search: str, case: str, size: int, time_s: float, seed: int) -> dict[str, Any]:
    """Run one search and return its row."""
    problem = parse_problem(f"{case[0]}gemm", trans=case[1:], m=size, n=size, k=size)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["XDG_CACHE_HOME"] = scratch
        os.environ["MLTUNE_WISDOM"] = "none"  # no winners of earlier runs
        run = Path(scratch) / "run"
        request = TuneRequest(
            problem, load_kernel("gemm_simt"), Target(cuda=0), time_s=time_s, seed=seed, run=run, stop=False
        )
        result = tune(replace(request, **SEARCHES[search]))
        with Store.read_only(run) as store:
            started = store.header.created_at
    document = result.to_json()
    return {
        "search": search,
        "case": problem.case,
        "seed": seed,
        "cores": available_cores(),
        **{name: document[name] for name in ("trials", "counts", "best", "seconds")},
        "skips": result.audit.to_json(),
        "reference_tflops": None if result.reference_s is None else problem.flops / result.reference_s / 1e12,
        **rates(result),
        "curve": curve(list(result.records), started, problem.flops),
    }


def found(row: dict[str, Any], moment: float) -> float:
    """Return the best TFLOPS at a moment; 0 before anything succeeded."""
    return max((tflops for at, tflops in row["curve"] if at <= moment), default=0.0)


def table(rows: list[dict[str, Any]], time_s: float) -> str:
    """Return means over seeds as Markdown."""
    moments = [moment for moment in MOMENTS if moment <= time_s]
    heads = [f"{moment} s" for moment in moments]
    columns = ["case", "search", "seeds", *heads, "timed", "skipped", "search s", "compile s", "GPU s", "false skips"]
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for case in dict.fromkeys(row["case"] for row in rows):
        for search in SEARCHES:
            some = [row for row in rows if (row["case"], row["search"]) == (case, search)]
            if not some:
                continue
            best = [np.mean([found(row, moment) for row in some]) for moment in moments]
            seconds = [np.mean([row["seconds"][name] for row in some]) for name in ("search", "compile", "time")]
            timed = np.mean([row["trials"] - row["counts"]["skipped"] for row in some])
            skipped = np.mean([row["counts"]["skipped"] for row in some])
            audited, false = (sum(row["skips"][name] for row in some) for name in ("audited", "false"))
            cells = [
                case,
                search,
                str(len(some)),
                *(f"{value:.2f}" for value in best),
                f"{timed:.0f}",
                f"{skipped:.0f}",
            ]
            cells += [*(f"{value:.1f}" for value in seconds), f"{false} of {audited}"]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and write JSON and Markdown after every run."""
    parser = parser_of(__doc__, RESULTS)
    parser.add_argument("--time", type=float, default=60.0, help="seconds per run")
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--cases", default="sNT")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--searches", default=",".join(SEARCHES))
    parser.add_argument("--name", default="gpu_search")
    asked = parser.parse_args()
    asked.seed = asked.first_seed
    rows: list[dict[str, Any]] = []
    for case in asked.cases.split(","):
        for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
            for search in asked.searches.split(","):
                rows.append(measure(search, case, asked.size, asked.time, seed))
                print(table(rows[-1:], asked.time).splitlines()[-1], flush=True)
                document = {**gpu_provenance(seconds_per_case=asked.time, seed=asked.seed), "runs": rows}
                write(asked.output / f"{asked.name}.json", document)
    heading = f"{document['date']}, {document['device']['name']}, {rows[0]['cores']} cores, `{document['command']}`"
    text = f"{heading}\n\nBest TFLOPS so far, mean over seeds.\n\n{table(rows, asked.time)}\n"
    write(asked.output / f"{asked.name}.json", document, text)


if __name__ == "__main__":
    main()
