"""The contract of the cost model: ranking, repeatability, and out-of-bag predictions that are honest."""

import numpy as np

from mltune.cost.extra_trees import ExtraTreesModel
from mltune.testing import CostModelContract
from mltune.testing.cost_models import speeds as landscape


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
