"""How few measurements each strategy needs: mltune, its ablations and the strategies of others, on all recorded spaces.

One run of ``mltune compare`` over every dataset; its definitions are in docs/measurement.md. The runs are journalled in
--work, so that it can be interrupted, resumed, and split over machines (--share 1/2 here and 2/2 there, then their
``runs-*.sqlite`` in one directory and no --share). Results go to benchmarks/results/search_efficiency/. Optuna's
Gaussian process takes half a minute a run: it gets fewer seeds.

    pip install -e '.[peers]'
    python benchmarks/search_efficiency.py [--seeds 50] [--gp-seeds 10] [--evaluations 400] [--jobs 2] [--share 1/1]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "search_efficiency"
STRATEGIES = (
    "mltune",
    "mltune-noskip",
    "mltune-nobuild",
    "mltune-raw",
    "tpe",
    "tpe+skip",
    "astra",
    "random",
    "hybrid_vndx",
    "adaptive_tabu_greywolf",
    "genetic_algorithm",
    "simulated_annealing",
    "bayes_opt",
)


def main() -> int:
    """Run the comparison, and keep its results but not its journal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--gp-seeds", type=int, default=10, help="seeds of Optuna's Gaussian process; 0 leaves it out")
    parser.add_argument("--evaluations", type=int, default=400)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--share", default="1/1")
    parser.add_argument("--datasets", default="all")
    parser.add_argument("--work", type=Path, default=Path("runs") / "search_efficiency")
    asked = parser.parse_args()
    strategies = [*STRATEGIES, *([f"gp@{asked.gp_seeds}"] if asked.gp_seeds else [])]
    options = {
        "strategies": ",".join(strategies),
        "datasets": asked.datasets,
        "evaluations": asked.evaluations,
        "seeds": asked.seeds,
        "jobs": asked.jobs,
        "share": asked.share,
        "output": asked.work,
    }
    command = [sys.executable, "-m", "mltune", "compare"]
    done = subprocess.run([*command, *(f"--{name}={value}" for name, value in options.items())], check=False)
    if done.returncode == 0 and asked.share == "1/1":
        RESULTS.mkdir(parents=True, exist_ok=True)
        for path in asked.work.iterdir():
            if not path.name.startswith("runs-"):
                (RESULTS / path.name).write_bytes(path.read_bytes())
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
