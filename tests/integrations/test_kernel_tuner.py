"""The strategy for Kernel Tuner: in its simulation mode and with its C backend, and what is used of its interface."""

import inspect
import itertools
import json
import math
import sys

import numpy as np
import pytest

from mltune.errors import UsageError
from mltune.integrations.kernel_tuner import FAILURE, strategy

pytestmark = pytest.mark.system

kernel_tuner = pytest.importorskip("kernel_tuner")

PARAMETERS = {
    "block_size_x": [16, 32, 64, 128, 256],
    "tile": [1, 2, 3, 4],
    "factor": [0.5, 1.0, 1.5],
    "unroll": [True, False],
    "order": ["row", "column", "morton"],
    "fixed": [7],
}


def time_ms(block_size_x, tile, factor, unroll, order, fixed):
    """Return an imaginary time; None where the configuration fails."""
    if block_size_x * tile > 512:
        return None
    slow = {"row": 0.0, "column": 0.3, "morton": 0.1}[order] + abs(factor - 1.0) + (not unroll)
    return 1.0 + slow + abs(math.log2(block_size_x / 128)) + abs(tile - 3)


@pytest.fixture
def cache(tmp_path):
    """Write a cache of all configurations, and return its path."""
    entries = {}
    for values in itertools.product(*PARAMETERS.values()):
        configuration = dict(zip(PARAMETERS, values, strict=True))
        time = time_ms(**configuration)
        found = {"time": "RuntimeFailedConfig"} if time is None else {"time": time, "balance": 4.0 - time}
        spent = {"compile_time": 1000.0, "verification_time": 0.0, "benchmark_time": 500.0}
        entries[",".join(map(str, values))] = {**configuration, **found, **spent}
    header = {"device_name": "imaginary", "kernel_name": "toy", "problem_size": [1, 1, 1], "objective": "time"}
    document = {**header, "tune_params_keys": list(PARAMETERS), "tune_params": PARAMETERS, "cache": entries}
    (tmp_path / "toy.json").write_text(json.dumps(document))
    return str(tmp_path / "toy.json")


@pytest.fixture
def tune(cache):
    """Return a function that tunes in simulation mode and returns the results in order."""

    def tuned(limits=None, parameters=PARAMETERS, **options):
        adapter = strategy(**{name: options.pop(name) for name in ("seed", "batch") if name in options})
        results, _ = kernel_tuner.tune_kernel(
            "toy",
            "",
            (1, 1, 1),
            [],
            parameters,
            cache=cache,
            simulation_mode=True,
            strategy=adapter,
            strategy_options=limits or {"max_fevals": 40},
            quiet=True,
            verbose=False,
            **options,
        )
        return results

    return tuned


def values(results):
    return [tuple(result[name] for name in PARAMETERS) for result in results]


@pytest.mark.parametrize("batch", [1, 4])
def test_as_many_configurations_are_measured_as_allowed_each_once_and_the_best_is_found(tune, batch):
    results = tune({"max_fevals": 80}, batch=batch, seed=1)
    assert len(set(values(results))) == len(results) == 80
    best = min(one["time"] for one in results if "__error__" not in one)
    assert best == time_ms(128, 3, 1.0, True, "row", 7)


def test_the_search_ends_with_the_time_limit(tune):
    results = tune({"time_limit": 30})
    assert 15 <= len(results) <= 20  # simulated costs are 1.5 s for each, and starting counts


@pytest.mark.slow
def test_the_search_ends_when_everything_is_measured(tune):
    assert len(tune({"max_fevals": 10_000})) == math.prod(map(len, PARAMETERS.values()))


def test_restrictions_hold(tune):
    results = tune({"max_fevals": 1000}, restrictions=["block_size_x * tile <= 256", "order != 'row' or unroll"])
    assert all(one["block_size_x"] * one["tile"] <= 256 for one in results)
    assert all(one["order"] != "row" or one["unroll"] for one in results)
    assert len(results) == len(set(values(results))) > 200


def test_few_of_those_that_fail_are_measured(tune):
    """Failures are learned: a tenth of the space fails, beside the optimum, and less of what the search proposes."""
    everything = [time_ms(*one) for one in itertools.product(*PARAMETERS.values())]
    results = [one for seed in range(3) for one in tune({"max_fevals": 100}, seed=seed)]
    assert sum("__error__" in one for one in results) / len(results) < everything.count(None) / len(everything)


def test_a_space_where_everything_fails_is_gone_through(tune):
    results = tune({"max_fevals": 20}, restrictions=["block_size_x == 256", "tile >= 3"])
    assert len(results) == 20
    assert all("__error__" in one for one in results)


@pytest.mark.parametrize("better", [True, False])
def test_any_objective_of_any_sign_is_followed_in_its_direction(tune, better):
    results = tune(objective="balance", objective_higher_is_better=better)
    found = [one["balance"] for one in results if "__error__" not in one]
    every = [4.0 - time for one in itertools.product(*PARAMETERS.values()) if (time := time_ms(*one)) is not None]
    ranked = sorted(every, reverse=better)
    assert min(found) < 0 < max(found)
    assert ranked.index((max if better else min)(found)) < 4


def test_several_objectives_are_refused(tune):
    with pytest.raises(UsageError, match="the objectives time, balance are too many"):
        tune(objective=["time", "balance"], objective_higher_is_better=[False, True])


def test_a_batch_has_a_configuration():
    with pytest.raises(UsageError, match="batch cannot be 0: it is at least 1"):
        strategy(batch=0)


def test_without_kernel_tuner_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "kernel_tuner.strategies.wrapper", None)
    with pytest.raises(UsageError, match="pip install 'kernel-tuner"):
        strategy()


def test_a_kernel_is_compiled_and_measured(tmp_path, monkeypatch):
    """Without simulation: a C function."""
    monkeypatch.chdir(tmp_path)  # Kernel Tuner compiles in the working directory
    source = """
    #include <chrono>
    extern "C" float walk(float *x, int n) {
        auto begin = std::chrono::steady_clock::now();
        for (int at = 0; at < n; at += block_size_x) x[at] += 1.0f;
        return std::chrono::duration<float, std::milli>(std::chrono::steady_clock::now() - begin).count();
    }
    """
    arguments = [np.zeros(100_000, dtype=np.float32), np.int32(100_000)]
    parameters = {"block_size_x": [1, 2, 4, 64], "unroll": [1, 2]}
    results, _ = kernel_tuner.tune_kernel(
        "walk",
        source,
        1,
        arguments,
        parameters,
        lang="C",
        compiler="g++",
        strategy=strategy(),
        strategy_options={"max_fevals": 8},
        quiet=True,
    )
    assert len(results) == 8
    assert all(one["time"] > 0 for one in results)


class TestContract:
    """What the adapter uses of Kernel Tuner."""

    def test_a_wrapped_optimiser_is_called_with_a_cost_function_and_a_search_space(self):
        from kernel_tuner.strategies.wrapper import OptAlgWrapper

        assert list(inspect.signature(OptAlgWrapper).parameters) == ["optimizer"]
        assert list(inspect.signature(OptAlgWrapper.tune).parameters) == [
            "self",
            "searchspace",
            "runner",
            "tuning_options",
        ]
        assert "self.optimizer(cost_func, searchspace)" in inspect.getsource(OptAlgWrapper.tune)
        assert "self.optimizer.costfunc_kwargs" in inspect.getsource(OptAlgWrapper.tune)

    def test_a_cost_function_measures_many(self):
        from kernel_tuner.strategies.common import CostFunc

        assert list(inspect.signature(CostFunc.eval_all).parameters)[:2] == ["self", "xs"]
        assert {"scaling", "snap"} <= inspect.signature(CostFunc).parameters.keys()

    def test_a_failure_has_the_largest_cost_and_a_maximised_objective_is_negated(self):
        from kernel_tuner.util import CompilationFailedConfig, get_result_cost

        assert get_result_cost({"__error__": CompilationFailedConfig()}, ["time"], [False]) == [FAILURE]
        assert get_result_cost({"rate": 5.0}, ["rate"], [True]) == [-5.0]
        assert get_result_cost({"time": 5.0}, ["time"], [False]) == [5.0]

    def test_a_search_space_lists_its_configurations(self):
        from kernel_tuner.searchspace import Searchspace

        space = Searchspace({"a": [1, 2], "b": ["x", "y"]}, ["a == 1"], 1024)
        assert sorted(space.list) == [(1, "x"), (1, "y")]
        assert space.tune_params == {"a": [1, 2], "b": ["x", "y"]}
