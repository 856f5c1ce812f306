"""Simulated campaigns on a cluster: seconds to 99 % of the best with 1 to 64 GPUs and 16 to 1,024 compile cores.

A discrete-event simulation plays the searches that search_width.py has traced: the same batches, planned from the same
results, with the recorded seconds of every compilation and timing and the processor seconds of every plan. Assumptions
and results are explained in docs/explanation/time-sharing.md. Without traces it makes them, in ten minutes.

    OMP_NUM_THREADS=1 python benchmarks/search_width.py
    OMP_NUM_THREADS=1 python benchmarks/cluster_simulation.py [--output benchmarks/results/cluster_simulation.json]
"""

from __future__ import annotations

import heapq
import math
import statistics
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import search_width
from harness import parser_of, provenance, write

RESULT = Path(__file__).parent / "results" / "cluster_simulation.json"
GPUS = (1, 2, 4, 8, 16, 32, 64)
CORES = (16, 32, 64, 128, 256, 512, 1024)
WIDTHS = ("gradual 48", "large 96", "large 192", "large 384")
CAMPAIGN_WIDTHS = WIDTHS[:2]
BY_PRECISION = {
    "S": "h200-sgemm-nt-4096-random",
    "C": "h200-cgemm-nn-4096-random",
    "D": "h200-dgemm-nt-4096-random",
    "Z": "h200-zgemm-nn-4096-random",
}
CASES = "S" * 4 + "D" * 4 + "C" * 9 + "Z" * 9
"""The precisions of the 26 cases of BLAS."""

SINGLE = ("h200-sgemm-nt-4096-random", "h200-cgemm-nn-4096-complete", "h200-dgemm-tn-4096-random")
TARGET = 0.99
KNEE = 0.10
"""A knee is the smallest size beyond which doubling saves less than this share of the seconds."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster and the costs of its messages.

    Attributes
    ----------
    gpus, cores : int
    task_s : float
        Seconds that the Dask scheduler takes for a task, one after the other.
    builds_per_task : int
        Sources that travel in one task.
    latency_s : float
        Seconds of a message, one way.
    cubin_s : float
        Seconds that a cubin takes on the network: 100 kB at 1 Gbit/s.
    local : int
        Most compile cores at which no message is needed: those of one host. With more, every build is sent.
    slice_trials : int
        Trials after which a GPU turns to the next problem that waits.
    """

    gpus: int
    cores: int
    task_s: float = 0.008
    builds_per_task: int = 8
    latency_s: float = 0.001
    cubin_s: float = 0.0008
    local: int = 16
    slice_trials: int = 64


@dataclass(slots=True)
class Problem:
    """A problem, its traced search, and how far that has come.

    Attributes
    ----------
    best : float
        The best share of the optimum so far.
    told : int
        Batches whose results the search has.
    """

    name: str
    trace: search_width.Trace
    best: float = 0.0
    told: int = 0
    planned: int = 0
    since: int = 0
    waiting: dict[int, int] = field(default_factory=dict)
    ready: deque[tuple[int, int]] = field(default_factory=deque)
    is_planning: bool = False
    is_running: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether everything of its trace is done."""
        return self.told >= len(self.trace.batches)

    @property
    def is_idle(self) -> bool:
        """Whether nothing of it is under way, so that its GPU may turn to another problem."""
        return not (self.is_planning or self.is_running or self.ready or self.waiting)


class Simulation:
    """Problems on a cluster, event by event; the clock stands at ``now_s``."""

    def __init__(self, cluster: Cluster, problems: Sequence[Problem]) -> None:
        self.now_s = 0.0
        self.compile_busy_s = self.gpu_busy_s = 0.0
        self._cluster = cluster
        self._problems = problems
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._queue: deque[tuple[Problem, int, int]] = deque()  # builds that wait for a core
        self._free_cores = cluster.cores
        self._scheduler_free_s = 0.0
        self._left: deque[Problem] = deque(problems)

    def run(self) -> float:
        """Return the seconds until the mean share of the optimum is :data:`TARGET`; infinity if it is never."""
        for _ in range(self._cluster.gpus):
            self._take_problem()
        while self._events:
            self.now_s, _, act = heapq.heappop(self._events)
            act()
            if statistics.fmean(one.best for one in self._problems) >= TARGET:
                return self.now_s
        return math.inf

    def _at(self, time_s: float, act: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (time_s, self._number, act))

    def _take_problem(self) -> None:
        """Give a free GPU the next problem, if one waits."""
        if self._left:
            problem = self._left.popleft()
            problem.since = 0
            self._plan(problem)

    def _plan(self, problem: Problem) -> None:
        """Plan the next batch of a problem, once it may be planned; else turn to another problem at the slice's end."""
        cluster, batches = self._cluster, problem.trace.batches
        if problem.is_planning:
            return
        slice_ended = problem.since >= cluster.slice_trials and bool(self._left)
        if problem.planned >= len(batches) or slice_ended:
            if problem.is_idle:
                if not problem.has_ended:
                    self._left.append(problem)
                self._take_problem()
            return
        batch = batches[problem.planned]
        if batch.after > problem.told:
            return
        problem.is_planning = True
        self._at(self.now_s + batch.search_s, lambda: self._submit(problem))

    def _submit(self, problem: Problem) -> None:
        """Send the builds of a planned batch."""
        cluster, number = self._cluster, problem.planned
        batch = problem.trace.batches[number]
        problem.is_planning = False
        problem.planned += 1
        problem.since += len(batch.indices)
        problem.waiting[number] = len(batch.indices)
        is_remote = cluster.cores > cluster.local
        for place in range(len(batch.indices)):
            sent_s = self.now_s
            if is_remote:
                self._scheduler_free_s = max(self._scheduler_free_s, self.now_s)
                self._scheduler_free_s += cluster.task_s / cluster.builds_per_task
                sent_s = self._scheduler_free_s + cluster.latency_s
            self._at(sent_s, lambda place=place: self._enqueue(problem, number, place))
        if not batch.indices:
            self._end_batch(problem, number)
        self._plan(problem)

    def _enqueue(self, problem: Problem, number: int, place: int) -> None:
        self._queue.append((problem, number, place))
        self._compile()

    def _compile(self) -> None:
        """Start builds on free cores, in the order in which they came."""
        cluster = self._cluster
        back_s = cluster.latency_s + cluster.cubin_s if cluster.cores > cluster.local else 0.0
        while self._free_cores and self._queue:
            problem, number, place = self._queue.popleft()
            index = problem.trace.batches[number].indices[place]
            compile_s = float(search_width.recording(problem.name).compile_s[index])
            self._free_cores -= 1
            self.compile_busy_s += compile_s
            self._at(self.now_s + compile_s, self._free_core)
            self._at(self.now_s + compile_s + back_s, lambda one=(problem, number, place): self._built(*one))

    def _free_core(self) -> None:
        self._free_cores += 1
        self._compile()

    def _built(self, problem: Problem, number: int, place: int) -> None:
        """Queue a build for the GPU, unless the gate skips it."""
        if problem.trace.batches[number].measured[place]:
            problem.ready.append((number, place))
            self._measure(problem)
        else:
            self._end_trial(problem, number)

    def _measure(self, problem: Problem) -> None:
        """Measure the next build of a problem on its GPU."""
        if problem.is_running or not problem.ready:
            return
        number, place = problem.ready.popleft()
        index = problem.trace.batches[number].indices[place]
        run_s = float(search_width.recording(problem.name).run_s[index])
        problem.is_running = True
        self.gpu_busy_s += run_s
        self._at(self.now_s + run_s, lambda: self._measured(problem, number, index))

    def _measured(self, problem: Problem, number: int, index: int) -> None:
        recorded = search_width.recording(problem.name)
        median_s = float(recorded.median_s[index])
        if math.isfinite(median_s):
            problem.best = max(problem.best, recorded.optimum_s / median_s)
        problem.is_running = False
        self._measure(problem)
        self._end_trial(problem, number)

    def _end_trial(self, problem: Problem, number: int) -> None:
        problem.waiting[number] -= 1
        if not problem.waiting[number]:
            self._end_batch(problem, number)

    def _end_batch(self, problem: Problem, number: int) -> None:
        """Report batches in their order, and plan."""
        problem.waiting[number] = 0
        while problem.waiting.get(problem.told) == 0:
            del problem.waiting[problem.told]
            problem.told += 1
        self._plan(problem)


@cache
def traced(name: str, width: str, seed: int) -> search_width.Trace:
    """Return a trace of search_width.py."""
    return search_width.load_trace(search_width.WORK, name, width, seed, search_width.CHECKPOINTS[-1])


def single(width: str, seed: int, seeds: int) -> list[Problem]:
    """Return one problem: each of three in turn."""
    name = SINGLE[seed % len(SINGLE)]
    return [Problem(name, traced(name, width, seed // len(SINGLE) % seeds))]


def cases(width: str, seed: int, seeds: int, copies: int = 1) -> list[Problem]:
    """Return the 26 cases, each with the recorded space of its precision, and a search of another seed."""
    problems = []
    for at, precision in enumerate(CASES * copies):
        name = BY_PRECISION[precision]
        problems.append(Problem(name, traced(name, width, (seed + at) % seeds)))
    return problems


def simulate(cluster: Cluster, make: Callable[[int], list[Problem]], runs: int) -> dict[str, Any]:
    """Return the median seconds of some campaigns that differ in their seeds, and the quartiles."""
    taken_s, compile_share, gpu_share = [], [], []
    for seed in range(runs):
        simulation = Simulation(cluster, make(seed))
        taken_s.append(simulation.run())
        compile_share.append(simulation.compile_busy_s / simulation.now_s / cluster.cores)
        gpu_share.append(simulation.gpu_busy_s / simulation.now_s / cluster.gpus)
    low_s, median_s, high_s = np.quantile(taken_s, (0.25, 0.5, 0.75), method="nearest").tolist()
    return {
        "seconds": rounded(median_s),
        "quartiles": [rounded(low_s), rounded(high_s)],
        "not_reached": sum(map(math.isinf, taken_s)),
        "cores_busy": round(min(1.0, statistics.mean(compile_share)), 3),
        "gpus_busy": round(statistics.mean(gpu_share), 3),
    }


def rounded(seconds: float) -> float | None:
    """Return seconds for a table; None for a goal that was not reached."""
    return round(seconds, 2) if math.isfinite(seconds) else None


def knee(sizes: Sequence[int], seconds: Sequence[float | None]) -> int:
    """Return the smallest size beyond which doubling saves less than :data:`KNEE` of the seconds."""
    for size, now_s, next_s in zip(sizes, seconds, seconds[1:], strict=False):
        if now_s is not None and next_s is not None and next_s > (1.0 - KNEE) * now_s:
            return size
    return sizes[-1]


def table(
    make: Callable[[str, int], list[Problem]], runs: int, gpus: Sequence[int], widths: Sequence[str]
) -> dict[str, Any]:
    """Simulate every size of cluster with some widths."""
    rows = []
    for count in gpus:
        for cores in CORES:
            found = {
                width: simulate(Cluster(count, cores), lambda seed, width=width: make(width, seed), runs)
                for width in widths
            }
            rows.append({"gpus": count, "cores": cores, "widths": found})
            print(count, cores, {width: one["seconds"] for width, one in found.items()}, flush=True)
    return {"rows": rows, "knees": knees(rows)}


def knees(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the knees of the curves over the cores and over the GPUs, for each width."""
    gpus = sorted({row["gpus"] for row in rows})
    seconds = {
        (row["gpus"], row["cores"], width): one["seconds"] for row in rows for width, one in row["widths"].items()
    }
    return {
        width: {
            "cores_by_gpus": {count: knee(CORES, [seconds[count, cores, width] for cores in CORES]) for count in gpus},
            "gpus_by_cores": {cores: knee(gpus, [seconds[count, cores, width] for count in gpus]) for cores in CORES},
        }
        for width in rows[0]["widths"]
    }


def sensitivity(make: Callable[[str, int], list[Problem]], runs: int, cluster: Cluster) -> list[dict[str, Any]]:
    """Vary the assumptions that were not measured, one at a time."""
    changes = [
        {},
        *({"builds_per_task": some} for some in (1, 2, 32)),
        *({"task_s": seconds} for seconds in (0.001, 0.02)),
        *({"latency_s": seconds} for seconds in (0.01, 0.05)),
        *({"slice_trials": trials} for trials in (32, 400)),
    ]
    return [
        {**change, **simulate(replace(cluster, **change), lambda seed: make("gradual 48", seed), runs)}
        for change in changes
    ]


def main() -> None:
    """Run the simulations and write their results."""
    parser = parser_of(__doc__, RESULT)
    parser.add_argument("--seeds", type=int, default=8, help="traces of each space and width")
    arguments = parser.parse_args()
    seeds = arguments.seeds
    results = {
        "one problem": table(lambda width, seed: single(width, seed, seeds), len(SINGLE) * seeds, (1,), WIDTHS),
        "26 cases": table(lambda width, seed: cases(width, seed, seeds), 5, GPUS, CAMPAIGN_WIDTHS),
        "208 problems": table(lambda width, seed: cases(width, seed, seeds, 8), 1, GPUS, CAMPAIGN_WIDTHS),
    }
    large = Cluster(64, 1024)
    document = {
        **provenance(of="simulated; plans took their time on one core"),
        "target": TARGET,
        "knee": KNEE,
        "cluster": asdict(large),
        "results": results,
        "sensitivity": sensitivity(lambda width, seed: cases(width, seed, seeds, 8), 1, large),
    }
    write(arguments.output, document)


if __name__ == "__main__":
    main()
