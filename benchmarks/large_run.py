"""A run of many trials: seconds and memory of opening, resuming, showing and reporting it.

Results: benchmarks/results/large_run.json; for a million trials, in a file and in a PostgreSQL database of this host,
large_run_million.json and large_run_postgresql.json. The run is one of gemm_simt over its whole search space, as on
a GPU. Its builds and samples are those of a recorded dataset, repeated, with times that differ by some noise. Resuming
it loads the records, plans, and records one more batch; compiler and GPU answer at once with a fixed result.

    python benchmarks/large_run.py --output benchmarks/results/large_run.json
    python benchmarks/large_run.py --trials 999900 --output benchmarks/results/large_run_million.json
    python benchmarks/large_run.py --trials 999900 --store URL --output benchmarks/results/large_run_postgresql.json
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from harness import SEARCHING, parser_of, provenance, write

from mltune.device.known import H200
from mltune.kernel.coding import row
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.kernel.space import SearchSpace
from mltune.problem.gemm import parse_problem
from mltune.records.store import Store
from mltune.records.trial import BATCH, Build, Measurement, TrialRecord, TrialState
from mltune.resolve.device import Target
from mltune.resolve.request import TuneRequest
from mltune.results.progress import Observer
from mltune.tuning.session import Session, run_header
from mltune.tuning.tuner import Tuner

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
RESUME = MEASURE.format(
    body="sys.path[0] = 'benchmarks'; import large_run; large_run.resume(large_run.Path(sys.argv[1]), int(sys.argv[2]))"
)
OPEN = MEASURE.format(body="import mltune; mltune.load_run(sys.argv[1])")


def templates() -> tuple[list[Build], list[Measurement | None], list[TrialState]]:
    """Return builds, measurements and states as they were recorded on a GPU."""
    from mltune.dataset.dataset import load_dataset

    data = load_dataset(TEMPLATE)
    return data.builds(), data.measurements(), [TrialState(state) for state in data.states]


def session() -> Session:
    """Return a session on the whole search space, as on a GPU, whose builds and runs are answered at once.

    A run on a GPU loads no dataset, and so neither does this one.
    """
    kernel, problem, device = load_kernel("gemm_simt"), parse_problem("sgemm", trans="NT", size=4096), H200
    build = Build(TrialState.OK, cubin=b"cubin", registers=128, compile_s=0.5, code_bytes=20_000)
    measurement = Measurement(TrialState.OK, samples_s=(4e-3,) * 3, median_s=4e-3, noise=0.0, time_s=0.02)
    return Session(PlacedKernel(kernel, problem, device), Canned(build), Canned(measurement), {})


class Canned(contextlib.nullcontext):
    """A builder or a runner that answers at once, always with the same result."""

    def __init__(self, result: Build | Measurement) -> None:
        self._result = result
        super().__init__()

    def submit(self, *_: Any, **__: Any) -> Future[Any]:
        """Return the result."""
        future: Future[Any] = Future()
        future.set_result(self._result)
        return future


def records(space: SearchSpace, count: int) -> Iterator[TrialRecord]:
    """Yield the records of a run."""
    rng = np.random.default_rng(1)
    indices = space.sample(count, rng)
    columns = space.rows(indices)
    builds, measurements, states = templates()
    noise = rng.lognormal(0.0, 0.05, count)
    for number in range(count):
        at = number % len(builds)
        measured = measurements[at]
        if measured is not None and measured.median_s is not None:
            samples = tuple(float(sample * noise[number]) for sample in measured.samples_s)
            measured = replace(measured, samples_s=samples, median_s=float(measured.median_s * noise[number]))
        yield TrialRecord(
            number, number // BATCH, int(indices[number]), row(columns, number), states[at], proposed_by="model",
            build=builds[at], measurement=measured, predicted=-0.7, finished_at=1.75e9, elapsed_s=0.1 * number,
        )  # fmt: skip


def batches(found: Iterator[TrialRecord]) -> Iterator[list[TrialRecord]]:
    """Yield records some at a time."""
    while some := list(itertools.islice(found, 1000)):
        yield some


def prepare(run: Path, count: int, database: str) -> float:
    """Write a run, a thousand trials a transaction; return the seconds of that."""
    whole = session()
    settings = {"target": "gpu", "batch": BATCH, "batches": 3, "search": "model", "skip": True}
    spent_s = 0.0
    with Store.open(run, run_header(whole, 0, settings), database) as store:
        for some in batches(records(whole.placed.space, count)):
            begin = time.perf_counter()
            store.append(*some)
            spent_s += time.perf_counter() - begin
        store.set_seconds({"total": 0.1 * count})
    return spent_s


def resume(run: Path, trials: int) -> None:
    """Resume a run until it has some trials more."""
    whole = session()
    assert whole.placed.space.count  # noqa: S101 - as for the header of a run, before its records are read
    with Store.open(run) as store:
        observer = Observer(whole.placed.problem, whole.placed.device, "gpu", trials_limit=trials)
        result = Tuner(
            whole,
            store,
            TuneRequest(whole.placed.problem, whole.placed.kernel, Target(), run=run, trials=trials),
            observer,
        ).run()
    if len(result.records) != trials:
        raise SystemExit(f"the run has {len(result.records)} trials instead of {trials}")


def measured(script: str, *arguments: object) -> dict[str, float]:
    """Run a script; return its seconds, and its peak of memory in bytes."""
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True)
    wall_s = time.perf_counter() - begin
    code, peak, cpu_s = json.loads(done.stderr.splitlines()[-1]) if done.returncode == 0 else (1, 0, 0)
    if code:
        raise SystemExit(done.stderr + done.stdout)
    return {"wall_s": wall_s, "cpu_s": cpu_s, "peak_bytes": peak}


def main() -> None:
    """Measure every command."""
    parser = parser_of(__doc__)
    parser.add_argument("--trials", type=int, default=200_000)
    parser.add_argument("--store", default="", help="URL of a PostgreSQL database in place of a file")
    parser.add_argument("--folder", type=Path, help="keep the run here, and use it if it exists")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(exist_ok=True)
        run = folder / "run"
        write_s = None if run.exists() else prepare(run, options.trials, options.store)
        size = None if options.store else (run / "run.sqlite").stat().st_size
        figures: dict[str, Any] = {
            "open": measured(OPEN, run),
            "show": measured(COMMAND, "show", run),
            "report": measured(COMMAND, "report", run),
            "resume": measured(RESUME, run, options.trials + BATCH),
        }
    facts = {"trials": options.trials, "write_s": write_s, "store_bytes": size, "figures": figures}
    result = provenance(*SEARCHING, "pandas", "sqlalchemy", "psycopg", of="wall time") | facts
    print(json.dumps(result, indent=1))
    write(options.output, result)


if __name__ == "__main__":
    main()
