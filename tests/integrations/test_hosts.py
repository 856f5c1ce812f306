"""What every adapter promises, in its real host with times that are made up; and the base of all adapters."""

import math
import sys
from importlib import metadata

import pytest
from hosts import HOSTS, number

from mltune.errors import UsageError
from mltune.integrations.host import check_least, leaves, require, table_of

MOST = 18


@pytest.fixture(params=HOSTS, ids=lambda host: host.__name__)
def host(request, tmp_path, monkeypatch):
    return request.param(tmp_path, monkeypatch)


def some_fail(one):
    """Return a time for three quarters of all configurations."""
    return None if number(one) % 4 == 0 else 1.0 + number(one)


@pytest.mark.system
class TestEveryHost:
    def test_the_budget_is_held_nothing_is_measured_twice_and_the_best_is_returned(self, host):
        found = host.tune(lambda one: 1.0 + number(one), trials=MOST)
        assert len(found.measured) == MOST
        assert len({tuple(one.items()) for one in found.measured}) == MOST
        assert found.times == [1.0 + number(one) for one in found.measured]
        assert found.best == min(found.measured, key=number)

    def test_the_same_seed_measures_the_same(self, host):
        first, again, other = (host.tune(some_fail, trials=MOST, seed=seed).measured for seed in (3, 3, 4))
        assert first == again != other

    def test_a_failure_costs_itself_alone(self, host):
        found = host.tune(some_fail, trials=MOST)
        assert len(found.measured) == MOST
        assert found.times == [some_fail(one) for one in found.measured]
        assert None in found.times
        assert found.best == min((one for one in found.measured if some_fail(one)), key=number)

    def test_without_time_one_batch_is_measured(self, host):
        if not host.has_seconds:
            pytest.skip("the host counts the seconds")
        found = host.tune(lambda one: 1.0 + number(one), seconds=0)
        assert len(found.measured) == getattr(host, "batch", 1)
        assert found.best == min(found.measured, key=number)


class TestTables:
    def test_parameters_have_their_paths(self):
        value = {"block": [64, None], "order": {"row": True}, "empty": [], "dtype": ("a", 1.5)}
        assert leaves(value) == {
            "block.0": 64,
            "block.1": None,
            "order.row": True,
            "dtype.0": "a",
            "dtype.1": 1.5,
        }

    def test_a_table_has_the_configurations_in_their_order(self):
        table = table_of([{"a": None, "b": "y"}, {"a": 32}, {"a": 8, "b": "x"}])
        assert [table[row] for row in range(3)] == [(None, "y"), (32, None), (8, "x")]


class TestRequire:
    def test_what_is_missing_is_named_with_what_to_install(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "helion", None)
        with pytest.raises(UsageError, match=r"needs helion, .* pip install 'helion==1.5"):
            require("helion", "helion==1.5.*")

    @pytest.mark.parametrize("version", ["1.4.9", "1.50.0", "2.0", "unknown"])
    def test_other_versions_than_the_tested_are_refused(self, monkeypatch, version):
        monkeypatch.setitem(sys.modules, "part.of_a_host", sys)
        monkeypatch.setattr(metadata, "version", {"a-host": version}.__getitem__)
        with pytest.raises(
            UsageError,
            match=rf"{version} is installed, but the search was tested with 1\.5\.\*: pip install 'a-host==1\.5",
        ):
            require("part.of_a_host", "a-host==1.5.*", "1.5.")

    def test_a_module_may_say_its_version(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "host_of_a_test", sys)
        monkeypatch.setattr(sys, "__version__", "3.6.1", raising=False)
        assert require("host_of_a_test", "host", "3.") is sys

    @pytest.mark.parametrize("value", [0, -1, math.nan])
    def test_numbers_below_their_least_are_named(self, value):
        check_least(trials=(None, 1), seed=(1, 1))
        with pytest.raises(UsageError, match=r"trials cannot be .*: it is at least 1"):
            check_least(trials=(value, 1))
