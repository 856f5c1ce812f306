"""What every cost model must do, and what the extra trees promise."""

import numpy as np
import pytest

from mltune.learn.cost_model import ExtraTreesModel, log_share


def landscape(count, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.random((count, 6))
    y = -3.0 * np.square(X[:, 0] - 0.5) - X[:, 1] * X[:, 2] - 0.5 + rng.normal(0, 0.02, count)
    return X, y


def test_log_share():
    assert log_share(flops=1e12, median_s=1.0, peak_flops=1e12) == 0.0
    assert log_share(flops=1e12, median_s=2.0, peak_flops=1e12) == pytest.approx(np.log(0.5))


def test_ranks_what_it_has_not_seen():
    X, y = landscape(300)
    X_new, y_new = landscape(200, seed=1)
    mean, spread = ExtraTreesModel(random_state=0).fit(X, y).predict(X_new)
    assert np.corrcoef(mean, y_new)[0, 1] > 0.85
    assert mean.shape == spread.shape == (200,)
    assert (spread >= 0).all()


def test_same_seed_and_rows_same_model():
    X, y = landscape(60)
    first, second = (ExtraTreesModel(random_state=3).fit(X, y).predict(X)[0] for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_failures_are_learned_as_very_slow():
    X, y = landscape(300)
    y[X[:, 3] > 0.7] = np.nan
    mean, _ = ExtraTreesModel(random_state=0).fit(X, y).predict(X)
    assert mean[X[:, 3] > 0.7].max() < np.median(mean[X[:, 3] < 0.7])
    assert mean.min() >= np.nanmin(y) - 1e-9


def test_unseen_predictions_are_as_wrong_as_those_of_new_rows():
    X, y = landscape(300)
    X_new, y_new = landscape(300, seed=1)
    model = ExtraTreesModel(random_state=0).fit(X, y)
    fast, fast_new = y > np.median(y), y_new > np.median(y)
    unseen = np.abs(model.unseen() - y)[fast].mean()
    new = np.abs(model.predict(X_new)[0] - y_new)[fast_new].mean()
    seen = np.abs(model.predict(X)[0] - y)[fast].mean()
    assert seen < 0.8 * new
    assert 0.7 * new < unseen < 1.6 * new


def test_compression_is_undone():
    X, y = landscape(300)
    mean, _ = ExtraTreesModel(random_state=0, compression=0.2).fit(X, y).predict(X)
    slow = y < np.quantile(y, 0.2)
    assert abs(np.median(mean[slow] - y[slow])) < 0.2


@pytest.mark.parametrize("y", [np.full(5, np.nan), np.zeros(4)])
def test_nothing_to_learn_from_is_refused(y):
    with pytest.raises(ValueError, match="as many rows as targets"):
        ExtraTreesModel(random_state=0).fit(np.zeros((5, 2)), y)
