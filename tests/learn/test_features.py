"""Features are finite, named, and what their formulas say."""

from dataclasses import replace

import numpy as np
import pytest

from mltune.device.known import H200
from mltune.kernel.bundle import device_variables, load_kernel
from mltune.kernel.problem import GemmProblem
from mltune.kernel.space import ConstrainedSpace
from mltune.learn.features import BUILD_COLUMNS, Features

PROBLEM = GemmProblem("s", "N", "T", 4096, 4096, 4096)

CLASSIC = {"BLK": 128, "DIM": 16, "VEC": 4, "STAGES": 3, "MIN_BLOCKS": 2}
"""The tiling of many hand-written SGEMMs: 128 x 128 x 16, 8 x 8 per thread."""


@pytest.fixture(scope="module")
def kernel(tile_bundle):
    return load_kernel(tile_bundle)


@pytest.fixture(scope="module")
def features(kernel):
    return Features(kernel, PROBLEM, H200)


def table(kernel, *configurations):
    return {name: np.array([each[name] for each in configurations]) for name in kernel.all_parameters}


def by_name(names, row):
    return dict(zip(names, row, strict=True))


def test_every_feature_of_the_stencil_is_finite():
    kernel = load_kernel("gemm_simt")
    for precision in "sz":
        problem = GemmProblem(precision, "T", "N", 1000, 37, 5)
        space = ConstrainedSpace(kernel, problem.variables() | device_variables(H200))
        columns = space.rows(space.sample(500, np.random.default_rng(0)))
        features = Features(kernel, problem, H200)
        before, after = features.before(columns), features.after(columns, {})
        assert before.shape == (500, len(features.names_before))
        assert after.shape == (500, len(features.names_after))
        assert np.isfinite(after).all()
        np.testing.assert_array_equal(before, after[:, : before.shape[1]])
        prior = features.prior(columns)
        assert ((prior >= 0) & (prior <= 1)).all()


def test_names_are_distinct_and_begin_alike(features):
    assert len(set(features.names_after)) == len(features.names_after)
    assert features.names_after[: len(features.names_before)] == features.names_before


def test_an_empty_table_has_no_rows(kernel, features):
    assert features.before(table(kernel)).shape == (0, len(features.names_before))


def test_formulas_by_hand(kernel, features):
    found = by_name(features.names_before, features.before(table(kernel, CLASSIC))[0])
    fma, loads, copies = 8 * 8 * 16, 4 * 16, 4  # per thread and step
    issue = fma / (fma + loads + 10 * copies + 40)
    waves = 32 * 32 / (132 * 2)
    assert found["issue_share"] == pytest.approx(issue)
    assert found["blocks_per_sm"] == 2
    assert found["warps_per_sm"] == 16
    assert found["tail_efficiency"] == pytest.approx(waves / np.ceil(waves))
    assert found["residency"] == pytest.approx(1 - np.exp(-4))
    assert found["useful_share"] == 1.0
    assert found["BLK"] == pytest.approx(np.log2(129))
    product = issue * found["tail_efficiency"] * found["residency"]
    assert found["prior"] == pytest.approx(np.log(product))
    assert features.prior(table(kernel, CLASSIC))[0] == pytest.approx(product)


def test_double_precision_is_not_bound_by_issue_slots(kernel):
    double = Features(kernel, GemmProblem("d", "N", "T", 4096, 4096, 4096), H200)
    thread_tile = CLASSIC | {"VEC": 2, "MIN_BLOCKS": 1}
    found = by_name(double.names_before, double.before(table(kernel, thread_tile))[0])
    assert found["issue_share"] == 1.0


def test_tiles_that_stick_out_are_useless_work(kernel):
    odd = Features(kernel, GemmProblem("s", "N", "T", 130, 128, 64), H200)
    found = by_name(odd.names_before, odd.before(table(kernel, CLASSIC))[0])
    assert found["useful_share"] == pytest.approx(130 / 256)


def test_the_compiler_corrects_the_estimate(kernel, features):
    columns = table(kernel, CLASSIC, CLASSIC, CLASSIC)
    builds = {"registers": np.array([128, 129, np.nan]), "spill_bytes": np.array([0.0, 0.0, 400.0])}
    fitting, too_many, spilling = (by_name(features.names_after, row) for row in features.after(columns, builds))
    assert fitting["built_blocks_per_sm"] == 2
    assert too_many["built_blocks_per_sm"] == 2  # never more than the launch bounds allow
    assert spilling["built_prior"] < fitting["built_prior"]
    assert spilling["built_blocks_per_sm"] == fitting["built_blocks_per_sm"]


def test_a_missing_build_column_counts_as_its_estimate(kernel, features):
    columns = table(kernel, CLASSIC)
    nothing = {name: np.array([np.nan]) for name in BUILD_COLUMNS}
    np.testing.assert_array_equal(features.after(columns, {}), features.after(columns, nothing))


def test_without_resources_there_are_only_parameters(bare_bundle):
    features = Features(load_kernel(bare_bundle), PROBLEM, H200)
    columns = {"P": np.array([1, 2, 4]), "Q": np.array([0, 1, 0])}
    assert features.names_before == ("P", "Q")
    assert not features.has_prior
    np.testing.assert_array_equal(features.prior(columns), 1.0)
    np.testing.assert_allclose(features.before(columns)[:, 1], [0, 1, 0])
    assert features.after(columns, {"registers": [10, 20, 30]}).shape == (3, 2 + len(BUILD_COLUMNS))


def test_a_smaller_device_has_more_waves(kernel, features):
    small = Features(kernel, PROBLEM, replace(H200, sm_count=16))
    columns = table(kernel, CLASSIC)
    waves = features.names_before.index("waves")
    assert small.before(columns)[0, waves] > features.before(columns)[0, waves]
