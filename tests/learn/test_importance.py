"""Importance: parameters that matter by construction are found, and noise is not."""

import numpy as np
import pytest

from mltune.learn.importance import FEWEST_ROWS, importance, mean_importance

RNG = np.random.default_rng(3)
COLUMNS = {name: RNG.integers(0, 6, 200) for name in ("large", "small", "none")} | {"fixed": np.ones(200, dtype=int)}


def times(noise=0.02):
    effect = 2.0 * COLUMNS["large"] + 0.5 * COLUMNS["small"]
    return np.exp(0.2 * effect + noise * RNG.standard_normal(200))


def test_parameters_are_ordered_by_what_they_do():
    found = importance(COLUMNS, times())
    assert list(found.shares) == ["large", "small", "none"]
    assert found.shares["large"] > 5 * found.shares["small"] > 5 * abs(found.shares["none"])
    assert found.explained > 0.9
    assert found.rows == 200


def test_it_is_about_ranks_and_outliers_do_not_matter():
    slow = times()
    far = np.where(slow > np.median(slow), 1e6 * slow, slow)
    assert importance(COLUMNS, far).shares == importance(COLUMNS, slow).shares


def test_of_noise_nothing_is_explained():
    found = importance(COLUMNS, np.exp(RNG.standard_normal(200)))
    assert found.explained < 0.1
    assert mean_importance([found, importance(COLUMNS, times())])["large"] > 0.5


def test_the_same_rows_give_the_same_answer():
    measured = times()
    assert importance(COLUMNS, measured) == importance(COLUMNS, measured)


@pytest.mark.parametrize("rows", [0, 1, FEWEST_ROWS - 1])
def test_of_too_few_nothing_is_said(rows):
    assert importance({name: column[:rows] for name, column in COLUMNS.items()}, times()[:rows]) is None


def test_of_equals_nothing_is_said():
    assert importance(COLUMNS, np.ones(200)) is None
    assert importance({"fixed": COLUMNS["fixed"]}, times()) is None
    assert mean_importance([]) == {}
