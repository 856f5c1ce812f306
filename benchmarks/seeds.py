"""The GEMM kernels of older papers on this GPU, from a campaign of search/seeds.toml.

    mltune run search/seeds.toml --run DIR
    python benchmarks/seeds.py DIR [--transfer] [--out benchmarks/results/seeds]

For each version of a kernel: the paper's figure as a share of the peak of its GPU, and the best that a search of ten
seconds finds as a share of the peak of this one, with its upper bound. Then the speed by the shape of a block, and how
many kernels each step of ASTRA's pruning leaves. ``--transfer`` runs on the GPU: it fits the time of a product from
host to host, T = T_comm + T_kernel, on two sizes and checks it on two others.

Writes seeds.json, table.md and the picture. With a seeds.json in place of DIR the others are made from it.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from pictures import standalone

from mltune.cost.bound import L2_BYTES_PER_CLOCK
from mltune.cost.features import Features
from mltune.device.facts import Device
from mltune.kernel.bundle import device_variables
from mltune.kernel.reader import load_kernel
from mltune.kernel.space import ConstrainedSpace
from mltune.problem.gemm import GemmProblem, parse_problem
from mltune.resolve.plan_file import load_plan
from mltune.results.run import TuneResult
from mltune.search.astra import AstraThresholds
from mltune.show.report.findings import findings
from mltune.show.report.reading import kernel_of, read_input
from mltune.show.report.svg import QUIET, SERIES, axes, plotting

FITTED, CHECKED = (2048, 8192), (4096, 12288)
"""Sizes of square products on which the model of transfers is fitted, and on which it is checked."""


@dataclass(frozen=True)
class Paper:
    """What a paper says of a version.

    Attributes
    ----------
    source, gpu : str
    gflops, peak : float or None
        Its figure without transfers, and the peak of its GPU; None where it gives none.
    """

    source: str
    gpu: str
    gflops: float | None
    peak: float | None


GTX_280 = ("Wolfe 2008", "GTX 280")
"""Its peak: 240 units x 1.296 GHz x 2. Wolfe's figures are from host to host, but for K4: 265 in the kernel alone."""
K80 = ("CSE 260, 2014", "Tesla K80")
PAPERS: dict[tuple[str, str], Paper] = {
    ("gemm_naive:strided", "sgemm NN 4096"): Paper(*GTX_280, 1.7, 622.0),
    ("gemm_naive:contiguous", "dgemm NN 4096"): Paper(*K80, 92.0, 1450.0),
    ("gemm_strip:k1", "sgemm NN 4096"): Paper(*GTX_280, 38.0, 622.0),
    ("gemm_strip:k2", "sgemm NN 4096"): Paper(*GTX_280, 63.0, 622.0),
    ("gemm_strip:k3", "sgemm NN 4096"): Paper(*GTX_280, 63.0, 622.0),
    ("gemm_strip:k4", "sgemm NN 4096"): Paper(*GTX_280, 265.0, 622.0),
    ("gemm_shared:k5", "sgemm NN 4096"): Paper(*GTX_280, 164.0, 622.0),
    ("gemm_shared:outputs_1", "dgemm NN 4096"): Paper(*K80, 256.0, 1450.0),
    ("gemm_shared:outputs_8", "dgemm NN 4096"): Paper(*K80, 390.0, 1450.0),
    ("gemm_cached", "sgemm TN 4096"): Paper("Nakasato 2010", "Cypress", 2014.0, 2720.0),
    ("gemm_cached", "dgemm TN 4096"): Paper("Nakasato 2010", "Cypress", 472.0, 544.0),
    ("gemm_simt:astra", "sgemm NT 4096"): Paper("LAWN 267, 2012", "GTX 680", None, 3090.0),
}
"""Figures of the papers by kernel and problem."""


def row_of(kernel: str, run: TuneResult, entry: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the page: one version of a kernel for one problem."""
    paper, bound = PAPERS.get((kernel, run.problem.label)), entry["bound"]
    best, bundle = run.best_record, kernel_of(run)
    registers = None if best is None or best.build is None else best.build.registers
    occupancy = flops_per_byte = None
    if best is not None and bundle is not None:
        columns = {name: np.array([value]) for name, value in best.configuration.items()}
        builds = {} if registers is None else {"registers": np.array([registers])}
        derived = Features(bundle, run.problem, run.device).derived(columns, builds)
        occupancy = float(derived["occupancy"][0])
        read = derived["tiles"] * derived["steps"] * derived["global_bytes"]
        flops_per_byte = float(run.problem.flops / read[0])
    return {
        "kernel": kernel,
        "problem": run.problem.label,
        "paper": None if paper is None else f"{paper.source}, {paper.gpu}",
        "paper_gflops": None if paper is None else paper.gflops,
        "paper_share": None if paper is None or not paper.gflops or not paper.peak else paper.gflops / paper.peak,
        "tflops": entry["tflops"],
        "share": entry["share_of_peak"],
        "of_reference": None if entry["reference"] is None else entry["reference"]["share"],
        "of_bound": None if bound is None else bound["share"],
        "limited_by": None if bound is None else bound["binding"],
        "registers": registers,
        "occupancy": occupancy,
        "flops_per_byte": flops_per_byte,
        "trials": entry["trials"],
        "configuration": entry["configuration"],
    }


def rows_of(directory: Path) -> list[dict[str, Any]]:
    """Return the rows of a campaign, in the order of its plan."""
    source = read_input(directory)
    kernels = {task.slug: task.kernel.label for task in load_plan(directory / "plan.toml").tasks}
    entries = {entry["slug"]: entry for entry in findings(source, {})["winners"]}
    runs = {run.slug: run for run in source.runs}
    return [row_of(kernel, runs[slug], entries[slug]) for slug, kernel in kernels.items() if slug in runs]


def measure_transfers() -> dict[str, Any]:
    """Time products from host to host; fit T = start + bytes / b + flops / c on some sizes, check it on others."""
    import cupy
    import numpy as np

    def seconds(size: int) -> tuple[float, float]:
        """Return the time of a product from host to host, and of the product alone: medians of five."""
        host = cupy.cuda.alloc_pinned_memory(3 * 4 * size**2)
        a, b, c = np.frombuffer(host, np.float32, 3 * size**2).reshape(3, size, size)
        a[:], b[:] = 1.0, 0.5
        on_gpu = [cupy.empty((size, size), cupy.float32) for _ in range(3)]
        times, kernels = [], []
        for _ in range(6):
            cupy.cuda.Device().synchronize()
            started = time.perf_counter()
            on_gpu[0].set(a)
            on_gpu[1].set(b)
            cupy.cuda.Device().synchronize()
            copied = time.perf_counter()
            cupy.matmul(on_gpu[0], on_gpu[1], out=on_gpu[2])
            cupy.cuda.Device().synchronize()
            kernels.append(time.perf_counter() - copied)
            on_gpu[2].get(out=c)
            times.append(time.perf_counter() - started)
        return statistics.median(times[1:]), statistics.median(kernels[1:])

    found = {size: seconds(size) for size in (*FITTED, *CHECKED)}
    copies = {size: whole - kernel for size, (whole, kernel) in found.items()}
    small, large = FITTED
    per_byte = (copies[large] - copies[small]) / (12.0 * (large**2 - small**2))
    per_flop = (found[large][1] - found[small][1]) / (2.0 * (large**3 - small**3))
    start = copies[small] - 12.0 * small**2 * per_byte + found[small][1] - 2.0 * small**3 * per_flop
    return {
        "bytes_per_s": 1.0 / per_byte,
        "flops": 1.0 / per_flop,
        "start_s": start,
        "sizes": [
            {
                "size": size,
                "fitted": size in FITTED,
                "kernel_s": kernel,
                "host_to_host_s": whole,
                "predicted_s": start + 12.0 * size**2 * per_byte + 2.0 * size**3 * per_flop,
            }
            for size, (whole, kernel) in sorted(found.items())
        ],
    }


def blocks_of(run: TuneResult) -> list[list[float]]:
    """Return threads of a block along x and along y, and the best TFLOPS of that shape: what was measured."""
    records = run.records.take(run.records.succeeded)
    shapes = np.column_stack([records.parameter("DIM_X"), records.parameter("DIM_Y")]).astype(int)
    tflops = run.problem.flops / records.column("median_s") / 1e12
    best: dict[tuple[int, int], float] = {}
    for (x, y), speed in zip(shapes.tolist(), tflops.tolist(), strict=True):
        best[x, y] = max(speed, best.get((x, y), 0.0))
    return [[x, y, speed] for (x, y), speed in sorted(best.items())]


def pruned(device: Device, runs: dict[str, TuneResult]) -> Iterator[dict[str, Any]]:
    """Count what each step of ASTRA's pruning leaves of its own space, for each precision."""
    kernel = load_kernel("gemm_simt:astra")
    for precision in "sdcz":
        problem = GemmProblem(precision, "N", "T", 4096, 4096, 4096)
        space = ConstrainedSpace(kernel, {**problem.variables(), **device_variables(device)})
        columns = space.rows(np.arange(space.count))
        astra = AstraThresholds(kernel, problem, device)
        threads = AstraThresholds(kernel, problem, device, replace(astra.thresholds, register_reuse=0.0))
        run = next((run for slug, run in runs.items() if "astra" in slug and run.problem == problem), None)
        yield {
            "problem": problem.label,
            "combinations": math.prod(len(values) for values in kernel.all_parameters.values()),
            "valid": int(space.count),
            "threads": int(threads.keeps(columns).sum()),
            "reuse": int(astra.keeps(columns).sum()),
            "measured": None if run is None else int(run.records.succeeded.sum()),
        }


def share(value: float | None) -> str:
    """Write a share; a dash where there is none."""
    return "-" if value is None else f"{value:.3f}"


def with_transfers(row: dict[str, Any], transfers: dict[str, Any] | None) -> str:
    """Write the speed from host to host, TFLOPS: of a square product, by the model of transfers."""
    if transfers is None or not row["tflops"]:
        return "-"
    name, trans, size = row["problem"].split()
    problem = parse_problem(name, trans=trans, size=int(size))
    seconds = problem.flops / (1e12 * row["tflops"]) + transfers["start_s"] + problem.bytes / transfers["bytes_per_s"]
    return f"{problem.flops / seconds / 1e12:.2f}"


def table(document: dict[str, Any]) -> str:
    """Write the tables."""
    lines = [
        "| kernel | problem | paper | its GFLOPS | of its peak | here, TFLOPS | with transfers | of this peak "
        "| of cuBLAS | of its bound | limited by | registers | occupancy |",
        f"|{'---|' * 13}",
    ]
    for row in document["rows"]:
        gflops = "-" if row["paper_gflops"] is None else f"{row['paper_gflops']:g}"
        tflops = "-" if row["tflops"] is None else f"{row['tflops']:.2f}"
        cells = [
            *(f"`{row['kernel']}`", row["problem"], row["paper"] or "-", gflops, share(row["paper_share"]), tflops),
            with_transfers(row, document["transfers"]),
            *(share(row[name]) for name in ("share", "of_reference", "of_bound")),
            *(row["limited_by"] or "-", str(row["registers"] or "-"), share(row["occupancy"])),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    steps = ("combinations", "valid", "threads", "reuse", "measured")
    lines += [
        "",
        "| problem | combinations | valid | enough threads | enough reuse | measured in ten seconds |",
        f"|{'---|' * 6}",
    ]
    for row in document["pruned"]:
        counts = ("-" if row[step] is None else f"{row[step]:,}" for step in steps)
        lines.append(f"| {row['problem']} | {' | '.join(counts)} |")
    transfers = document["transfers"]
    if transfers is not None:
        lines += [
            "",
            f"T = {1e6 * transfers['start_s']:.0f} us + 12 N^2 bytes / {1e-9 * transfers['bytes_per_s']:.1f} GB/s + "
            f"2 N^3 / {1e-12 * transfers['flops']:.1f} TFLOPS:",
            "",
            "| N | kernel, ms | host to host, ms | model, ms | error | |",
            "|---|---|---|---|---|---|",
        ]
        for one in transfers["sizes"]:
            error = one["predicted_s"] / one["host_to_host_s"] - 1.0
            times = [f"{1e3 * one[name]:.2f}" for name in ("kernel_s", "host_to_host_s", "predicted_s")]
            what = "fitted" if one["fitted"] else "checked"
            lines.append(f"| {one['size']} | {' | '.join(times)} | {100 * error:+.1f} % | {what} |")
    return "\n".join(lines) + "\n"


def picture(document: dict[str, Any]) -> str:
    """Draw the speed by the shape of a block, with and without a stride, and the roofline."""
    left = axes(9.6, 3.4, left=0.6, right=6.45, top=0.3)
    places = ((3.65 / 9.6, 0.42 / 3.4, 2.55 / 9.6, 2.68 / 3.4), (6.95 / 9.6, 0.42 / 3.4, 2.5 / 9.6, 2.68 / 3.4))
    middle, right = (left.figure.add_axes(place) for place in places)
    top = max(cell[2] for cells in document["blocks"].values() for cell in cells)
    for panel, (kernel, cells) in zip((left, middle), document["blocks"].items(), strict=True):
        draw_blocks(panel, kernel, cells, top)
    draw_roofline(right, document)
    return standalone(left, "seeds", "Speed by the shape of a block, and the roofline")


def draw_blocks(panel: Axes, kernel: str, cells: list[list[float]], top: float) -> None:
    """Draw a heat map; shapes that were not measured stay empty."""
    x, y, tflops = np.array(cells).T
    panel.scatter(np.log2(x), np.log2(y), c=tflops, s=130, marker="s", cmap="viridis", vmin=0, vmax=top, zorder=3)
    for at, along, speed in zip(np.log2(x), np.log2(y), tflops, strict=True):
        colour = "black" if speed > 0.6 * top else "white"
        panel.annotate(f"{speed:.1f}", (at, along), ha="center", va="center", fontsize=5, color=colour, zorder=4)
    ticks = range(0, 11, 2)
    labels = [str(1 << tick) for tick in ticks]
    panel.set(xlim=(-0.6, 10.6), ylim=(-0.6, 10.6), xlabel="threads along x", ylabel="threads along y")
    panel.set_xticks(ticks, labels)
    panel.set_yticks(ticks, labels)
    panel.set_title(f"{kernel}, S: TFLOPS")


def draw_roofline(panel: Axes, document: dict[str, Any]) -> None:
    """Draw the speeds in S over the operations for each byte that blocks read, below the rates of the GPU."""
    peak, l2 = document["peak_tflops"], document["l2_tb_per_s"]
    intensities = np.array([0.2, peak / l2, 200.0])
    panel.plot(intensities, np.minimum(peak, l2 * intensities), color=QUIET)
    families: dict[str, list[tuple[float, float]]] = {}
    for row in document["rows"]:
        if row["problem"].startswith("sgemm") and row["tflops"] and row["flops_per_byte"]:
            families.setdefault(row["kernel"].partition(":")[0], []).append((row["flops_per_byte"], row["tflops"]))
    for (name, points), colour in zip(families.items(), SERIES, strict=False):
        panel.plot(*zip(*points, strict=True), "o", color=colour, markersize=4, label=name)
    panel.set(xscale="log", yscale="log", xlabel="operations for each byte from L2", ylabel="TFLOPS")
    for axis, ticks in ((panel.xaxis, (0.3, 1, 3, 10, 30, 100)), (panel.yaxis, (2, 5, 10, 20, 50))):
        axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.minorticks_off()
    panel.set_title(f"S: peak {peak:.0f} TFLOPS, L2 {l2:.1f} TB/s")
    panel.legend(loc="lower right", fontsize=6)


def document_of(directory: Path, *, transfer: bool) -> dict[str, Any]:
    """Return all figures of a campaign."""
    source = read_input(directory)
    runs = {run.slug: run for run in source.runs}
    device = source.runs[0].device
    blocks = {
        f"gemm_naive:{preset}": blocks_of(runs[f"gemm-naive-{preset}-sgemm-nn-4096"])
        for preset in ("contiguous", "strided")
    }
    return {
        "date": time.strftime("%Y-%m-%d"),
        "command": "mltune run search/seeds.toml --run DIR; python benchmarks/seeds.py DIR --transfer",
        "device": device.name,
        "versions": dict(source.runs[0].header.versions),
        "peak_tflops": source.runs[0].peak_flops / 1e12,
        "l2_tb_per_s": device.sm_count * L2_BYTES_PER_CLOCK * device.clock_hz / 1e12,
        "rows": rows_of(directory),
        "blocks": blocks,
        "pruned": list(pruned(device, runs)),
        "transfers": measure_transfers() if transfer else None,
    }


def main() -> None:
    """Write the figures, the tables and the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="the directory of the campaign, or a seeds.json")
    parser.add_argument("--transfer", action="store_true", help="measure transfers between host and GPU, here")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/seeds"))
    parser.add_argument("--picture", type=Path, default=Path("docs/images/seeds.svg"))
    arguments = parser.parse_args()
    if arguments.source.suffix == ".json":
        document = json.loads(arguments.source.read_text())
    else:
        document = document_of(arguments.source, transfer=arguments.transfer)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "seeds.json").write_text(f"{json.dumps(document, indent=1)}\n", encoding="utf-8")
    (arguments.out / "table.md").write_text(table(document), encoding="utf-8")
    with plotting():
        arguments.picture.write_text(picture(document), encoding="utf-8")
    print(table(document))


if __name__ == "__main__":
    main()
