"""Whole tunes on a GPU with and without compiler parameters, in turns: their winners, and the best after some seconds.

Each tune is a process of its own with an empty cache of cubins, as a user's first one. The result is JSON: a row for
each tune, with the share of the reference implementation that the finals measured.

    python benchmarks/variants.py --cases "sgemm NN 4096;dgemm TN 4096;softmax" --time 20 --seeds 0,1,2 --output FILE
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time

import harness

AFTER_S = (5, 10, 15, 20, 40)
"""Seconds after the beginning of a call at which the best so far is noted."""


def tune(case: str, seed: int, budget_s: float, *, variants: bool) -> dict[str, object]:
    """Run one tune in this process; return what it found."""
    import mltune

    name, *shape = case.split()
    size = {"trans": shape[0], "size": int(shape[1])} if shape else {}
    begun, call = time.time(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = mltune.tune(
            name, time=budget_s, seed=seed, variants=variants, stop=False, wisdom="none", progress=None,
            run=f"{folder}/run", **size,
        )  # fmt: skip
        call_s = time.perf_counter() - call
        runs = {one.kernel: one for one in (result, *result.rivals)}.values()
        timed = [one for run in runs for one in run.records if one.state == "ok" and one.median_s]
        rating = result.best_rating() or {}
        return {
            "case": case,
            "seed": seed,
            "budget_s": budget_s,
            "variants": variants,
            "kernel": result.kernel,
            "trials": {run.kernel: len(run.records) for run in runs},
            "states": {name: count for name, count in result.counts.items() if count},
            "best_s": result.best_time_s,
            "share_of_reference": rating.get("share_of_reference"),
            "configuration": result.best_config,
            "after_s": {
                str(at): min((one.median_s for one in timed if one.finished_at - begun <= at), default=None)
                for at in AFTER_S
            },
            "call_s": call_s,
            "seconds": dict(result.seconds),
        }


def main() -> None:
    """Run all tunes, or one in this process."""
    parser = harness.parser_of(__doc__)
    parser.add_argument("--cases", default="sgemm NN 4096;sgemm TN 4096;cgemm NN 4096;dgemm TN 4096;softmax")
    parser.add_argument("--time", type=float, default=20.0, help="seconds")
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--one", nargs=3, metavar=("CASE", "SEED", "VARIANTS"), help="one tune, in this process")
    options = parser.parse_args()
    if options.one:
        case, seed, variants = options.one
        print(json.dumps(tune(case, int(seed), options.time, variants=variants == "True")))
        return
    rows = []
    for seed in map(int, options.seeds.split(",")):
        for number, case in enumerate(options.cases.split(";")):
            for variants in (True, False) if (seed + number) % 2 else (False, True):
                with tempfile.TemporaryDirectory() as cache:
                    command = [sys.executable, __file__, "--time", str(options.time), "--one", case, str(seed)]
                    done = subprocess.run(
                        [*command, str(variants)],
                        check=True,
                        stdout=subprocess.PIPE,
                        text=True,
                        env={**os.environ, "XDG_CACHE_HOME": cache},
                    )
                row = json.loads(done.stdout.splitlines()[-1])
                rows.append(row)
                print(case, seed, variants, row["share_of_reference"], row["best_s"], row["after_s"], flush=True)
    harness.write(options.output, {**harness.gpu_provenance(), "all": rows})


if __name__ == "__main__":
    main()
