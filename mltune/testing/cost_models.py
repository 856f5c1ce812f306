"""The contract of cost models."""

from __future__ import annotations

import numpy as np

from mltune.cost.regressors import CostModel
from mltune.kernel.coding import Floats


def speeds(count: int, seed: int = 0) -> tuple[Floats, Floats]:
    """Return features of shape (count, 6) and the log shares of peak of shape (count,) of a smooth landscape."""
    rng = np.random.default_rng(seed)
    X = rng.random((count, 6))
    y = -3.0 * np.square(X[:, 0] - 0.5) - X[:, 1] * X[:, 2] - 0.5 + rng.normal(0, 0.02, count)
    return X, y


class CostModelContract:
    """The laws of :class:`~mltune.cost.regressors.CostModel`: it ranks, repeats itself and knows what it does not know.

    Override :meth:`make`. The suite fits models to a few hundred rows of six features.
    """

    def make(self, random_state: int) -> CostModel:
        """Return a model that is not fitted."""
        raise NotImplementedError

    def test_it_ranks_what_it_has_not_seen(self) -> None:
        """From 300 rows it learns the order of 200 others."""
        X_new, y_new = speeds(200, seed=1)
        mean, spread = self.make(0).fit(*speeds(300)).predict(X_new)
        assert mean.shape == spread.shape == (200,)
        assert np.corrcoef(mean, y_new)[0, 1] > 0.85
        assert (spread >= 0).all()

    def test_the_same_state_and_rows_give_the_same_model(self) -> None:
        """A run that is resumed proposes what the interrupted one would have."""
        X, y = speeds(60)
        first, second = (self.make(3).fit(X, y) for _ in range(2))
        np.testing.assert_array_equal(first.predict(X), second.predict(X))
        np.testing.assert_array_equal(first.unseen(), second.unseen())

    def test_failures_are_learned_as_very_slow(self) -> None:
        """A target of NaN is a configuration that failed."""
        X, y = speeds(300)
        failed = X[:, 3] > 0.7
        mean, _ = self.make(0).fit(X, np.where(failed, np.nan, y)).predict(X)
        assert mean[failed].mean() < np.quantile(mean[~failed], 0.1)

    def test_unseen_predictions_are_as_wrong_as_those_of_new_rows(self) -> None:
        """They calibrate the skip, so that they must neither be those of the fit nor much worse than others."""
        X, y = speeds(300)
        X_new, y_new = speeds(300, seed=1)
        model = self.make(0).fit(X, y)
        mean, spread = model.unseen()
        assert mean.shape == spread.shape == (300,)
        fast, fast_new = y > np.median(y), y_new > np.median(y)
        unseen = np.nanmean(np.abs(mean - y)[fast])
        new = np.abs(model.predict(X_new)[0] - y_new)[fast_new].mean()
        assert 0.6 * new < unseen < 1.7 * new

    def test_no_prediction_of_an_unseen_row_rests_on_its_own_speed(self) -> None:
        """The fastest row becomes faster, and what the others say of it stays."""
        X, y = speeds(40)
        best = int(np.argmax(y))
        before, _ = self.make(0).fit(X, y).unseen()
        y[best] += 0.3
        after, _ = self.make(0).fit(X, y).unseen()
        np.testing.assert_allclose(after[best], before[best])

    def test_one_row_is_enough(self) -> None:
        """The first batch may have left one result."""
        for rows in (1, 2, 5):
            X, y = speeds(rows)
            model = self.make(0).fit(X, y)
            assert np.isfinite(model.predict(X)[0]).all()
            assert model.unseen()[0].shape == (rows,)

    def test_nothing_to_learn_from_is_refused(self) -> None:
        """A model needs one row that did not fail, and as many targets as rows."""
        import pytest

        X, y = speeds(5)
        for targets in (np.full(5, np.nan), y[:4]):
            with pytest.raises(ValueError, match="rows"):
                self.make(0).fit(X, targets)
