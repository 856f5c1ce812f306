"""Cost models: ranking, repeatability, and out-of-sample predictions that are honest."""

import numpy as np
import pytest

from mltune.cost.gaussian_process import GaussianProcess, Hyperparameters
from mltune.cost.regressors import AT_ONCE, Ensemble, ExtraTreesModel
from mltune.testing import CostModelContract
from mltune.testing.cost_models import speeds as landscape


@pytest.fixture(scope="module")
def data():
    X = np.random.default_rng(0).random((120, 3))
    return X, -np.abs(X - 0.5).sum(axis=1)


def test_held_out_speeds_are_predicted_better_than_by_the_mean(data):
    X, y = data
    mean, spread = Ensemble(random_state=0).fit(X[:90], y[:90]).predict(X[90:])

    assert np.square(mean - y[90:]).mean() < 0.2 * y[90:].var()
    assert (spread > 0).all()


def test_unseen_predictions_err_more_than_the_fit(data):
    X, y = data
    model = Ensemble(random_state=0).fit(X, y)

    assert np.abs(model.unseen()[0] - y).mean() > np.abs(model.predict(X)[0] - y).mean()


def test_trees_predict_the_same_of_a_configuration_whatever_is_asked_with_it(data):
    """A resumed run asks for the rest of a batch."""
    X, y = data
    model = ExtraTreesModel(random_state=0).fit(X, y)
    alone = [model.predict(X[at : at + 1]) for at in range(len(X))]
    np.testing.assert_array_equal(np.array(alone)[..., 0].T, model.predict(X))


def test_many_configurations_are_predicted_in_parts(data):
    X, y = data
    model = Ensemble(random_state=0).fit(X, y)
    many = np.resize(X, (AT_ONCE + 7, 3))

    mean, spread = model.predict(many)

    assert mean.shape == spread.shape == (AT_ONCE + 7,)
    assert np.allclose(mean[:120], model.predict(X)[0])
    assert model.predict(X[:0])[0].shape == (0,)


def test_leave_one_out_of_the_gaussian_process_is_that_of_another_fit(data):
    X, y = data
    usual = Hyperparameters.usual(3)
    mean, deviation = GaussianProcess(usual).fit(X, y).unseen()

    # scaled by all targets here and by all but one there: equal but for that
    left = GaussianProcess(usual).fit(np.delete(X, 7, 0), np.delete(y, 7))
    assert mean[7] == pytest.approx(left.mean(X[[7]])[0], abs=0.01)
    assert deviation[7] > 0


class TestExtraTrees(CostModelContract):
    def make(self, random_state):
        return ExtraTreesModel(random_state=random_state)


def test_unseen_predictions_are_as_wrong_as_those_of_new_rows():
    X, y = landscape(300)
    X_new, y_new = landscape(300, seed=1)
    model = ExtraTreesModel(random_state=0).fit(X, y)
    fast, fast_new = y > np.median(y), y_new > np.median(y)
    mean, spread = model.unseen()
    assert mean.shape == spread.shape == (300,)
    unseen = np.nanmean(np.abs(mean - y)[fast])
    new = np.abs(model.predict(X_new)[0] - y_new)[fast_new].mean()
    seen = np.abs(model.predict(X)[0] - y)[fast].mean()
    assert seen < 0.8 * new
    assert 0.7 * new < unseen < 1.6 * new
    assert 0.6 < np.nanmedian(spread) / np.median(model.predict(X_new)[1]) < 1.6


def test_compression_is_undone():
    X, y = landscape(300)
    mean, _ = ExtraTreesModel(random_state=0).fit(X, y).predict(X)
    slow = y < np.quantile(y, 0.2)
    assert abs(np.median(mean[slow] - y[slow])) < 0.25
