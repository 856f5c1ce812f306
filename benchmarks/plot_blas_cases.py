"""Draw the picture of README from the recorded results of blas_cases.py and the random sweep. Needs matplotlib.

python benchmarks/plot_blas_cases.py --output docs/images/blas_cases.svg
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from mltune.dataset.dataset import load_manifest

RESULTS = Path(__file__).resolve().parent / "results"
SWEEP = "h200-sgemm-nt-4096-random"
RUNS = {"first run": "blas_cases_0_2.json", "second run": "four_precisions.json"}


def draw_shares(axes: Axes, runs: dict[str, list[dict[str, Any]]]) -> None:
    """Draw the best of each run for the cases of S and C, as a share of cuBLAS."""
    cases = list(dict.fromkeys(row["case"] for rows in runs.values() for row in rows if row["case"][0] in "sc"))
    cases.sort(key=lambda case: case[0] != "s")
    for (label, rows), marker in zip(runs.items(), "os", strict=False):
        found = [(cases.index(row["case"]), row["best"]["share_of_reference"]) for row in rows if row["case"] in cases]
        axes.scatter(*zip(*found, strict=True), marker=marker, s=30, label=label, alpha=0.8)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_ylim(0.85, 1.12)
    axes.set_xticks(range(len(cases)), [case.replace("gemm ", " ").upper() for case in cases], rotation=60)
    axes.set_ylabel("speed, cuBLAS = 1")
    axes.set_title("found in 20 s a case, n = 4096, H200", fontsize=10)
    axes.legend(fontsize=7, loc="lower left")


def draw_curve(axes: Axes, rows: list[dict[str, Any]]) -> None:
    """Draw the best so far of sgemm NT over time, beside cuBLAS and the random sweep."""
    row = next(row for row in rows if row["case"] == "sgemm NT")
    seconds, tflops = zip(*row["curve"], strict=True)
    end = row["seconds"]["total"]
    axes.step([*seconds, end], [*tflops, tflops[-1]], where="post", label="mltune")
    manifest = load_manifest(SWEEP)
    if manifest.best is not None:
        random = manifest.problem.flops / manifest.best.median_s / 1e12
        axes.axhline(random, color="grey", linestyle="--", linewidth=1, label=f"best of {manifest.rows} random")
    axes.axhline(row["reference_tflops"], color="black", linewidth=0.8, label="cuBLAS")
    axes.set_xlabel("seconds")
    axes.set_ylabel("TFLOPS")
    axes.set_ylim(30, 60)
    axes.set_xlim(0, end)
    axes.set_title("sgemm NT: best so far", fontsize=10)
    axes.legend(fontsize=7, loc="lower right")


def main() -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("docs/images/blas_cases.svg"))
    arguments = parser.parse_args()
    mpl.rcParams.update({"svg.hashsalt": "mltune", "axes.spines.top": False, "axes.spines.right": False})
    runs = {label: json.loads((RESULTS / name).read_text())["cases"] for label, name in RUNS.items()}
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), width_ratios=(3, 2), layout="constrained")
    draw_shares(left, runs)
    draw_curve(right, next(iter(runs.values())))
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.output, metadata={"Date": None} if arguments.output.suffix == ".svg" else None)


if __name__ == "__main__":
    main()
