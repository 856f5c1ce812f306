"""Sample efficiency of the search by the number of proposals in flight, in replay, and its processor time per trial.

A trace is one search of a recorded space: which configurations it proposes, batch by batch. It depends on the seed, the
proposals of a batch and the batches in flight, and on no clock, so that cluster_simulation.py can play it with any
number of compile cores. Traces are kept in ``--work``. A search ends at ``--evaluations`` measurements, or at the
optimum.

Three ways to widen a search are compared:

- ``constant``: batches of 16, all of them in flight from the start;
- ``gradual``: batches of 16, one more in flight with each third batch (:func:`mltune.search.search.gradually`);
- ``large``: larger batches, up to three in flight gradually.

    OMP_NUM_THREADS=1 python benchmarks/search_width.py [--seeds 8] [--output benchmarks/results/search_width.json]
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from harness import SEARCHING, parser_of, provenance, write

from mltune.comparison.simulation import Recording, Source
from mltune.cost.features import Features
from mltune.cost.regressors import one_thread
from mltune.records.trial import BATCH, Build, Candidate, Measurement, TrialRecord, TrialState
from mltune.search.search import Batch, Search, SearchSettings, gradually

WORK = Path("runs") / "search_width"
RESULT = Path(__file__).parent / "results" / "search_width.json"
SPACES = (
    "h200-sgemm-nt-4096-complete",
    "h200-cgemm-nn-4096-complete",
    "h200-sgemm-nt-4096-random",
    "h200-cgemm-nn-4096-random",
    "h200-dgemm-nt-4096-random",
    "h200-dgemm-tn-4096-random",
    "h200-zgemm-nn-4096-random",
    "convolution_rtx_a4000",
    "convolution_mi250x_gcd",
    "xgemm_rtx_2080_ti",
)
WIDTHS = (16, 32, 48, 96, 192, 384)
CHECKPOINTS = (50, 100, 200, 400)


@dataclass(frozen=True, slots=True)
class Width:
    """A number of proposals in flight, and how a search gets there.

    Attributes
    ----------
    batch : int
        Proposals of a batch.
    in_flight : callable
        Batches in flight by the number of the batch (:class:`mltune.search.search.Search`).
    """

    batch: int
    in_flight: Callable[[int], int]


@dataclass(frozen=True, slots=True)
class TracedBatch:
    """A batch of a trace.

    Attributes
    ----------
    indices : list of int
        Its configurations, without those that the gate before compiling skips.
    measured : list of bool
        Whether a configuration is measured; otherwise the gate after compiling skips it.
    after : int
        Number of batches whose results the search had when it planned this one.
    search_s : float
        Processor seconds of the search for this batch.
    """

    indices: list[int]
    measured: list[bool]
    after: int
    search_s: float


@dataclass(slots=True)
class Trace:
    """The batches of a search, and how many measurements they are."""

    batches: list[TracedBatch] = field(default_factory=list)
    evaluations: int = 0


def widths() -> dict[str, Width]:
    """Return the widths by name."""
    found = {f"constant {most}": Width(BATCH, lambda number, most=most: most // BATCH) for most in WIDTHS}
    found |= {f"gradual {most}": Width(BATCH, gradually(most // BATCH)) for most in (48, 96, 192)}
    return found | {f"large {most}": Width(most // 3, gradually(3)) for most in WIDTHS[3:]}


@cache
def recording(name: str) -> Recording:
    """Return a recorded space."""
    return Source(name).load()


def make_trace(name: str, width: Width, seed: int, evaluations: int) -> Trace:
    """Search a recorded space."""
    recorded = recording(name)
    features = Features(recorded.kernel, recorded.problem, recorded.device)
    settings = SearchSettings(seed=seed, batch=width.batch, in_flight=width.in_flight, stop=False)
    search = Search(recorded.space, features, settings)
    trace, in_flight = Trace(), deque[tuple[Batch, list[TrialRecord]]]()
    learned, best_s = 0, math.inf
    while trace.evaluations < evaluations and best_s > recorded.optimum_s:
        started = time.process_time()
        while search.waits:
            search.tell(*in_flight.popleft())
            learned += 1
        batch = search.ask()
        built = [(one, build_of(recorded, one.index)) for one in batch.candidates if not one.is_skipped]
        decided = search.decide(built) if built else []
        search_s = time.process_time() - started
        if not batch.candidates:
            break
        fates = {one.number: one for one in (*batch.candidates, *decided)}
        records = [result(recorded, fates[one.number]) for one in batch.candidates]
        in_flight.append((batch, records))
        measured = [one.measurement is not None for one in records if one.build is not None]
        trace.batches.append(TracedBatch([one.index for one, _ in built], measured, learned, search_s))
        trace.evaluations += sum(measured)
        best_s = min([best_s, *(one.median_s for one in records if one.median_s is not None)])
    return trace


def build_of(recorded: Recording, index: int) -> Build:
    """Return the recorded build of a configuration."""
    known = {name: float(column[index]) for name, column in recorded.builds.items()}
    reports: dict[str, Any] = {name: None if math.isnan(value) else int(value) for name, value in known.items()}
    return Build(TrialState.OK, compile_s=float(recorded.compile_s[index]), **reports)


def result(recorded: Recording, candidate: Candidate) -> TrialRecord:
    """Return the recorded result of a candidate, or that a gate skipped it."""
    if candidate.is_skipped:
        built = candidate.skip is not None and candidate.skip.gate == "after_compile"
        return candidate.record(TrialState.SKIPPED, build=build_of(recorded, candidate.index) if built else None)
    median_s = float(recorded.median_s[candidate.index])
    ok = math.isfinite(median_s)
    state = TrialState.OK if ok else TrialState.LAUNCH_ERROR
    measurement = Measurement(state, median_s=median_s if ok else None, time_s=float(recorded.run_s[candidate.index]))
    return candidate.record(state, build=build_of(recorded, candidate.index), measurement=measurement)


def load_trace(work: Path, name: str, label: str, seed: int, evaluations: int) -> Trace:
    """Return a trace from the folder of traces; make it if it is not there."""
    path = work / f"{name}-{label.replace(' ', '-')}-{seed}-{evaluations}.json"
    if not path.exists():
        with one_thread():
            trace = make_trace(name, widths()[label], seed, evaluations)
        work.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(trace)), encoding="utf-8")
    document = json.loads(path.read_text(encoding="utf-8"))
    return Trace([TracedBatch(**one) for one in document["batches"]], document["evaluations"])


def shares(recorded: Recording, trace: Trace, evaluations: int) -> np.ndarray:
    """Return the best share of the optimum after each measurement; 1 after a trace that ended at the optimum."""
    pairs = [(index, ran) for one in trace.batches for index, ran in zip(one.indices, one.measured, strict=True)]
    times_s = recorded.median_s[[index for index, ran in pairs if ran]]
    best = np.maximum.accumulate(recorded.optimum_s / np.where(np.isfinite(times_s), times_s, np.inf))
    padded = np.full(evaluations, best[-1])
    padded[: len(best)] = best[:evaluations]
    return padded


def figures(name: str, traces: Sequence[Trace], evaluations: int) -> dict[str, Any]:
    """Return the figures of the searches of one space with one width."""
    curves = np.stack([shares(recording(name), trace, evaluations) for trace in traces])
    there = np.where((curves >= 0.99).any(axis=1), 1 + np.argmax(curves >= 0.99, axis=1), evaluations)
    batches = [one for trace in traces for one in trace.batches]
    trials = sum(len(one.indices) for one in batches)
    return {
        "share": {str(at): round(float(curves[:, at - 1].mean()), 4) for at in CHECKPOINTS if at <= evaluations},
        "spread": {str(at): round(float(curves[:, at - 1].std(ddof=1)), 4) for at in CHECKPOINTS if at <= evaluations},
        "to_99": round(float(there.mean()), 1),
        "to_99_spread": round(float(there.std(ddof=1)), 1),
        "not_to_99": int((curves[:, -1] < 0.99).sum()),
        "search_ms_per_trial": round(1e3 * sum(one.search_s for one in batches) / trials, 2),
    }


def mean_figures(of_spaces: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the means over the spaces."""
    return {
        "share": {at: round(statistics.mean(one["share"][at] for one in of_spaces), 4) for at in of_spaces[0]["share"]},
        "to_99": round(statistics.mean(one["to_99"] for one in of_spaces), 1),
        "not_to_99": sum(one["not_to_99"] for one in of_spaces),
        "search_ms_per_trial": round(statistics.mean(one["search_ms_per_trial"] for one in of_spaces), 2),
    }


def main() -> None:
    """Make the traces that are missing, and write the figures."""
    parser = parser_of(__doc__, RESULT)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--evaluations", type=int, default=CHECKPOINTS[-1])
    parser.add_argument("--spaces", default=",".join(SPACES))
    parser.add_argument("--widths", default=",".join(widths()))
    parser.add_argument("--work", type=Path, default=WORK)
    arguments = parser.parse_args()
    spaces, labels = arguments.spaces.split(","), arguments.widths.split(",")
    traces: dict[tuple[str, str], list[Trace]] = {(label, name): [] for label in labels for name in spaces}
    for seed in range(arguments.seeds):
        for (label, name), of_seeds in traces.items():
            of_seeds.append(load_trace(arguments.work, name, label, seed, arguments.evaluations))
        print(f"seed {seed}: {time.process_time():.0f} s of processor time", flush=True)
    rows: dict[str, Any] = {}
    for label in labels:
        by_space = {name: figures(name, traces[label, name], arguments.evaluations) for name in spaces}
        rows[label] = {"all": mean_figures([*by_space.values()]), "spaces": by_space}
        found = rows[label]["all"]
        print(f"{label:14}", *found["share"].values(), *(found[key] for key in ("to_99", "not_to_99")), sep="  ")
    document = {
        **provenance(*SEARCHING),
        "seeds": arguments.seeds,
        "evaluations": arguments.evaluations,
        "spread": "standard deviation over the seeds",
        "widths": rows,
    }
    write(arguments.output, document)


if __name__ == "__main__":
    main()
