"""Draw the pictures of README from recorded results: blas_cases.py, search_efficiency.py and the random sweep.

python benchmarks/pictures.py [--output docs/images]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from mltune.comparison.figures import label_ends, scale_to_optimum
from mltune.dataset.dataset import load_manifest
from mltune.reporting.page import TEMPLATES
from mltune.reporting.svg import INK, QUIET, SERIES, axes, finish, plotting

RESULTS = Path(__file__).resolve().parent / "results"
SWEEP = "h200-sgemm-nt-4096-random"
RUNS = {"first run": "blas_cases_0_2.json", "second run": "four_precisions.json"}
STRATEGIES = {
    "mltune": (SERIES[0], "-"),
    "tpe": (SERIES[1], (0, (6, 2))),
    "genetic_algorithm": (SERIES[2], "-"),
    "adaptive_tabu_greywolf": (SERIES[3], (0, (6, 2))),
    "hybrid_vndx": (SERIES[4], "-"),
    "bayes_opt": (SERIES[5], (0, (6, 2))),
    "simulated_annealing": (INK, "-"),
    "random": (QUIET, (0, (1, 2))),
}
"""Colours and dashes of mltune, Optuna's TPE, the strategies of Kernel Tuner, and random search."""


def draw_shares(panel: Axes, runs: dict[str, list[dict[str, Any]]]) -> None:
    """Draw the best of each run for the cases of S and C, as a share of cuBLAS."""
    cases = list(dict.fromkeys(row["case"] for rows in runs.values() for row in rows if row["case"][0] in "sc"))
    cases.sort(key=lambda case: case[0] != "s")
    for (label, rows), marker, colour in zip(runs.items(), "os", SERIES, strict=False):
        found = [(cases.index(row["case"]), row["best"]["share_of_reference"]) for row in rows if row["case"] in cases]
        panel.plot(*zip(*found, strict=True), marker, color=colour, markersize=5, label=label)
    panel.axhline(1.0, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
    panel.annotate("cuBLAS", (len(cases) - 0.5, 1.0), (0, 3), textcoords="offset points", ha="right")
    panel.set(ylim=(0.92, 1.11), ylabel="speed, cuBLAS = 1", title="Found in 20 s for each case, n = 4096, H200")
    panel.set_yticks([0.95, 1.0, 1.05, 1.1])
    panel.set_xticks(range(len(cases)), [case.replace("gemm ", " ").upper() for case in cases])
    panel.grid(visible=False, axis="x")
    panel.legend(loc="upper right", handlelength=0.8)


def draw_curve(panel: Axes, row: dict[str, Any]) -> None:
    """Draw the best so far of sgemm NT over time, beside cuBLAS and the random sweep."""
    seconds, tflops = zip(*row["curve"], strict=True)
    end = row["seconds"]["total"]
    panel.step([*seconds, end], [*tflops, tflops[-1]], where="post", color=SERIES[2])
    panel.annotate("mltune", (end, tflops[-1]), (0, 4), textcoords="offset points", ha="right", color=SERIES[2])
    manifest = load_manifest(SWEEP)
    lines = {"cuBLAS": row["reference_tflops"]}
    if manifest.best is not None:
        lines[f"best of {manifest.rows:,} random"] = manifest.problem.flops / manifest.best.median_s / 1e12
    for text, value in lines.items():
        panel.axhline(value, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
        panel.annotate(text, (end, value), (0, -3), textcoords="offset points", ha="right", va="top")
    panel.set(xlim=(0, end), ylim=(45, 55), xlabel="seconds", ylabel="TFLOPS", title="sgemm NT: best so far")


def blas_cases() -> str:
    """Draw what short tunes found, in two panels."""
    runs = {label: json.loads((RESULTS / name).read_text())["cases"] for label, name in RUNS.items()}
    left = axes(9.0, 3.2, left=0.65, right=3.55, top=0.3)
    right = left.figure.add_axes((6.15 / 9.0, 0.42 / 3.2, 2.65 / 9.0, 2.48 / 3.2))
    right.patch.set_visible(False)
    draw_shares(left, runs)
    draw_curve(right, next(row for row in next(iter(runs.values())) if row["case"] == "sgemm NT"))
    return standalone(left, "blas-cases", "Speed of what short tunes found, relative to cuBLAS")


def search_efficiency() -> str:
    """Draw the fraction of the optimum that strategies reach after some evaluations."""
    found = json.loads((RESULTS / "search_efficiency" / "summary.json").read_text())
    spaces = len(found["datasets"])
    panel = axes(9.0, 3.6, left=0.72, right=2.45, top=0.3)
    ends = {}
    for name, (colour, dashes) in STRATEGIES.items():
        reached = {int(at): fraction for at, fraction in found["strategies"][name]["at"].items()}
        distances = 1.0 - np.array(list(reached.values()))
        width = 2.2 if name == "mltune" else 1.4
        panel.plot([*reached], distances, "o", color=colour, markersize=2 * width, clip_on=False, zorder=3)
        panel.plot([*reached], distances, color=colour, linestyle=dashes, linewidth=width)
        ends[name] = (1.0 - distances[-1], colour)
    panel.set(xscale="log", xlim=(min(reached), max(reached)), xlabel="distinct configurations evaluated")
    panel.set_xticks([*reached], [str(at) for at in reached])
    panel.minorticks_off()
    scale_to_optimum(panel, min(1.0 - end for end, _ in ends.values()))
    panel.set(ylim=(0.25, panel.get_ylim()[1]), ylabel="fraction of the optimum")
    panel.set_title(f"Best so far, mean over {spaces} recorded spaces")
    label_ends(panel, ends)
    return standalone(panel, "search-efficiency", "Fraction of the optimum after some evaluations, by strategy")


def standalone(panel: Axes, name: str, title: str) -> str:
    """Return a figure as an SVG file for light and dark screens, with the colours of a report and its own ground."""
    svg = finish(panel, name, title, title).svg
    colours = (TEMPLATES / "colours.css").read_text()
    style = "svg { background: var(--ground); color: var(--text); font-family: system-ui, sans-serif; }"
    head, _, body = svg.partition(">")
    return f'{head} xmlns="http://www.w3.org/2000/svg"><style>{colours}{style}</style>{body}\n'


def main() -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("docs/images"))
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    with plotting():
        for draw in (blas_cases, search_efficiency):
            (arguments.output / f"{draw.__name__}.svg").write_text(draw())


if __name__ == "__main__":
    main()
