"""mltune inside Kernel Tuner and Triton, on recorded timings: what its search finds with few evaluations.

*Kernel Tuner*: ``tune_kernel`` in simulation mode, with a cache of each recorded space. Strategies of mltune and of
Kernel Tuner have the same budget. ``mltune, speed`` maximises 1 / time, on the scale of objectives that are not times.
The search space is made once, of exactly the recorded configurations. Results are fractions of the optimum after so
many distinct evaluations, failures included.

*Triton*: ``autotune`` over some configurations of a recorded space, drawn anew with each seed, with a benchmark that
looks times up: what the best of 25 measured ones reaches of the best of all.

The mean over the spaces is computed for each seed; ``spread`` is the standard deviation of these means over the seeds.

    pip install 'kernel-tuner>=1.5' triton
    OMP_NUM_THREADS=1 python benchmarks/integrations.py [--seeds 20] [--output benchmarks/results/integrations.json]
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from harness import SEARCHING, parser_of, provenance, write

from mltune.dataset.dataset import load_dataset
from mltune.integrations.kernel_tuner import strategy

SPACES = (
    "convolution_mi250x_gcd",
    "convolution_rtx_a4000",
    "convolution_rtx_a6000",
    "convolution_w6600",
    "xgemm_rtx_3060_laptop",
    "xgemm_titan_rtx",
    "h200-cgemm-nn-4096-complete",
    "h200-sgemm-nt-4096-complete",
)
PEERS = ("hybrid_vndx", "adaptive_tabu_greywolf", "genetic_algorithm")
POINTS = (25, 50, 100)
POOL = 300
"""Configurations that Triton's autotuner gets."""

Rows = list[list[float]]


@dataclass(frozen=True)
class Recorded:
    """A recorded space."""

    name: str

    @cached_property
    def times_ms(self) -> dict[tuple[int, ...], float]:
        """The time of each configuration; NaN where it failed."""
        dataset = load_dataset(self.name)
        rows = zip(*(column.tolist() for column in dataset.columns.values()), strict=True)
        return dict(zip(rows, (1e3 * dataset.numbers("median_s")).tolist(), strict=True))

    @cached_property
    def parameters(self) -> dict[str, list[int]]:
        """The values of each parameter."""
        return {name: np.unique(column).tolist() for name, column in load_dataset(self.name).columns.items()}

    def write_cache(self, folder: Path) -> Path:
        """Write a cache of Kernel Tuner, and return its path."""
        entries = {}
        for values, time_ms in self.times_ms.items():
            found: dict[str, Any] = {"time": "RuntimeFailedConfig"}
            if not math.isnan(time_ms):
                found = {"time": time_ms, "times": [time_ms], "speed": 1.0 / time_ms}
            entries[",".join(map(str, values))] = dict(zip(self.parameters, values, strict=True)) | found
        header = {"device_name": "recorded", "kernel_name": "kernel", "problem_size": [1, 1, 1], "objective": "time"}
        parameters = {"tune_params_keys": list(self.parameters), "tune_params": self.parameters}
        path = folder / f"{self.name}.json"
        path.write_text(json.dumps({**header, **parameters, "cache": entries}), encoding="utf-8")
        return path

    def fractions(self, measured: list[tuple[int, ...]]) -> list[float]:
        """Return the fractions of the optimum after so many distinct configurations of a sequence."""
        best = min(filter(math.isfinite, self.times_ms.values()))
        times = [self.times_ms[values] for values in dict.fromkeys(measured)]
        return [max((best / one for one in times[:point] if math.isfinite(one)), default=0.0) for point in POINTS]


@contextlib.contextmanager
def quiet_and_seeded(seed: int) -> Iterator[None]:
    """Hide what Kernel Tuner prints, and seed the generators that its strategies use."""
    random.seed(seed)
    np.random.seed(seed)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def in_kernel_tuner(space: Recorded, folder: Path, chosen: Callable[[int], Any], seeds: int, **options: Any) -> Rows:
    """Return the fractions of each seed of a strategy."""
    import kernel_tuner
    from kernel_tuner.searchspace import Searchspace

    cache = space.write_cache(folder)
    configurations = json.loads(cache.read_text(encoding="utf-8"))
    built = Searchspace(None, None, None, from_cache=configurations)
    kernel_tuner.interface.Searchspace = lambda *arguments, **others: built
    found = []
    for seed in range(seeds):
        with quiet_and_seeded(seed):
            results, _ = kernel_tuner.tune_kernel(
                "kernel",
                "",
                (1, 1, 1),
                [],
                space.parameters,
                cache=str(cache),
                simulation_mode=True,
                strategy=chosen(seed),
                strategy_options={"max_fevals": POINTS[-1]},
                seed=seed,
                quiet=True,
                **options,
            )
        found.append(space.fractions([tuple(one[name] for name in space.parameters) for one in results]))
    return found


def in_triton(space: Recorded, seeds: int, size: int, trials: int = 25) -> tuple[Rows, int]:
    """Return the share of the best of a pool of configurations for each seed, and most measured of a pool.

    The second share of a seed is that of as many configurations drawn at random.
    """
    import triton

    from mltune.integrations.triton import autotune

    every = list(space.times_ms)
    shares, most = [], 0
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        pool = [every[at] for at in rng.choice(len(every), min(size, len(every)), replace=False)]
        kernel = Called()
        tuner = autotune(
            [triton.Config(dict(zip(space.parameters, values, strict=True))) for values in pool],
            ["n"],
            trials=trials,
            seed=seed,
            do_bench=kernel.looked_up(space),
        )(kernel)
        tuner.run(1)
        most = max(most, len(tuner.configs_timings))
        best = min(filter(math.isfinite, (space.times_ms[values] for values in pool)))
        drawn = [space.times_ms[pool[at]] for at in rng.choice(len(pool), trials, replace=False)]
        found = min(times[0] for times in tuner.configs_timings.values())
        shares.append([best / found, max((best / one for one in drawn if math.isfinite(one)), default=0.0)])
    return shares, most


class Called:
    """What Triton's autotuner calls instead of a kernel: it remembers its configuration."""

    arg_names = ("n",)

    @staticmethod
    def fn(n: int) -> None:
        """Stand for the function in Python."""

    def run(self, *arguments: Any, **meta: Any) -> None:
        """Remember the configuration."""
        self.meta = meta

    def looked_up(self, space: Recorded) -> Callable[..., list[float]]:
        """Return a benchmark that looks the time of the configuration up."""

        def do_bench(call: Callable[[], None], quantiles: Any) -> list[float]:
            call()
            time_ms = space.times_ms[tuple(self.meta[name] for name in space.parameters)]
            return [math.inf if math.isnan(time_ms) else time_ms] * 3

        return do_bench


def summary(runs: dict[str, Rows], names: list[str]) -> dict[str, Any]:
    """Return means and spreads of several runs of one strategy, by space."""
    table = np.array([runs[space] for space in runs])  # spaces, seeds, points
    by_seed = table.mean(axis=0)
    return {
        "mean": dict(zip(names, by_seed.mean(axis=0).round(4).tolist(), strict=True)),
        "spread": dict(zip(names, by_seed.std(axis=0, ddof=1).round(4).tolist(), strict=True)),
        "spaces": {
            space: {
                "mean": dict(zip(names, rows.mean(axis=0).round(4).tolist(), strict=True)),
                "spread": dict(zip(names, rows.std(axis=0, ddof=1).round(4).tolist(), strict=True)),
            }
            for space, rows in zip(runs, table, strict=True)
        },
    }


def main() -> None:
    """Run both, and write the results."""
    parser = parser_of(__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--spaces", default=",".join(SPACES))
    arguments = parser.parse_args()
    spaces = [Recorded(name) for name in arguments.spaces.split(",")]
    ours = {
        "mltune": (lambda seed: strategy(seed=seed), {}),
        "mltune, batch=4": (lambda seed: strategy(seed=seed, batch=4), {}),
        "mltune, batch=16": (lambda seed: strategy(seed=seed, batch=16), {}),
        "mltune, speed": (lambda seed: strategy(seed=seed), {"objective": "speed", "objective_higher_is_better": True}),
    }
    strategies = ours | {name: (lambda seed, name=name: name, {}) for name in PEERS}
    document: dict[str, Any] = {"kernel_tuner": {}, "triton": {}}
    points = [f"at {point}" for point in POINTS]
    with tempfile.TemporaryDirectory() as folder:
        for name, (chosen, options) in strategies.items():
            begun = time.process_time()
            runs = {one.name: in_kernel_tuner(one, Path(folder), chosen, arguments.seeds, **options) for one in spaces}
            document["kernel_tuner"][name] = found = summary(runs, points)
            found["cpu_s_per_run"] = round((time.process_time() - begun) / len(spaces) / arguments.seeds, 3)
            print(f"{name:24}", found["mean"], found["spread"], flush=True)
    for size in (POOL,):
        runs = {one.name: in_triton(one, arguments.seeds, size) for one in spaces}
        document["triton"] = summary({name: rows for name, (rows, _) in runs.items()}, ["mltune", "drawn at random"])
        document["triton"] |= {"configurations": size, "measured": max(most for _, most in runs.values())}
        print("triton", document["triton"]["mean"], document["triton"]["spread"])
    head = provenance(*SEARCHING, "kernel-tuner", "triton", seeds=arguments.seeds)
    write(arguments.output, head | document)


if __name__ == "__main__":
    main()
