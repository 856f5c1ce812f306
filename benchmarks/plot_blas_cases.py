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

from mltune.records.dataset import load_manifest

RESULTS = Path(__file__).resolve().parent / "results"
SWEEP = "h200-sgemm-nt-4096-random"
COLOURS = {"sgemm": "#1b6ca8", "cgemm": "#c8553d", "dgemm": "#4f9d69", "zgemm": "#8e6c8a"}


def draw_shares(axes: Axes, rows: list[dict[str, Any]]) -> None:
    """Draw one bar a case: S and C as a share of cuBLAS."""
    rows = [row for row in rows if row["case"][0] in "sc"]
    for position, row in enumerate(rows):
        axes.bar(position, row["best"]["share_of_cublas"], color=COLOURS[row["case"].split()[0]], width=0.75)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_ylim(0.8, 1.12)
    axes.set_xticks(range(len(rows)), [row["case"].replace("gemm ", " ").upper() for row in rows], rotation=60)
    axes.set_ylabel("speed, cuBLAS = 1")
    axes.set_title("found in 20 s a case, n = 4096, H200", fontsize=10)


def draw_curve(axes: Axes, rows: list[dict[str, Any]]) -> None:
    """Draw the best so far of sgemm NT over time, beside cuBLAS and the random sweep."""
    row = next(row for row in rows if row["case"] == "sgemm NT")
    seconds, tflops = zip(*row["curve"], strict=True)
    axes.step([*seconds, row["seconds"]["total"]], [*tflops, tflops[-1]], where="post", color=COLOURS["sgemm"])
    manifest = load_manifest(SWEEP)
    if manifest.best is not None:
        random = manifest.problem.flops / manifest.best.median_s / 1e12
        axes.axhline(random, color="grey", linestyle="--", linewidth=1)
        axes.text(axes.get_xlim()[1], random, f"best of {manifest.rows} random ", ha="right", va="top", fontsize=8)
    axes.axhline(row["cublas_tflops"], color="black", linewidth=0.8)
    axes.text(0, row["cublas_tflops"], "cuBLAS", ha="left", va="bottom", fontsize=8)
    axes.set_xlabel("seconds")
    axes.set_ylabel("TFLOPS")
    axes.set_ylim(bottom=0)
    axes.set_title("sgemm NT: best so far", fontsize=10)


def main() -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("docs/images/blas_cases.svg"))
    arguments = parser.parse_args()
    mpl.rcParams.update({"svg.hashsalt": "mltune", "axes.spines.top": False, "axes.spines.right": False})
    rows = json.loads((RESULTS / "blas_cases.json").read_text())["cases"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), width_ratios=(3, 2), layout="constrained")
    draw_shares(left, rows)
    draw_curve(right, rows)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.output, metadata={"Date": None} if arguments.output.suffix == ".svg" else None)


if __name__ == "__main__":
    main()
