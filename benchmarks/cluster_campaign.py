"""A campaign through Dask beside the same campaign under the supervisor of one host: trials a second, in turns.

Each run has its own caches and knows nothing of the others, so that all compile and measure the same kind of work.
A campaign is counted from the beginning of its first time slice to the end of its last: the local cluster of a command
takes some seconds to start, once. On a host with one GPU.

    python benchmarks/cluster_campaign.py --budget 40s --rounds 2
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from mltune.measure.cluster_connection import versions
from mltune.measure.compile_pool import available_cores
from mltune.records.directory import EVENT_LOG, runs_in
from mltune.records.events import read_events
from mltune.records.trial import TrialState
from mltune.results.reader import read_run

PLAN = """
[plan]
title = "A campaign of {budget}"
budget = "{budget}"
minimum = "5s"

[options]
prior = "none"
wisdom = "none"

[[problems]]
precisions = ["s", "d"]
trans = ["NN", "TN"]
sizes = [2048]
"""
ARMS: dict[str, list[str]] = {"supervisor": [], "dask": ["--cluster", "local"]}


def campaign(plan: Path, folder: Path, options: list[str]) -> dict[str, Any]:
    """Carry out a plan in a process of its own, and count what it has done."""
    command = [sys.executable, "-m", "mltune", "run", str(plan), "--run", str(folder / "run"), *options]
    own = {"XDG_CACHE_HOME": str(folder / "cache"), "XDG_DATA_HOME": str(folder / "data")}
    begun = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | own)
    wall_s = time.perf_counter() - begun
    if done.returncode not in (0, 1):  # 1 where a problem has no winner
        raise RuntimeError(done.stderr)
    runs = [read_run(one) for one in runs_in(folder / "run")]
    measured = sum(int((~run.records.in_state(TrialState.SKIPPED)).sum()) for run in runs)
    trials = sum(len(run.records) for run in runs)
    events, _ = read_events(folder / "run" / EVENT_LOG)
    slices = [(one["event"], one["elapsed_s"]) for one in events if one["event"] in ("slice_started", "slice_ended")]
    begun = [at for event, at in slices if event == "slice_started"]
    ended = [at for event, at in slices if event == "slice_ended"]
    campaign_s = ended[-1] - begun[0]
    phases: Counter[str] = Counter()
    for run in runs:
        phases.update(run.seconds)
    return {
        "wall_s": wall_s,
        "campaign_s": campaign_s,
        "slices": len(ended),
        "outside_runs_s": campaign_s - phases["total"],
        "phases_s": dict(phases),
        "trials": trials,
        "measured": measured,
        "trials_per_s": trials / campaign_s,
        "measured_per_s": measured / campaign_s,
        "best_s": {run.slug: run.best_time_s for run in runs},
    }


def main() -> None:
    """Measure in turns, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="40s")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--name", default="cluster_campaign")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
    with tempfile.TemporaryDirectory() as scratch:
        plan = Path(scratch) / "plan.toml"
        plan.write_text(PLAN.format(budget=arguments.budget))
        for number in range(arguments.rounds):
            for arm in sorted(ARMS, reverse=number % 2 == 0):
                folder = Path(scratch) / f"{arm}-{number}"
                folder.mkdir()
                found[arm].append(campaign(plan, folder, ARMS[arm]))
                print(arm, json.dumps(found[arm][-1]), flush=True)
    rates = {arm: statistics.median(one["trials_per_s"] for one in runs) for arm, runs in found.items()}
    document = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", *sys.argv]),
        "cores": available_cores(),
        "versions": versions() | {"python": platform.python_version()},
        "plan": PLAN.format(budget=arguments.budget),
        "runs": found,
        "trials_per_s": rates,
        "dask_over_supervisor": rates["dask"] / rates["supervisor"],
    }
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / f"{arguments.name}.json").write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
