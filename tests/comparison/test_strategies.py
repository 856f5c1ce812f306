"""Laws that every strategy keeps, and equality of Kernel Tuner's strategies with its own simulation mode."""

import itertools
import json
import math
import random
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mltune.comparison.jobs import run_jobs
from mltune.comparison.journal import Job
from mltune.comparison.simulation import Strategy, simulate
from mltune.comparison.strategies import OURS, PEERS, available, fingerprint, named, strategy, with_cores
from mltune.errors import UsageError
from mltune.testing import StrategyContract

OTHERS = [
    pytest.param(name, marks=pytest.mark.system)
    for name in (*PEERS, "kernel_tuner:pso", "pymoo:ga", "pymoo:de", "pymoo:pso")
]


@pytest.fixture(params=[*OURS, *OTHERS])
def name(request: pytest.FixtureRequest) -> str:
    if request.param == "gp":
        pytest.importorskip("torch")
    elif request.param.startswith("pymoo:"):
        pytest.importorskip("pymoo")
    elif request.param in PEERS or ":" in request.param:
        pytest.importorskip("kernel_tuner")
    return request.param


class TestEveryStrategy(StrategyContract):
    @pytest.fixture(autouse=True)
    def of_name(self, name: str) -> None:
        self.of = name
        self.ends_early = name in {"simulated_annealing", "kernel_tuner:pso"}
        self.repeats_itself = name != "bayes_opt"  # Kernel Tuner's differs from run to run

    def make(self) -> Strategy:
        return strategy(self.of)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nosuch", "'nosuch' is no strategy"),
        ("nosuch:Class", "nosuch:Class cannot be imported as MODULE:CLASS: ModuleNotFoundError"),
        ("mltune.comparison.baselines:Randm", "has no attribute 'Randm'"),
        ("pathlib:Path", "pathlib:Path lacks the method"),
        ("mltune.comparison.baselines:Random:step=1", "Random raises TypeError: .* unexpected keyword argument 'step'"),
        ("mltune.comparison.baselines:Random:step=x", "NAME=NUMBER"),
        ("randm", "did you mean 'random'"),
        ("pymoo:gaa", "'gaa' is no strategy of pymoo; did you mean 'ga'"),
        ("mltune:bach=3", "did you mean 'batch'"),
        ("mltune:batch=x", "batch=NUMBER with 1 <= NUMBER"),
        ("mltune:in_flight=0", "in_flight=NUMBER with 1 <= NUMBER"),
        ("mltune:proposer=1", "is no option of mltune"),
        ("mltune:compilers=0", "compilers=NUMBER with 1 <= NUMBER"),
        ("random:prior=auto", "is no option of random"),
        ("random:batch=2", "is no option of random"),
    ],
)
def test_an_unknown_strategy_or_option_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        strategy(text)


class Stride:
    """A strategy of a user, with a state."""

    name = "stride"

    def __init__(self, step: int = 7) -> None:
        self.step = step
        self.runs = 0

    def search(self, simulation, seed: int) -> None:
        self.runs += 1
        assert self.runs == 1, "every run has a copy of its own"
        simulation.begin()
        for index in range(seed, simulation.space.count, self.step):
            simulation.evaluate(index)


@pytest.mark.parametrize("given", [Stride, Stride(7), f"{__name__}:Stride", f"{__name__}:Stride:step=7"])
@pytest.mark.sampled(2, nightly=99)
def test_a_strategy_of_a_user_runs_in_a_process(given, recording) -> None:
    strategies, limits = named(["random", given])
    name = [*strategies][1]
    assert name == (given if isinstance(given, str) else "stride")
    assert not limits
    jobs = [Job(name, "hill", seed) for seed in range(3)]
    outcomes = {one.job.seed: one for one in run_jobs(jobs, {"hill": recording}, strategies, 5, 1)}
    for seed, outcome in outcomes.items():
        assert outcome.error == ""
        assert outcome.trace.indices.tolist() == [seed + 7 * step for step in range(5)]


def test_an_installed_package_gives_a_strategy_its_name(tmp_path, monkeypatch, recording) -> None:
    installed = tmp_path / "strides-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: strides\nVersion: 1\n")
    entries = f"stride = {__name__}:Stride\ngone = no_such_module:Stride\n"
    (installed / "entry_points.txt").write_text(f"[mltune.strategies]\n{entries}")
    monkeypatch.syspath_prepend(tmp_path)

    strategies, _ = named(["stride:step=7"])
    (outcome,) = run_jobs([Job("stride:step=7", "hill", 1)], {"hill": recording}, strategies, 5, 1)

    assert outcome.trace.indices.tolist() == [1, 8, 15, 22, 29]
    assert "stride" in available()
    assert "gone" not in available()
    with pytest.raises(UsageError, match=r"no_such_module:Stride cannot be imported .*: ModuleNotFoundError"):
        strategy("gone")
    with pytest.raises(UsageError, match="did you mean 'stride'"):
        strategy("strid")


def test_an_error_of_a_user_is_an_outcome(recording) -> None:
    class Broken(Stride):
        def search(self, simulation, seed: int) -> None:
            raise ValueError("not today")

    (outcome,) = run_jobs([Job("stride", "hill", 0)], {"hill": recording}, {"stride": Broken()}, 5, 1)
    assert outcome.reason == "ValueError: not today", "a class of a function cannot be sent, and runs in this process"


class BrokenMaking(Stride):
    """A class that cannot be made, and whose error cannot be written."""

    class NoTextError(Exception):
        """An error without a text."""

        def __str__(self) -> str:
            raise RuntimeError("no text")

    def __init__(self) -> None:
        raise self.NoTextError


class BrokenRepr(Stride):
    """A class whose objects have no representation."""

    def __repr__(self) -> str:
        raise ValueError("no repr")


class BrokenName(Stride):
    """A class whose objects have no name."""

    @property
    def name(self) -> str:
        raise ValueError("no name")


class BrokenPickle(Stride):
    """A class whose objects cannot be copied."""

    def __reduce__(self) -> str:
        raise ZeroDivisionError("no copy")


@pytest.mark.parametrize("given", [BrokenMaking, f"{__name__}:BrokenMaking"])
def test_a_class_that_cannot_be_made_is_named_with_its_error(given) -> None:
    with pytest.raises(UsageError, match=r"test_strategies:BrokenMaking raises NoTextError;"):
        strategy(given)


def test_a_strategy_whose_attributes_raise_is_named_with_its_error(recording) -> None:
    with pytest.raises(UsageError, match=r"test_strategies:BrokenRepr raises ValueError: no repr;"):
        fingerprint(strategy(BrokenRepr))
    with pytest.raises(UsageError, match=r"test_strategies:BrokenName raises ValueError: no name;"):
        strategy(BrokenName)
    (outcome,) = run_jobs([Job("stride", "hill", 0)], {"hill": recording}, {"stride": BrokenPickle()}, 5, 1)
    assert outcome.reason == "ZeroDivisionError: no copy"


def test_the_source_and_the_attributes_of_a_user_are_told_apart() -> None:
    assert fingerprint(strategy("mltune")) == fingerprint(strategy("tpe")) == ""
    assert fingerprint(Stride(3)) == fingerprint(Stride(3)) != fingerprint(Stride(4))


def test_an_option_is_part_of_the_name() -> None:
    made = strategy("mltune:batch=4:in_flight=1")
    assert (made.name, made.batch, made.in_flight) == ("mltune:batch=4:in_flight=1", 4, 1)


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("random", [*range(32)]),
        ("mltune:skip=0:batch=4:in_flight=1", [place // 4 * 4 for place in range(32)]),
        ("mltune:skip=0:batch=4:in_flight=2", [0] * 4 + [4] * 4 + [8] * 8 + [12] * 4 + [16] * 4 + [20] * 4 + [24] * 4),
    ],
)
def test_a_trace_says_which_results_a_proposal_used(recording, text: str, known: list[int]) -> None:
    assert simulate(strategy(text), recording, 32, seed=0).builds["known"].tolist() == known


def test_a_gate_that_saves_no_time_with_few_cores_is_off(recording) -> None:
    assert recording.builds == {}, "without reports of the compiler there is no gate after compiling"
    told = replace(recording, builds={"registers": np.full(recording.space.count, 32.0)})
    assert simulate(strategy("mltune"), told, 200, seed=0).skipped_after
    assert not simulate(strategy("mltune:compilers=1"), told, 200, seed=0).skipped_after


def test_the_search_is_played_anew_for_each_number_of_cores_where_it_matters() -> None:
    given = named(["mltune:batch=4", "mltune-noskip", "mltune:skip=0:batch=4", "mltune:compilers=8", "tpe"])[0]
    played = with_cores(given, (1, 16))
    names = ("mltune:batch=4", "mltune-noskip")  # the one skips after compiling, the batches of the other adapt
    assert [*played][5:] == [f"{name}:compilers={cores}" for name in names for cores in (1, 16)]
    assert (played["mltune:batch=4:compilers=16"].compilers, played["mltune:batch=4"].compilers) == (16, math.inf)


def test_the_default_is_what_a_run_on_a_gpu_does() -> None:
    made = strategy("mltune")
    assert (made.adapts, made.proposer) == (True, "model")


@pytest.mark.parametrize(
    ("name", "batches"),
    [
        ("mltune", [0, *range(8, 48, 4)]),
        ("mltune:compilers=2", [0, *range(7, 47, 4)]),
        ("mltune:compilers=16", [0, 1, *range(5, 33, 4)]),
        ("mltune:batch=16:compilers=2", [0, 16, 32]),
        ("mltune:in_flight=1:compilers=2", [0, 16, 32]),
    ],
)
def test_batches_follow_from_cores_and_recorded_seconds_unless_they_are_given(recording, name, batches) -> None:
    """A build takes 2 s of a core, a run 1 ms."""
    told = replace(recording, run_s=np.full(recording.space.count, 1e-3))
    known = simulate(replace(strategy(name), skip=False), told, 48, seed=0).builds["known"]
    assert np.unique(known).tolist() == batches


@pytest.mark.system
def test_an_unknown_strategy_of_kernel_tuner_is_refused_before_anything_runs() -> None:
    pytest.importorskip("kernel_tuner")
    with pytest.raises(UsageError, match=r"'fire_fly_algorithm' is no strategy of Kernel Tuner; did you mean 'firefly"):
        strategy("kernel_tuner:fire_fly_algorithm")


def simulation_cache(recording, values: dict[str, list[int]], path: Path) -> None:
    """Write a recording as the cache that Kernel Tuner's simulation mode reads."""
    rows = zip(
        *(column.tolist() for column in recording.space.rows(np.arange(recording.space.count)).values()), strict=True
    )
    cache = {}
    for row, median_s in zip(rows, recording.median_s.tolist(), strict=True):
        entry = dict(zip(values, row, strict=True)) | {
            "compile_time": 1.0,
            "verification_time": 0,
            "benchmark_time": 1.0,
            "strategy_time": 0,
            "framework_time": 0,
            "timestamp": "2026-01-01 00:00:00+00:00",
        }
        result = {"__error__": "RuntimeFailedConfig"} if np.isnan(median_s) else {"time": 1e3 * median_s}
        cache[",".join(map(str, row))] = entry | result
    document = {"device_name": "d", "kernel_name": "k", "problem_size": [1, 1], "tune_params_keys": list(values)}
    path.write_text(json.dumps(document | {"tune_params": values, "objective": "time", "cache": cache}))


@pytest.mark.slow
@pytest.mark.parametrize("peer", ["hybrid_vndx", "adaptive_tabu_greywolf", "genetic_algorithm", "simulated_annealing"])
def test_a_strategy_of_kernel_tuner_moves_as_in_its_own_simulation_mode(peer: str, hill, tmp_path: Path) -> None:
    searchspace = pytest.importorskip("kernel_tuner.searchspace")
    from kernel_tuner import tune_kernel

    recorded = hill()
    values = {name: list(recorded.space.values[name]) for name in recorded.space.names}
    recording = hill(order=searchspace.Searchspace(values, [], 10**9).list)  # its own order
    simulation_cache(recording, values, tmp_path / "cache.json")
    for seed in range(2):
        state, numpy_state = random.getstate(), np.random.get_state()
        random.seed(seed)
        np.random.seed(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results, _ = tune_kernel(
                "k",
                "__global__ void k(){}",
                (1, 1),
                [],
                values,
                cache=str(tmp_path / "cache.json"),
                simulation_mode=True,
                strategy=peer,
                strategy_options={"max_fevals": 100},
                lang="CUDA",
                quiet=True,
            )
        random.setstate(state)
        np.random.set_state(numpy_state)
        theirs = list(dict.fromkeys(tuple(result[name] for name in values) for result in results))
        ours = simulate(strategy(f"kernel_tuner:{peer}"), recording, 100, seed).indices
        columns = recording.space.rows(ours.astype(np.int64))
        assert list(zip(*(column.tolist() for column in columns.values()), strict=True)) == theirs


def test_tpe_finds_configurations_in_a_sparse_space(hill) -> None:
    product = list(itertools.product((1, 2, 4, 8, 16), (1, 2, 4, 8), range(6), (0, 1), range(5)))
    few = [product[position] for position in np.random.default_rng(0).choice(len(product), 40, replace=False)]
    trace = simulate(strategy("tpe"), hill(failures=False, order=few), 40, seed=0)
    assert sorted(trace.indices.tolist()) == list(range(40))
    assert trace.invalid == 0
