"""A page about the GEMM kernels of older papers on this GPU, from a campaign of search/seeds.toml.

    mltune run search/seeds.toml --run DIR
    python benchmarks/seeds.py DIR [--transfer] [--out PAGE.md]

For each version of a kernel: the paper's figure as a share of the peak of its GPU, and the best that a search of ten
seconds finds as a share of the peak of this one, with its upper bound. ``--transfer`` runs on the GPU: it fits the time
of a product from host to host, T = T_comm + T_kernel, on two sizes and checks it on two others.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mltune.learn.features import Features
from mltune.plan.reader import load_plan
from mltune.report.findings import findings
from mltune.report.reading import kernel_of, read_input
from mltune.results.run import TuneResult

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
    best, bundle = run.best, kernel_of(run)
    registers = None if best is None or best.build is None else best.build.registers
    occupancy = None
    if best is not None and bundle is not None:
        import numpy as np

        columns = {name: np.array([value]) for name, value in best.configuration.items()}
        builds = {} if registers is None else {"registers": np.array([registers])}
        occupancy = float(Features(bundle, run.problem, run.device).derived(columns, builds)["occupancy"][0])
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
        "trials": entry["trials"],
        "configuration": entry["configuration"],
    }


def rows_of(directory: Path) -> list[dict[str, Any]]:
    """Return the rows of a campaign, in the order of its plan."""
    source = read_input(directory)
    kernels = {task.slug: task.kernel for task in load_plan(directory / "plan.toml").tasks}
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


def share(value: float | None) -> str:
    """Write a share; a dash where there is none."""
    return "-" if value is None else f"{value:.3f}"


def page(document: dict[str, Any]) -> str:
    """Write the page."""
    lines = [
        "# The kernels of older papers on a GPU of today",
        "",
        f"Written by `python benchmarks/seeds.py` from a campaign of `search/seeds.toml` on {document['device']}, "
        f"{document['date']}: ten seconds for each line. Shares of a peak are of that of the GPU of the line, without "
        "tensor cores; *of its bound* is the [upper bound](explanation/bound.md) of the configuration.",
        "",
        "| kernel | problem | paper | its GFLOPS | of its peak | here, TFLOPS | of this peak | of cuBLAS "
        "| of its bound | limited by | registers | occupancy |",
        f"|{'---|' * 12}",
    ]
    for row in document["rows"]:
        gflops = "-" if row["paper_gflops"] is None else f"{row['paper_gflops']:g}"
        tflops = "-" if row["tflops"] is None else f"{row['tflops']:.2f}"
        cells = [
            *(f"`{row['kernel']}`", row["problem"], row["paper"] or "-", gflops, share(row["paper_share"]), tflops),
            *(share(row[name]) for name in ("share", "of_reference", "of_bound")),
            *(row["limited_by"] or "-", str(row["registers"] or "-"), share(row["occupancy"])),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    transfers = document["transfers"]
    if transfers is not None:
        lines += [
            "",
            "## From host to host",
            "",
            f"T = {1e6 * transfers['start_s']:.0f} us + 12 N^2 bytes / {1e-9 * transfers['bytes_per_s']:.1f} GB/s + "
            f"2 N^3 / {1e-12 * transfers['flops']:.1f} TFLOPS (cuBLAS, pinned memory), as in Nakasato 2010:",
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


def main() -> None:
    """Write the page and its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--transfer", action="store_true", help="measure transfers between host and GPU, here")
    parser.add_argument("--out", type=Path, default=Path("seeds.md"))
    arguments = parser.parse_args()
    runs = read_input(arguments.directory).runs
    document = {
        "date": time.strftime("%Y-%m-%d"),
        "command": "python benchmarks/seeds.py DIR",
        "device": runs[0].device.name,
        "versions": dict(runs[0].header.versions),
        "rows": rows_of(arguments.directory),
        "transfers": measure_transfers() if arguments.transfer else None,
    }
    arguments.out.with_suffix(".json").write_text(f"{json.dumps(document, indent=1)}\n", encoding="utf-8")
    arguments.out.write_text(page(document), encoding="utf-8")
    print(page(document))


if __name__ == "__main__":
    main()
