"""Tunes of the recorded sweeps of Triton kernels on a simulated machine: seconds, and the share of the fastest taken.

The session, the search and its models are mltune's. Compiles, launches and fits advance a clock: compiles by the
recorded seconds on ``--compilers`` processes, launches by the recorded time with 1 % of noise, a fit by 45 ms, as
measured beside sixteen compilers. The machine's other seconds are those of an H200 with 16 cores: in a fresh process
the first job is submitted after 1.5 s, compilers begin after 1.9 s, and models are fitted after ``--ready`` seconds.

The model that starts a tune has not seen its kernel (*model*), or there is none (*none*).

    python benchmarks/triton_replay.py [--seeds 4] [--trials N] [--ready 3.55] [--compilers 16] [--output FILE]
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
import os
import tempfile
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from harness import RESULTS, SEARCHING, parser_of, provenance, write
from record_triton import launches_of, module_of
from triton_autotune import NEAR, prior_of
from triton_model import DATASETS, Sweep, as_sweep

from mltune.dataset.dataset import load_dataset
from mltune.integrations.triton import builder, session
from mltune.integrations.triton.compilers import Compiled
from mltune.integrations.triton.runner import BRIEF, Runner
from mltune.search.launch_search import predict

BEGUN_S, IMPORTED_S, FIT_S, ASK_S, CAPTURE_S = 1.5, 1.9, 0.045, 0.002, 0.003
LAUNCH_MS, CLEAR_MS, LEAD, NOISE = 6.0, 0.1, 8, 0.01
ARMS = tuple(itertools.product(("fresh", "warm"), ("model", "none")))


@dataclass
class Machine:
    """A GPU, compilers, and a process of models, whose work advances a clock.

    It is a session's stopwatch, its predictor, and the module :mod:`time`.
    """

    sweep: Sweep
    configs: list[Any]
    rng: np.random.Generator
    free_s: list[float]
    ready_s: float
    now_s: float
    fitted: set[bytes] = field(default_factory=set)
    samples_ms: list[float] = field(default_factory=list)
    launches: int = BRIEF
    limit_ms: float = math.inf

    def monotonic(self) -> float:
        """Return the seconds since the tune began."""
        return self.now_s

    def compile(self, config: Any) -> Future[Compiled]:
        """Compile on the process that is free first."""
        at, usual_s = self.configs.index(config), float(np.nanmedian(self.sweep.compile_s))
        seconds = float(np.nan_to_num(self.sweep.compile_s[at], nan=usual_s))
        seconds = seconds if at else min(seconds, usual_s)  # the first of a sweep includes imports
        self.now_s += CAPTURE_S
        done: Any = Future()
        done.at_s = max(heapq.heappop(self.free_s), self.now_s) + seconds
        heapq.heappush(self.free_s, done.at_s)
        facts = {name: float(column[at]) for name, column in self.sweep.build.items()}
        shared_bytes = int(np.nan_to_num(facts.pop("shared_bytes")))
        done.set_result(Compiled("ok", shared_bytes=shared_bytes, compile_s=seconds, **facts))
        return done

    def wait(self, futures: Any, timeout_s: float, when: str) -> Any:
        """Wait for a compile, as :func:`concurrent.futures.wait` does."""
        ends_s = {future: future.at_s for future in futures}
        self.now_s = max(self.now_s, min(min(ends_s.values(), default=0.0), self.now_s + timeout_s))
        return SimpleNamespace(done={future for future, end_s in ends_s.items() if end_s <= self.now_s})

    def bench(self, *_: Any, config: Any, **__: Any) -> list[float]:
        """Launch a configuration some times."""
        time_ms = 1e3 * float(self.sweep.times_s[self.configs.index(config)])
        self.now_s += LAUNCH_MS / 1e3
        if not math.isfinite(time_ms):
            raise RuntimeError("it failed when it was recorded")
        found = time_ms * np.exp(self.rng.normal(0.0, NOISE, self.launches))
        self.samples_ms = found[: None if found[0] < self.limit_ms else 1].tolist()
        self.now_s += 1e-3 * (LEAD * CLEAR_MS + (1 + len(self.samples_ms)) * (time_ms + CLEAR_MS))
        return [float(np.median(self.samples_ms))] * 3

    def begin(self) -> Machine:
        """Return the process of models."""
        return self

    def predict(self, seed: int, X: Any, y: Any, candidates: Any) -> Any:
        """Predict when the process of models has started."""
        self.now_s = max(self.now_s, self.ready_s) + (ASK_S if X.tobytes() in self.fitted else FIT_S)
        self.fitted.add(X.tobytes())
        return predict(seed, X, y, candidates)

    def predict_if_started(self, *request: Any) -> Any:
        """Predict unless the process of models still starts."""
        return self.predict(*request) if self.now_s >= self.ready_s else None


def tune(sweep: Sweep, grid: Any, prior: str, fresh: bool, given: Any, seed: int) -> dict[str, float]:
    """Tune on a simulated machine."""
    configs = list(module_of(sweep.kernel).CONFIGS)
    free_s = [IMPORTED_S * fresh] * given.compilers
    rng = np.random.default_rng(seed)
    machine = Machine(sweep, configs, rng, free_s, given.ready * fresh, BEGUN_S * fresh)
    tuner = SimpleNamespace(fn=SimpleNamespace(device_caches={}), nargs={}, do_bench=None)
    compilers: Any = SimpleNamespace(count=given.compilers, predictor=machine)
    runner = Runner(tuner, machine.bench, {"grid": grid}, None, machine)  # type: ignore[arg-type]
    options: Any = {"trials": given.trials, "seed": seed, "prior": prior}
    with (
        mock.patch.object(session, "time", machine),
        mock.patch.object(builder, "wait", machine.wait),
        mock.patch.object(builder.Builder, "_compile", lambda builder, config, turn: machine.compile(config)),
    ):
        times = session.TritonTuning(configs, runner, compilers, sweep.device, **options).run()
    taken = configs.index(min(times, key=lambda config: times[config][0]))
    return {"share": float(sweep.shares[taken]), "seconds": machine.now_s, "measured": len(times)}


def sweeps_and_grids(name: str = "*") -> list[tuple[Sweep, Any]]:
    """Return recorded sweeps with the grids of their launches, of all kernels or of those whose files match a name."""
    import torch

    found = []
    for path in sorted(DATASETS.glob(f"triton_*/{name}.json")):
        kernel = path.parent.name.removeprefix("triton_")
        with mock.patch("torch.randn", torch.empty):  # the grid needs no values
            grid, *_ = launches_of(module_of(kernel).arguments(**load_dataset(path).manifest.problem.values))[0]
        found.append((as_sweep(path, kernel), grid))
    return sorted(found, key=lambda one: one[0].name)


def table(rows: dict[str, dict[str, list[dict[str, float]]]]) -> list[str]:
    """Return means and sweeps as Markdown."""
    lines = ["| tune | share, mean | least | below .98 | seconds, mean | measured |", "|---|---:|---:|---:|---:|---:|"]
    for arm, each in rows.items():
        runs = list(itertools.chain.from_iterable(each.values()))
        shares = [one["share"] for one in runs]
        mean = {name: np.mean([one[name] for one in runs]) for name in ("share", "seconds", "measured")}
        below = f"{sum(share < NEAR for share in shares)} of {len(runs)}"
        numbers = f"{mean['share']:.4f} | {min(shares):.3f} | {below} | {mean['seconds']:.2f} | {mean['measured']:.0f}"
        lines.append(f"| {arm} | {numbers} |")
    lines += ["", f"| sweep | {' | '.join(rows)} |", f"|---|{'---|' * len(rows)}"]
    for name in next(iter(rows.values())):
        shown = [
            f"{np.mean([one['share'] for one in runs]):.3f}, {np.mean([one['seconds'] for one in runs]):.1f} s, "
            f"{np.mean([one['measured'] for one in runs]):.0f}"
            for runs in (each[name] for each in rows.values())
        ]
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return lines


def main() -> None:
    """Tune each sweep."""
    parser = parser_of(__doc__, RESULTS / "triton_replay.json")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--trials", type=int)
    parser.add_argument("--ready", type=float, default=3.55)
    parser.add_argument("--compilers", type=int, default=16)
    given = parser.parse_args()
    every, rows = sweeps_and_grids(), {}
    with tempfile.TemporaryDirectory() as folder:
        for process, start in ARMS:
            each: dict[str, list[dict[str, float]]] = {}
            for sweep, grid in every:
                prior = unseen(sweep.kernel, folder) if start == "model" else "none"
                each[sweep.name] = [
                    tune(sweep, grid, prior, process == "fresh", given, seed) for seed in range(given.seeds)
                ]
            rows[f"{process}, {start}"] = each
            text = ["# Replayed tunes of recorded sweeps of Triton kernels", "", *table(rows)]
            head = provenance(*SEARCHING, ready_s=given.ready, compilers=given.compilers, trials=given.trials)
            write(given.output, {**head, "tunes": rows}, "\n".join([*text, "", f"`{head['command']}`."]))
    print("\n".join(text))


@functools.cache
def unseen(kernel: str, folder: str) -> str:
    """Return the path of the part of mltune's model that has not seen a kernel."""
    path = Path(folder, kernel)
    path.mkdir()
    return prior_of("unseen", kernel, path)


if __name__ == "__main__":
    main()
