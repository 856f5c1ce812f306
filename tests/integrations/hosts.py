"""The tuners that mltune's search runs in, each with a space of its own and with times that a function makes up."""

import itertools
import json
import math
import random
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PARAMETERS = {
    "block_size_x": [16, 32, 64, 128, 256],
    "unroll": [1, 2, 3, 4],
    "order": ["row", None],
    "wide": [True, False],
}


def number(one):
    """Return a number below 1000 that a configuration always has."""
    return crc32(repr(sorted(one.items())).encode()) % 1000


@dataclass
class Outcome:
    """The configurations that were measured, in their order, their times, and the one that the host returned.

    A time is None where the configuration failed.
    """

    measured: list
    times: list
    best: dict


class KernelTuner:
    """Kernel Tuner in its simulation mode."""

    has_seconds = False  # those of Kernel Tuner end the search, not the adapter's

    def __init__(self, tmp_path, monkeypatch):
        self._kernel_tuner = pytest.importorskip("kernel_tuner")
        self._cache = tmp_path / "toy.json"

    def tune(self, time_ms, trials, seed=0):
        from mltune.integrations.kernel_tuner import strategy

        every = [dict(zip(PARAMETERS, values, strict=True)) for values in itertools.product(*PARAMETERS.values())]
        spent = {"compile_time": 1.0, "verification_time": 0.0, "benchmark_time": 1.0}
        times = {",".join(map(str, one.values())): (one, time_ms(one)) for one in every}
        entries = {
            key: {**one, **spent, "time": "RuntimeFailedConfig" if time is None else time}
            for key, (one, time) in times.items()
        }
        header = {"device_name": "imaginary", "kernel_name": "toy", "problem_size": [1, 1, 1], "objective": "time"}
        names = {"tune_params_keys": list(PARAMETERS), "tune_params": PARAMETERS}
        self._cache.write_text(json.dumps({**header, **names, "cache": entries}))
        results, found = self._kernel_tuner.tune_kernel(
            "toy",
            "",
            (1, 1, 1),
            [],
            PARAMETERS,
            cache=str(self._cache),
            simulation_mode=True,
            strategy=strategy(seed=seed),
            strategy_options={"max_fevals": trials},
            quiet=True,
        )
        measured = [{name: one[name] for name in PARAMETERS} for one in results]
        best = {name: found["best_config"][name] for name in PARAMETERS}
        return Outcome(measured, [None if "__error__" in one else one["time"] for one in results], best)


class Optuna:
    """A study of Optuna in memory."""

    has_seconds = False

    def __init__(self, tmp_path, monkeypatch):
        self._optuna = pytest.importorskip("optuna")

    def tune(self, time_ms, trials, seed=0):
        from mltune.integrations.optuna import MltuneSampler

        def objective(trial):
            time = time_ms({name: trial.suggest_categorical(name, values) for name, values in PARAMETERS.items()})
            if time is None:
                raise self._optuna.TrialPruned
            return time

        study = self._optuna.create_study(sampler=MltuneSampler(PARAMETERS, seed=seed))
        study.optimize(objective, n_trials=trials)
        return Outcome([one.params for one in study.trials], [one.value for one in study.trials], study.best_params)


class Kernel:
    """What Triton's autotuner calls of a ``triton.jit`` function, and the calls that it made."""

    arg_names = ("x", "n")

    def __init__(self):
        self.calls = []

    @staticmethod
    def fn(x, n):
        """Stand for the function in Python."""

    def run(self, *arguments, **meta):
        self.calls.append((arguments, meta))
        return meta


class Triton:
    """Triton's autotuner with a benchmark that makes times up."""

    has_seconds = True

    def __init__(self, tmp_path, monkeypatch):
        self._triton = pytest.importorskip("triton")

    def tune(self, time_ms, trials=None, seed=0, seconds=None):
        from triton.runtime.errors import OutOfResources

        from mltune.integrations.triton import autotune

        kernel = Kernel()

        def do_bench(call, quantiles):
            call()
            time = time_ms(self._own(kernel.calls[-1][1]))
            if time is None:
                raise OutOfResources(300_000, 232_448, "shared memory")
            return [time, time, time]

        every = itertools.product(*PARAMETERS.values())
        configs = [self._triton.Config(dict(zip(PARAMETERS, values, strict=True))) for values in every]
        tuned = autotune(configs, ["n"], do_bench=do_bench, trials=trials, seed=seed, time=seconds)(kernel)
        tuned.run("x", 1)
        measured = [self._own(meta) for _, meta in kernel.calls[:-1]]  # the last call is the user's
        timings = [(self._own(config.all_kwargs()), found[0]) for config, found in tuned.configs_timings.items()]
        times = [next(time for config, time in timings if config == one) for one in measured]
        times = [None if math.isinf(time) else time for time in times]
        return Outcome(measured, times, self._own(tuned.best_config.all_kwargs()))

    @staticmethod
    def _own(meta):
        return {name: meta[name] for name in PARAMETERS}


class Helion:
    """Helion with a matmul that is bound on the CPU: everything is Helion's own but the functions that time."""

    has_seconds = True
    batch = 4

    def __init__(self, tmp_path, monkeypatch):
        self.helion = pytest.importorskip("helion")
        import torch
        from helion.autotuner import base_search, benchmark_provider, local_cache

        monkeypatch.syspath_prepend(BENCHMARKS)
        from helion_kernels import matmul

        monkeypatch.setenv("HELION_CACHE_DIR", str(tmp_path))
        monkeypatch.setattr(local_cache, "extract_device", lambda args: torch.device("mtia"))  # a CPU has no key
        monkeypatch.setattr(
            benchmark_provider.LocalBenchmarkProvider,
            "_benchmark_function",
            lambda _, config, fn: self._timed(config, self.measured),
        )
        monkeypatch.setattr(
            base_search.PopulationBasedSearch, "rebenchmark", lambda _, members, **options: self._again(members)
        )
        monkeypatch.setattr(base_search.PopulationBasedSearch, "_final_selection_enabled", lambda search: False)
        self.arguments = (torch.ones(128, 128), torch.ones(128, 128))
        self.measured, self.verified, self.times = [], [], []
        self._matmul, self._expected = matmul, torch.matmul

    def bind(self, time_ms, settings=None, **options):
        """Return a bound kernel, whose configurations take the times of a function."""
        from mltune.integrations.helion import autotuner

        self.time_ms, self.measured, self.verified, self.times = time_ms, [], [], []
        random.seed(1)  # Helion's, which must not decide
        kernel = self.helion.kernel(
            self._matmul,
            autotuner_fn=autotuner(batch=self.batch, **options),
            autotune_baseline_fn=self._expected,
            autotune_precompile=None,
            autotune_progress_bar=False,
            autotune_log_level=0,
            **settings or {},
        )
        return kernel.bind(self.arguments)

    def tune(self, time_ms, trials=None, seed=0, seconds=None):
        bound = self.bind(time_ms, trials=trials, seed=seed, time=seconds)
        best = bound.autotune(self.arguments)
        times = [None if math.isinf(time) else time for time in self.times]
        return Outcome(self.measured, times, self.leaves(best))

    @staticmethod
    def leaves(config):
        from mltune.integrations.host import leaves

        return leaves(config.config)

    def _timed(self, config, where):
        where.append(self.leaves(config))
        time = self.time_ms(where[-1])
        self.times += [math.inf if time is None else time] if where is self.measured else []
        return math.inf if time is None else time

    def _again(self, members):
        for member in members:
            member.perfs.append(self._timed(member.config, self.verified))


class CuTile:
    """cuTile with a kernel that is never compiled: its exhaustive search, with a function that makes times up."""

    has_seconds = True

    def __init__(self, tmp_path, monkeypatch):
        tile = pytest.importorskip("cuda.tile")
        from cuda.tile.tune import _tune

        monkeypatch.setattr(_tune, "_benchmark", self._benchmark)
        self._kernel = tile.kernel(lambda config: None)
        self.measured, self.times = [], []

    def search(self, space, time_ms, **options):
        from mltune.integrations.cutile import search

        self.time_ms, self.measured, self.times = time_ms, [], []
        return search(space, None, lambda one: (1,), self._kernel, lambda one: (one,), **options)

    def tune(self, time_ms, trials=None, seed=0, seconds=math.inf):
        every = [dict(zip(PARAMETERS, values, strict=True)) for values in itertools.product(*PARAMETERS.values())]
        found = self.search(every, time_ms, trials=trials, seed=seed, time=seconds)
        return Outcome(self.measured, self.times, found.best.config)

    def _benchmark(self, stream, grid, kernel, arguments, flush):
        time = self.time_ms(*arguments)
        if arguments[0] not in self.measured:
            self.measured += arguments
            self.times.append(time)
        if time is None:
            raise RuntimeError("the kernel does not run")
        return time


HOSTS = [KernelTuner, Optuna, Triton, Helion, CuTile]
