"""Campaigns that share time by expected gain, compared with even shares; and predictors of a gain.

Curves of best times are cut and joined to campaigns: every problem has its minimum, and the rest is shared out by
mltune.campaign.schedule, to the same total as an even share. There are two sources: searches of 20 s of the 26 cases of
GEMM on an H200 (blas_cases_four_gpus.json), and searches of 512 trials of all recorded timings, made here in replay.

    python benchmarks/plan_sharing.py
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mltune import __version__
from mltune.campaign.schedule import LEAST_GAIN, Standing, allot, deficits, last_doubling, next_slice
from mltune.dataset.dataset import list_datasets
from mltune.kernel.reader import load_kernel
from mltune.problem.gemm import CASES, GemmProblem
from mltune.resolve.device import Target
from mltune.resolve.plan import Plan, Task, Unit
from mltune.resolve.request import TuneRequest
from mltune.tuning.tuner import tune

RESULTS = Path(__file__).parent / "results"
TRIALS = 512
GPU_S = 20.0
GPU_CAMPAIGNS = ((6.0, 9.0), (6.0, 12.0), (8.0, 12.0), (10.0, 13.0), (12.0, 15.0))
REPLAY_CAMPAIGNS = ((32.0, 48.0), (32.0, 64.0), (64.0, 96.0), (64.0, 128.0), (64.0, 192.0))

Curve = Sequence[tuple[float, float]]
Curves = Mapping[str, Curve]


def best_at(curve: Curve, spent: float) -> float:
    """Return the best time after some seconds or trials; before the first one, the first."""
    return [best for at, best in curve if at <= spent or at == curve[0][0]][-1]


def standing(slug: str, curve: Curve, spent: float) -> Standing:
    """Return the standing of a problem after some seconds or trials."""
    return Standing(slug, spent, curve=[point for point in curve if point[0] <= spent])


def gap(curves: Curves, spent: Mapping[str, float]) -> float:
    """Return the mean logarithm of the ratio of times to the best of the whole curves."""
    return float(np.mean([math.log(best_at(curve, spent[name]) / curve[-1][1]) for name, curve in curves.items()]))


def campaign(plan: Plan, curves: Curves) -> tuple[dict[str, float], int]:
    """Share the time of a campaign; return the share of each problem, and the number of time slices."""
    spent, slices = {task.slug: 0.0 for task in plan.tasks}, 0
    while chosen := next_slice(plan, [standing(slug, curves[slug], has) for slug, has in spent.items()]):
        spent[chosen.slug] = chosen.limit
        slices += 1
    return spent, slices


def at_one_go(tasks: Sequence[Task], curves: Curves, minimum: float, share: float, by: str) -> dict[str, float]:
    """Share all time after the minima at once, by the last doubling of each problem or by its siblings."""
    at = {task.slug: standing(task.slug, curves[task.slug], minimum) for task in tasks}
    found = {slug: one for slug, one in at.items() if one.curve}
    doublings = {slug: last_doubling(one) for slug, one in found.items()}
    usual = max(sum(doublings.values()) / len(doublings), LEAST_GAIN)
    behind = deficits(tasks, found)
    gains = {"last doubling": doublings, "siblings": {slug: usual + behind.get(slug, 0.0) for slug in found}}[by]
    weights = [math.sqrt(max(gains.get(task.slug, usual), LEAST_GAIN)) for task in tasks]
    most = max(task.maximum or math.inf for task in tasks)
    shares = allot((share - minimum) * len(tasks), [minimum] * len(tasks), weights, [most] * len(tasks))
    return {task.slug: got for task, got in zip(tasks, shares, strict=True)}


def campaigns(
    unit: Unit, problems: Mapping[str, Task], curves: Curves, cases: Sequence[tuple[float, float]]
) -> list[Any]:
    """Compare ways to share the time of campaigns of several lengths."""
    from dataclasses import replace

    rows = []
    for minimum, share in cases:
        tasks = tuple(replace(task, minimum=minimum) for task in problems.values())
        spent, slices = campaign(Plan("n", "n", unit, share * len(tasks), tasks, devices=("cuda:0",)), curves)
        even = sum(spent.values()) / len(tasks)
        row = {"minimum": minimum, "even_share": even, "slices": slices}
        row |= {"shortest": min(spent.values()), "longest": max(spent.values())}
        row |= {"gap_even": gap(curves, dict.fromkeys(curves, even)), "gap_schedule": gap(curves, spent)}
        for by in ("last doubling", "siblings"):
            row[f"gap_at_one_go_by_{by.replace(' ', '_')}"] = gap(curves, at_one_go(tasks, curves, minimum, even, by))
        rows.append(row)
    return rows


def foretold(problems: Mapping[str, Task], curves: Curves, spent: float) -> dict[str, Any]:
    """Return the rank correlations of the gain of the next doubling with what is known before."""
    from scipy.stats import spearmanr

    at = {slug: standing(slug, curve, spent) for slug, curve in curves.items()}
    at = {slug: one for slug, one in at.items() if one.curve}
    behind = deficits([*problems.values()], at)
    brings = {slug: math.log(best_at(curves[slug], spent) / best_at(curves[slug], 2 * spent)) for slug in at}

    def rank(known: Mapping[str, float]) -> float | None:
        return float(spearmanr([known[slug] for slug in known], [brings[slug] for slug in known])[0]) if known else None

    doublings = {slug: last_doubling(one) for slug, one in at.items()}
    return {"spent": spent, "problems": len(at), "last_doubling": rank(doublings), "behind_siblings": rank(behind)}


def gpu_curves() -> tuple[dict[str, Task], dict[str, Curve]]:
    """Return the tasks and curves of the 26 cases on an H200."""
    rows = {row["case"]: row for row in json.loads((RESULTS / "blas_cases_four_gpus.json").read_text())["cases"]}
    tasks, curves = {}, {}
    for case in CASES:
        problem = GemmProblem(*case, 4096, 4096, 4096)
        slug = problem.case.lower().replace(" ", "-")
        tasks[slug] = Task(slug, load_kernel("gemm_simt"), problem, None, 1.0, 1.0, GPU_S)
        curves[slug] = [(at, problem.flops / 1e12 / tflops) for at, tflops in rows[problem.case]["curve"]]
    return tasks, curves


def replay_curves(seed: int) -> tuple[dict[str, Task], dict[str, Curve]]:
    """Search all recorded timings; return their tasks and curves."""
    tasks, curves = {}, {}
    for manifest in list_datasets():
        name = manifest.name
        kernel, target = load_kernel(manifest.kernel), Target(dataset=name)
        tasks[name] = Task(name, kernel, manifest.problem, name, 1.0, 1.0, float(TRIALS))
        with tempfile.TemporaryDirectory() as folder:
            request = TuneRequest(
                manifest.problem,
                kernel,
                target,
                TRIALS,
                seed=seed,
                stop=False,
                run=Path(folder, "r"),
            )
            records = tune(request).records
        curve: list[tuple[float, float]] = []
        for record in records:
            if record.median_s is not None and record.state == "ok" and (not curve or record.median_s < curve[-1][1]):
                curve.append((record.number + 1.0, record.median_s))
        curves[name] = curve
    return tasks, curves


def main() -> None:
    """Compare, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="searches of each dataset")
    arguments = parser.parse_args()
    tasks, curves = gpu_curves()
    on_gpu = {
        "curves": "blas_cases_four_gpus.json",
        "unit": "s",
        "foretold": [foretold(tasks, curves, spent) for spent in (6.0, 8.0, 10.0)],
        "campaigns": campaigns("s", tasks, curves, GPU_CAMPAIGNS),
    }
    in_replay = []
    for seed in range(arguments.seeds):
        tasks, curves = replay_curves(seed)
        in_replay.append(
            {
                "seed": seed,
                "unit": "trials",
                "foretold": [foretold(tasks, curves, spent) for spent in (32.0, 64.0, 128.0)],
                "campaigns": campaigns("trials", tasks, curves, REPLAY_CAMPAIGNS),
            }
        )
    result = {"mltune": __version__, "gpu": on_gpu, "replay": in_replay}
    (RESULTS / "plan_sharing.json").write_text(json.dumps(result, indent=1) + "\n")
    for name, parts in (("GPU", [on_gpu]), ("replay", in_replay)):
        for rows in zip(*(part["campaigns"] for part in parts), strict=True):
            mean = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
            print(name, ", ".join(f"{key} {value:.4g}" for key, value in mean.items()))


if __name__ == "__main__":
    main()
