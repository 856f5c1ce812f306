"""The autotuner for Helion, with Helion itself on the CPU and times that are made up; and what is used of Helion."""

import importlib.util
import inspect
import math
import re
import sys
from importlib import metadata
from pathlib import Path

import pytest
from hosts import Helion, number

from mltune.errors import UsageError
from mltune.integrations import helion as adapter
from mltune.integrations.helion import TESTED, autotuner

pytestmark = pytest.mark.system


@pytest.fixture
def host(tmp_path, monkeypatch):
    return Helion(tmp_path, monkeypatch)


def time_ms(one):
    """Return an imaginary time of a product of matrices; None where accumulators do not fit."""
    m, n, k = (one[f"block_sizes.{at}"] for at in range(3))
    if m * n / one["num_warps"] > 4096:
        return None
    slow = abs(math.log2(m / 64)) + abs(math.log2(n / 64)) + abs(math.log2(k / 32)) + abs(one["num_stages"] - 3)
    return 1.0 + 0.3 * slow + 0.2 * abs(math.log2(one["num_warps"] / 8)) + 0.3 * (one["pid_type"] != "flat")


def default_of(bound, host):
    return host.leaves(bound.config_spec.default_config())


def autotuned(bound, host):
    """Return the configuration of the autotuner, which may be in Helion's cache."""
    return host.leaves(bound.settings.autotuner_fn(bound, host.arguments).autotune())


def test_the_default_is_measured_first_and_what_is_near_the_fastest_follows(host):
    found = host.tune(time_ms, trials=64, seed=1)
    bound = host.bind(time_ms)
    assert found.measured[0] == default_of(bound, host)
    drawn = map(host.leaves, bound.config_spec.create_config_generation().random_population(320))
    times = sorted(time for one in drawn if (time := time_ms(one)))
    assert time_ms(found.best) < times[5]  # of five times as many at random


def test_configurations_of_the_user_come_before_others(host):
    import helion

    mine = [helion.Config(block_sizes=[32, 32, 16]), helion.Config(block_sizes=[64, 16, 16])]
    bound = host.bind(time_ms, {"autotune_seed_configs": mine}, trials=4)
    bound.autotune(host.arguments)
    blocks = [[one[f"block_sizes.{at}"] for at in range(3)] for one in host.measured]
    assert blocks[1:3] == [[32, 32, 16], [64, 16, 16]]


def test_the_default_is_kept_where_nothing_is_faster_when_measured_again(host):
    """Times that were lucky do not win: the fastest and the default are measured again."""

    def lucky(one):
        return 5.0 if one == default else 1.0 if len(host.verified) == 0 else 9.0

    default = default_of(host.bind(time_ms), host)
    assert host.tune(lucky, trials=12).best == default
    assert default in host.verified


def test_a_configuration_of_which_helion_makes_no_code_has_failed_alone(host, monkeypatch):
    from helion.runtime.kernel import BoundKernel

    compiled = BoundKernel.compile_config

    def fragile(bound, config=None, **options):
        if config is not None and number(host.leaves(config)) % 3 == 0:
            raise RuntimeError("no code")
        return compiled(bound, config, **options)

    monkeypatch.setattr(BoundKernel, "compile_config", fragile)
    monkeypatch.setattr(BoundKernel, "set_config", lambda bound, config: None)
    found = host.tune(lambda one: 1.0 + number(one), trials=20)
    assert 5 < len(found.measured) < 20
    assert all(number(one) % 3 for one in found.measured)
    assert found.best == min(found.measured, key=number)


def test_where_everything_fails_that_is_said_after_the_budget(host):
    from helion.exc import NoConfigFound

    with pytest.raises(NoConfigFound):
        host.tune(lambda one: None, trials=9)
    assert len(host.measured) == 9


def test_a_small_space_is_measured_in_whole(host):
    fixed = {
        name: value
        for name, value in host.bind(time_ms).config_spec.default_config().config.items()
        if name != "num_warps"
    }
    bound = host.bind(time_ms, {"autotune_config_overrides": fixed}, seed=0)
    bound.autotune(host.arguments)
    assert sorted(one["num_warps"] for one in host.measured) == [1, 2, 4, 8, 16, 32]


def test_helions_cache_keeps_the_winner(host):
    won = autotuned(host.bind(time_ms, trials=8), host)
    assert len(host.measured) == 8
    assert autotuned(host.bind(time_ms, trials=8), host) == won
    assert host.measured == []


def test_several_tunings_of_which_the_best_is_kept_have_seeds_of_their_own(host):
    bound = host.bind(time_ms, {"autotune_best_of_k": 2}, trials=6, seed=3)
    won = autotuned(bound, host)
    first, second = host.measured[:6], host.measured[6:12]
    assert first[0] == second[0] == default_of(bound, host)
    assert first != second
    assert time_ms(won) == min(time for one in host.measured if (time := time_ms(one)))


class TestEffort:
    def test_without_effort_nothing_is_measured_and_the_cache_keeps_nothing(self, host, monkeypatch):
        monkeypatch.setenv("MLTUNE_EFFORT", "none")
        bound = host.bind(time_ms)
        assert autotuned(bound, host) == default_of(bound, host)
        assert host.measured == []
        monkeypatch.delenv("MLTUNE_EFFORT")
        won = autotuned(host.bind(time_ms, trials=8), host)
        assert len(host.measured) == 8
        monkeypatch.setenv("MLTUNE_EFFORT", "none")
        assert autotuned(host.bind(time_ms), host) == won
        assert host.measured == []

    @pytest.mark.parametrize(
        ("effort", "own", "trials"), [("quick", "full", 5), ("full", "quick", 7), ("", "quick", 5)]
    )
    def test_it_says_how_much_is_measured(self, host, monkeypatch, effort, own, trials):
        monkeypatch.setattr(adapter, "TRIALS", {"quick": 5, "full": 7})
        monkeypatch.setenv("MLTUNE_EFFORT", effort)
        host.bind(time_ms, {"autotune_effort": own}).autotune(host.arguments)
        assert len(host.measured) == trials


def test_seconds_and_seed_take_the_place_of_helions(host):
    bound = host.bind(time_ms, {"autotune_budget_seconds": 7, "autotune_random_seed": 5}, seed=3, time=60)
    autotuner = bound.settings.autotuner_fn(bound, host.arguments)
    assert autotuner.autotuner.settings.autotune_budget_seconds == 60
    assert autotuner.autotuner.settings.autotune_random_seed == 3


def test_the_example_of_the_documentation_is_bound(host, tmp_path):
    import torch

    page = Path(__file__).resolve().parents[2] / "docs/how-to/other-tuners.md"
    _, example, *_ = re.findall(r"^```py\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "example.py").write_text(example)
    specification = importlib.util.spec_from_file_location("example", tmp_path / "example.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    bound = module.add.bind((torch.ones(64), torch.ones(64)))
    made = bound.settings.autotuner_fn(bound, (torch.ones(64), torch.ones(64)))
    assert type(made.autotuner).__name__ == "MltuneSearch"


@pytest.mark.parametrize("option", [{"trials": 0}, {"time": -1.0}, {"batch": 0}])
def test_impossible_numbers_are_refused(option):
    with pytest.raises(UsageError, match=rf"{next(iter(option))} cannot be .*: it is at least"):
        autotuner(**option)


def test_another_version_of_helion_is_refused(host, monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: "1.6.0")
    with pytest.raises(
        UsageError,
        match=r"helion 1\.6\.0 is installed, but the search was tested with 1\.5\.\*: pip install 'helion==1\.5",
    ):
        autotuner()


def test_without_helion_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "helion", None)
    with pytest.raises(UsageError, match="pip install 'helion"):
        autotuner()


class TestContract:
    """What the adapter uses of Helion, whose class of searches is not public."""

    @pytest.fixture(autouse=True)
    def helion(self):
        return pytest.importorskip("helion")

    def test_this_version_is_the_tested_one(self, host):
        assert metadata.version("helion").startswith(TESTED)

    def test_a_kernel_takes_a_function_that_makes_its_autotuner(self):
        from helion.runtime import settings

        assert "autotuner_fn" in settings.Settings.__slots__
        source = inspect.getsource(settings.default_autotuner_fn)
        assert "cache_cls(autotuner_factory(), autotuner_factory=autotuner_factory)" in source

    def test_a_search_is_prepared_and_then_measures_in_a_method(self):
        from helion.autotuner.base_search import BaseSearch, PopulationBasedSearch

        source = inspect.getsource(BaseSearch._autotune_with_logging)
        assert source.index("self._prepare()") < source.index("self._autotune()")
        assert list(inspect.signature(PopulationBasedSearch).parameters)[:2] == ["kernel", "args"]
        measures = inspect.signature(PopulationBasedSearch.benchmark_population).parameters
        assert {"members", "desc", "raise_if_no_viable_config"} <= measures.keys()
        assert "_pinned_finalist_configs" in inspect.getsource(PopulationBasedSearch.final_rebenchmark_best)

    def test_a_space_lists_flat_values_each_with_neighbours(self, host):
        generation = host.bind(time_ms).config_spec.create_config_generation()
        for fragment, value in zip(generation.flat_spec, generation.default_flat(), strict=True):
            assert isinstance(fragment.pattern_neighbors(value), list)
