"""Short tunes of the 26 cases of BLAS GEMM, compared with cuBLAS and the arithmetic peak.

Every case has a run of its own, without a model or cubins from before. cuBLAS is timed in the same worker process, by
the same protocol, on the same operands. The result also has the seconds of each phase: compile rate, timing rate, share
of verification, seconds of search per trial.

    python benchmarks/blas_cases.py --time 20 --output benchmarks/results
    python benchmarks/blas_cases.py --cases sNN,sNT --name some     # some cases; another GPU can run the others
    python benchmarks/blas_cases.py --merge some others             # join both into one result
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

from mltune import __version__
from mltune.kernel.reader import load_kernel
from mltune.measure.build import available_cores, nvrtc_version
from mltune.problem.gemm import CASES, parse_problem
from mltune.records.store import Store
from mltune.records.trial import TrialRecord
from mltune.resolve.device import Target
from mltune.resolve.request import TuneRequest
from mltune.results.run import TuneResult
from mltune.tuning.tuner import tune


def measure(case: tuple[str, str, str], size: int, time_s: float, seed: int, cubins: Path) -> dict[str, Any]:
    """Tune one case and return its row of the result."""
    precision, trans_a, trans_b = case
    problem = parse_problem(f"{precision}gemm", trans=trans_a + trans_b, m=size, n=size, k=size)
    run = cubins / f"{precision}{trans_a}{trans_b}".lower()
    result = tune(TuneRequest(problem, load_kernel("gemm_simt"), Target(cuda=0), time_s=time_s, seed=seed, run=run))
    document = result.to_json()
    with Store.read_only(run) as store:
        started = store.header.created_at
    return {
        "case": problem.case,
        "size": size,
        "cores": available_cores(),
        **{name: document[name] for name in ("trials", "counts", "best", "seconds")},
        "rejected": {} if result.declaration is None else dict(result.declaration.rejected),
        "reference_tflops": None if result.reference_s is None else problem.flops / result.reference_s / 1e12,
        **rates(result),
        "curve": curve(result.records, started, problem.flops),
    }


def rates(result: TuneResult) -> dict[str, float]:
    """Return the rates of the parts of the loop."""
    built = [record.build for record in result.records if record.build is not None]
    ran = [record.measurement for record in result.records if record.measurement is not None]
    verify_s, time_s = sum(one.verify_s for one in ran), sum(one.time_s for one in ran)
    return {
        "compiled_per_s": len(built) / result.seconds["total"],
        "compile_cpu_s": sum(one.compile_s for one in built) / max(len(built), 1),
        "timed_per_gpu_s": len(ran) / max(verify_s + time_s, 1e-9),
        "verify_share": verify_s / max(verify_s + time_s, 1e-9),
        "search_s_per_trial": result.seconds["search"] / max(len(result.records), 1),
        "noise_of_best": result.best.measurement.noise if result.best and result.best.measurement else None,
        "samples_of_best": len(result.best.measurement.samples_s) if result.best and result.best.measurement else None,
    }


def curve(records: list[TrialRecord], started: float, flops: float) -> list[tuple[float, float]]:
    """Return the best TFLOPS so far at every improvement: (seconds since the start, TFLOPS)."""
    points: list[tuple[float, float]] = []
    for record in sorted(records, key=lambda record: record.finished_at):
        if record.state == "ok" and record.median_s is not None:
            tflops = flops / record.median_s / 1e12
            if not points or tflops > points[-1][1]:
                points.append((round(record.finished_at - started, 2), round(tflops, 3)))
    return points


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as Markdown."""
    lines = [
        "| case | TFLOPS | cuBLAS | of cuBLAS | of peak | trials | timed | compiled/s | verify | search/trial |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        best = row["best"] or {"tflops": 0.0, "share_of_reference": 0.0, "share_of_peak": 0.0}
        lines.append(
            f"| {row['case']} | {best['tflops']:.2f} | {row['reference_tflops']:.2f} "
            f"| {best['share_of_reference']:.3f} "
            f"| {best['share_of_peak']:.3f} | {row['trials']} | {row['counts']['ok']} | {row['compiled_per_s']:.1f} "
            f"| {100 * row['verify_share']:.0f} % | {1e3 * row['search_s_per_trial']:.1f} ms |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure the chosen cases, and write JSON and Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time", type=float, default=20.0, help="seconds per case")
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--cases", default=",".join("".join(case) for case in CASES), help="for example sNN,zTC")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="blas_cases")
    parser.add_argument("--merge", nargs="+", metavar="NAME", help="results to join, in place of measuring")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    if arguments.merge:
        merge(arguments.output, arguments.merge, arguments.name)
        return
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["XDG_CACHE_HOME"] = scratch  # no cubins from earlier runs
        os.environ["MLTUNE_WISDOM"] = "none"  # no winners of earlier runs
        for case in arguments.cases.split(","):
            rows.append(
                measure((case[0], case[1], case[2]), arguments.size, arguments.time, arguments.seed, Path(scratch))
            )
            print(table(rows[-1:]).splitlines()[-1], flush=True)
            write(arguments.output, arguments.name, {**facts(arguments), "cases": rows})


def facts(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the date, the hardware and the versions."""
    from mltune.device.query import driver_version, query_device

    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", *sys.argv]),
        "device": query_device(0).to_json(),
        "versions": {
            "mltune": __version__,
            "nvrtc": nvrtc_version(),
            "driver": driver_version(),
            "python": platform.python_version(),
        },
        "seconds_per_case": arguments.time,
        "seed": arguments.seed,
    }


def merge(folder: Path, names: list[str], name: str) -> None:
    """Join several results that were measured side by side on GPUs of one kind."""
    parts = [json.loads((folder / f"{part}.json").read_text()) for part in names]
    order = [f"{precision}gemm {a}{b}" for precision, a, b in CASES]
    rows = sorted((row for part in parts for row in part["cases"]), key=lambda row: order.index(row["case"]))
    write(folder, name, {**parts[0], "command": "; ".join(part["command"] for part in parts), "cases": rows})


def write(folder: Path, name: str, result: dict[str, Any]) -> None:
    """Write the finished cases, so that an interrupted run keeps them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    cores = sorted({row["cores"] for row in result["cases"]})
    heading = f"{result['date']}, {result['device']['name']}, {'/'.join(map(str, cores))} cores, `{result['command']}`"
    (folder / f"{name}.md").write_text(f"{heading}\n\n{table(result['cases'])}\n")


if __name__ == "__main__":
    main()
