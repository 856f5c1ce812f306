"""A run of 200,000 trials: seconds and memory of opening, resuming, showing and reporting it.

Results: benchmarks/results/large_run.json. The run replays a dataset of 200,000 configurations of gemm_simt, whose
builds and samples are those of a recorded dataset, repeated with times that differ by some noise.

    python benchmarks/large_run.py --output benchmarks/results/large_run.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from mltune.dataset.dataset import dataset_from_records, load_dataset, write_dataset
from mltune.kernel.bundle import device_variables
from mltune.kernel.columns import row
from mltune.kernel.reader import load_kernel
from mltune.kernel.space import ConstrainedSpace
from mltune.records.candidate import BATCH
from mltune.records.header import RunHeader
from mltune.records.store import Store
from mltune.records.trial import Build, Measurement, TrialRecord, TrialState
from mltune.records.versions import installed_versions
from mltune.tuning.session import open_session, run_header
from mltune.tuning.target import Target

TEMPLATE = "h200-sgemm-nt-4096-random"
MEASURE = """
import json, resource, sys
code = 0
try:
    {body}
except SystemExit as end:
    code = end.code
peak_kib = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([code, int(peak_kib) * 1024, used.ru_utime + used.ru_stime]), file=sys.stderr)
"""
COMMAND = MEASURE.format(body="sys.argv[0] = 'mltune'; from mltune.cli import main; main()")
OPEN = MEASURE.format(body="import mltune; mltune.load_run(sys.argv[1])")


def templates() -> tuple[list[Build], list[Measurement | None], list[TrialState]]:
    """Return builds, measurements and states as they were recorded on a GPU."""
    data = load_dataset(TEMPLATE)
    return data.builds(), data.measurements(), [TrialState(state) for state in data.states]


def records(count: int) -> Iterator[TrialRecord]:
    """Yield the records of a run."""
    data = load_dataset(TEMPLATE)
    kernel, problem, device = load_kernel("gemm_simt"), data.manifest.problem, data.manifest.device
    space = ConstrainedSpace(kernel, {**problem.variables(), **device_variables(device)})
    rng = np.random.default_rng(1)
    columns = space.rows(space.sample(count, rng))
    builds, measurements, states = templates()
    noise = rng.lognormal(0.0, 0.05, count)
    for number in range(count):
        at = number % len(builds)
        measured = measurements[at]
        if measured is not None and measured.median_s is not None:
            samples = tuple(float(sample * noise[number]) for sample in measured.samples_s)
            measured = replace(measured, samples_s=samples, median_s=float(measured.median_s * noise[number]))
        yield TrialRecord(
            number, number // BATCH, number, row(columns, number), states[at], proposed_by="model", build=builds[at],
            measurement=measured, predicted=-0.7, finished_at=1.75e9 + 0.1 * number, elapsed_s=0.1 * number,
        )  # fmt: skip


def prepare(folder: Path, count: int) -> tuple[Path, Path]:
    """Write a dataset and a run that replays it; return the dataset's manifest and the run's directory."""
    manifest = load_dataset(TEMPLATE).manifest
    header = RunHeader(
        "gemm_simt", manifest.source_hash, dict(manifest.parameters), manifest.problem.to_json(),
        manifest.device.to_json(), 0, created_at=1.75e9,
    )  # fmt: skip
    found = list(records(count + 20 * BATCH))
    values = {name: tuple(sorted({one.configuration[name] for one in found})) for name in header.parameters}
    dataset = dataset_from_records(
        found, replace(header, parameters=values), name="large", kind="random", reference_median_s=2.65e-3
    )
    write_dataset(dataset, folder)
    path = folder / "large.json"
    session = open_session("gemm_simt", manifest.problem, Target(dataset=str(path)))
    settings = {
        "target": f"replay:{path}", "batch": BATCH, "batches": session.batches, "space": str(session.space.count),
        "search": "model", "skip": True,
    }  # fmt: skip
    run = folder / "run"
    with Store.open(run, run_header(session, 0, settings)) as store:
        for start in range(0, count, 1000):
            store.append(*found[start : start + 1000])
        store.set_seconds({"total": 0.1 * count})
    return path, run


def measured(script: str, *arguments: object) -> dict[str, float]:
    """Run a script; return its seconds, and its peak of memory in bytes."""
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True)
    wall_s = time.perf_counter() - begin
    code, peak, cpu_s = json.loads(done.stderr.splitlines()[-1])
    if code:
        raise SystemExit(done.stderr + done.stdout)
    return {"wall_s": wall_s, "cpu_s": cpu_s, "peak_bytes": peak}


def main() -> None:
    """Measure every command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200_000)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--folder", type=Path, help="keep the run here, and use it if it exists")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(exist_ok=True)
        path, run = folder / "large.json", folder / "run"
        if not run.exists():
            path, run = prepare(folder, options.trials)
        size = (run / "run.sqlite").stat().st_size
        figures: dict[str, Any] = {
            "open": measured(OPEN, run),
            "show": measured(COMMAND, "show", run),
            "report": measured(COMMAND, "report", run),
            "resume": measured(
                COMMAND, "tune", "--device", f"replay:{path}", "--run", run, "--trials", options.trials + BATCH
            ),
        }
    result = {
        "date": datetime.now(UTC).date().isoformat(),
        "command": f"python benchmarks/large_run.py --trials {options.trials}",
        "trials": options.trials,
        "store_bytes": size,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "versions": installed_versions("numpy", "pandas", "optuna", "scikit-learn"),
        "figures": figures,
    }
    text = json.dumps(result, indent=1)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
