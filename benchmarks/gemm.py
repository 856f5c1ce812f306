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
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from harness import RESULTS, gpu_provenance, parser_of, write

from mltune.campaign.campaign import run_plan
from mltune.dataset.dataset import export_run
from mltune.device.peaks import peak_flops
from mltune.kernel.reader import load_kernel
from mltune.problem.gemm import GemmProblem
from mltune.problem.gemm_operands import PRECISIONS, transpositions
from mltune.process.signals import Interrupt
from mltune.records.directory import runs_in
from mltune.resolve.device import find_gpus
from mltune.resolve.placement import place
from mltune.resolve.plan_file import parse_plan
from mltune.results.run import TuneResult
from mltune.results.summary import by_problem

OVERHEAD_S = 30.0
"""More than a problem takes besides its time: the budget must not end the campaign."""
SAMPLE = 64
"""Rows and columns of C at which errors are computed."""


def campaign(
    tables: list[dict[str, Any]],
    each_s: float,
    *,
    device: str,
    seed: int = 0,
    keep: Path | None = None,
    variants: bool = True,
) -> dict[str, dict[str, Any]]:
    """Tune the problem of each table for the same time, with an empty cache of cubins; return their rows by label.

    Problems learn from each other. The runs are exported as datasets into the folder `keep`.
    """
    budget_s = len(tables) * (each_s + OVERHEAD_S)
    head = {"title": "GEMM", "budget": f"{budget_s:g}s", "devices": [device], "seed": seed}
    head |= {"minimum": f"{each_s:g}s", "maximum": f"{each_s:g}s", "produce": ["winners"]}
    parts = ["[plan]", lines(head), "[options]", lines({"variants": variants})]
    text = "\n".join([*parts, *(f"[[problems]]\n{lines(table)}" for table in tables)])
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["XDG_CACHE_HOME"] = scratch
        placed = place(parse_plan(text, "gemm"), *find_gpus())
        with Interrupt() as stop:  # what it has until then is reported
            result = run_plan(placed, Path(scratch) / "campaign", stop=stop)
        runs = [result.read(folder, folder.name) for folder in runs_in(result.directory)]
        for run in runs if keep else ():
            if run.best is not None:
                export_run(run.directory, keep)
        fastest = [group[0] for group in by_problem(runs)]
        return {run.problem.label: row(run) | examine(run) for run in fastest}


def lines(table: dict[str, Any]) -> str:
    """Return a table of a plan as TOML."""
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())


def row(run: TuneResult) -> dict[str, Any]:
    """Return the figures of one problem."""
    compile_s, cached = run.records.column("compile_s"), run.records.column("cached") == 1
    compiled = ~np.isnan(compile_s) & ~cached
    first = next(iter(run.measured), None)
    return {
        "size": run.problem.variables["m"],
        "first": None if first is None else {"configuration": dict(first.configuration), "median_s": first.median_s},
        "best_s": run.best_time_s,
        "tflops": None if run.best_time_s is None else run.problem.flops / run.best_time_s / 1e12,
        "reference_s": run.reference_s,
        "trials": len(run.records),
        "compiled": int(compiled.sum()),
        "from_the_cache": int(cached.sum()),
        "compile_cpu_s": float(compile_s[compiled].sum()),
        "known": int((run.records.column("proposed_by") == "wisdom").sum()),
        "best_from": None if run.best is None else run.best.proposed_by,
        "curve": run.improvements(by_time=True),
        "seconds": {phase: round(seconds, 3) for phase, seconds in run.seconds.items()},
    }


def examine(run: TuneResult) -> dict[str, Any]:
    """Return what the row of a problem has besides its times: kernel, configuration, clock, power, and errors."""
    best = run.best
    if best is None or best.measurement is None or not run.settled:
        return {}
    unit = load_kernel(run.kernel).resources.unit or run.problem.arithmetic
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

    from mltune.measure.libraries import bind_reference

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


def write_result(folder: Path, name: str, document: dict[str, Any]) -> None:
    """Write JSON and Markdown."""
    heading = f"{document['date']}, {document['device']['name']}, `{document['command']}`"
    found = [
        f"- {group}: {mean['geometric_mean']:.3f} of cuBLAS in the mean of {mean['cases']}, least {mean['least']:.3f}"
        for group, mean in document["means"].items()
    ]
    text = "\n".join([heading, "", table(document["problems"]), "", *found, ""])
    write(folder / f"{name}.json", document, text)
    print(text, flush=True)


def main() -> None:
    """Tune the chosen problems, and write JSON and Markdown."""
    parser = parser_of(__doc__, RESULTS)
    parser.add_argument("--cases", default="s,d,c,z", help="precisions, such as s, h or dd, or cases such as dNN")
    parser.add_argument("--sizes", default="4096", help="m = n = k, or m x n x k, and a batch: 4096,64x64x32*1000")
    parser.add_argument("--time", type=float, default=20.0, help="seconds for each problem")
    parser.add_argument("--kernel", help="bundle; without it, all that compete")
    parser.add_argument("--accuracy", default="ieee", help="the class of those that compete")
    parser.add_argument("--device", default="all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--variants", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--name", default="gemm")
    parser.add_argument("--keep", type=Path, help="folder for the runs as datasets")
    parser.add_argument("--merge", nargs="+", metavar="NAME", help="results to join, in place of measuring")
    arguments = parser.parse_args()
    if arguments.merge:
        parts = [json.loads((arguments.output / f"{part}.json").read_text()) for part in arguments.merge]
        rows = [row for part in parts for row in part["problems"]]
        command = "; ".join(part["command"] for part in parts)
        write_result(
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
    options["variants"] = arguments.variants
    found = campaign(tables, arguments.time, **options)
    rows = []
    for label, one in found.items():
        compared = {}
        if one["best_s"] and one["reference_s"]:
            ratio = one["reference_s"] / one["best_s"]
            compared = {"of_reference": ratio, "reference_tflops": one["tflops"] / ratio}
        rows.append({"problem": label, **one, **compared})
    gpus, _ = find_gpus()
    head = gpu_provenance(seconds_per_case=arguments.time, seed=arguments.seed, gpus=len(gpus))
    document = {**head, "means": means(rows), "problems": rows}
    write_result(arguments.output, arguments.name, document)


if __name__ == "__main__":
    main()
