"""The autotuner for Triton, without a GPU: a benchmark that makes times up; and what is used of Triton."""

import importlib.util
import inspect
import itertools
import math
import re
import sys
from pathlib import Path

import pytest

from mltune.errors import UsageError
from mltune.integrations.triton import autotune


def test_without_triton_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(UsageError, match="pip install triton"):
        autotune([], [])


@pytest.fixture(scope="module")
def triton():
    return pytest.importorskip("triton")


class Kernel:
    """What an autotuner calls of a ``triton.jit`` function, and the calls that it made."""

    arg_names = ("x", "n")

    def __init__(self):
        self.calls = []

    @staticmethod
    def fn(x, n):
        """Stand for the function in Python."""

    def run(self, *arguments, **meta):
        self.calls.append((arguments, meta))
        return meta


def time_ms(meta):
    """Return an imaginary time; None where shared memory does not suffice."""
    if meta["BLOCK_M"] * meta["BLOCK_N"] * meta["num_stages"] > 4 * 128 * 256:
        return None
    slow = abs(math.log2(meta["BLOCK_M"] / 128)) + abs(math.log2(meta["BLOCK_N"] / 64))
    slow += abs(meta["num_stages"] - 3) + abs(math.log2(meta["num_warps"] / 8)) + 0.5 * (meta["ORDER"] == "row")
    return 1.0 + 0.3 * slow + 0.1 * (meta.get("maxnreg") is not None)


@pytest.fixture
def configs(triton):
    blocks = itertools.product(
        (16, 32, 64, 128, 256), (32, 64, 128, 256), ("row", "column"), (4, 8), (2, 3, 4), (None, 128)
    )
    return [
        triton.Config({"BLOCK_M": m, "BLOCK_N": n, "ORDER": order}, num_warps=warps, num_stages=stages, maxnreg=most)
        for m, n, order, warps, stages, most in blocks
    ]


@pytest.fixture
def tuner(triton, configs):
    """Return a function that makes a tuner with a benchmark that makes times up."""
    from triton.runtime.errors import OutOfResources

    def made(configs=configs, key=("n",), **options):
        kernel = Kernel()

        def do_bench(call, quantiles):
            call()
            time = time_ms(kernel.calls[-1][1])
            if time is None:
                raise OutOfResources(300_000, 232_448, "shared memory")
            return [time, time, time]

        return autotune(configs=configs, key=list(key), do_bench=do_bench, **options)(kernel), kernel

    return made


def measured(tuner):
    return list(tuner.configs_timings)


def test_only_so_many_are_measured_the_first_among_them_and_the_best_is_taken(tuner, configs):
    every = sorted(time for config in configs if (time := time_ms(config.all_kwargs())) is not None)
    for seed in range(5):
        tuned, kernel = tuner(trials=40, seed=seed)
        tuned.run("x", 4096)
        assert len(set(measured(tuned))) == len(measured(tuned)) == 40
        assert measured(tuned)[0] == configs[0]
        assert tuned.best_config == min(tuned.configs_timings, key=tuned.configs_timings.get)
        assert every.index(time_ms(tuned.best_config.all_kwargs())) <= 4
        assert kernel.calls[-1] == (("x", 4096), tuned.best_config.all_kwargs())


def test_a_key_is_tuned_once(tuner):
    tuned, kernel = tuner(trials=10)
    for n, calls in ((4096, 11), (4096, 12), (8192, 23), (4096, 24)):
        tuned.run("x", n)
        assert len(kernel.calls) == calls


def test_the_same_seed_measures_the_same(tuner):
    def found(seed):
        tuned, _ = tuner(trials=20, seed=seed)
        tuned.run("x", 1)
        return measured(tuned)

    assert found(1) == found(1) != found(2)


@pytest.mark.parametrize("trials", [1, 2])
def test_few_trials_are_enough(tuner, trials, configs):
    tuned, _ = tuner(trials=trials)
    tuned.run("x", 1)
    assert measured(tuned)[0] == configs[0]
    assert len(measured(tuned)) == trials


def test_all_of_a_few_are_measured_in_their_order(tuner, configs):
    tuned, _ = tuner(configs=configs[:12], trials=12)
    tuned.run("x", 1)
    assert measured(tuned) == configs[:12]


def test_one_alone_is_not_measured(tuner, configs):
    tuned, kernel = tuner(configs=configs[:1])
    tuned.run("x", 1)
    assert len(kernel.calls) == 1


def test_equal_configurations_count_once(tuner, configs, triton):
    again = [triton.Config(dict(one.kwargs), one.num_warps, one.num_stages, maxnreg=one.maxnreg) for one in configs]
    tuned, _ = tuner(configs=[*configs, *again], trials=30)
    tuned.run("x", 1)
    assert len(measured(tuned)) == 30


def test_configurations_may_differ_in_their_hook_or_have_other_parameters(tuner, triton, configs):
    def hook(arguments):
        """Do nothing."""

    hooked = [triton.Config(dict(one.kwargs), one.num_warps, one.num_stages, pre_hook=hook) for one in configs]
    others = [triton.Config({**one.kwargs, "SPLIT": 2}, one.num_warps, one.num_stages) for one in configs]
    tuned, _ = tuner(configs=[*configs, *hooked, *others], trials=60)
    tuned.run("x", 1)
    assert len(measured(tuned)) == 60
    assert {config.pre_hook for config in measured(tuned)} == {None, hook}
    assert {"SPLIT" in config.kwargs for config in measured(tuned)} == {True, False}


def test_what_triton_prunes_is_not_measured(tuner, configs):
    def keep(configs, named_args, **kwargs):
        assert named_args == {"x": "x", "n": 7}
        return [one for one in configs if one.num_warps == 8]

    tuned, _ = tuner(trials=15, prune_configs_by={"early_config_prune": keep})
    tuned.run("x", 7)
    assert {config.num_warps for config in measured(tuned)} == {8}
    assert len(measured(tuned)) == 15


def test_where_everything_fails_as_many_are_tried(tuner, triton):
    wide = [triton.Config({"BLOCK_M": 256 * at, "BLOCK_N": 512, "ORDER": "row"}) for at in range(1, 40)]
    tuned, _ = tuner(configs=wide, trials=12)
    tuned.run("x", 1)
    assert set(map(tuple, tuned.configs_timings.values())) == {(math.inf,) * 3}
    assert len(measured(tuned)) == 12


def test_a_benchmark_may_return_one_number(triton, configs):
    kernel = Kernel()

    def do_bench(call, quantiles):
        call()
        return time_ms(kernel.calls[-1][1]) or math.inf

    tuned = autotune(configs, ["n"], trials=20, do_bench=do_bench)(kernel)
    tuned.run("x", 1)
    assert len(measured(tuned)) == 20


def test_hooks_of_the_tuner_run(tuner):
    seen = []
    tuned, _ = tuner(trials=5, pre_hook=lambda arguments, reset_only=False: seen.append(reset_only))
    tuned.run("x", 1)
    assert seen == [False] * 5 + [True]


def test_an_error_of_the_kernel_reaches_the_caller(tuner, configs):
    tuned, kernel = tuner(trials=20)
    run, kernel.run = kernel.run, lambda *arguments, **meta: 1 / 0
    with pytest.raises(ZeroDivisionError):
        tuned.run("x", 1)
    kernel.run = run
    tuned.run("x", 1)
    assert len(measured(tuned)) == 20


def test_results_on_disk_are_kept_apart_from_those_of_other_settings(tuner, configs):
    seen = []
    tuned, _ = tuner(trials=5, seed=3)
    proposals = tuned.prune_configs({})
    tuned.check_disk_cache.__self__._check_disk_cache = lambda key, configs, bench: seen.append((key, configs))
    tuned.check_disk_cache("key", proposals, lambda: None)
    ((key, listed),) = seen
    assert key == "key"
    assert listed[:-1] == configs
    assert listed[-1].kwargs == {"mltune_trials": 5, "mltune_seed": 3}


def test_the_example_of_the_documentation_decorates_a_kernel(triton, tmp_path):
    page = Path(__file__).resolve().parents[2] / "docs/how-to/other-tuners.md"
    (example,) = re.findall(r"^```py\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    path = tmp_path / "example.py"
    path.write_text(example)
    specification = importlib.util.spec_from_file_location("example", path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    assert len(module.double.configs) == 240
    assert module.double.arg_names == ["x_ptr", "n", "BLOCK", "UNROLL"]


def test_a_tuner_measures_something():
    with pytest.raises(UsageError, match="got trials=0"):
        autotune([], [], trials=0)


class TestContract:
    """What the adapter uses of Triton."""

    def test_an_autotuner_prunes_and_then_measures_in_a_loop(self, triton):
        from triton.runtime.autotuner import Autotuner

        source = inspect.getsource(Autotuner.run)
        assert "pruned_configs = self.prune_configs(kwargs)" in source
        assert "self._bench(*args, config=config, **kwargs) for config in pruned_configs" in source
        assert list(inspect.signature(Autotuner.prune_configs).parameters) == ["self", "kwargs"]

    def test_the_results_on_disk_have_a_key_of_the_configurations(self, triton):
        from triton.runtime.autotuner import Autotuner

        parameters = list(inspect.signature(Autotuner.check_disk_cache).parameters)
        assert parameters == ["self", "tuning_key", "configs", "bench_fn"]
        assert "[str(c) for c in configs]" in inspect.getsource(Autotuner.check_disk_cache)

    def test_a_configuration_knows_all_its_parameters(self, triton):
        config = triton.Config({"BLOCK": 64}, num_warps=8, num_stages=2, num_ctas=1, maxnreg=128)
        expected = {"BLOCK": 64, "num_warps": 8, "num_stages": 2, "num_ctas": 1, "maxnreg": 128}
        assert config.all_kwargs() == expected
        assert config.pre_hook is None
        assert config == triton.Config({"BLOCK": 64}, num_warps=8, num_stages=2, num_ctas=1, maxnreg=128)
        assert len({config, triton.Config({"BLOCK": 64}, num_warps=8, num_stages=2, maxnreg=128)}) == 1

    def test_the_decorator_takes_configurations_and_a_key_first(self, triton):
        assert list(inspect.signature(triton.autotune).parameters)[:3] == ["configs", "key", "prune_configs_by"]
