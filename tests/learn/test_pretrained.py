"""Pretrained models rank configurations by what was fast in sweeps of the same class of problems."""

import numpy as np
import pytest

from mltune.learn.pretrained import SLOWEST, PretrainedModel, Sweep, features, fit_member
from mltune.problem.kinds import problem_from_name

RNG = np.random.default_rng(0)
COLUMNS = {"TILE": 2 ** RNG.integers(0, 8, 600), "UNROLL": RNG.integers(1, 9, 600)}


def gemm(name, trans="NT"):
    return problem_from_name(name, trans=trans, size=64)


def sweep(fastest, problem=gemm("sgemm")):  # noqa: B008
    """Return a sweep whose fastest tile has some log2, with failures."""
    time_s = 1e-3 * (1 + np.abs(np.log2(COLUMNS["TILE"]) - fastest) + 0.05 * COLUMNS["UNROLL"])
    time_s[:10] = np.nan
    return Sweep(f"s{fastest}", "a", problem.case, problem.cost_class, COLUMNS, time_s)


def model(*sweeps):
    return PretrainedModel("toy", tuple(COLUMNS), tuple(fit_member(one, tuple(COLUMNS)) for one in sweeps))


def best_tile(predicted):
    return int(np.log2(COLUMNS["TILE"][np.argmax(predicted)]))


def test_targets_are_relative_to_the_fastest_and_bounded():
    relative = sweep(3).relative()
    assert relative.max() == 0
    assert relative.min() >= SLOWEST
    assert (relative[:10] == SLOWEST).all()


def test_it_predicts_what_was_fast():
    predicted = model(sweep(5)).predict(COLUMNS, gemm("sgemm"))
    assert best_tile(predicted) == 5
    assert np.corrcoef(predicted[10:], sweep(5).relative()[10:])[0, 1] > 0.95


def test_sweeps_of_the_same_class_count_alone_where_there_are_some():
    both = model(sweep(2, gemm("sgemm")), sweep(6, gemm("dgemm")))
    single, double, neither = (both.predict(COLUMNS, gemm(name)) for name in ("sgemm", "dgemm", "zgemm"))
    assert best_tile(single) == 2
    assert best_tile(double) == 6
    np.testing.assert_allclose(neither, (single + double) / 2)


def test_of_these_sweeps_of_the_same_case_count_alone_where_there_are_some():
    both = model(sweep(2, gemm("sgemm", "NT")), sweep(6, gemm("sgemm", "TN")))
    first, second, neither = (both.predict(COLUMNS, gemm("sgemm", trans)) for trans in ("NT", "TN", "NN"))
    assert (best_tile(first), best_tile(second)) == (2, 6)
    np.testing.assert_allclose(neither, (first + second) / 2)


def test_the_source_is_never_above_zero():
    source = model(sweep(4)).source(gemm("sgemm"))
    assert source.expected(COLUMNS).max() <= 0
    assert source.least == SLOWEST


def test_the_same_seed_gives_the_same_model():
    first, second = (model(sweep(4)).predict(COLUMNS, gemm("sgemm")) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_features_are_logs():
    np.testing.assert_allclose(features({"TILE": np.array([1, 3])}, ["TILE"]), [[1.0], [2.0]])
    with pytest.raises(KeyError):
        features({"TILE": np.array([1])}, ["OTHER"])
