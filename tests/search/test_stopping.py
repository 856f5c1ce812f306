"""The stopping rule: a search ends if no untried configuration is promising, and the reason states the evidence."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltune.cost.features import Features
from mltune.cost.regressors import ExtraTreesModel
from mltune.dataset.dataset import load_dataset
from mltune.kernel.reader import load_kernel
from mltune.search.gates import Gate
from mltune.search.stopping import StoppingRule


def checked(ends, best=-1.0, untried=None, patience=1, **options):
    rule = StoppingRule(patience=patience)
    return rule.check(
        np.asarray(ends), best, measured=200, untried=len(ends) if untried is None else untried, **options
    )


@given(st.lists(st.floats(-5, 0), min_size=1, max_size=30), st.floats(-3, 0))
def test_a_whole_space_is_given_up_exactly_when_no_end_is_above_the_best_by_the_share(ends, best):
    found = checked(ends, best)
    assert (not found) == (np.expm1(max(ends) - best) > 0.01)
    assert "of the others" not in found


def test_a_sample_bounds_what_it_cannot_prove():
    assert not checked(np.full(500, -2.0), untried=10**12)
    found = checked(np.full(2000, -2.0), untried=10**12)
    assert "a sample of 2,000 of the 1,000,000,000,000" in found
    assert "0.15 % of the others can" in found


def test_a_promising_variant_of_the_best_continues_the_search():
    sample = np.full(2000, -2.0)
    assert not checked(sample, untried=10**12, near=np.array([-1.5, -0.5]))
    assert checked(sample, untried=10**12, near=np.array([-1.5]))


def test_one_batch_is_not_enough():
    rule = StoppingRule(patience=3)
    slow, promising = np.array([-2.0]), np.array([0.0])
    reasons = [
        rule.check(ends, -1.0, measured=200, untried=1)
        for ends in (slow, slow, promising, slow, None, slow, slow, slow)
    ]
    assert [bool(reason) for reason in reasons] == [False] * 7 + [True]


def test_too_few_measurements_do_not_stop_a_search():
    rule = StoppingRule(patience=1, minimum=100)
    assert not rule.check(np.array([-2.0]), -1.0, measured=99, untried=1)


def test_a_space_that_is_used_up_is_given_up():
    assert "all 0 untried" in checked([])


def search(X, y, seed, most):
    """Search a recorded sweep by upper ends until the rule stops it; return evaluations and share of the optimum."""
    rng, rule = np.random.default_rng(seed), StoppingRule()
    tried = rng.permutation(len(y))[:24]
    while True:
        model = ExtraTreesModel(random_state=int(rng.integers(2**31))).fit(X[tried], y[tried])
        gate, best = Gate("before_compile"), float(np.nanmax(y[tried]))
        gate.calibrate(y[tried], *model.unseen())
        untried = np.setdiff1d(np.arange(len(y)), tried)
        mean, spread = model.predict(X[untried])
        ends = None if gate.is_open else gate.cautious.end(mean, spread)
        stop = rule.check(ends, best, measured=len(tried), untried=len(untried))
        if stop or len(tried) >= most:
            return stop, len(tried), np.exp(best - np.nanmax(y))
        weights = rng.exponential(size=14)
        chosen = {int(untried[np.argmax(mean + weight * spread)]) for weight in weights}
        others = np.setdiff1d(untried, sorted(chosen))
        tried = np.concatenate([tried, sorted(chosen), rng.choice(others, 16 - len(chosen), replace=False)])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["h200-sgemm-nt-4096-complete", "h200-sgemm-nt-1024-random"])
def test_recorded_sweeps_are_given_up_in_time_and_not_before_the_best_is_found(name):
    dataset = load_dataset(name)
    manifest = dataset.manifest
    rows = np.random.default_rng(0).permutation(len(dataset))[:4000]
    X = Features(load_kernel(manifest.kernel), manifest.problem, manifest.device).before(dataset.columns)[rows]
    y = -np.log(dataset.numbers("median_s"))[rows]
    runs = [search(X, y, seed, most=700) for seed in range(2)]
    assert all(share >= 0.99 for stop, _, share in runs if stop)
    assert sum(bool(stop) for stop, *_ in runs) >= 1
