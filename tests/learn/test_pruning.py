"""The gate keeps its promise, and Optuna hears of it as of any pruner."""

import math

import numpy as np
import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltune.learn.pruning import Gate, SurrogatePruner


def calibrated(count=400, noise=0.1, seed=0, **options):
    rng = np.random.default_rng(seed)
    predicted = rng.uniform(-3, 0, count)
    gate = Gate("before_compile", **options)
    gate.calibrate(predicted + rng.normal(0, noise, count), predicted)
    return gate


def test_nothing_is_skipped_before_enough_is_measured():
    gate = Gate("before_compile", minimum=40)
    assert not gate.verdict(np.array([-100.0]), best=0.0).skip.any()
    gate.calibrate(np.zeros(39), np.zeros(39))
    assert not gate.verdict(np.array([-100.0]), best=0.0).skip.any()
    gate.calibrate(np.zeros(40), np.zeros(40))
    assert gate.verdict(np.array([-100.0]), best=0.0).skip.all()


def test_nothing_is_skipped_while_nothing_ran():
    assert not calibrated().verdict(np.array([-100.0]), best=-math.inf).skip.any()


def test_failures_and_rows_without_a_prediction_do_not_count():
    gate = Gate("before_compile", minimum=3)
    gate.calibrate(np.array([0.0, 0.1, np.nan, 0.2]), np.array([0.0, 0.0, 0.0, np.nan]))
    assert gate.width == math.inf


def test_fast_configurations_lie_below_the_optimistic_end_as_often_as_promised():
    rng = np.random.default_rng(1)
    covered = []
    for seed in range(40):
        gate = calibrated(seed=seed, confidence=0.9)
        predicted = rng.uniform(-3, 0, 2000)
        measured = predicted + rng.normal(0, 0.1, 2000)
        fast = measured >= np.median(measured)
        covered.append((measured <= gate.verdict(predicted, 0.0).optimistic)[fast].mean())
    assert np.mean(covered) >= 0.89


def test_the_promise_holds_where_the_model_errs_most():
    rng = np.random.default_rng(0)
    predicted = rng.uniform(-3, 0, 500)
    by_model = np.arange(500) >= 100
    measured = predicted + rng.normal(0, 1, 500) * np.where(by_model, 0.01, 0.5)
    together, apart = Gate("before_compile"), Gate("before_compile")
    together.calibrate(measured, predicted)
    apart.calibrate(measured, predicted, by_model)
    assert apart.width > 1.2 * together.width


def test_without_anything_but_the_models_own_proposals_nothing_is_skipped():
    gate = Gate("before_compile")
    gate.calibrate(np.zeros(200), np.zeros(200), np.ones(200, dtype=bool))
    assert gate.width == math.inf


@given(best=st.floats(-5, 0), margin=st.floats(0, 0.5), noise=st.floats(0.01, 1))
def test_skips_exactly_what_is_optimistically_slower_than_the_best_less_the_margin(best, margin, noise):
    gate = calibrated(noise=noise, margin=margin)
    predicted = np.linspace(-8, 1, 50)
    verdict = gate.verdict(predicted, best)
    np.testing.assert_array_equal(verdict.skip, np.exp(verdict.optimistic) < np.exp(best + math.log(1 - margin)))
    assert (verdict.optimistic >= verdict.predicted).all()


def test_the_audit_draws_its_share_of_the_skips_and_nothing_else():
    skip = np.arange(20_000) % 2 == 0
    drawn = Gate("after_compile", audit=0.05).draw_audit(skip, np.random.default_rng(0))
    assert not drawn[~skip].any()
    assert drawn.sum() == pytest.approx(500, abs=80)


def test_optuna_prunes_by_the_gate_of_the_step():
    wide, narrow = Gate("before_compile"), Gate("after_compile")
    wide.width, narrow.width = 1.0, 0.1
    study = optuna.create_study(direction="maximize", pruner=SurrogatePruner([wide, narrow]))

    def asked(*reports):
        trial = study.ask()
        for step, predicted in enumerate(reports):
            trial.report(predicted, step)
        return trial.should_prune()

    assert not asked(-9.0)
    study.tell(study.ask(), -1.0)
    assert not asked()
    assert not asked(-1.5)
    assert asked(-2.5)
    assert asked(-1.5, -1.5)
    assert not asked(-2.5, -1.05)
    assert not asked(-2.5, -2.5, -9.0)
