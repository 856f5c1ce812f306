"""Features are finite, named, and agree with their formulas."""

from dataclasses import replace

import numpy as np
import pytest

from mltune.cost.features import BUILD_COLUMNS, Features
from mltune.dataset.dataset import load_dataset
from mltune.device.known import H200
from mltune.errors import ExpressionError
from mltune.kernel.expressions import parse
from mltune.kernel.parts import Access
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.problem.gemm import GemmProblem

PROBLEM = GemmProblem("s", "N", "T", 4096, 4096, 4096)

CLASSIC = {"BLK": 128, "DIM": 16, "VEC": 4, "STAGES": 3, "MIN_BLOCKS": 2}
"""The tiling of many hand-written SGEMMs: 128 x 128 x 16, 8 x 8 per thread."""


@pytest.fixture(scope="module")
def kernel(tile_bundle):
    return load_kernel(tile_bundle)


@pytest.fixture(scope="module")
def features(kernel):
    return Features(PlacedKernel(kernel, PROBLEM, H200))


def table(kernel, *configurations):
    return {name: np.array([each[name] for each in configurations]) for name in kernel.all_parameters}


def recorded_columns(dataset, count):
    """Return valid configurations without a count of all of them."""
    return {name: column[:count] for name, column in load_dataset(dataset).columns.items()}


def by_name(names, row):
    return dict(zip(names, row, strict=True))


def test_every_feature_of_the_stencil_is_finite():
    kernel = load_kernel("gemm_simt")
    for precision, trans in (("s", "nt"), ("z", "nn")):
        problem = GemmProblem(precision, *trans.upper(), 1000, 37, 5)
        columns = recorded_columns(f"h200-{precision}gemm-{trans}-4096-random", 500)
        features = Features(PlacedKernel(kernel, problem, H200))
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
    columns = table(kernel, CLASSIC)
    found = {name: values[0] for name, values in features.derived_and_bound(columns)[0].items()}
    row = by_name(features.names_before, features.before(columns)[0])
    fma, loads, copies = 8 * 8 * 16, 4 * 16, 4  # per thread and step
    waves = 32 * 32 / (132 * 2)
    spilled = 16 * np.sqrt(3) / np.pi * np.log(2)  # the estimate, 128, is the cap: half of the time it is too low
    assert found["spilled_registers"] == pytest.approx(spilled)
    assert found["issue_bound"] == pytest.approx(fma / (fma + loads + copies + 2 * fma * spilled / 128))
    assert found["blocks_per_sm"] == 2
    assert found["warps_per_sm"] == 16
    assert found["occupancy"] == pytest.approx(512 / 2048)
    assert found["limiter"] == 1  # registers
    assert found["waves"] == pytest.approx(waves)
    assert found["tail_efficiency"] == pytest.approx(waves / np.ceil(waves))
    assert found["useful_share"] == 1.0
    assert found["fma_per_shared_load"] == pytest.approx(fma / loads)
    assert row["BLK"] == pytest.approx(np.log2(129))
    assert row["blocks_per_sm"] == pytest.approx(np.log2(3))
    assert row["issue_bound"] == pytest.approx(found["issue_bound"])
    assert row["prior"] == pytest.approx(np.log(features.prior(columns)[0]))


def test_derived_columns_are_corrected_by_builds(kernel, features):
    columns = table(kernel, CLASSIC | {"MIN_BLOCKS": 1})
    slim = features.derived_and_bound(columns, {"registers": np.array([64])})[0]
    fat = features.derived_and_bound(columns, {"registers": np.array([255])})[0]
    assert slim["blocks_per_sm"][0] > fat["blocks_per_sm"][0] == 1
    assert slim["spilled_registers"][0] == 0


def test_accesses_say_where_banks_collide():
    kernel = load_kernel("gemm_simt")
    problem = GemmProblem("s", "T", "N", 512, 512, 512)  # both operands are transposed by their copies
    columns = recorded_columns("h200-sgemm-nt-4096-random", 2000)
    conflicts = Features(PlacedKernel(kernel, problem, H200)).derived_and_bound(columns)[0]["bank_conflicts"]
    assert conflicts.min() >= 1
    unpadded = (columns["PAD_A"] == 0) & (columns["PAD_B"] == 0)
    assert conflicts[unpadded].mean() > conflicts[~unpadded].mean()


def test_a_lane_accesses_as_many_bytes_as_one_can(kernel):
    access = Access("global", parse("1"), parse("8 * VEC + 1"), ((parse("warp_size"), parse("4")),))
    features = Features(
        PlacedKernel(replace(kernel, resources=replace(kernel.resources, accesses={"loads": access})), PROBLEM, H200)
    )
    law = r"access\.loads\.bytes is 33 in `8 \* VEC \+ 1`; a lane accesses one of \(1, 2, .*128\) bytes"
    with pytest.raises(ExpressionError, match=law):
        features.before(table(kernel, CLASSIC))


def test_double_precision_is_not_bound_by_issue_slots(kernel):
    double = Features(PlacedKernel(kernel, GemmProblem("d", "N", "T", 4096, 4096, 4096), H200))
    thread_tile = CLASSIC | {"VEC": 2, "MIN_BLOCKS": 1}
    assert double.derived_and_bound(table(kernel, thread_tile))[0]["issue_bound"][0] == 1.0


def test_tiles_that_stick_out_are_useless_work(kernel):
    odd = Features(PlacedKernel(kernel, GemmProblem("s", "N", "T", 130, 128, 64), H200))
    found = by_name(odd.names_before, odd.before(table(kernel, CLASSIC))[0])
    assert found["useful_share"] == pytest.approx(130 / 256)


def test_the_compiler_corrects_the_estimate(kernel, features):
    columns = table(kernel, CLASSIC, CLASSIC, CLASSIC)
    builds = {"registers": np.array([128, 129, np.nan]), "spill_bytes": np.array([0.0, 0.0, 400.0])}
    fitting, too_many, spilling = (by_name(features.names_after, row) for row in features.after(columns, builds))
    assert fitting["built_blocks_per_sm"] == pytest.approx(np.log2(3))  # two
    assert (
        too_many["built_blocks_per_sm"] == fitting["built_blocks_per_sm"]
    )  # the launch bounds allow no more registers
    assert spilling["built_prior"] < fitting["built_prior"]
    assert spilling["built_blocks_per_sm"] == fitting["built_blocks_per_sm"]


def test_a_missing_build_column_counts_as_its_estimate(kernel, features):
    columns = table(kernel, CLASSIC)
    nothing = {name: np.array([np.nan]) for name in BUILD_COLUMNS}
    np.testing.assert_array_equal(features.after(columns, {}), features.after(columns, nothing))


def test_without_resources_there_are_only_parameters(bare_bundle):
    features = Features(PlacedKernel(load_kernel(bare_bundle), PROBLEM, H200))
    columns = {"P": np.array([1, 2, 4]), "Q": np.array([0, 1, 0])}
    assert features.names_before == ("P", "Q")
    assert not features.has_prior
    np.testing.assert_array_equal(features.prior(columns), 1.0)
    np.testing.assert_allclose(features.before(columns)[:, 1], [0, 1, 0])
    assert features.after(columns, {"registers": [10, 20, 30]}).shape == (3, 2 + len(BUILD_COLUMNS))


def test_a_smaller_device_has_more_waves(kernel, features):
    small = Features(PlacedKernel(kernel, PROBLEM, replace(H200, sm_count=16)))
    columns = table(kernel, CLASSIC)
    waves = features.names_before.index("waves")
    assert small.before(columns)[0, waves] > features.before(columns)[0, waves]
