"""Draw the pictures of README and of the site from files of results, and keep what they were drawn from.

python benchmarks/pictures.py [NAME ...]

report.png is the beginning of a report on the plan `rehearsal`, as Chromium shows it; the others are of the results of
gemm.py, of library.py and of the scoreboard. Without names all are drawn.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from figures import IMAGES, ROOT, keep_hashes
from harness import parser_of
from matplotlib.axes import Axes

from mltune.comparison.figures import label_ends, scale_to_optimum
from mltune.show.report.svg import INK, QUIET, SERIES, axes, finish, plotting
from mltune.show.report.writing import TEMPLATES

RESULTS = Path(__file__).resolve().parent / "results"
STRATEGIES = {
    "mltune": (SERIES[0], "-"),
    "tpe": (SERIES[1], (0, (6, 2))),
    "genetic_algorithm": (SERIES[2], "-"),
    "adaptive_tabu_greywolf": (SERIES[3], (0, (6, 2))),
    "hybrid_vndx": (SERIES[4], "-"),
    "random": (QUIET, (0, (1, 2))),
}
"""Colours and dashes of mltune, Optuna's TPE, the strategies of Kernel Tuner, and random search."""

FIRST = 10
"""Evaluations from which on curves are drawn."""


def gemm_4096() -> str:
    """Draw what tunes of all cases of the BLAS found, as a share of cuBLAS."""
    found = json.loads((RESULTS / "gemm_4096.json").read_text())["problems"]
    panel = axes(9.0, 2.9, left_in=0.72, top_in=0.3)
    names = []
    for precision, colour in zip("scdz", SERIES, strict=False):
        rows = [row for row in found if row["problem"].startswith(precision)]
        at = range(len(names), len(names) + len(rows))
        shares = [row["of_reference"] for row in rows]
        panel.vlines(at, 1.0, shares, color=colour, linewidth=1.2)
        panel.plot(at, shares, "o", color=colour, markersize=5)
        mean = statistics.geometric_mean(shares)
        label = f"{precision.upper()}GEMM {mean:.2f}"
        panel.annotate(label, (at[0] - 0.4, 1.118), color=colour, va="top")
        names += [row["problem"].split()[1] for row in rows]
    panel.axhline(1.0, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
    panel.set(xlim=(-0.7, len(names) - 0.3), ylim=(0.94, 1.125), ylabel="speed, cuBLAS = 1")
    panel.set_yticks([0.95, 1.0, 1.05, 1.1])
    panel.set_xticks(range(len(names)), names, fontsize="small")
    panel.set_title("8 to 25 s of searching, n = 4096, NVIDIA H200")
    panel.grid(visible=False, axis="x")
    return standalone(panel, "gemm-4096", "Speed of what short tunes found for all 26 cases, relative to cuBLAS")


def search_efficiency() -> str:
    """Draw the fraction of the optimum that strategies reach after some evaluations."""
    found = json.loads((RESULTS / "scoreboard" / "summary.json").read_text())
    spaces = len(found["datasets"])
    panel = axes(9.0, 3.6, left_in=0.72, top_in=0.3)
    box = panel.get_position()
    panel.set_position((box.x0, box.y0, 0.65, box.height))  # the legend is beside it
    ends = {}
    for name, (colour, dashes) in STRATEGIES.items():
        reached = {int(at): share for at, share in found["strategies"][name]["at"].items() if int(at) >= FIRST}
        distances = 1.0 - np.array(list(reached.values()))
        width = 2.2 if name == "mltune" else 1.4
        panel.plot([*reached], distances, "o", color=colour, markersize=2 * width, clip_on=False, zorder=3)
        (line,) = panel.plot([*reached], distances, color=colour, linestyle=dashes, linewidth=width)
        ends[name] = (1.0 - distances[-1], line)
    panel.set(xscale="log", xlim=(min(reached), max(reached)), xlabel="distinct configurations evaluated")
    panel.set_xticks([*reached], [str(at) for at in reached])
    panel.minorticks_off()
    scale_to_optimum(panel, min(1.0 - end for end, _ in ends.values()))
    panel.set(ylim=(0.3, panel.get_ylim()[1]), ylabel="fraction of the optimum")
    panel.set_title(f"Best so far, mean over {spaces} recorded spaces")
    label_ends(panel, ends)
    return standalone(panel, "search-efficiency", "Fraction of the optimum after some evaluations, by strategy")


def libraries() -> str:
    """Draw the speed of libraries at shapes that their build has not seen over the size of the product."""
    panel = axes(9.0, 2.9, left_in=0.72, top_in=0.3)
    box = panel.get_position()
    panel.set_position((box.x0, box.y0, 0.68, box.height))  # the legend is beside it
    for name, colour in zip(("sgemm_nn", "hgemm_tn", "dgemm_nt"), SERIES, strict=False):
        rows = json.loads((RESULTS / "library" / f"{name}_compare.json").read_text())["rows"]
        flops = [2.0 * row["m"] * row["n"] * row["k"] for row in rows]
        shares = [row["of_cublas"] for row in rows]
        mean = statistics.geometric_mean(shares)
        panel.plot(
            flops, shares, "o", color=colour, markersize=2.6, label=f"{name.replace('_', ' ').upper()} {mean:.2f}"
        )
    panel.axhline(1.0, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
    panel.set(
        xscale="log",
        yscale="log",
        xlim=(1e6, 3e11),
        xlabel="floating-point operations of a product",
        ylabel="speed, cuBLAS = 1",
    )
    panel.set_yticks([0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0], ["0.5", "0.7", "1", "1.5", "2", "3", "5"])
    panel.set_xticks([1e6, 1e7, 1e8, 1e9, 1e10, 1e11], ["1 M", "10 M", "100 M", "1 G", "10 G", "100 G"])
    panel.minorticks_off()
    panel.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), title="mean, cuBLAS = 1", frameon=False)
    panel.set_title("Libraries of ten configurations at 200 shapes not seen, NVIDIA H200")
    return standalone(panel, "libraries", "Speed of three libraries at 200 shapes each, relative to cuBLAS")


def standalone(panel: Axes, name: str, title: str) -> str:
    """Return a figure as an SVG file for light and dark screens, with the colours of a report and its own ground."""
    svg = finish(panel, name, title, title).svg
    colours = (TEMPLATES / "colours.css").read_text()
    style = "svg { background: var(--ground); color: var(--text); font-family: system-ui, sans-serif; }"
    head, _, body = svg.partition(">")
    return f'{head} xmlns="http://www.w3.org/2000/svg"><style>{colours}{style}</style>{body}\n'


def report(path: Path) -> None:
    """Carry out the plan `rehearsal`, and keep the beginning of its report as Chromium shows it."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("report.png needs Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        subprocess.run([sys.executable, "-m", "mltune", "run", "rehearsal", "--run", run], check=True, cwd=folder)
        shown = ["--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1280,1000", f"--screenshot={path}"]
        subprocess.run([chromium, *shown, run / "report.html"], check=True, capture_output=True)


def main() -> None:
    """Draw."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "pictures", nargs="*", metavar="NAME", default=["report.png", *(f"{name}.svg" for name in DRAWN)]
    )
    pictures = parser.parse_args().pictures
    images = ROOT / IMAGES
    for picture in pictures:
        if picture == "report.png":
            report(images / picture)
        else:
            with plotting():
                (images / picture).write_text(DRAWN[picture.removesuffix(".svg")]())
        keep_hashes(ROOT, [picture])


DRAWN = {draw.__name__: draw for draw in (gemm_4096, libraries, search_efficiency)}


if __name__ == "__main__":
    main()
