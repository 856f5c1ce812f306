"""Campaigns of 10, 200 and 1,000 problems: seconds and memory of their reports, and the sizes of the pages.

    python benchmarks/report_of_a_campaign.py --output benchmarks/results/report_of_a_campaign.json

The problems of a campaign are replays of the shipped recordings of CUDA and HIP kernels, 60 trials each. A larger
campaign has copies of their folders: as many stores to read, tables to write and reasons to find.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import parser_of, provenance, write
from large_run import COMMAND, measured

from mltune.dataset.dataset import shipped_datasets
from mltune.kernel.reader import built_in
from mltune.records.directory import PLAN_FILE, PROBLEMS

SIZES = (10, 200, 1000)
TRIALS = 60
PLAN = """[plan]
title = "Replays"
budget = "{budget} trials"
minimum = "{trials} trials"
maximum = "{trials} trials"
produce = ["winners"]

[options]
search = "random"
skip = false
stop = false

[[problems]]
datasets = {datasets}
"""
PAGES = ("report.html", "report.md", "winners.json")


def main() -> None:
    """Build the campaigns, report on each, and write the result."""
    parser = parser_of(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        first = Path(scratch) / "first"
        replay(first)
        figures = {size: report_of(first, Path(scratch) / str(size), size) for size in arguments.sizes}
    head = provenance(of="processor time of the user and of the system", load_average=os.getloadavg(), trials=TRIALS)
    result = head | {"problems": figures}
    write(arguments.output, result)
    print(json.dumps(result, indent=1))


def replay(campaign: Path) -> None:
    """Carry out a campaign of recorded timings."""
    names = [name for name, manifest in shipped_datasets().items() if manifest.parent.name in built_in()]
    plan = campaign.with_suffix(".toml")
    plan.write_text(PLAN.format(budget=TRIALS * len(names), trials=TRIALS, datasets=json.dumps(names)))
    subprocess.run([sys.executable, "-m", "mltune", "run", str(plan), "--run", str(campaign)], check=True)


def report_of(first: Path, campaign: Path, size: int) -> dict[str, Any]:
    """Report on a campaign of copies of the problems of the first one; return what that takes."""
    campaign.mkdir()
    shutil.copy(first / PLAN_FILE, campaign)
    problems = sorted((first / PROBLEMS).iterdir())
    for number in range(size):
        origin = problems[number % len(problems)]
        shutil.copytree(origin, campaign / PROBLEMS / f"{origin.name}-{number // len(problems)}")
    figures = measured(COMMAND, "report", str(campaign))
    return figures | {f"{name} bytes": (campaign / name).stat().st_size for name in PAGES}


if __name__ == "__main__":
    main()
