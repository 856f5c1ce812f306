"""Evaluations that search strategies need on all recorded spaces: mltune, its ablations and other tools.

One run of ``mltune compare`` over every dataset; docs/explanation/comparison.md defines its scores. ``mltune`` runs as
shipped: batches of 16 with three batches in flight. The runs are journalled in ``--work``, so that they can be
interrupted, resumed and split over machines (``--share 1/2`` here, ``2/2`` there, then both ``runs-*.jsonl`` in one
directory and no ``--share``). Results go to benchmarks/results/search_efficiency/: the files of ``mltune compare``, and
left_out.md with the mean scores when each kernel, and each GPU, is left out.

    pip install -e '.[peers]'
    python benchmarks/search_efficiency.py [--seeds 50] [--peer-seeds 20] [--evaluations 250] [--jobs 2] [--share 1/1]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "search_efficiency"
SHIPPED = "mltune"
OTHERS = (
    "mltune-noskip",
    "mltune-raw",
    "mltune:batch=4:in_flight=1",
    "tpe",
    "astra",
    "random",
    "hybrid_vndx",
    "adaptive_tabu_greywolf",
    "genetic_algorithm",
    "simulated_annealing",
    "bayes_opt",
)
GROUPS = {
    "clblast_xgemm": "xgemm_",
    "convolution": "convolution_",
    "gemm_simt": "h200-",
    "AMD GPUs": ("convolution_mi250x", "convolution_w6600"),
    "H200 random samples": "-random",
}
"""What is left out of the means: names of datasets begin or end with these."""


def main() -> int:
    """Run the comparison, and keep its results but not its journal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--peer-seeds", type=int, default=20)
    parser.add_argument("--evaluations", type=int, default=250)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--share", default="1/1")
    parser.add_argument("--datasets", default="all")
    parser.add_argument("--work", type=Path, default=Path("runs") / "search_efficiency")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    options = {
        "strategies": ",".join([SHIPPED, *(f"{name}@{arguments.peer_seeds}" for name in OTHERS)]),
        "datasets": arguments.datasets,
        "evaluations": arguments.evaluations,
        "seeds": arguments.seeds,
        "jobs": arguments.jobs,
        "share": arguments.share,
        "output": arguments.work,
    }
    command = [sys.executable, "-m", "mltune", "compare"]
    done = subprocess.run([*command, *(f"--{name}={value}" for name, value in options.items())], check=False)
    if done.returncode == 0 and arguments.share == "1/1":
        arguments.results.mkdir(parents=True, exist_ok=True)
        for path in arguments.work.iterdir():
            if not path.name.startswith("runs-"):
                (arguments.results / path.name).write_bytes(path.read_bytes())
        summary = json.loads((arguments.results / "summary.json").read_text(encoding="utf-8"))
        (arguments.results / "left_out.md").write_text(left_out(summary), encoding="utf-8")
    return done.returncode


def left_out(summary: Mapping) -> str:
    """Return a table of mean scores over the spaces that remain when some are left out, and over each group alone."""
    scores = {
        name: {space: figures["score"] for space, figures in strategy["datasets"].items()}
        for name, strategy in summary["strategies"].items()
    }
    spaces = list(next(iter(scores.values())))
    columns: dict[str, list[str]] = {"all": spaces}
    for title, mark in GROUPS.items():
        group = [
            space for space in spaces if space.startswith(mark) or (isinstance(mark, str) and space.endswith(mark))
        ]
        columns[f"without {title}"] = [space for space in spaces if space not in group]
        columns[f"{title} alone"] = group
    lines = [
        "Mean score of each strategy over subsets of the spaces. The constants of the search were set with all spaces",
        "in view: these means show that no group carries the result; they are not results on unseen kernels.",
        "",
        "| strategy | "
        + " | ".join(f"{title} ({len(of)})" for title, of in columns.items())
        + " | lowest, one left out |",
        "| --- |" + " ---: |" * (len(columns) + 1),
    ]
    for name, by_space in scores.items():
        means = [statistics.mean(by_space[space] for space in of) for of in columns.values()]
        lowest = min(statistics.mean(by_space[other] for other in spaces if other != space) for space in spaces)
        lines.append(f"| {name} | " + " | ".join(f"{mean:.3f}" for mean in (*means, lowest)) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
