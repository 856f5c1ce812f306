"""The search in cuTile, without a GPU: its exhaustive search with times that are made up."""

import importlib.util
import re
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hosts import CuTile

from mltune.errors import UsageError
from mltune.integrations.cutile import ALL_FAILED, TESTED, search

pytestmark = pytest.mark.system

SPACE = [SimpleNamespace(rows=rows, tile=(rows, columns)) for rows in (16, 32, 64, 128) for columns in range(12)]


@dataclass(frozen=True)
class Tile:
    """A configuration with attributes."""

    rows: int
    columns: int


@pytest.fixture
def host(tmp_path, monkeypatch):
    return CuTile(tmp_path, monkeypatch)


def time_us(one):
    return 100.0 + abs(one.rows - 64) + 5.0 * abs(one.tile[1] - 7)


def test_the_first_is_measured_first_and_the_best_of_few_is_good(host):
    for seed in range(3):
        found = host.search(SPACE, time_us, trials=20, seed=seed)
        assert host.measured[0] is SPACE[0]
        assert found.best.mean_us <= sorted(map(time_us, SPACE))[3]
        assert found.best.mean_us == min(one.mean_us for one in found.successes)


def test_the_result_is_that_of_the_exhaustive_search_where_all_are_measured(host):
    from cuda.tile.tune import exhaustive_search

    found = host.search(SPACE, lambda one: None if one.rows == 32 else time_us(one))
    whole = exhaustive_search(SPACE, None, lambda one: (1,), host._kernel, lambda one: (one,), quiet=True)
    assert type(found) is type(whole)
    assert found.best == whole.best
    assert {id(one.config): one for one in found.successes} == {id(one.config): one for one in whole.successes}
    assert {id(one) for one, *_ in found.failures} == {id(one) for one, *_ in whole.failures}


@pytest.mark.parametrize(
    "space", [[3, 1, 2], ["a", "b"], [(1, 2), (2, 1)], [{"n": 1}, {"n": None}], [Tile(1, 2), Tile(2, 2)]]
)
def test_configurations_are_of_any_kind(host, space):
    found = host.search([*space, *space], lambda one: 10.0 + space.index(one))
    assert sorted(host.measured, key=space.index) == space
    assert found.best.config == space[0]


def test_a_batch_that_fails_in_whole_does_not_end_the_search(host):
    found = host.search(SPACE, lambda one: None if one is not SPACE[-1] else 1.0)
    assert found.best.config is SPACE[-1]
    assert len(found.failures) == len(SPACE) - 1


def test_where_everything_fails_the_first_error_is_raised(host):
    with pytest.raises(ValueError, match=f"{ALL_FAILED}(?s:.)*the kernel does not run"):
        host.search(SPACE, lambda one: None, trials=9)
    assert len(host.measured) == 9


def test_errors_of_the_callers_functions_reach_the_caller(host):
    with pytest.raises(ValueError, match="my own"):
        search(SPACE, None, _raise, host._kernel, lambda one: (one,))


def _raise(one):
    raise ValueError("my own")


@pytest.mark.parametrize(("effort", "measured"), [("none", 1), ("quick", 25), ("full", 48), ("", 48)])
def test_the_environment_says_how_much_is_measured(host, monkeypatch, effort, measured):
    monkeypatch.setenv("MLTUNE_EFFORT", effort)
    host.search(SPACE, time_us)
    assert len(host.measured) == measured
    host.search(SPACE, time_us, trials=3)
    assert len(host.measured) == 3


def test_the_example_of_the_documentation_runs(host, monkeypatch, tmp_path):
    from cuda.tile.tune import _tune

    page = Path(__file__).resolve().parents[2] / "docs/how-to/other-tuners.md"
    example = re.findall(r"^```py\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)[2]
    (tmp_path / "example.py").write_text(example)
    specification = importlib.util.spec_from_file_location("example", tmp_path / "example.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    monkeypatch.setattr(_tune, "_benchmark", lambda stream, grid, kernel, arguments, flush: 1.0 + arguments[2])
    assert module.tuned(np.ones(4096), np.ones(4096), None)["tile"] <= 128


@pytest.mark.parametrize(("space", "option"), [(SPACE, {"trials": 0}), (SPACE, {"time": -1.0}), ([], {})])
def test_impossible_requests_are_refused(host, space, option):
    with pytest.raises(UsageError, match="at least"):
        host.search(space, time_us, **option)


def test_another_version_of_cutile_is_refused(host, monkeypatch):
    monkeypatch.setattr(metadata, "version", {"cuda-tile": "1.8.0"}.__getitem__)
    with pytest.raises(
        UsageError,
        match=r"tile.tune 1\.8\.0 is installed, but the search was tested with 1\.7\.\*: pip install 'cuda-tile==1",
    ):
        host.search(SPACE, time_us)


def test_without_cutile_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.tile.tune", None)
    with pytest.raises(UsageError, match="pip install 'cuda-tile"):
        search([1], None)


def test_this_version_is_the_tested_one(host):
    assert metadata.version("cuda-tile").startswith(TESTED)
