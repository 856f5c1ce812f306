"""Overhead of the search: CPU milliseconds for each proposal, by the number of known trials.

Each row replays a search that already knows a number of trials, most of them from random places, and measures a few
batches: ``ask`` (proposals and the gate before compiling), ``decide`` (the gate after compiling) and ``tell``. Models
are fitted on a schedule; ``refit`` is the cost of a batch in which all of them are fitted.

    OMP_NUM_THREADS=1 python benchmarks/search_overhead.py [--output benchmarks/results/search_overhead.json]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from harness import SEARCHING, parser_of, provenance, write

from mltune.cost.features import Features
from mltune.dataset.dataset import load_dataset
from mltune.device.known import H200
from mltune.kernel.coding import row
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.kernel.space import SearchSpace, TableSpace
from mltune.problem.gemm import parse_problem
from mltune.records.trial import BATCH, Build, Candidate, Measurement, TrialRecord, TrialState
from mltune.records.trials import Trials
from mltune.search.search import KernelSearch, SearchSettings

KNOWN = (0, 112, 304, 1008, 3008, 5008, 10_000, 20_000, 50_000)
BATCHES = 5


@dataclass(frozen=True)
class Case:
    """A space, its features, and a function from indices to times in seconds."""

    name: str
    space: SearchSpace
    features: Features
    times_s: Callable[[np.ndarray], np.ndarray]


def gemm() -> Case:
    """Return the space of gemm_simt for S NT 4096 on an H200; times follow the prior, with noise."""
    kernel, problem = load_kernel("gemm_simt"), parse_problem("sgemm", trans="NT", size=4096)
    placed = PlacedKernel(kernel, problem, H200)
    features, space = Features(placed), placed.space

    def times_s(indices: np.ndarray) -> np.ndarray:
        noise = np.random.default_rng(len(indices)).normal(0.0, 0.1, len(indices))
        return 2e-3 / np.maximum(features.prior(space.rows(indices)), 0.01) * np.exp(noise)

    return Case("gemm_simt S NT 4096, H200", space, features, times_s)


def recorded(name: str) -> Case:
    """Return a recorded space with its times."""
    dataset = load_dataset(name)
    manifest, median_s = dataset.manifest, dataset.numbers("median_s")
    features = Features(PlacedKernel(load_kernel(manifest.kernel), manifest.problem, manifest.device))
    return Case(name, TableSpace(dataset.columns), features, lambda indices: median_s[indices])


def results(case: Case, candidates: list[Candidate]) -> list[TrialRecord]:
    """Return what a GPU would have reported."""
    times_s = case.times_s(np.array([candidate.index for candidate in candidates]))
    records = []
    for candidate, time_s in zip(candidates, times_s.tolist(), strict=True):
        ok = np.isfinite(time_s)
        state = TrialState.OK if ok else TrialState.LAUNCH_ERROR
        build = Build(TrialState.OK, registers=100 + candidate.number % 60, code_bytes=9000, compile_s=0.5)
        measured = Measurement(state, median_s=time_s if ok else None, time_s=0.1)
        records.append(candidate.record(state, build=build, measurement=measured))
    return records


def informed(case: Case, known: int) -> KernelSearch:
    """Return a search that knows a number of trials."""
    indices = case.space.sample(known, np.random.default_rng(0))
    columns = case.space.rows(indices)
    candidates = [
        Candidate(number, number // BATCH, int(index), row(columns, number), "model")
        for number, index in enumerate(indices)
    ]
    search = KernelSearch(case.space, case.features, SearchSettings(stop=False))
    search.resume(Trials.from_records(results(case, candidates) if known else [], case.space.names))
    return search


def one_batch(case: Case, search: KernelSearch) -> dict[str, float]:
    """Run one batch; return the CPU milliseconds for each proposal."""
    clock = [time.process_time()]
    batch = search.ask()
    clock.append(time.process_time())
    records = results(case, batch)
    begun = time.process_time()
    search.decide([(one, record.build) for one, record in zip(batch, records, strict=True) if record.build])
    decided = time.process_time()
    search.tell(records)
    told = time.process_time()
    parts = {"ask": clock[1] - clock[0], "decide": decided - begun, "tell": told - decided}
    return {name: 1e3 * seconds / BATCH for name, seconds in parts.items()}


def row_of(case: Case, known: int) -> dict[str, Any]:
    """Measure one row of the table."""
    search = informed(case, known)
    first = one_batch(case, search)  # fits all models
    batches = [one_batch(case, search) for _ in range(BATCHES)]
    parts = {name: statistics.median(batch[name] for batch in batches) for name in first}
    return {
        "space": case.name,
        "known": known,
        **parts,
        "all": statistics.median(sum(batch.values()) for batch in batches),
        "refit": sum(first.values()),
    }


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a table."""
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    for line in rows:
        cells = [f"{value:.2f}" if isinstance(value, float) else f"{value}" for value in line.values()]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark and print its table."""
    parser = parser_of(__doc__)
    parser.add_argument("--known", default=",".join(map(str, KNOWN)))
    parser.add_argument("--spaces", default="gemm,xgemm_rtx_2080_ti")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.spaces.split(","):
        case = gemm() if name == "gemm" else recorded(name)
        for known in map(int, arguments.known.split(",")):
            if known + (BATCHES + 1) * BATCH <= case.space.count:
                rows.append(row_of(case, known))
                print(markdown(rows[-1:]).splitlines()[-1], file=sys.stderr)
    print(markdown(rows))
    write(arguments.output, provenance(*SEARCHING, batch=BATCH, rows=rows))


if __name__ == "__main__":
    main()
