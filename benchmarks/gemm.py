"""Tuned GEMMs beside cuBLAS: speed, share of the unit's peak, and error, in one campaign on all GPUs of the machine.

Every figure is that of a tune: a campaign (`mltune run`) gives each problem its time. It begins without cubins and
winners from before; its problems learn from each other, and from the models that come with mltune. cuBLAS is timed in
the same worker, by the same protocol, on the same operands. Clock and power are those during the timing of the winner.
The error is max |C - exact| / (|A| |B|) over a sample of C, for operands uniform in [-1, 1).

    python benchmarks/gemm.py --cases d,z --sizes 4096 --time 20
    python benchmarks/gemm.py --cases dNN,sNT --sizes 1024,16384x1024x1024 --time 10 --name some
    python benchmarks/gemm.py --merge some others             # join both into one result
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from blas_cases import facts
from sharing import campaign

from mltune.device.peaks import peak_flops
from mltune.kernel.reader import load_kernel
from mltune.problem.gemm import GemmProblem
from mltune.problem.gemm_precisions import PRECISIONS, transpositions
from mltune.resolve.device import find_gpus
from mltune.results.run import TuneResult

SAMPLE = 64
"""Rows and columns of C at which errors are computed."""


def examine(run: TuneResult) -> dict[str, Any]:
    """Return what the row of a problem has besides its times: kernel, configuration, clock, power, and errors."""
    best = run.best
    if best is None or best.measurement is None or not run.settled:
        return {}
    unit = load_kernel(run.kernel).unit or run.problem.arithmetic
    return {
        "kernel": run.kernel,
        "configuration": dict(best.configuration),
        "unit": unit,
        "share_of_peak": run.problem.flops / run.best_time_s / peak_flops(run.device, unit),
        "clock_mhz": round((best.measurement.sm_clock_hz or 0) / 1e6),
        "power_w": best.measurement.power_w,
        "noise": best.measurement.noise,
        **errors(run),
    }


def errors(run: TuneResult) -> dict[str, float]:
    """Return the errors of the tuned kernel and of cuBLAS on the same operands; none where there is no reference."""
    import cupy

    from mltune.measure.references import bind_reference

    problem = run.problem
    if not isinstance(problem, GemmProblem):
        raise TypeError(problem.label)
    if not problem.reference:
        return {}
    operands = problem.operands(cupy, 1)
    exact, scale, where = sample(problem, operands)

    def error() -> float:
        computed = problem.result(operands["C"])[where].get()
        return float((np.abs(computed - exact) / scale).max())

    run.compile()(*problem.kernel_arguments(operands).values())
    ours = error()
    bind_reference(problem, {name: buffer.data.ptr for name, buffer in operands.items()})()
    return {"error": ours, "reference_error": error()}


def sample(problem: GemmProblem, operands: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Return exact elements of op(A) op(B), the same of |op(A)| |op(B)|, and where they are in C."""
    rng = np.random.default_rng(0)
    rows = np.sort(rng.choice(problem.m, min(SAMPLE, problem.m), replace=False))
    columns = np.sort(rng.choice(problem.n, min(SAMPLE, problem.n), replace=False))
    left, right = problem.factors(operands)
    which: tuple[int, ...] = ()
    if problem.batch > 1:  # the last product
        which, left, right = (problem.batch - 1,), left[-1], right[-1]
    wide = np.clongdouble if problem.is_complex else np.longdouble
    a, b = left[rows].get().astype(wide), right[:, columns].get().astype(wide)
    return a @ b, np.abs(a) @ np.abs(b), (*which, *np.ix_(rows, columns))


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as Markdown."""
    lines = [
        "| problem | TFLOPS | cuBLAS | of cuBLAS | unit | of its peak | error | cuBLAS's | MHz | W | trials | kernel |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if not row.get("kernel"):
            lines.append(f"| {row['problem']} | - |  |  |  |  |  |  |  |  | {row['trials']} |  |")
            continue
        columns = [
            *(("problem", "{}"), ("tflops", "{:.1f}"), ("reference_tflops", "{:.1f}"), ("of_reference", "{:.3f}")),
            *(("unit", "{}"), ("share_of_peak", "{:.3f}"), ("error", "{:.1e}"), ("reference_error", "{:.1e}")),
            *(("clock_mhz", "{}"), ("power_w", "{:.0f}"), ("trials", "{}"), ("kernel", "{}")),
        ]
        cells = ["" if row.get(name) is None else form.format(row[name]) for name, form in columns]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def means(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the geometric mean and the least of the speeds relative to cuBLAS, by precision and size."""
    groups: dict[str, list[float]] = {}
    for row in rows:
        if row.get("of_reference"):
            name, _, size = row["problem"].split(maxsplit=2)
            groups.setdefault(f"{name} {size}", []).append(row["of_reference"])
    return {
        name: {"cases": len(group), "geometric_mean": statistics.geometric_mean(group), "least": min(group)}
        for name, group in groups.items()
    }


def write(folder: Path, name: str, document: dict[str, Any]) -> None:
    """Write JSON and Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    heading = f"{document['date']}, {document['device']['name']}, `{document['command']}`"
    found = [
        f"- {group}: {mean['geometric_mean']:.3f} of cuBLAS in the mean of {mean['cases']}, least {mean['least']:.3f}"
        for group, mean in document["means"].items()
    ]
    text = "\n".join([heading, "", table(document["problems"]), "", *found, ""])
    (folder / f"{name}.md").write_text(text)
    print(text, flush=True)


def main() -> None:
    """Tune the chosen problems, and write JSON and Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="s,d,c,z", help="precisions, such as s, h or dd, or cases such as dNN")
    parser.add_argument("--sizes", default="4096", help="m = n = k, or m x n x k, and a batch: 4096,64x64x32*1000")
    parser.add_argument("--time", type=float, default=20.0, help="seconds for each problem")
    parser.add_argument("--kernel", help="bundle; without it, all that compete")
    parser.add_argument("--accuracy", default="ieee", help="the class of those that compete")
    parser.add_argument("--device", default="all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="gemm")
    parser.add_argument("--keep", type=Path, help="folder for the runs as datasets")
    parser.add_argument("--merge", nargs="+", metavar="NAME", help="results to join, in place of measuring")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    if arguments.merge:
        parts = [json.loads((arguments.output / f"{part}.json").read_text()) for part in arguments.merge]
        rows = [row for part in parts for row in part["problems"]]
        command = "; ".join(part["command"] for part in parts)
        write(
            arguments.output, arguments.name, {**parts[0], "command": command, "means": means(rows), "problems": rows}
        )
        return
    os.environ["MLTUNE_WISDOM"] = "none"
    known = [(precision, *ops) for precision in PRECISIONS for ops in transpositions(precision)]
    cases = [case for one in arguments.cases.split(",") for case in known if one in (case[0], "".join(case))]
    tables = [
        {
            "precisions": [precision],
            "trans": [trans_a + trans_b],
            "sizes": [extents[0] if len(extents) == 1 else extents],
            "batch": int(batch or 1),
        }
        | ({"kernel": arguments.kernel} if arguments.kernel else {"accuracy": arguments.accuracy})
        for size, _, batch in (text.partition("*") for text in arguments.sizes.split(","))
        for extents in [[int(one) for one in size.split("x")]]
        for precision, trans_a, trans_b in cases
    ]
    options = {"device": arguments.device, "seed": arguments.seed, "keep": arguments.keep}
    found = campaign(tables, arguments.time, siblings=True, examine=examine, **options)
    rows = []
    for label, one in found.items():
        compared = {}
        if one["best_s"] and one["reference_s"]:
            ratio = one["reference_s"] / one["best_s"]
            compared = {"of_reference": ratio, "reference_tflops": one["tflops"] / ratio}
        rows.append({"problem": label, **one, **compared})
    gpus, _ = find_gpus()
    document = {**facts(arguments), "gpus": len(gpus), "means": means(rows), "problems": rows}
    write(arguments.output, arguments.name, document)


if __name__ == "__main__":
    main()
