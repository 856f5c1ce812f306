"""The 26 cases of BLAS GEMM at three sizes: each problem alone, and all sharing what they find, in less time.

- cold: a campaign for each size, each with an empty cache of cubins; no problem knows what another has found.
- shared: one campaign of all sizes, which share cubins and start from what their siblings have found.

Neither uses a wisdom. All GPUs of the machine work side by side; the plan shares nothing out by expected gain.

    python benchmarks/sharing.py --seconds 600,200           # of all problems together, of GPU time
    python benchmarks/sharing.py --seconds 90,90 --cases sNT,sTN,cNN --sizes 512,4096,8192
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mltune import __version__
from mltune.campaign.campaign import run_plan
from mltune.dataset.dataset import export_run
from mltune.measure.build import available_cores
from mltune.problem.gemm import CASES
from mltune.process.signals import Interrupt
from mltune.records.directory import runs_in
from mltune.resolve.device import find_gpus
from mltune.resolve.placement import place
from mltune.resolve.plan_file import parse_plan
from mltune.results.run import TuneResult
from mltune.results.summary import by_problem

ARMS = ("cold", "shared")
OVERHEAD_S = 30.0
"""More than a problem takes besides its time: the budget must not end the campaign."""
A_TIE = 0.01


def campaign(
    tables: list[dict[str, Any]],
    each_s: float,
    *,
    device: str,
    seed: int = 0,
    siblings: bool = False,
    keep: Path | None = None,
    examine: Callable[[TuneResult], dict[str, Any]] | None = None,
) -> dict[str, dict[str, Any]]:
    """Tune the problem of each table for the same time, with an empty cache of cubins; return their rows by label.

    The runs are exported as datasets into the folder `keep`. A row has also what `examine` returns for its run.
    """
    budget_s = len(tables) * (each_s + OVERHEAD_S)
    head = {"title": "Sharing", "budget": f"{budget_s:g}s", "devices": [device], "seed": seed}
    head |= {"minimum": f"{each_s:g}s", "maximum": f"{each_s:g}s", "produce": ["winners"] if examine else []}
    text = "\n".join(["[plan]", lines(head), *(f"[[problems]]\n{lines(table)}" for table in tables)])
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["XDG_CACHE_HOME"] = scratch
        placed = place(parse_plan(text, "sharing"), *find_gpus())
        with Interrupt() as stop:  # what it has until then is reported
            result = run_plan(placed, Path(scratch) / "campaign", stop=stop, siblings=siblings)
        runs = [result.read(folder, folder.name) for folder in runs_in(result.directory)]
        for run in runs if keep else ():
            if run.best is not None:
                export_run(run.directory, keep)
        fastest = [group[0] for group in by_problem(runs)]
        return {run.problem.label: row(run) | (examine(run) if examine else {}) for run in fastest}


def lines(table: dict[str, Any]) -> str:
    """Return a table of a plan as TOML."""
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())


def row(run: TuneResult) -> dict[str, Any]:
    """Return the figures of one problem."""
    compile_s, cached = run.records.column("compile_s"), run.records.column("cached") == 1
    compiled = ~np.isnan(compile_s) & ~cached
    first = next(iter(run.measured()), None)
    return {
        "size": run.problem.variables()["m"],
        "first": None if first is None else {"configuration": dict(first.configuration), "median_s": first.median_s},
        "best_s": run.best_time_s,
        "tflops": None if run.best_time_s is None else run.problem.flops / run.best_time_s / 1e12,
        "reference_s": run.reference_s,
        "trials": len(run.records),
        "compiled": int(compiled.sum()),
        "from_the_cache": int(cached.sum()),
        "compile_cpu_s": float(compile_s[compiled].sum()),
        "known": int((run.records.column("proposed_by") == "wisdom").sum()),
        "best_from": None if run.best is None else run.best.proposed_by,
        "curve": run.improvements(by_time=True),
        "seconds": {phase: round(seconds, 3) for phase, seconds in run.seconds.items()},
    }


def summary(arms: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return how much faster the kernels of the shared campaign are, by size and in all."""
    both = [
        label for label, one in arms["cold"].items() if one["best_s"] and arms["shared"].get(label, {}).get("best_s")
    ]
    ratios = {label: arms["cold"][label]["best_s"] / arms["shared"][label]["best_s"] for label in both}
    sizes = sorted({arms["cold"][label]["size"] for label in both})
    groups = {"all": both} | {str(size): [one for one in both if arms["cold"][one]["size"] == size] for size in sizes}
    return {
        name: {
            "problems": len(group),
            "speed_of_shared": statistics.geometric_mean([ratios[label] for label in group]),
            "faster": sum(ratios[label] > 1 + A_TIE for label in group),
            "slower": sum(ratios[label] < 1 - A_TIE for label in group),
            **{
                f"{what}_{arm}": sum(arms[arm][label][what] for label in group)
                for what in ("trials", "compiled", "from_the_cache")
                for arm in ARMS
            },
        }
        for name, group in groups.items()
        if group
    }


def main() -> None:
    """Carry out the arms, and write the result after each campaign."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", default="600,200", help="GPU time of all problems: alone, and sharing")
    parser.add_argument("--sizes", default="512,4096,8192")
    parser.add_argument("--cases", default=",".join("".join(case) for case in CASES), help="for example sNN,zTC")
    parser.add_argument("--arms", default=",".join(ARMS), help="another machine can run the other one")
    parser.add_argument("--device", default="all", help="all, auto, cuda:N, or replay")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for the runs of both as datasets")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    cases, sizes = arguments.cases.split(","), [int(size) for size in arguments.sizes.split(",")]
    allowed = dict(zip(ARMS, map(float, arguments.seconds.split(",")), strict=True))
    os.environ["MLTUNE_WISDOM"] = "none"
    gpus, _ = find_gpus()
    facts = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", *sys.argv]),
        "devices": [gpu.name for gpu in gpus],
        "cores": available_cores(),
        "versions": {"mltune": __version__, "python": platform.python_version()},
        "gpu_seconds": allowed,
    }
    arms: dict[str, dict[str, Any]] = {}
    seconds: dict[str, float] = {}
    for arm in arguments.arms.split(","):
        started, arms[arm] = time.monotonic(), {}
        for together in [sizes] if arm == "shared" else [[size] for size in sizes]:
            tables = [
                {"precisions": [one[0]], "trans": [one[1:]], "sizes": [size]} for size in together for one in cases
            ]
            each_s, siblings = allowed[arm] / len(cases) / len(sizes), arm == "shared"
            keep = arguments.keep and arguments.keep / arm
            found = campaign(tables, each_s, device=arguments.device, seed=arguments.seed, siblings=siblings, keep=keep)
            arms[arm] |= found
            seconds[arm] = time.monotonic() - started
            compared = summary(arms) if len(arms) == len(ARMS) else {}
            document = {**facts, "seconds": seconds, "summary": compared, "problems": arms}
            arguments.output.mkdir(parents=True, exist_ok=True)
            (arguments.output / "sharing.json").write_text(json.dumps(document, indent=1) + "\n")
            print(json.dumps({"seconds": seconds, "summary": compared}, indent=1), flush=True)


if __name__ == "__main__":
    main()
