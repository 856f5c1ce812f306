"""Intervals have their nominal coverage: by definition, against MAPIE, and on every recorded sweep."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mltune.cost.features import Features
from mltune.cost.regressors import ExtraTreesModel
from mltune.dataset.dataset import list_datasets, load_dataset
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.records.trial import TrialState
from mltune.search.gates import Gate, UpperEnd, upper_quantile


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=80), st.floats(0.5, 0.99))
def test_the_quantile_is_the_smallest_score_that_keeps_the_promise(scores, confidence):
    value = upper_quantile(np.array(scores), confidence)
    needed = confidence * (len(scores) + 1)
    assert (np.array(scores) <= value).sum() >= min(needed - 1e-6, len(scores))
    if math.isfinite(value):
        assert (np.array(scores) < value).sum() < needed
    else:
        assert needed > len(scores)


@settings(deadline=None, max_examples=30)
@given(st.integers(21, 300), st.sampled_from([0.9, 0.95]), st.integers(0, 1000))
@pytest.mark.system
def test_the_ends_are_those_of_mapie(count, confidence, seed):
    regression = pytest.importorskip("mapie.regression")
    from mapie.conformity_scores import AbsoluteConformityScore
    from sklearn.linear_model import LinearRegression

    rng = np.random.default_rng(seed)
    measured = rng.normal(-1, 0.5, count)
    predicted = measured + rng.normal(0, 0.2, count)
    spread = rng.uniform(0.05, 0.3, count)
    interval = UpperEnd.calibrate(measured, predicted, spread, confidence)

    # The same scores for MAPIE: on the compressed axis, divided by the scale, of a model that says what ours says. Of
    # its two-sided asymmetric interval at 1 - 2 alpha the upper end is the one-sided end at 1 - alpha.
    scale = spread + interval.offset
    said = (interval.compress(predicted) / scale)[:, None]
    model = LinearRegression().fit(said, said[:, 0])
    mapie = regression.SplitConformalRegressor(
        model, confidence_level=2 * confidence - 1, conformity_score=AbsoluteConformityScore(sym=False), prefit=True
    ).conformalize(said, interval.compress(measured) / scale)
    _, ends = mapie.predict_interval(said)
    theirs = ends[:, 1, 0] * scale
    np.testing.assert_allclose(interval.compress(interval.end(predicted, spread)), theirs, atol=1e-8)


def test_nothing_is_promised_from_nothing():
    interval = UpperEnd.calibrate(*np.zeros((3, 0)), 0.95)
    assert (interval.end(np.array([-9.0, 0.0]), np.zeros(2)) == math.inf).all()
    assert math.isinf(UpperEnd.calibrate(*np.zeros((3, 18)), 0.95).width)


@given(st.floats(-6, 0), st.floats(0, 1), st.floats(0.01, 0.5))
def test_a_larger_spread_or_prediction_never_lowers_the_end(predicted, spread, more):
    interval = UpperEnd(width=1.5, offset=0.1, knee=-1.0)
    ends = interval.end(np.array([predicted, predicted + more, predicted]), np.array([spread, spread, spread + more]))
    assert ends[0] <= ends[1] + 1e-12
    assert ends[0] <= ends[2] + 1e-12


SWEEPS = [one.name for one in list_datasets() if one.kind != "search" and one.rows >= 200]  # to estimate a share of 5 %


@pytest.mark.parametrize("name", SWEEPS)
@pytest.mark.sampled(2, nightly=5)
def test_half_of_a_recorded_sweep_is_covered_by_the_other(name):
    dataset = load_dataset(name)
    manifest = dataset.manifest
    X = Features(PlacedKernel(load_kernel(manifest.kernel), manifest.problem, manifest.device)).before(dataset.columns)
    y = np.where(dataset.states == TrialState.OK, -np.log(dataset.numbers("median_s")), np.nan)
    covered = []
    for seed in range(4):
        order = np.random.default_rng(seed).permutation(len(y))
        known, held_out = order[: len(y) // 2][:800], order[len(y) // 2 :][:2000]
        model = ExtraTreesModel(random_state=seed).fit(X[known], y[known])
        gate = Gate("before_compile", confidence=0.95)
        gate.calibrate(y[known], *model.unseen())
        below = y[held_out] <= gate.interval.end(*model.predict(X[held_out]))
        covered.append(below[np.isfinite(y[held_out])].mean())
    error = (0.05 * 0.95 / (4 * len(held_out))) ** 0.5  # of a share of so many
    assert abs(np.mean(covered) - 0.95) <= 0.015 + 2 * error
