"""What every cost model of trees must do."""

import numpy as np
import pytest

from mltune.learn.trees import BoostingModel, ExtraTreesModel, RandomForestModel

MODELS = (ExtraTreesModel, RandomForestModel, BoostingModel)
every_model = pytest.mark.parametrize("Model", MODELS)


def landscape(count, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.random((count, 6))
    y = -3.0 * np.square(X[:, 0] - 0.5) - X[:, 1] * X[:, 2] - 0.5 + rng.normal(0, 0.02, count)
    return X, y


@every_model
def test_ranks_what_it_has_not_seen(Model):
    X, y = landscape(300)
    X_new, y_new = landscape(200, seed=1)
    mean, spread = Model(random_state=0).fit(X, y).predict(X_new)
    assert np.corrcoef(mean, y_new)[0, 1] > 0.85
    assert mean.shape == spread.shape == (200,)
    assert (spread >= 0).all()


@every_model
def test_same_seed_and_rows_same_model(Model):
    X, y = landscape(60)
    first, second = (Model(random_state=3).fit(X, y) for _ in range(2))
    np.testing.assert_array_equal(first.predict(X), second.predict(X))
    np.testing.assert_array_equal(first.unseen(), second.unseen())


@every_model
def test_failures_are_learned_as_very_slow(Model):
    X, y = landscape(300)
    y[X[:, 3] > 0.7] = np.nan
    mean, _ = Model(random_state=0).fit(X, y).predict(X)
    assert mean[X[:, 3] > 0.7].mean() < np.quantile(mean[X[:, 3] < 0.7], 0.1)


@every_model
def test_unseen_predictions_are_as_wrong_as_those_of_new_rows(Model):
    X, y = landscape(300)
    X_new, y_new = landscape(300, seed=1)
    model = Model(random_state=0).fit(X, y)
    fast, fast_new = y > np.median(y), y_new > np.median(y)
    mean, spread = model.unseen()
    assert mean.shape == spread.shape == (300,)
    unseen = np.nanmean(np.abs(mean - y)[fast])
    new = np.abs(model.predict(X_new)[0] - y_new)[fast_new].mean()
    seen = np.abs(model.predict(X)[0] - y)[fast].mean()
    assert seen < 0.8 * new
    assert 0.7 * new < unseen < 1.6 * new
    assert 0.6 < np.nanmedian(spread) / np.median(model.predict(X_new)[1]) < 1.6


@every_model
def test_no_prediction_of_an_unseen_row_rests_on_its_own_speed(Model):
    X, y = landscape(40)
    best = int(np.argmax(y))  # faster still, it leaves the median and so the compression as they are
    before, _ = Model(random_state=0).fit(X, y).unseen()
    y[best] += 0.3
    after, _ = Model(random_state=0).fit(X, y).unseen()
    assert after[best] == pytest.approx(before[best])


@every_model
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_few_rows_are_enough(Model, rows):
    X, y = landscape(rows)
    model = Model(random_state=0).fit(X, y)
    assert np.isfinite(model.predict(X)[0]).all()
    assert model.unseen()[0].shape == (rows,)


@every_model
def test_compression_is_undone(Model):
    X, y = landscape(300)
    mean, _ = Model(random_state=0, compression=0.2).fit(X, y).predict(X)
    slow = y < np.quantile(y, 0.2)
    assert abs(np.median(mean[slow] - y[slow])) < 0.25
