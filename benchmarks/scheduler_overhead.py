"""Processor time that a campaign's scheduler takes to plan, with many problems and imaginary workers.

208 problems (the 26 cases of GEMM at eight sizes) are shared out to 64 workers in time slices of 5 s. The clock is
imaginary: a slice takes no time, and leaves 100 trials in the store of its problem, as a worker would. Measured is the
processor time of choosing slices (``next``), of what a problem that begins is told of the others (``tell``), and of
reading what a slice has left (``end``), as a share of one core during the campaign's imaginary seconds.

    OMP_NUM_THREADS=1 python benchmarks/scheduler_overhead.py [--output benchmarks/results/scheduler_overhead.json]
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import scipy.stats  # noqa: F401 - its import takes a second, once in a campaign

sys.path.insert(0, str(Path(__file__).parent))

import large_run
from harness import parser_of, provenance, write

from mltune.campaign.device_worker import Outcome, SliceResult
from mltune.campaign.schedule import TimeSlice
from mltune.campaign.scheduler import Scheduler
from mltune.kernel.reader import load_kernel
from mltune.problem.gemm import CASES, GemmProblem
from mltune.records.header import RunHeader
from mltune.records.store import Store
from mltune.records.trial import TrialRecord
from mltune.resolve.plan import Plan, Task
from mltune.tuning.session import run_header
from mltune.tuning.wisdom import Siblings

RESULT = Path(__file__).parent / "results" / "scheduler_overhead.json"
SIZES = (512, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
SLICE_S = 5.0
TRIALS = 100
"""Trials of a time slice."""

Answer = TypeVar("Answer")


class ProcessorTime:
    """The processor seconds of some calls, by name."""

    def __init__(self) -> None:
        self.spent_s: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.most_s: dict[str, float] = {}

    def of(self, name: str, call: Callable[[], Answer]) -> Answer:
        """Call something and add the time that it takes."""
        begin = time.process_time()
        answer = call()
        taken_s = time.process_time() - begin
        self.spent_s[name] += taken_s
        self.calls[name] += 1
        self.most_s[name] = max(taken_s, self.most_s.get(name, 0.0))
        return answer


def make_plan(workers: int, problems: int, seconds: float) -> Plan:
    """Return a plan of some problems for imaginary devices, with a budget of seconds for each device."""
    tasks = []
    for size in SIZES:
        for case in CASES:
            problem = GemmProblem(*case, size, size, size)
            slug = f"{problem.case.lower().replace(' ', '-')}-{size}"
            tasks.append(Task(slug, load_kernel("gemm_simt"), problem, None, 1.0, SLICE_S))
    return Plan("many", "Many", "s", seconds, tuple(tasks[:problems]), tuple(f"cuda:{at}" for at in range(workers)))


class ImaginaryWorkers:
    """Workers that leave some trials in the store of a problem without measuring anything."""

    def __init__(self, most: int) -> None:
        whole = large_run.session()
        self._header: RunHeader = run_header(whole, 0, {"target": "gpu", "batch": 16, "in_flight": 3})
        self._records: list[TrialRecord] = list(large_run.records(whole.space, most))

    def work(self, folder: Path, task: Task, known: int, spent_s: float) -> None:
        """Add the trials of a time slice of a task."""
        header = replace(self._header, problem=task.problem.to_json())
        some = self._records[known : known + TRIALS]
        with Store.open(folder, header) as store:
            store.append(*(replace(one, elapsed_s=spent_s + SLICE_S * at / TRIALS) for at, one in enumerate(some)))
            store.set_seconds({"total": spent_s + SLICE_S})


def told(scheduler: Scheduler, task: Task) -> Siblings:
    """Return the results of the others for a problem that begins."""
    return scheduler.siblings(task)


def campaign(plan: Plan, directory: Path) -> tuple[ProcessorTime, int, float]:
    """Carry out a plan; return the processor time, the number of time slices and the imaginary seconds."""
    clock, now_s, slices = ProcessorTime(), 0.0, 0
    workers = ImaginaryWorkers(TRIALS * (2 + int(plan.capacity / SLICE_S / len(plan.tasks)) * 8))
    scheduler = clock.of("start", partial(Scheduler, plan, directory))
    while now_s < plan.budget:
        running: dict[str, TimeSlice] = {}
        for _ in plan.devices:
            chosen = clock.of("next", partial(scheduler.next, [*running], plan.budget - now_s))
            if chosen is None:
                break
            task = plan.task(chosen.slug)
            clock.of("tell", partial(told, scheduler, task))
            running[chosen.slug] = chosen
        if not running:
            break
        for slug, chosen in running.items():
            before = scheduler.standings[slug]
            workers.work(scheduler.folder(plan.task(slug)), plan.task(slug), before.trials, before.spent)
            clock.of("end", partial(scheduler.end, chosen, SliceResult(Outcome.DONE)))
        slices += len(running)
        now_s += SLICE_S
    return clock, slices, now_s


def measure(workers: int, problems: int, seconds: float) -> dict[str, Any]:
    """Return one row of the table."""
    plan = make_plan(workers, problems, seconds)
    with tempfile.TemporaryDirectory() as folder:
        clock, slices, elapsed_s = campaign(plan, Path(folder))
    spent_s = sum(seconds for name, seconds in clock.spent_s.items() if name != "start")
    return {
        "workers": workers,
        "problems": len(plan.tasks),
        "slices": slices,
        "imaginary_s": elapsed_s,
        "share_of_a_core": round(spent_s / elapsed_s, 4),
        "ms_per_slice": round(1e3 * spent_s / slices, 2),
        **{f"{name}_ms": round(1e3 * clock.spent_s[name] / clock.calls[name], 2) for name in ("next", "tell", "end")},
        **{f"{name}_most_ms": round(1e3 * clock.most_s[name], 1) for name in ("next", "tell", "end")},
    }


def main() -> None:
    """Run the benchmark and print its rows."""
    parser = parser_of(__doc__)
    parser.add_argument("--workers", default="1,16,64")
    parser.add_argument("--problems", type=int, default=len(SIZES) * len(CASES))
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    rows = []
    for workers in map(int, arguments.workers.split(",")):
        rows.append(measure(workers, arguments.problems, arguments.seconds))
        print(json.dumps(rows[-1]), flush=True)
    write(arguments.output, provenance(slice_s=SLICE_S, trials_of_a_slice=TRIALS, rows=rows))


if __name__ == "__main__":
    main()
