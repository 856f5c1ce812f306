"""One gate keeps its coverage and skips exactly the configurations that it predicts to be slow."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mltune.search.gates import Gate


def calibrated(count=400, noise=0.1, seed=0, **options):
    rng = np.random.default_rng(seed)
    predicted = rng.uniform(-3, 0, count)
    gate = Gate("before_compile", **options)
    gate.calibrate(predicted + rng.normal(0, noise, count), predicted, np.full(count, noise))
    return gate


def test_nothing_is_skipped_before_enough_is_measured():
    slow, certain = np.array([-100.0]), np.zeros(1)
    gate = Gate("before_compile", minimum=40)
    assert not gate.decide(slow, certain, first=0.0)[0].any()
    gate.calibrate(*np.zeros((3, 39)))
    assert gate.is_open
    assert not gate.decide(slow, certain, first=0.0)[0].any()
    gate.calibrate(*np.zeros((3, 40)))
    assert not gate.is_open
    assert gate.decide(slow, certain, first=0.0)[0].all()


def test_nothing_is_skipped_while_nothing_ran():
    assert not calibrated().decide(np.array([-100.0]), np.zeros(1), first=-math.inf)[0].any()


def test_failures_and_rows_without_a_prediction_do_not_count():
    gate = Gate("before_compile", minimum=30, confidence=0.9)
    measured, predicted, spread = np.zeros((3, 32))
    measured[0], predicted[1], spread[2] = np.nan, np.nan, np.nan
    gate.calibrate(measured, predicted, spread)
    assert gate.is_open


def test_too_few_to_promise_anything_leave_the_gate_open():
    gate = Gate("before_compile", minimum=10, confidence=0.95)
    gate.calibrate(*np.zeros((3, 18)))
    assert gate.is_open
    gate.calibrate(*np.zeros((3, 19)))
    assert not gate.is_open


def test_all_and_the_fastest_lie_below_the_optimistic_end_as_often_as_promised():
    rng = np.random.default_rng(1)
    covered, fast_covered = [], []
    for seed in range(40):
        gate = calibrated(seed=seed, confidence=0.9)
        predicted = rng.uniform(-3, 0, 2000)
        measured = predicted + rng.normal(0, 0.1, 2000)
        spread = np.full(2000, 0.1)
        fast = measured >= np.quantile(measured, 0.9)
        covered.append((measured <= gate.interval.end(predicted, spread)).mean())
        fast_covered.append((measured <= gate.decide(predicted, spread, 0.0)[1])[fast].mean())
    assert 0.89 <= np.mean(covered) <= 0.92
    assert np.mean(fast_covered) >= 0.89


def test_a_model_that_underrates_the_fastest_is_not_trusted_with_them():
    rng = np.random.default_rng(0)
    measured = rng.uniform(-2, 0, 400)
    predicted = np.minimum(measured, -0.5) + rng.normal(0, 0.01, 400)
    spread = np.full(400, 0.01)
    gate = Gate("before_compile")
    gate.calibrate(measured[:200], predicted[:200], spread[:200])
    skip, _ = gate.decide(predicted[200:], spread[200:], first=float(measured[:200].max()))
    assert not skip[measured[200:] > -0.05].any()
    assert skip.any()


def test_the_interval_is_narrow_where_the_model_is_sure():
    optimistic = calibrated().decide(np.zeros(2), np.array([0.01, 0.3]), first=0.0)[1]
    assert optimistic[0] < optimistic[1]


@given(best=st.floats(-5, 0), margin=st.floats(0, 0.5), noise=st.floats(0.01, 1))
def test_skips_exactly_what_is_optimistically_slower_than_the_best_less_the_margin(best, margin, noise):
    gate = calibrated(noise=noise, margin=margin)
    predicted = np.linspace(-8, 1, 50)
    skip, optimistic = gate.decide(predicted, np.full(50, noise), best)
    np.testing.assert_array_equal(skip, np.exp(optimistic) < np.exp(best + math.log(1 - margin)))
    assert (optimistic >= predicted - 1e-12).all()
