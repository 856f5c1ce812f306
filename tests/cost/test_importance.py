"""Importance: parameters that matter by construction are found, and the shares are Optuna's."""

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution
from optuna.trial import create_trial

from mltune.cost.importance import FEWEST_ROWS, importance, mean_importance

RNG = np.random.default_rng(3)
VALUES = {"large": range(6), "small": (-8, 0, 1, 2, 3, 4, 5), "none": range(6), "fixed": (1,)}
COLUMNS = {name: RNG.integers(0, 6, 200) for name in ("large", "small", "none")} | {"fixed": np.ones(200, dtype=int)}


def times(noise=0.02):
    effect = 2.0 * COLUMNS["large"] + 0.5 * COLUMNS["small"]
    return np.exp(0.2 * effect + noise * RNG.standard_normal(200))


def test_parameters_are_ordered_by_what_they_do():
    found = importance(COLUMNS, times(), VALUES)
    assert list(found) == ["large", "small", "none", "fixed"]
    assert found["large"] > 2 * found["small"] > 2 * found["none"]
    assert found["fixed"] == 0.0
    assert sum(found.values()) == pytest.approx(1.0)


def test_it_is_about_the_fastest_and_outliers_do_not_matter():
    slow = times()
    far = np.where(slow > np.median(slow), 1e6 * slow, slow)
    assert importance(COLUMNS, far, VALUES) == importance(COLUMNS, slow, VALUES)


@pytest.mark.parametrize("decimals", [9, 0], ids=["distinct", "many equal"])
def test_the_shares_are_those_of_optuna(decimals):
    measured = np.round(times(), decimals)
    distributions = {name: CategoricalDistribution(list(values)) for name, values in VALUES.items()}
    study = optuna.create_study()
    for row, time in enumerate(measured):
        configuration = {name: int(column[row]) for name, column in COLUMNS.items()}
        study.add_trial(create_trial(params=configuration, distributions=distributions, value=float(time)))
    assert importance(COLUMNS, measured, VALUES) == pytest.approx(optuna.importance.get_param_importances(study))


@pytest.mark.parametrize("rows", [0, 1, FEWEST_ROWS - 1])
def test_of_too_few_nothing_is_said(rows):
    assert importance({name: column[:rows] for name, column in COLUMNS.items()}, times()[:rows], VALUES) is None


def test_of_equals_nothing_is_said():
    assert importance(COLUMNS, np.ones(200), VALUES) is None
    assert importance({"fixed": COLUMNS["fixed"]}, times(), VALUES) is None
    assert mean_importance([]) == {}


def test_the_mean_over_runs_counts_a_parameter_that_a_run_lacks_as_none():
    assert mean_importance([{"a": 0.75, "b": 0.25}, {"b": 1.0}]) == {"b": 0.625, "a": 0.375}
