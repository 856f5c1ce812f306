"""Pruned sweeps where the fast configurations are hard to meet: what is measured, and what is said of the rest."""

import functools

import numpy as np
import pytest
from hidden_optima import hidden
from scipy.stats import binomtest, hypergeom

from mltune.search.pruning import FASTEST, HIDDEN, MOST_AUDITED, Promise, Pruner
from mltune.search.strata import AUDIT_CONFIDENCE, Stratum, combinations_of


@functools.cache
def swept(family, number, seed):
    """Return the pruner at the end of a sweep, the fast configurations that it left out, and those drawn by chance."""
    space = hidden(family, number)
    pruner = Pruner(space.X, seed=seed)
    drawn = 0
    while (asked := pruner.ask()) is not None:
        drawn += len(asked.beside) + len(asked.chosen) * (asked.proposed_by != "model")
        for indices in (asked.chosen, asked.beside):
            pruner.tell(dict(zip(indices.tolist(), space.speed[indices].tolist(), strict=True)))
    fast = space.speed >= Promise().goal(float(space.speed.max()))
    return pruner, int((fast & ~pruner.measured).sum()), drawn


@pytest.mark.nightly
@pytest.mark.parametrize(("family", "number", "seed"), [("isolated", 0, 2), ("mirrored", 2, 0)])
def test_all_that_is_fast_is_measured(family, number, seed):
    pruner, missed, _ = swept(family, number, seed)

    assert missed == 0
    assert pruner.measured.mean() < 0.3


@pytest.mark.system
@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "numbers"),
    [
        ("narrow", (6,)),
        pytest.param("narrow", (5, 6, 13), marks=pytest.mark.nightly),
        pytest.param("narrow", (5, 6, 7, 8, 13), marks=pytest.mark.slow),
        pytest.param("isolated", (0, 1, 3, 5, 7, 9, 10, 11, 12, 13), marks=pytest.mark.slow),
        pytest.param("mirrored", range(8), marks=pytest.mark.slow),
    ],
)
@pytest.mark.nightly
def test_a_promise_holds_as_often_as_it_says(family, numbers):
    """By the interval of 95 % of how many held, where sweeps measure least of a space: there most may be missed."""
    sweeps = [swept(family, number, seed=0) for number in numbers]
    held = sum(missed == 0 for _, missed, _ in sweeps)
    said = np.mean([pruner.audit().confidence for pruner, *_ in sweeps])

    assert all(pruner.measured.mean() < 0.2 for pruner, *_ in sweeps)
    assert said <= binomtest(held, len(sweeps)).proportion_ci().high
    assert held >= 0.8 * len(sweeps)


@pytest.mark.parametrize(("family", "number"), [pytest.param("isolated", 0, marks=pytest.mark.nightly), ("narrow", 5)])
@pytest.mark.nightly
def test_all_that_is_fast_is_measured_and_a_promise_is_as_strong_as_the_audit_sees_a_small_group(family, number):
    """A tenth of the space is audited at most: it meets a group of ten with about 65 %, one of twenty with 85 %."""
    pruner, missed, drawn = swept(family, number, 0)
    audit = pruner.audit()
    seen, without = (
        1 - hypergeom.pmf(0, audit.weakest_left_out, size, audit.weakest_audited)
        for size in (audit.group, audit.group - 1)
    )

    if family == "narrow":
        assert missed == 0
        assert pruner.measured.mean() < 0.3
    else:
        assert 320 < drawn <= MOST_AUDITED * len(pruner.measured), "an audit of strata takes a tenth of a space at most"
    assert audit.group == HIDDEN if family == "narrow" else audit.group < 15
    assert audit.confidence < 0.9
    assert audit.confidence == pytest.approx(seen, abs=1e-9)
    assert without < audit.confidence
    assert audit.surely_met > audit.group


def test_a_promise_is_not_as_strong_as_what_was_found_is_broad():
    """The group that is found has more than a hundred configurations, the hidden one 5 to 30."""
    audit = swept("small", 0, 0)[0].audit()

    assert audit.group == HIDDEN
    assert audit.confidence < 0.8
    assert audit.surely_met > 40


@pytest.fixture(scope="module")
def rare():
    """Return a sweep of a space where two switches are rarely set together, and the rare configurations."""
    rng = np.random.default_rng(3)
    X = np.column_stack([rng.integers(0, 12, (4000, 2)), rng.random((4000, 2)) < 0.04]).astype(float)
    pruner = Pruner(X, seed=0)
    speed = -0.02 * np.square(X[:, :2] - 5).sum(axis=1) - 0.5 * X[:, 2:].sum(axis=1)
    while (asked := pruner.ask()) is not None:
        for indices in (asked.chosen, asked.beside):
            pruner.tell(dict(zip(indices.tolist(), speed[indices].tolist(), strict=True)))
    return pruner, X, speed


def test_a_rare_combination_of_switches_is_audited(rare):
    pruner, X, _ = rare
    together = X[:, 2:].all(axis=1)

    assert 1 <= together.sum() < 20
    assert (pruner.measured & together).any()
    assert pruner.audit().weakest_audited > 0


def test_the_fastest_are_measured_with_other_switches(rare):
    pruner, X, speed = rare
    measured = np.flatnonzero(pruner.measured)
    for one in measured[np.argsort(-speed[measured], kind="stable")][:FASTEST]:
        assert pruner.measured[(X[:, :2] == X[one, :2]).all(axis=1)].all()


@pytest.mark.parametrize(("left_out", "audited", "group"), [(1000, 50, 20), (1000, 0, 3), (30, 29, 1), (10, 4, 50)])
def test_what_a_stratum_sees_is_hypergeometric(left_out, audited, group):
    stratum = Stratum(left_out, audited, 0, np.arange(left_out - audited))

    assert stratum.sees(group) == pytest.approx(1 - hypergeom.pmf(0, left_out, min(group, left_out), audited), abs=1e-9)
    assert stratum.sees(stratum.surely_met - 1) < AUDIT_CONFIDENCE
    assert stratum.sees(stratum.surely_met) >= AUDIT_CONFIDENCE or not audited
    more = stratum.needed(group, 0.95)
    assert stratum.sees(group, audited + more) >= 0.95
    assert more == 0 or stratum.sees(group, audited + more - 1) < 0.95


def test_strata_cover_the_space_for_every_two_switches():
    switches = np.random.default_rng(0).random((500, 4)) < 0.5

    assert sum(combinations_of(switches)).tolist() == [6] * 500
    assert [mask.all() for mask in combinations_of(switches[:, :1])] == [True]
