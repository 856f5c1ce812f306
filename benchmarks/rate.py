"""Configurations a second of a tune against those of a bare loop: what a trial costs beside its build and its launches.

The bare loop has a process for each core but one that compiles by NVRTC, and one that launches each configuration up to
eight times between events of CUDA: no verification, no records, no isolation. The tune measures the same configurations
of the same kernel on the same GPU, without stop and skips, and is a process of its own with an empty cache of cubins.
The rate is that from the first to the last result, the call of a tune includes its start and its finals. Kernels are
those of unknown_kernels.py, and a histogram of few builds.

With ``--profile`` a tune says where its seconds go: in the worker, by parts of a request, and in the parent.

    python benchmarks/rate.py --output benchmarks/results/rate.json
    python benchmarks/rate.py --cases histogram --arms everything --profile
"""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import harness
import numpy as np
import unknown_kernels

ARMS = ("bare", "model", "everything")
"""The bare loop, a tune, and a sweep: what the last one is faster is the cost of choosing by results."""

LAUNCHES = 8
FAR_BEHIND = 1.5
"""Multiple of the best time beyond which the bare loop launches a configuration once only."""

PROFILE = "MLTUNE_RATE_PROFILE"
"""Environment variable with the file that the worker's profile is written to."""


def histogram(rng: np.random.Generator) -> dict[str, Any]:
    """Return the call that tunes a histogram of 2**26 bytes: 1,512 configurations of 36 different builds."""
    values = rng.integers(0, 256, 1 << 26, np.uint8)
    return {
        "kernel_name": "histogram",
        "problem_size": "blocks",
        "grid_div_x": [],
        "arguments": [np.zeros(256, np.uint32), values, np.int32(len(values))],
        "answer": [np.bincount(values, minlength=256).astype(np.uint32), None, None],
        "tune_params": {
            "block_size_x": [256, 64, 128, 192, 384, 512, 1024],
            "blocks": [264, 66, 132, 528, 1056, 2112],
            "copies": [1, 2, 4],
            "padding": [0, 1],
            "spread": [1, 32],
            "unrolled": [1, 2, 4],
        },
    }


CASES = {**unknown_kernels.CASES, "histogram": histogram}


@contextlib.contextmanager
def placed_case(case: str, most: int) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield the call of a case, and its kernel on the first GPU with a space of some configurations."""
    from mltune.device.query import query_device
    from mltune.kernel.kernel_tuner_call import kernel_of_call, read_call
    from mltune.kernel.placed import PlacedKernel
    from mltune.kernel.space import TableSpace

    call = CASES[case](np.random.default_rng(0))
    source = unknown_kernels.SOURCES / f"{case}.cu"
    with kernel_of_call(read_call({"kernel_source": source, **call}, {})[0]) as kernel:
        placed = PlacedKernel(kernel, kernel.own_problem(), query_device(0))
        space = placed.space
        chosen = np.sort(np.random.default_rng(1).permutation(space.count)[:most])
        default = space.index_of({name: np.array([value]) for name, value in placed.default.items()})
        table = TableSpace(space.rows(np.union1d(chosen, default)))
        yield call, PlacedKernel(kernel, placed.problem, placed.device, table)


def compile_one(job: tuple[int, str, str, tuple[str, ...]]) -> tuple[int, bytes, str]:
    """Compile a source by NVRTC; return its number, the machine code and the name of the kernel there."""
    from cuda.bindings import nvrtc

    number, text, entry, options = job
    _, program = nvrtc.nvrtcCreateProgram(text.encode(), b"bare.cu", 0, [], [])
    nvrtc.nvrtcAddNameExpression(program, entry.encode())
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    cubin, name = b"", ""
    if int(status) == 0:
        cubin = bytes(nvrtc.nvrtcGetCUBINSize(program)[1])
        nvrtc.nvrtcGetCUBIN(program, cubin)
        name = nvrtc.nvrtcGetLoweredName(program, entry.encode())[1].decode()
    nvrtc.nvrtcDestroyProgram(program)
    return number, cubin, name


def bare(case: str, most: int, seconds: float) -> dict[str, Any]:
    """Measure the configurations of a case by a bare loop."""
    with placed_case(case, most) as (call, placed):
        from mltune.kernel.coding import row
        from mltune.measure.build import NvrtcBuilder

        builder = NvrtcBuilder(placed.kernel, placed.problem, placed.device.architecture)
        rows = placed.space.rows(np.random.default_rng(2).permutation(placed.space.count))
        launches: list[list[Any]] = []
        numbers: dict[str, int] = {}
        mentioned = set(re.findall(r"[A-Za-z_]\w*", builder.source.text))
        for number in range(placed.space.count):
            configuration = row(rows, number)
            lines = builder.definitions(configuration).splitlines()
            head = "".join(f"{line}\n" for line in lines if line.split()[1] in mentioned)
            same = numbers.setdefault(head, len(numbers))
            if same == len(launches):
                launches.append([])
            launches[same].append(placed.launch(configuration))
        options = tuple(option for option in builder.source.options if not option.startswith("--ptxas"))
        jobs = [(number, head + builder.source.text, builder.source.entry, options) for head, number in numbers.items()]

        import cupy

        arguments = [cupy.asarray(value) if value.ndim else value for value in map(np.asarray, call["arguments"])]
        arguments = [value if isinstance(value, cupy.ndarray) else value[()] for value in arguments]
        stop = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in range(LAUNCHES)]
        processes = max(1, len(os.sched_getaffinity(0)) - 1)
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            warm = [(-1, "__global__ void warm() {}", "warm", options)] * (4 * processes)
            pool.map(compile_one, warm, chunksize=1)
            begun, best, ended, first = time.perf_counter(), float("inf"), 0, 0.0
            for number, cubin, name in pool.imap_unordered(compile_one, jobs, chunksize=1):
                if not cubin:
                    ended += len(launches[number])
                    continue
                module = cupy.cuda.function.Module()
                module.load(cubin)
                function = module.get_function(name)
                for symbol, values in call.get("cmem_args", {}).items():
                    address = module.get_global_var(symbol)
                    cupy.cuda.runtime.memcpy(
                        int(getattr(address, "ptr", address)), values.ctypes.data, values.nbytes, 1
                    )
                for launch in launches[number]:
                    shape = launch.grid, launch.block, arguments, launch.shared_bytes
                    best = min(best, launch_often(function, shape, stop, best))
                    ended += 1
                    first = first or time.perf_counter() - begun
                if time.perf_counter() - begun >= seconds:
                    break
            spent_s = time.perf_counter() - begun
            pool.terminate()
    rate = (ended - 1) / (spent_s - first)
    return {"trials": ended, "builds": len(jobs), "seconds": spent_s, "rate": rate, "best_s": best}


def launch_often(function: Any, shape: tuple[Any, ...], events: list[tuple[Any, Any]], best: float) -> float:
    """Launch a configuration once, and seven times more unless it is far behind; return its least time."""
    import cupy

    def take(pairs: list[tuple[Any, Any]]) -> float:
        for start, stop in pairs:
            start.record()
            function(*shape)
            stop.record()
        pairs[-1][1].synchronize()
        return min(1e-3 * cupy.cuda.get_elapsed_time(start, stop) for start, stop in pairs)

    try:
        time_s = take(events[:1])
        return time_s if time_s > FAR_BEHIND * best else min(time_s, take(events[1:]))
    except cupy.cuda.driver.CUDADriverError:
        return float("inf")


def sweep(request: Any, space: Any) -> Any:
    """Measure everything within the time of a request, in random order; return the trials."""
    from mltune.records.store import Store
    from mltune.results.progress import Observer
    from mltune.tuning.loop import Loop
    from mltune.tuning.session import open_session, run_header
    from mltune.tuning.sweep import Everything

    session = open_session(request, space=space)
    with Store.open(request.run, run_header(session, 0, {})) as store, session:
        observer = Observer(session.placed.problem, session.placed.device, "gpu", trials_limit=space.count)
        planner = Everything(space, np.random.default_rng(2).permutation(space.count))
        nothing = store.records()
        ahead = 4 * len(os.sched_getaffinity(0))
        loop = Loop(session, store, planner, observer, nothing, ahead=ahead, time_s=request.time_s)
        loop.run()
        return list(store.records()), loop.seconds.to_json()


def tune(case: str, search: str, most: int, seconds: float, profile: bool) -> dict[str, Any]:
    """Measure the configurations of a case by a tune."""
    from mltune.resolve.device import Target
    from mltune.resolve.request import TuneRequest
    from mltune.tuning import tuner

    with tempfile.TemporaryDirectory() as folder, placed_case(case, most) as (_, placed):
        parts = Parts()
        if profile:
            os.environ[PROFILE] = f"{folder}/worker.json"
            profile_parent(parts)
        options = {"skip": False, "stop": False, "variants": False, "wisdom": "none"}
        request = TuneRequest(
            placed.problem, placed.kernel, Target(cuda=0), time_s=seconds, run=Path(folder) / "run", **options
        )
        begun = time.time()
        if search == "everything":
            records, phases = sweep(request, placed.space)
        else:
            result = tuner.tune(request, space=placed.space)
            records, phases = result.records, result.seconds
        call_s = time.time() - begun
        ends = sorted(record.finished_at for record in records)
        measured = [record.measurement for record in records if record.measurement is not None]
        row = {
            "trials": len(ends),
            "builds": sum(record.build is not None and not record.build.cached for record in records),
            "states": dict(Counter(str(record.state) for record in records)),
            "seconds": ends[-1] - begun,
            "call_s": call_s,
            "first_s": ends[0] - begun,
            "rate": (len(ends) - 1) / max(ends[-1] - ends[0], 1e-9),
            "best_s": min(record.median_s for record in records if record.state == "ok" and record.median_s),
            "phases": {name: round(value, 2) for name, value in phases.items()},
            "ms_a_trial": {
                "compile": 1e3 * np.mean([record.build.compile_s for record in records if record.build]),
                "verify": 1e3 * np.mean([one.verify_s for one in measured]),
                "time": 1e3 * np.mean([one.time_s for one in measured]),
                "of_samples": 1e3 * np.mean([sum(one.samples_s) for one in measured]),
            },
            "samples": float(np.mean([len(one.samples_s) for one in measured])),
            "discarded": sum(one.discarded for one in measured),
        }
        if profile:
            row["worker"] = json.loads(Path(os.environ[PROFILE]).read_text(encoding="utf-8"))
            row["parent"] = parts.to_json()
        return row


class Parts:
    """Seconds and calls by the name of a part: each without those of the parts inside it."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}
        self._of_thread = threading.local()

    def of(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose seconds are added to a part."""

        @functools.wraps(function)
        def timed(*arguments: Any, **options: Any) -> Any:
            inside: list[float] = self._of_thread.__dict__.setdefault("inside", [])
            inside.append(0.0)
            started = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                spent_s = time.perf_counter() - started
                self.add(name, spent_s - inside.pop())
                if inside:
                    inside[-1] += spent_s

        return timed

    def add(self, name: str, spent_s: float) -> None:
        """Add the seconds of a call."""
        part = self.seconds.setdefault(name, [0.0, 0])
        part[0] += spent_s
        part[1] += 1

    def wrap(self, owner: Any, **names: str) -> None:
        """Time methods of a class, or functions of a module, by the names of their parts."""
        for method, name in names.items():
            if hasattr(owner, method):
                setattr(owner, method, self.of(name, getattr(owner, method)))

    def to_json(self) -> dict[str, list[float]]:
        """Return seconds and calls, the most seconds first."""
        rows = sorted(self.seconds.items(), key=lambda part: -part[1][0])
        return {name: [round(seconds, 3), int(calls)] for name, (seconds, calls) in rows}


def profile_parent(parts: Parts) -> None:
    """Time the parts of the main thread, and in the thread of the runner what the worker waits for."""
    from mltune.measure import pipeline, runner
    from mltune.measure.build import NvrtcBuilder
    from mltune.process.child import Child
    from mltune.records.store import Store
    from mltune.results.progress import Observer
    from mltune.search.search import KernelSearch
    from mltune.tuning import loop

    runner._WORKER = f"{Path(__file__).stem}:make_worker"
    runner.start_worker.__globals__["_WORKER"] = runner._WORKER
    defaults = runner.GpuRunner.__init__.__kwdefaults__
    defaults["worker"] = runner._WORKER
    parts.wrap(pipeline, wait="main: wait")
    parts.wrap(pipeline.Pipeline, advance="main: pipeline", submit="main: submit a build")
    parts.wrap(Store, append="main: records", set_seconds="main: records", set_fact="main: records")
    parts.wrap(Observer, see="main: observer", tell="main: observer")
    parts.wrap(KernelSearch, ask="main: ask", tell="main: tell", decide="main: gate")
    parts.wrap(NvrtcBuilder, submit="main: submit a build")
    parts.wrap(runner.GpuRunner, submit="main: submit to the runner")
    parts.wrap(loop.Loop, _time_reference="main: reference")
    call, seen = Child._call, {"last": 0.0}
    parts.seconds["runner: worker asked"], parts.seconds["runner: between requests"] = [0.0, 0], [0.0, 0]

    def timed_call(self: Child, request: Any, *arguments: Any) -> Any:
        started = time.perf_counter()
        if type(request).__name__ not in ("Measure", "MeasureAll"):
            return call(self, request, *arguments)
        if seen["last"]:
            parts.add("runner: between requests", started - seen["last"])
        try:
            return call(self, request, *arguments)
        finally:
            seen["last"] = time.perf_counter()
            parts.add("runner: worker asked", seen["last"] - started)

    Child._call = timed_call  # type: ignore[method-assign]


def make_worker(device_index: int) -> Callable[[Any], Any]:
    """Make the worker, with a profile of its parts (in its process)."""
    from mltune.measure import gpu, stopwatch, timing, turns, verification, worker

    parts, written = Parts(), {"at": 0.0, "idle": time.perf_counter()}
    parts.wrap(gpu.LoadedKernel, __init__="load", __exit__="unload", bind="bind")
    parts.wrap(
        verification.Verification, check="verify: launch", _compare="verify: results", _read="verify: compare and wait"
    )
    parts.wrap(verification.DeviceCase, prepare="verify: restore")
    parts.wrap(verification.OperandChecksums, changed="checksums", _read="checksums")
    parts.wrap(stopwatch.SeriesStopwatch, take_each="series")
    parts.wrap(stopwatch.MonitoredKernel, rest="rest", read_state="read the state")
    parts.wrap(stopwatch.Readings, take="read the state", take_last="read the state")
    parts.wrap(timing.ClockMonitor, take="monitor")
    parts.wrap(worker.Worker, _measure="measure", _time="sample", _restore="restore", serve="serve")
    parts.wrap(turns, turn="turn")
    serve = worker.make_worker(device_index)

    def profiled(request: Any) -> Any:
        started = time.perf_counter()
        if type(request).__name__ in ("Measure", "MeasureAll"):
            parts.add("idle before a request", started - written["idle"])
        answer = serve(request)
        now = time.perf_counter()
        if now - written["at"] > 0.2:
            Path(os.environ[PROFILE]).write_text(json.dumps(parts.to_json()), encoding="utf-8")
            written["at"] = now
        written["idle"] = time.perf_counter()
        return answer

    return profiled


def table(rows: list[dict[str, Any]]) -> str:
    """Return a line for each kernel: configurations a second of each arm, and their share of the bare loop's."""
    arms = [arm for arm in ARMS if any(row["arm"] == arm for row in rows)]
    lines = [f"| kernel | builds | {' | '.join(arms)} | of the bare loop | call |", "|" + "---|" * (len(arms) + 4)]
    for case in dict.fromkeys(row["case"] for row in rows):
        of_arm = {row["arm"]: row for row in rows if row["case"] == case}
        rates = [f"{of_arm[arm]['rate']:.0f}" if arm in of_arm else "" for arm in arms]
        bare_rate = of_arm["bare"]["rate"] if "bare" in of_arm else None
        shares = [f"{of_arm[arm]['rate'] / bare_rate:.2f}" for arm in arms[1:] if bare_rate and arm in of_arm]
        calls = [f"{row['trials']} in {row.get('call_s', row['seconds']):.1f} s" for row in of_arm.values()]
        builds = max(row["builds"] for row in of_arm.values())
        lines.append(f"| {case} | {builds} | {' | '.join(rates)} | {', '.join(shares)} | {'; '.join(calls)} |")
    return "\n".join(lines)


def report(row: dict[str, Any]) -> str:
    """Return the profile of a tune as text."""
    lines = [f"  phases {row['phases']}, ms a trial { {key: round(val, 2) for key, val in row['ms_a_trial'].items()} }"]
    lines.append(f"  samples {row['samples']:.1f}, discarded {row['discarded']}, states {row['states']}")
    for side in ("worker", "parent"):
        for name, (seconds, calls) in row.get(side, {}).items():
            each_ms = 1e3 * seconds / max(calls, 1)
            a_trial_ms = 1e3 * seconds / row["trials"]
            figures = f"{seconds:8.3f} s {calls:6} calls {each_ms:8.3f} ms each {a_trial_ms:8.3f} a trial"
            lines.append(f"  {side:7} {name:28} {figures}")
    return "\n".join(lines)


def main() -> None:
    """Run all cases and arms in turns, or one in this process."""
    parser = harness.parser_of(__doc__)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--most", type=int, default=1000, help="configurations of a kernel")
    parser.add_argument("--time", type=float, default=20.0, help="seconds")
    parser.add_argument("--package", type=Path, help="folder of another version of the package")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--one", nargs=2, metavar=("CASE", "ARM"), help="one of them, in this process")
    options = parser.parse_args()
    if options.one:
        case, arm = options.one
        measure = bare if arm == "bare" else functools.partial(tune, search=arm, profile=options.profile)
        row = measure(case, most=options.most, seconds=options.time)
        print(json.dumps({"head": harness.gpu_provenance(), "case": case, "arm": arm, **row}))
        return
    rows: list[dict[str, Any]] = []
    for case in options.cases.split(","):
        for arm in options.arms.split(","):
            with tempfile.TemporaryDirectory() as cache:
                own = {
                    **os.environ,
                    "XDG_CACHE_HOME": cache,
                    "PYTHONPATH": os.pathsep.join(
                        [str(options.package or Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
                    ),
                }
                command = [sys.executable, __file__, "--one", case, arm, "--most", str(options.most)]
                command += ["--time", str(options.time), *["--profile"] * options.profile]
                done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, env=own)
            if done.returncode:
                print(case, arm, "exit code", done.returncode, flush=True)
                continue
            row = json.loads(done.stdout.splitlines()[-1])
            head = row.pop("head") | {"command": harness.provenance()["command"]}
            rows.append(row)
            print(f"{case} {arm}: {row['trials']} in {row['seconds']:.1f} s, {row['rate']:.1f} a second", flush=True)
            if arm != "bare":
                print(report(row), flush=True)
            harness.write(options.output, {**head, "all": rows}, table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
