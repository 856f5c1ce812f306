"""The probability of failing is learned where something failed."""

import numpy as np
import pytest

from mltune.learn.failures import FailureModel


def rows(count, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.random((count, 5))
    y = np.where(X[:, 0] + X[:, 1] > 1.4, np.nan, -X[:, 2])
    return X, y


def test_what_failed_is_told_from_what_ran():
    X, y = rows(300)
    X_new, y_new = rows(300, seed=1)
    chances = FailureModel(random_state=0).fit(X, y).probability(X_new)
    failed = np.isnan(y_new)
    assert ((chances >= 0) & (chances <= 1)).all()
    assert np.mean(np.square(chances - failed)) < 0.5 * failed.mean() * (1 - failed.mean())


def test_the_probability_is_about_the_rate():
    X, y = rows(400)
    X_new, y_new = rows(400, seed=1)
    model = FailureModel(random_state=0).fit(X, y)
    assert model.rate_ == np.isnan(y).mean()
    assert model.probability(X_new).mean() == pytest.approx(np.isnan(y_new).mean(), abs=0.05)


@pytest.mark.parametrize(("speed", "chance"), [(-1.0, 0.0), (np.nan, 1.0)])
def test_without_both_outcomes_everything_is_as_what_is_known(speed, chance):
    model = FailureModel(random_state=0).fit(np.zeros((6, 2)), np.full(6, speed))
    np.testing.assert_array_equal(model.probability(np.ones((3, 2))), chance)


def test_nothing_to_learn_from_is_refused():
    with pytest.raises(ValueError, match="as many rows as targets"):
        FailureModel(random_state=0).fit(np.zeros((0, 2)), np.zeros(0))
