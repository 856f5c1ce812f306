"""The pruner: what it measures, what it promises, its audit, and that decisions follow from seed and results."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mltune.errors import UsageError
from mltune.search.pruning import FIRST, Promise, Pruner, upper_tail
from mltune.search.strata import FALSE_SHARE, audit_size, missed_at_most


@pytest.fixture(scope="module")
def space():
    """Features and log speeds of a smooth space with failures."""
    X = np.random.default_rng(0).random((2000, 4))
    speed = -2.0 * np.abs(X[:, :3] - 0.4).sum(axis=1)
    speed[X[:, 3] > 0.9] = np.nan
    return X, speed


def play(pruner, speed, late=False):
    """Answer until the end; return the rounds. ``late`` tells the random sample as late as is allowed."""
    rounds, owed = [], []
    while (asked := pruner.ask()) is not None:
        rounds.append(asked)
        pruner.tell(answers(asked.chosen, speed))
        for indices in owed:
            pruner.tell(answers(indices, speed))
        owed = [asked.beside]
        if not late:
            pruner.tell(answers(owed.pop(), speed))
    return rounds


def answers(indices, speed):
    return dict(zip(indices.tolist(), speed[indices].tolist(), strict=True))


@pytest.fixture(scope="module")
def played(space):
    pruner = Pruner(space[0], seed=1, promise=Promise(0.02))
    return pruner, play(pruner, space[1])


def test_best_is_found_and_most_is_left_out(space, played):
    pruner, _ = played
    fast = space[1] >= np.nanmax(space[1]) - np.log1p(0.02)

    assert pruner.measured[fast].all()
    assert pruner.measured.mean() < 0.4


def test_every_configuration_is_asked_for_at_most_once(played):
    pruner, rounds = played
    asked = np.concatenate([indices for one in rounds for indices in (one.chosen, one.beside)])

    assert len(np.unique(asked)) == len(asked) == pruner.measured.sum()
    assert [one.number for one in rounds] == list(range(len(rounds)))


def test_audit_states_the_promise_and_a_bound(played):
    audit = played[0].audit()

    assert audit.valid == 2000
    assert audit.measured == played[0].measured.sum()
    assert audit.expected_missed <= 1 - audit.confidence
    assert audit.audited >= 100
    assert audit.false_share_at_most < FALSE_SHARE


@pytest.mark.slow
def test_decisions_do_not_depend_on_when_the_random_sample_arrives(space, played):
    again = play(Pruner(space[0], seed=1, promise=Promise(0.02)), space[1], late=True)

    assert len(again) == len(played[1])
    for ours, theirs in zip(again, played[1], strict=True):
        assert np.array_equal(ours.chosen, theirs.chosen)
        assert np.array_equal(ours.beside, theirs.beside)


def test_another_seed_draws_another_sample(space, played):
    assert not np.array_equal(Pruner(space[0], seed=2).ask().chosen, played[1][0].chosen)


def test_model_leads_the_first_round(space):
    X, speed = space
    expected = np.nan_to_num(speed, nan=-9.0)
    first = Pruner(X, seed=1, expected=expected).ask()

    assert int(np.argmax(expected)) in first.chosen
    assert len(first.chosen) > FIRST


def test_next_round_needs_results(space):
    pruner = Pruner(space[0], seed=0)
    pruner.ask()

    assert not pruner.ready
    with pytest.raises(RuntimeError, match="planned from the results"):
        pruner.ask()
    with pytest.raises(RuntimeError, match="at its end"):
        pruner.audit()


@pytest.mark.parametrize("count", [1, 40, 130, 300])
def test_small_space_is_measured_or_bounded(count):
    X = np.random.default_rng(count).random((count, 2))
    pruner = Pruner(X, seed=0)
    play(pruner, -X.sum(axis=1))

    audit = pruner.audit()
    assert pruner.measured[np.argmin(X.sum(axis=1))]
    assert audit.false_share_at_most < FALSE_SHARE or audit.measured == count


def test_space_in_which_everything_fails_is_measured_to_its_end():
    pruner = Pruner(np.random.default_rng(0).random((300, 2)), seed=0)
    play(pruner, np.full(300, np.nan))

    assert pruner.measured.all()
    assert pruner.audit().measured == 300


@pytest.mark.slow
def test_features_without_information_are_no_reason_to_leave_anything_fast_out():
    """Speeds that no feature explains: whatever is left out, the audit bounds truly."""
    rng = np.random.default_rng(5)
    speed = rng.normal(size=600)
    pruner = Pruner(rng.random((600, 2)), seed=0, promise=Promise(0.1))
    play(pruner, speed)

    missed = int(((speed >= speed.max() - np.log1p(0.1)) & ~pruner.measured).sum())
    assert missed / 600 <= pruner.audit().false_share_at_most + FALSE_SHARE


@given(st.integers(1, 3000), st.data())
@settings(max_examples=30, deadline=None)
def test_bound_is_that_of_the_hypergeometric_distribution(population, data):
    from scipy.stats import hypergeom

    audited = data.draw(st.integers(0, population))
    false = data.draw(st.integers(0, min(audited, 3)))
    most = missed_at_most(population, audited, false)

    assert false <= most <= population - audited + false
    assert hypergeom.cdf(false, population, most, audited) > 0.05 or most == false
    if most < population - audited + false:
        assert hypergeom.cdf(false, population, most + 1, audited) <= 0.05


def test_audit_of_a_large_space_needs_about_300():
    assert 280 <= audit_size(4500) <= 300
    assert missed_at_most(4500, audit_size(4500)) < 45 <= missed_at_most(4500, audit_size(4500) - 1)


def test_tail_falls_and_is_a_probability():
    chances = upper_tail(np.linspace(-3, 9, 100), np.random.default_rng(0).normal(size=500))

    assert ((chances >= 0) & (chances <= 1)).all()
    assert (np.diff(chances) <= 1e-12).all()


@pytest.mark.parametrize("values", [{"within": -0.1}, {"within": 0.6}, {"confidence": 0.4}, {"confidence": 1.0}])
def test_promise_out_of_range_is_refused(values):
    with pytest.raises(UsageError, match="%"):
        Promise(**values)
