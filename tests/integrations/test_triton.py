"""The autotuner for Triton, without a GPU: a benchmark that makes times up; and what is used of Triton."""

import contextlib
import importlib.util
import inspect
import itertools
import math
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hosts import Kernel

from mltune.device.known import H200
from mltune.errors import DeviceLostError, MltuneWarning, UsageError
from mltune.files.sizes import distinct, sizes_of_csv
from mltune.integrations.triton import autotune, builder, decorator, runner, session
from mltune.integrations.triton.compilers import Compilers
from mltune.integrations.triton.predictor import Predictor
from mltune.integrations.triton.runner import BRIEF, Stopwatch
from mltune.known.wisdom import Wisdom
from mltune.search.launch_search import predict
from tests.environment import importing


def test_without_triton_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(UsageError, match=r"pip install 'triton>=3\.3'"):
        autotune([], [])


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


@pytest.mark.parametrize("trials", [1, 2])
def test_few_trials_are_enough(tuner, trials, configs):
    tuned, _ = tuner(trials=trials)
    tuned.run("x", 1)
    assert measured(tuned)[0] == configs[0]
    assert len(measured(tuned)) == trials


def test_all_of_a_few_are_measured(tuner, configs):
    tuned, _ = tuner(configs=configs[:12], trials=12)
    tuned.run("x", 1)
    assert measured(tuned)[0] == configs[0]
    assert set(measured(tuned)) == set(configs[:12])


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


@pytest.fixture
def example(triton, tmp_path):
    """Return a function that imports the first example of a page, and returns it with the text of the page."""

    def imported(page):
        text = (Path(__file__).resolve().parents[2] / "docs/how-to" / page).read_text()
        path = tmp_path / "example.py"
        path.write_text(re.findall(r"^```py\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)[0])
        specification = importlib.util.spec_from_file_location("example", path)
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        return module, text

    return imported


def test_the_example_of_the_documentation_decorates_a_kernel(example):
    module, _ = example("other-tuners.md")
    assert len(module.double.configs) == 240
    assert module.double.arg_names == ["x_ptr", "n", "BLOCK", "UNROLL"]


def test_the_example_of_many_shapes_makes_the_arguments_of_each(example, triton, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(randn=lambda n, device: f"{n} numbers on {device}"))
    module, text = example("tune-triton-shapes.md")
    assert isinstance(module.scale, triton.runtime.Autotuner)
    (table,) = re.findall(r"^```text\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    for shape in distinct(sizes_of_csv(table, least=0)):
        grid, x, n = module.arguments(**dict(shape))
        assert x == f"{n} numbers on cuda"
        assert grid({"BLOCK": 256}) == (-(-n // 256),)


@pytest.mark.parametrize("option", [{"trials": 0}, {"time": -1.0}, {"compilers": 0}, {"tolerance": math.nan}])
def test_impossible_numbers_are_refused(option):
    ((name, value),) = option.items()
    with pytest.raises(UsageError, match=f"{name} cannot be {value}: it is at least"):
        autotune([], [], **option)


class TestModel:
    """What says which configurations come first."""

    @pytest.fixture
    def order(self, tuner, monkeypatch):
        """Return a function that tunes as on an H200; it returns the order of measuring and what it started from."""
        monkeypatch.setattr("mltune.integrations.triton.decorator.gpu_and_driver", lambda index: (H200, "13.0"))

        def tuned(**options):
            from simulated_gpu import HostTensor

            made, kernel = tuner(**options)
            made.run(HostTensor([0.0]), 4096)
            return [meta for _, meta in kernel.calls[:-1]], made.started_from, made

        return tuned

    def test_its_choice_is_the_first_and_the_first_of_the_list_the_second(self, order, configs):
        calls, started_from, made = order(trials=20)
        assert started_from == "model"
        assert calls[0] != configs[0].all_kwargs() == calls[1]
        assert time_ms(calls[0]) < time_ms(configs[0].all_kwargs())
        assert measured(made)[0] == configs[0]

    @pytest.mark.parametrize("options", [{"prior": "none"}, {"time": 0.0}, {"trials": 1}, {"tolerance": 1e-3}])
    def test_the_first_of_the_list_is_the_first_without_it_and_where_it_may_be_all(self, order, configs, options):
        calls, started_from, _ = order(**{"trials": 3, **options})
        assert calls[0] == configs[0].all_kwargs()
        assert started_from == ("physics" if "prior" in options else "model")

    def test_a_damaged_one_is_said_and_tuning_goes_on_without(self, order, tmp_path):
        (tmp_path / "damaged.json").write_text("{")
        with pytest.warns(MltuneWarning, match="the search starts without a model: the card .* is not JSON"):
            calls, started_from, _ = order(trials=10, prior=tmp_path / "damaged.json")
        assert (calls, started_from) == order(trials=10, prior="none")[:2]

    def test_of_a_list_that_differs_in_warps_alone_it_says_nothing(self, order, triton):
        alike = [
            triton.Config({"BLOCK_M": 64, "BLOCK_N": 64, "ORDER": "row"}, num_warps=warps, num_stages=stages)
            for warps, stages in itertools.product((1, 2, 4, 8), (1, 2, 3, 4))
        ]
        calls, started_from, _ = order(configs=alike, trials=10)
        assert (calls, started_from) == order(configs=alike, trials=10, prior="none")[:2]
        assert started_from == "physics"


SCALE = """
@triton.jit
def kernel(x, n, BLOCK: tl.constexpr, UNROLL: tl.constexpr):
    for part in tl.static_range(UNROLL):
        at = (tl.program_id(0) * UNROLL + part) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x + at, 2 * tl.load(x + at, at < n), at < n)
"""


def milliseconds(meta):
    """Return an imaginary time of a launch."""
    slow = (
        abs(math.log2(meta["BLOCK"] / 512)) + abs(math.log2(meta["UNROLL"] / 2)) + abs(math.log2(meta["num_warps"] / 4))
    )
    return 0.1 * (1 + 0.2 * slow)


@pytest.mark.parametrize("launch_ms", [0.0, 0.5, 2.0])
def test_the_time_of_a_launch_is_not_the_kernels(simulated, launch_ms):
    gpu = simulated(lambda meta: 0.07)  # the cache is cleared in 0.1 ms
    gpu.launch_ms = launch_ms
    stopwatch = Stopwatch()
    assert stopwatch(lambda: gpu.launch({}), (0.5, 0.2, 0.8)) == pytest.approx([0.07] * 3)
    assert 1 + BRIEF / 2 <= len(stopwatch.samples_ms) <= BRIEF


def test_launches_that_the_gpu_always_waits_for_are_timed_all_the_same(simulated):
    gpu = simulated(lambda meta: 0.07)
    gpu.launch_ms = 100.0
    stopwatch = Stopwatch()
    assert stopwatch(lambda: gpu.launch({}), (0.5,)) == pytest.approx([100.0], rel=0.1)
    assert len(stopwatch.samples_ms) == BRIEF


class Launcher:
    """A kernel with its configurations on a simulated GPU; each tuner that it makes is as in a new process."""

    def __init__(self, triton, kernels, gpu):
        self.gpu = gpu
        self._triton, self._kernel = triton, kernels(SCALE).kernel
        self.configs = [
            triton.Config({"BLOCK": block, "UNROLL": unroll}, num_warps=warps)
            for block, unroll, warps in itertools.product((128, 512, 1024), (1, 2), (1, 4))
        ]

    def tune(self, n=4096, configs=None, dtype="float32", **options):
        from simulated_gpu import pointer

        tuned = autotune(configs or self.configs, ["n"], compilers=2, **options)(self._kernel)
        self.gpu.launches.clear()
        grid = lambda meta: (self._triton.cdiv(n, meta["BLOCK"] * meta["UNROLL"]),)  # noqa: E731
        tuned[grid](pointer(getattr(self._triton.language, dtype)), n)
        return tuned

    @property
    def launched(self):
        """The configurations that were launched, each once."""
        return {(meta["BLOCK"], meta["UNROLL"], meta["num_warps"]) for meta in self.gpu.launches}


@pytest.fixture
def launcher(triton, kernels, simulated):
    return Launcher(triton, kernels, simulated(milliseconds))


class TestSession:
    """Tuning with real compilers on a simulated GPU."""

    def test_all_are_measured_briefly_and_the_fastest_again(self, launcher):
        tuned = launcher.tune()
        assert len(launcher.launched) == 12
        assert tuned.best_config.all_kwargs() == {
            "BLOCK": 512,
            "UNROLL": 2,
            "num_warps": 4,
            "num_ctas": 1,
            "num_stages": 3,
        }
        assert tuned.configs_timings[tuned.best_config] == pytest.approx([0.1] * 3)
        assert tuned.best_config == min(tuned.configs_timings, key=tuned.configs_timings.get)
        launches = [(meta["BLOCK"], meta["UNROLL"], meta["num_warps"]) for meta in launcher.gpu.launches]
        assert launches.count((1024, 1, 1)) < launches.count((512, 2, 4)) / 10

    def test_what_a_model_expects_is_compiled_first_and_the_first_of_the_list_next(self, launcher, monkeypatch):
        begun, compile_one = [], builder.Builder._compile
        monkeypatch.setattr(
            builder.Builder, "_compile", lambda self, one, turn: begun.append(one) or compile_one(self, one, turn)
        )
        assert launcher.tune(wisdom="none").started_from == "model"
        assert begun[0] != launcher.configs[0] == begun[1]
        begun.clear()
        assert launcher.tune(wisdom="none", prior="none").started_from == "physics"
        assert begun[0] == launcher.configs[0]

    @pytest.mark.parametrize(("options", "waits"), [({}, False), ({"prior": "none"}, True), ({"trials": 11}, True)])
    def test_only_where_measurements_count_or_nothing_else_orders_them_it_waits_for_the_process_of_models(
        self, launcher, monkeypatch, options, waits
    ):
        asked = []
        for name in ("predict", "predict_if_started"):
            monkeypatch.setattr(
                Predictor, name, lambda *request, name=name: asked.append(name) or predict(*request[1:])
            )
        launcher.tune(wisdom="none", **options)
        assert set(asked) == {"predict" if waits else "predict_if_started"}

    def test_a_compile_may_take_some_times_the_usual_seconds_once_these_are_known(self, launcher, monkeypatch):
        monkeypatch.setattr(builder, "LEAST_S", 3.0)
        allowed_s, submit = [], Compilers.submit
        monkeypatch.setattr(
            Compilers,
            "submit",
            lambda self, job, most_s=builder.TIMEOUT_S, turn=0: (
                allowed_s.append(most_s) or submit(self, job, most_s, turn)
            ),
        )
        launcher.tune()
        assert allowed_s[0] == builder.TIMEOUT_S
        assert builder.LEAST_S <= allowed_s[-1] < builder.TIMEOUT_S

    @pytest.mark.parametrize(("options", "left_out"), [({}, 1), ({"trials": 12}, 0)])
    def test_what_compiles_for_much_longer_than_others_is_left_out_unless_trials_ask_for_it(
        self, launcher, monkeypatch, options, left_out
    ):
        compile_one, late = builder.Builder._compile, Future()
        late.set_running_or_notify_cancel()
        slow = launcher.configs[-1]

        def compiled(self, config, turn):
            future = compile_one(self, config, turn)
            if config != slow:
                return future
            self._running_since[late] = -math.inf
            if not left_out:
                future.add_done_callback(lambda done: late.set_result(done.result()))
            return late

        monkeypatch.setattr(builder.Builder, "_compile", compiled)
        tuned = launcher.tune(wisdom="none", **options)
        assert len(tuned.configs_timings) == 12 - left_out
        assert (slow in tuned.configs_timings) == (not left_out)

    @pytest.mark.usefixtures("warm_cache")
    def test_ties_are_decided_by_the_list_and_then_by_warps_and_stages(self, launcher, triton):
        def times(first, *others):
            launcher.gpu.time_ms = lambda meta: dict(zip((128, 256, 512, 1024), (first, *others), strict=True))[
                meta["BLOCK"]
            ]
            warps = {128: 8, 256: 4, 512: 2, 1024: 4}
            configs = [triton.Config({"BLOCK": n, "UNROLL": 1}, num_warps=warps[n], num_stages=2) for n in warps]
            tuned = launcher.tune(configs=configs, wisdom="none")
            assert tuned.best_config == min(configs, key=lambda config: tuned.configs_timings[config])
            return tuned.best_config.kwargs["BLOCK"]

        assert times(1.004, 1.0, 1.003, 1.2) == 128  # the first of the list
        assert times(1.1, 1.0, 1.003, 1.2) == 512  # fewer warps
        assert times(1.1, 1.003, 1.2, 1.0) == 256  # as many, and before the other
        assert times(1.1, 1.0, 1.01, 1.2) == 256  # no tie

    @pytest.mark.usefixtures("warm_cache")
    def test_the_first_is_in_the_finals_and_stays_where_nothing_is_faster(self, launcher):
        launcher.gpu.time_ms = lambda meta: 0.1
        tuned = launcher.tune(configs=launcher.configs[::-1])
        assert tuned.best_config == launcher.configs[-1]

    @pytest.mark.usefixtures("warm_cache")
    def test_brief_times_that_were_lucky_do_not_win(self, launcher):
        def time_ms(meta):
            lucky = meta["BLOCK"] == 128 and launcher.gpu.launches.count(meta) <= 5
            return 0.095 if lucky else milliseconds(meta)

        launcher.gpu.time_ms = time_ms
        assert launcher.tune().best_config.kwargs == {"BLOCK": 512, "UNROLL": 2}

    @pytest.mark.usefixtures("warm_cache")
    def test_one_that_left_early_does_not_win_when_the_gpu_slows_down(self, launcher):
        def time_ms(meta):
            slow = 1.5 if len(launcher.gpu.launches) > 400 else 1.0
            return slow * (0.1 + 0.006 * (meta["BLOCK"] != 512) + 0.003 * (meta["num_warps"] != 4))

        launcher.gpu.time_ms = time_ms
        tuned = launcher.tune()
        assert (tuned.best_config.kwargs["BLOCK"], tuned.best_config.num_warps) == (512, 4)
        assert tuned.configs_timings[tuned.best_config] == min(tuned.configs_timings.values())

    def test_few_are_measured_where_little_is_asked_for(self, launcher, monkeypatch):
        assert len(launcher.tune(trials=4, wisdom="none").configs_timings) == 4
        assert len(launcher.tune(time=0.0, wisdom="none").configs_timings) <= 1

    @pytest.mark.usefixtures("warm_cache")
    def test_of_several_keys_each_is_tuned(self, launcher):
        tuned = launcher.tune(trials=3)
        assert len(tuned.cache) == 1
        launcher.gpu.launches.clear()
        assert len(launcher.tune(n=100, trials=3).configs_timings) == 3

    def test_what_cannot_be_launched_is_not_measured(self, launcher, kernels, triton, simulated):
        source = """
@triton.jit
def kernel(a, b, c, n, BM: tl.constexpr):
    rows, inner = tl.arange(0, BM), tl.arange(0, 128)
    total = tl.zeros((BM, BM), tl.float32)
    for k in range(0, n, 128):
        left = tl.load(a + rows[:, None] * n + (k + inner)[None, :])
        total = tl.dot(left, tl.load(b + (k + inner)[:, None] * n + rows[None, :]), total)
    tl.store(c + rows[:, None] * n + rows[None, :], total.to(tl.float16))
"""
        gpu = simulated(lambda meta: 1.0)
        from simulated_gpu import pointer

        configs = [triton.Config({"BM": m}, num_stages=stages, num_warps=8) for m in (64, 128) for stages in (2, 5)]
        tuned = autotune(configs, ["n"], compilers=2)(kernels(source).kernel)
        tuned[(1,)](*[pointer(triton.language.float16)] * 3, 4096)
        assert {(meta["BM"], meta["num_stages"]) for meta in gpu.launches} == {(64, 2), (64, 5), (128, 2)}
        assert len(tuned.configs_timings) == 3  # Triton was not asked to launch the other

    @pytest.mark.usefixtures("warm_cache")
    def test_a_launch_that_raises_costs_that_configuration_alone(self, launcher):
        def effect(meta, *arguments):
            if meta["BLOCK"] == 512:
                raise RuntimeError("CUDA error: out of memory")

        launcher.gpu.effect = effect
        tuned = launcher.tune()
        assert tuned.best_config.kwargs == {"BLOCK": 1024, "UNROLL": 2}
        failed = [one.kwargs["BLOCK"] for one, times in tuned.configs_timings.items() if math.isinf(times[0])]
        assert failed == [512] * 4
        assert len(tuned.configs_timings) == 12

    def test_meta_parameters_may_follow_from_heuristics(self, kernels, triton, simulated):
        source = """
@triton.heuristics({"EVEN": lambda arguments: arguments["n"] % arguments["BLOCK"] == 0})
@triton.jit
def kernel(x, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, 1.0, at < n if not EVEN else None)
"""
        gpu = simulated(lambda meta: 1.0 + meta["EVEN"] + meta["BLOCK"] / 4096)
        from simulated_gpu import pointer

        configs = [triton.Config({"BLOCK": block}) for block in (64, 128, 256)]
        tuned = autotune(configs, ["n"], compilers=2)(kernels(source).kernel)
        grids = []
        tuned[lambda meta: grids.append(meta["EVEN"]) or (1,)](pointer(triton.language.float32), 192)
        assert tuned.best_config.kwargs == {"BLOCK": 128}
        assert {True, False} <= set(grids)
        assert len({meta["BLOCK"] for meta in gpu.launches}) == 3

    def test_warming_up_measures_nothing(self, launcher, triton):
        from simulated_gpu import pointer

        tuned = autotune(launcher.configs, ["n"], compilers=2)(launcher._kernel)
        assert len(tuned.warmup(pointer(triton.language.float32), 4096, grid=(1,))) == 12
        assert launcher.gpu.launches == []


@pytest.mark.usefixtures("warm_cache")
class TestWinners:
    """What later processes find."""

    def test_a_winner_is_taken_without_measuring_or_compiling_others(self, launcher):
        searched, tuned = launcher.tune(), launcher.tune()
        assert tuned.best_config == (won := searched.best_config)
        assert (searched.started_from, tuned.started_from) == ("model", "")
        assert launcher.launched == {(512, 2, 4)}
        assert list(tuned.configs_timings) == [won]

    def test_another_key_type_list_of_configurations_gpu_driver_or_triton_is_tuned(self, launcher, monkeypatch, triton):
        launcher.tune()
        for change in ({"n": 4097}, {"dtype": "float16"}):
            launcher.tune(**change)
            assert len(launcher.launched) == 12, change
        launcher.tune(configs=launcher.configs[:6])
        assert len(launcher.launched) == 6
        for gpu, driver in ((replace(H200, sm_count=114), "13.0"), (H200, "13.1"), (H200, "13.0")):
            monkeypatch.setattr(decorator, "gpu_and_driver", lambda index, found=(gpu, driver): found)
            launcher.tune()
            assert len(launcher.launched) == (1 if (gpu, driver) == (H200, "13.0") else 12)
        monkeypatch.setattr(triton, "__version__", "3.9.1")
        launcher.tune()
        assert len(launcher.launched) == 12

    def test_no_wisdom_keeps_nothing(self, launcher, tmp_path, monkeypatch):
        launcher.tune(wisdom="none")
        assert not (tmp_path / "wisdom.json").exists()
        launcher.tune(wisdom=tmp_path / "mine.json")
        assert (tmp_path / "mine.json").exists()
        monkeypatch.setenv("MLTUNE_WISDOM", "none")
        launcher.tune()
        assert len(launcher.launched) == 12

    def test_wisdoms_of_two_machines_are_merged(self, launcher, tmp_path):
        one, other, merged = (tmp_path / name for name in ("one.json", "other.json", "merged.json"))
        launcher.tune(wisdom=one)
        launcher.tune(n=77, wisdom=other)
        Wisdom.merge_files([one, other], merged)
        for n in (4096, 77):
            launcher.tune(n=n, wisdom=merged)
            assert len(launcher.launched) == 1

    def test_a_damaged_wisdom_is_said_and_tuning_goes_on(self, launcher, tmp_path):
        (tmp_path / "wisdom.json").write_text("{")
        with pytest.warns(MltuneWarning, match=r"are not kept: .*is no wisdom of mltune"):
            assert launcher.tune().best_config.kwargs == {"BLOCK": 512, "UNROLL": 2}
        assert (tmp_path / "wisdom.json").read_text() == "{"

    def test_a_wisdom_that_cannot_be_written_is_said(self, launcher, tmp_path):
        with pytest.warns(MltuneWarning, match="cannot be written"):
            launcher.tune(wisdom=Path("/proc/wisdom.json"))
        assert len(launcher.launched) == 12

    @pytest.mark.filterwarnings("ignore:the lock of .* is not free")  # where the machine is slow
    def test_of_two_at_the_same_time_one_measures_and_both_take_the_same(self, launcher, kernels, triton):
        others = Launcher(triton, kernels, launcher.gpu)
        others._kernel.hash = launcher._kernel.cache_key  # the same kernel in another process
        others._kernel.fn.__module__ = launcher._kernel.fn.__module__
        launcher.gpu.launches = []
        with ThreadPoolExecutor(2) as threads:
            tuned = [future.result() for future in [threads.submit(one.tune) for one in (launcher, others)]]
        assert sorted(len(one.configs_timings) for one in tuned) == [1, 12]
        assert len({one.best_config for one in tuned}) == 1

    def test_a_process_that_is_killed_while_it_tunes_holds_nobody_up(self, launcher, tmp_path):
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer Pythons warn of threads
            pid = os.fork()
        if not pid:
            launcher.gpu.effect = lambda *_: os.write(writer, b".") and time.sleep(60)
            launcher.tune()
            os._exit(0)
        assert os.read(reader, 1) == b"."  # it holds the lock, and has launched
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert launcher.tune().best_config.kwargs == {"BLOCK": 512, "UNROLL": 2}
        assert len(Wisdom.load(tmp_path / "wisdom.json")) == 1
        os.close(reader)
        os.close(writer)

    def test_a_launch_that_ends_the_context_is_named_and_left_out_from_then_on(self, launcher):
        def illegal(meta, *arguments):
            if meta["BLOCK"] == 1024:
                launcher.gpu.dead = True

        launcher.gpu.effect = illegal
        with pytest.raises(DeviceLostError, match=r"`BLOCK: 1024, .*on record and will be left out"):
            launcher.tune()
        launcher.gpu.dead, lost = False, launcher.launched
        assert sum(block == 1024 for block, *_ in lost) == 1
        found = set()
        for _ in range(3):  # each of the others with this block
            launcher.gpu.dead = False
            with contextlib.suppress(DeviceLostError):
                found.add(launcher.tune().best_config.kwargs["BLOCK"])
        launcher.gpu.dead = False
        assert launcher.tune().best_config.kwargs["BLOCK"] == 512
        assert found <= {512}

    def test_a_launch_of_the_finals_that_ends_the_context_is_named_too(self, launcher):
        def illegal(meta, *arguments):
            launcher.gpu.dead = sum(one["BLOCK"] == meta["BLOCK"] == 512 for one in launcher.gpu.launches) > 20

        launcher.gpu.effect = illegal
        with pytest.raises(DeviceLostError, match=r"`BLOCK: 512, .*on record and will be left out"):
            launcher.tune()

    def test_a_launch_that_does_not_end_is_named_and_left_out_from_then_on(self, launcher, monkeypatch):
        monkeypatch.setattr(runner, "ENDLESS_S", 2.0)

        def endless(meta, *arguments):
            for _ in range(1000 * (meta["BLOCK"] == 1024)):
                time.sleep(0.01)
                if said:
                    raise KeyboardInterrupt  # the process is ended

        launcher.gpu.effect = endless
        with (
            pytest.raises(KeyboardInterrupt),
            pytest.warns(MltuneWarning, match=r"`BLOCK: 1024, .*kill the process; it is on record") as said,
        ):
            launcher.tune()
        launcher.gpu.effect = lambda *_: None
        assert launcher.tune().best_config.kwargs["BLOCK"] == 512
        assert sum(block == 1024 for block, *_ in launcher.launched) == 3

    @pytest.mark.parametrize(("effort", "least", "most"), [("none", 1, 1), ("quick", 12, 12), ("full", 12, 12)])
    def test_the_environment_says_how_much_is_measured(self, launcher, monkeypatch, effort, least, most):
        monkeypatch.setenv("MLTUNE_EFFORT", effort)
        tuned = launcher.tune()
        assert least <= len(launcher.launched) <= most
        assert effort != "none" or tuned.best_config == launcher.configs[0]

    def test_without_effort_what_is_known_is_taken(self, launcher, monkeypatch):
        won = launcher.tune().best_config
        monkeypatch.setenv("MLTUNE_EFFORT", "none")
        assert launcher.tune().best_config == won


@pytest.mark.usefixtures("warm_cache")
class TestOutputs:
    """Comparing with the outputs of the first configuration."""

    @pytest.fixture
    def doubled(self, triton, kernels, simulated):
        torch = pytest.importorskip("torch")
        gpu = simulated(milliseconds)

        def effect(meta, x, n, *constants):
            x.mul_(2)
            if meta["BLOCK"] == 512:
                x[3] += 0.01 * x.abs().max()  # wrong
            x[0] = math.nan

        gpu.effect = effect
        made = Launcher(triton, kernels, gpu)

        def tuned(**options):
            x = torch.arange(4096, dtype=torch.float32)
            tuner = autotune(made.configs, ["n"], compilers=2, wisdom="none", **options)(made._kernel)
            tuner[lambda meta: (1,)](x, 4096)
            return tuner, x

        return tuned

    def test_wrong_ones_are_not_taken_and_arguments_are_as_after_one_launch(self, doubled):
        tuner, x = doubled(tolerance=1e-3)
        assert tuner.best_config.kwargs["BLOCK"] != 512
        failed = {one.kwargs["BLOCK"] for one, times in tuner.configs_timings.items() if math.isinf(times[0])}
        assert failed == {512}
        assert math.isnan(x[0])

    @pytest.mark.parametrize("tolerance", [None, 0.1])
    def test_close_ones_are_taken(self, doubled, tolerance):
        assert doubled(tolerance=tolerance)[0].best_config.kwargs["BLOCK"] == 512


class TestContract:
    """What the adapter uses of Triton."""

    def test_an_autotuner_prunes_and_then_measures_in_a_loop(self, triton):
        from triton.runtime.autotuner import Autotuner

        source = inspect.getsource(Autotuner.run)
        assert "pruned_configs = self.prune_configs(kwargs)" in source
        assert "self._bench(*args, config=config, **kwargs) for config in pruned_configs" in source
        assert list(inspect.signature(Autotuner.prune_configs).parameters) == ["self", "kwargs"]

    def test_a_kernel_compiles_by_an_attribute_that_can_be_replaced(self, triton):
        from triton.runtime.jit import JITFunction

        source = inspect.getsource(JITFunction)
        assert "self.compile(src, target=target, options=options.__dict__" in source
        assert "self.compile = compile" in inspect.getsource(JITFunction.create_binder)
        assert list(inspect.signature(triton.compile).parameters) == ["src", "target", "options", "_env_vars"]

    def test_a_driver_gives_events_and_a_cache_to_clear(self, triton):
        source = inspect.getsource(triton.testing.do_bench)
        for used in ("get_device_interface()", "get_empty_cache_for_benchmark()", "clear_cache(cache)"):
            assert f"driver.active.{used}" in source
        assert "di.Event(enable_timing=True)" in source

    def test_a_configuration_knows_all_its_parameters(self, triton):
        config = triton.Config({"BLOCK": 64}, num_warps=8, num_stages=2, num_ctas=1, maxnreg=128)
        expected = {"BLOCK": 64, "num_warps": 8, "num_stages": 2, "num_ctas": 1, "maxnreg": 128}
        assert config.all_kwargs() == expected
        assert config.pre_hook is None
        assert config == triton.Config({"BLOCK": 64}, num_warps=8, num_stages=2, num_ctas=1, maxnreg=128)
        assert len({config, triton.Config({"BLOCK": 64}, num_warps=8, num_stages=2, maxnreg=128)}) == 1

    def test_the_decorator_and_its_class_have_the_same_parameters(self, triton):
        of_decorator = list(inspect.signature(triton.autotune).parameters)
        assert of_decorator == ["configs", "key", *decorator._POSITIONAL.parameters]
        of_class = inspect.signature(decorator.own_autotuner()).parameters
        assert list(of_class)[:4] == ["fn", "arg_names", "configs", "key"]
        assert {*of_class} == {"fn", "arg_names", *of_decorator}


NAMES = {
    "triton.autotune": "autotune",
    "triton.runtime.autotune": "autotune",
    "triton.runtime.autotuner.autotune": "autotune",
    "triton.runtime.Autotuner": "class",
    "triton.runtime.autotuner.Autotuner": "class",
    "triton.Autotuner": "class",
}


@pytest.mark.parametrize("name", NAMES)
def test_it_may_take_the_place_of_tritons_own_for_a_whole_program(triton, configs, monkeypatch, name):
    import triton.runtime.autotuner

    own = triton.runtime.autotuner.Autotuner

    def ours(fn, arg_names, configs, key, reset_to_zero, restore_value, **options):
        return autotune(configs, key, reset_to_zero=reset_to_zero, restore_value=restore_value, **options)(fn)

    monkeypatch.setattr(name, autotune if NAMES[name] == "autotune" else ours, raising=False)
    pruned = {"early_config_prune": lambda configs, named_args, **kwargs: configs[:3]}
    decorate = triton.autotune(configs, ["n"], pruned, do_bench=lambda call, quantiles: [1.0] * 3)
    tuner = decorate(Kernel())
    assert isinstance(tuner, own)
    tuner.run("x", 1)
    assert measured(tuner) == configs[:3]


def test_a_program_may_wrap_tritons_own_before_the_adapter_is_imported(triton, configs, tmp_path):
    (tmp_path / "program.py").write_text(
        "import triton\n"
        "def wrapped(*arguments, **options):\n"
        "    from mltune.integrations.triton import autotune\n"
        "    return autotune(*arguments, **options)\n"
        "triton.autotune = triton.runtime.autotune = triton.runtime.autotuner.autotune = wrapped\n"
        "class Kernel:\n"
        "    arg_names = ('n',)\n"
        "    fn = staticmethod(lambda n: None)\n"
        "tuner = triton.autotune([], key=['n'])(Kernel())\n"
        "print(type(tuner).__name__, tuner.keys, tuner.started_from == '')\n"
    )
    done = subprocess.run([sys.executable, tmp_path / "program.py"], env=importing(), capture_output=True, text=True)
    assert done.stdout.split() == ["Autotuner", "['n']", "True"], done.stderr


def test_an_option_is_given_once(triton):
    with pytest.raises(TypeError, match="prune_configs_by"):
        autotune([], [], {}, prune_configs_by={})
    with pytest.raises(TypeError, match="too many positional arguments"):
        autotune([], [], *[None] * 11)


def test_what_is_expected_to_be_slow_is_not_measured_unless_trials_ask_for_it(tuner, configs, monkeypatch):
    monkeypatch.setattr(session, "OF_COMPILER", len(configs))
    some, counts = configs[::3], []
    for trials in (None, len(some) - 1):
        tuned, _ = tuner(configs=some, trials=trials)
        tuned.run("x", 4096)
        counts.append(len(measured(tuned)))
        best = min(time for config in some if (time := time_ms(config.all_kwargs())) is not None)
        assert min(tuned.configs_timings.values())[0] == best
    assert counts[0] < counts[1] / 2
    assert counts[1] == len(some) - 1
