"""Proposers: the formula is exact, and the same context gives the same choice."""

import numpy as np
import pytest
from scipy import integrate, stats

from mltune.cost.encoding import Encoding, physical
from mltune.search.beliefs import log_expected_improvement
from mltune.search.history import History, fastest_and_some
from mltune.search.proposers import (
    MOST_ROWS,
    EnumeratedPool,
    GaussianProposer,
    ProposalContext,
    RandomProposer,
)
from mltune.search.tpe import TpeProposer, distributions_of

NOTHING = np.empty(0, dtype=np.int64)


class TestLogExpectedImprovement:
    @pytest.mark.parametrize(("mean", "spread", "best"), [(0.0, 1.0, 0.5), (1.0, 0.3, 0.0), (-1.0, 0.5, 0.7)])
    def test_is_the_integral_that_it_stands_for(self, mean, spread, best):
        density = stats.norm(mean, spread).pdf
        expected, _ = integrate.quad(lambda y: (y - best) * density(y), best, best + 12 * spread)
        found = log_expected_improvement(np.array([mean]), np.array([spread]), best)[0]
        assert found == pytest.approx(np.log(expected), abs=1e-6)

    def test_there_is_an_order_among_tiny_improvements(self):
        z = -np.geomspace(0.01, 1e6, 400)
        found = log_expected_improvement(z, np.ones(400), 0.0)
        assert np.isfinite(found).all()
        assert (np.diff(found) < 0).all()

    @pytest.mark.parametrize("z", [-8.0, -9.9, -10.1, -30.0])
    def test_the_tail_is_that_of_mills_ratio(self, z):
        """Asymptotically exp(-z^2 / 2) / (sqrt(2 pi) z^2) (1 - 3 / z^2 + 15 / z^4 - ...)."""
        tail = stats.norm.logpdf(z) - 2 * np.log(-z) + np.log1p(-3 / z**2 + 15 / z**4 - 105 / z**6)
        assert log_expected_improvement(np.array([z]), np.ones(1), 0.0)[0] == pytest.approx(tail, abs=0.04)


def measured(landscape, indices, *, skipped=NOTHING, predicted=(), running=NOTHING):
    tried = {*indices.tolist(), *skipped.tolist(), *running.tolist()}
    gates = np.ones(len(skipped), dtype=int)
    return History(indices, landscape.scores[indices], skipped, np.array(predicted, dtype=float), gates, running, tried)


def context_of(history, seed=0):
    return ProposalContext(history, set(history.tried), np.random.default_rng(seed))


@pytest.fixture
def gaussian(landscape):
    encoding = Encoding(landscape.space, [physical(landscape.prior, landscape.columns)])
    return GaussianProposer(
        encoding, EnumeratedPool(landscape.space, encoding, drawn=4000, near=0, incumbents=1), seed=0
    )


class TestGaussianProposer:
    known = np.random.default_rng(2).choice(3600, 60, replace=False)

    def test_proposals_are_distinct_new_and_better_than_chance(self, landscape, gaussian):
        found = gaussian.propose(context_of(measured(landscape, self.known)), 16).indices
        assert len(set(found.tolist())) == len(found) == 16
        assert not set(found.tolist()) & set(self.known.tolist())
        assert np.nanmedian(landscape.scores[found]) > np.nanquantile(landscape.scores, 0.9)

    def test_the_same_situation_gives_the_same_answer_whoever_answered_what_before(self, landscape, gaussian):
        history = measured(landscape, self.known)
        first = gaussian.propose(context_of(history), 8).indices
        gaussian.propose(context_of(measured(landscape, self.known[:20]), seed=9), 8)
        np.testing.assert_array_equal(gaussian.propose(context_of(history), 8).indices, first)

    def test_hyperparameters_are_those_of_the_earliest_whenever_they_are_fitted(self, landscape, gaussian):
        """The schedule looks at the same first trials: a resumed run with more measurements has the same."""
        late = GaussianProposer(
            Encoding(landscape.space, [physical(landscape.prior, landscape.columns)]),
            gaussian.pool,
            seed=0,
        )
        gaussian._learn(measured(landscape, self.known[:40]))
        for count in (41, 45):
            late._learn(measured(landscape, self.known[:count]))
            for early, fitted in zip(gaussian._beliefs.beliefs, late._beliefs.beliefs, strict=True):
                np.testing.assert_array_equal(fitted.hyperparameters.scales, early.hyperparameters.scales)

    def test_what_is_running_is_taken_to_turn_out_as_expected(self, landscape, gaussian):
        """What the batch before asked for is not asked for again in another shape."""
        first = gaussian.propose(context_of(measured(landscape, self.known)), 6).indices
        alone = gaussian.propose(context_of(measured(landscape, self.known), seed=1), 6).indices
        beside = gaussian.propose(context_of(measured(landscape, self.known, running=first), seed=1), 6).indices
        assert not set(beside.tolist()) & set(first.tolist())
        assert set(alone.tolist()) == set(first.tolist())

    def test_what_was_skipped_as_slow_drives_it_away(self, landscape, gaussian):
        first = gaussian.propose(context_of(measured(landscape, self.known)), 12).indices
        history = measured(landscape, self.known, skipped=first, predicted=np.full(12, -8.0))
        encoding = Encoding(landscape.space, [physical(landscape.prior, landscape.columns)])
        middle = encoding.describe(landscape.space.rows(first))[0].mean(axis=0)

        def distance(indices):
            points, _ = encoding.describe(landscape.space.rows(indices))
            return np.median(np.linalg.norm(points - middle, axis=1))

        known = History(
            history.indices, history.scores, NOTHING, np.empty(0), NOTHING, NOTHING, history.tried
        )  # the same without the predictions
        assert distance(gaussian.propose(context_of(history), 12).indices) > distance(
            gaussian.propose(context_of(known), 12).indices
        )

    def test_one_measurement_or_only_failures_but_one_are_enough(self, landscape, gaussian):
        failed = np.flatnonzero(np.isnan(landscape.scores))[:12]
        for indices in (self.known[:1], np.append(failed, np.flatnonzero(landscape.scores > -9)[0])):
            assert len(gaussian.propose(context_of(measured(landscape, indices)), 4).indices) == 4

    def test_many_are_learned_from_in_part(self, landscape, gaussian):
        indices = np.random.default_rng(0).choice(3600, 900, replace=False)
        speed = np.nan_to_num(landscape.scores[indices])
        rows = fastest_and_some(speed, MOST_ROWS, MOST_ROWS // 2, np.random.default_rng(0))
        assert len(rows) == MOST_ROWS
        assert len(gaussian.propose(context_of(measured(landscape, indices)), 16).indices) == 16

    def test_an_empty_space_gives_nothing(self, landscape, gaussian):
        history = measured(landscape, self.known)
        full = ProposalContext(history, set(range(3600)), np.random.default_rng(0))
        assert len(gaussian.propose(full, 4).indices) == 0


class TestRandomProposer:
    def test_draws_what_is_kept(self, landscape):
        proposer = RandomProposer(landscape.space, lambda columns: columns["P"] == 4)
        found = proposer.propose(context_of(measured(landscape, NOTHING)), 16).indices
        assert len(set(found.tolist())) >= 16
        assert (landscape.space.rows(found)["P"] == 4).all()

    def test_gives_up_when_nothing_is_kept(self, landscape):
        proposer = RandomProposer(landscape.space, lambda columns: np.zeros(len(columns["P"]), dtype=bool))
        assert len(proposer.propose(context_of(measured(landscape, NOTHING)), 16).indices) == 0

    def test_without_thresholds_it_draws_what_is_not_taken(self, landscape):
        known = np.arange(3590)
        found = RandomProposer(landscape.space).propose(context_of(measured(landscape, known)), 16).indices
        assert sorted(found.tolist()) == list(range(3590, 3600))


class TestTpeProposer:
    def test_answers_are_valid_and_repeatable(self, landscape):
        proposer = TpeProposer(landscape.space)
        history = measured(landscape, np.arange(0, 3600, 90))
        first, again = (proposer.propose(context_of(history), 8).indices for _ in range(2))
        np.testing.assert_array_equal(first, again)
        assert len(first) == 16
        assert ((first >= 0) & (first < 3600)).all()

    def test_skipped_trials_rank_below_measured_ones_and_failures_below_all(self, landscape):
        """Also where the amount of work is not known, and every score is far below -20."""
        failed = np.flatnonzero(np.isnan(landscape.scores))[:3]
        measured_ones = np.flatnonzero(np.isfinite(landscape.scores))[:3]
        history = measured(
            landscape,
            np.sort(np.concatenate([failed, measured_ones])),
            skipped=np.array([3590, 3591]),
            predicted=(-40, -50),
        )
        history.scores[:] -= 30.0
        distributions = distributions_of(landscape.space)
        trials = TpeProposer(landscape.space)._trials(history, distributions, np.random.default_rng(0))
        states = [trial.state.name for trial in trials]
        assert sorted(states) == ["COMPLETE"] * 3 + ["PRUNED"] * 5
        assert [trial.intermediate_values for trial in trials[:3]] == [{}] * 3  # the failures come first: the worst
        assert [trial.intermediate_values for trial in trials[3:5]] == [{1: -50.0}, {1: -40.0}]
