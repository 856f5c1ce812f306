"""ASTRA's thresholds equal those of the paper, computed by hand for known tiles."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltune.cost.features import Features
from mltune.dataset.dataset import load_dataset
from mltune.device.known import H200
from mltune.errors import BundleError
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.problem.gemm import GemmProblem
from mltune.search.astra import AstraThresholds

PROBLEM = GemmProblem("s", "N", "T", 4096, 4096, 4096)


@pytest.fixture(scope="module")
def kernel():
    return load_kernel("gemm_simt")


@pytest.fixture(scope="module")
def sample():
    return {name: column[:400] for name, column in load_dataset("h200-sgemm-nt-4096-random").columns.items()}


def tile(**changes):
    """Return a 64 x 64 x 16 tile of 16 x 16 threads, 4 x 4 outputs each, two blocks per multiprocessor."""
    classic = {
        "BLK_M": 64, "BLK_N": 64, "BLK_K": 16, "DIM_X": 16, "DIM_Y": 16, "LANE_X": 8, "LANE_ORDER": 0,
        "DIM_XA": 16, "DIM_XB": 16, "VEC_A": 1, "VEC_B": 1, "VEC_M": 1, "VEC_N": 1, "PAD_A": 0, "PAD_B": 0,
        "STORE_A": 1, "STORE_B": 1, "ASYNC_A": 1, "ASYNC_B": 1, "STAGES": 2, "FRAGMENTS": 1, "UNROLL_K": 16,
        "ORDER": 0, "READ": 0, "MIN_BLOCKS": 2, "SPLIT_K": 1, "RASTER_GROUP": 1,
    }  # fmt: skip
    return {name: np.array([value]) for name, value in (classic | changes).items()}


def thresholds(kernel, problem=PROBLEM, **changes):
    """Return the paper's thresholds with some replaced."""
    paper = AstraThresholds(Features(PlacedKernel(kernel, problem, H200))).thresholds
    return AstraThresholds(Features(PlacedKernel(kernel, problem, H200)), replace(paper, **changes))


def keeps(kernel, columns, precision="s", builds=None, **changes):
    return bool(thresholds(kernel, replace(PROBLEM, precision=precision), **changes).keeps(columns, builds)[0])


@pytest.mark.parametrize(
    ("precision", "threads", "reuse"), [("s", 1024, 2.0), ("c", 1024, 2.0), ("d", 1024, 1.0), ("z", 768, 2.0)]
)
def test_the_papers_thresholds(kernel, precision, threads, reuse):
    found = AstraThresholds(Features(PlacedKernel(kernel, replace(PROBLEM, precision=precision), H200))).thresholds
    assert (found.threads_per_sm, found.register_reuse, found.blocks_per_sm) == (threads, reuse, 1)


def test_on_a_smaller_multiprocessor_occupancy_is_the_same_share(kernel):
    device = replace(H200, max_threads_per_sm=1536)
    assert AstraThresholds(Features(PlacedKernel(kernel, PROBLEM, device))).thresholds.threads_per_sm == 768


def test_register_reuse_is_fmas_per_scalar_loaded(kernel):
    # 4 x 4 outputs: 16 FMAs for 8 scalars in S; in C, 64 FMAs for 16 scalars.
    assert keeps(kernel, tile(), register_reuse=2.0)
    assert not keeps(kernel, tile(), register_reuse=2.01)
    assert keeps(kernel, tile(), "c", register_reuse=4.0, threads_per_sm=0)
    assert not keeps(kernel, tile(), "c", register_reuse=4.01, threads_per_sm=0)


def test_occupancy_is_counted_in_threads(kernel):
    # Estimated at 16 + 8 + 32 = 56 registers: 4 blocks of 256 threads, as 65536 // 56 // 256 = 4.
    assert keeps(kernel, tile(), threads_per_sm=1024)
    assert not keeps(kernel, tile(), threads_per_sm=1025)
    assert keeps(kernel, tile(), blocks_per_sm=4)
    assert not keeps(kernel, tile(), blocks_per_sm=5)


def test_after_compiling_the_true_registers_count(kernel):
    assert keeps(kernel, tile(), builds={"registers": [64]})
    assert not keeps(kernel, tile(), builds={"registers": [72]})
    assert keeps(kernel, tile(), builds={"registers": [np.nan]})
    assert not keeps(kernel, tile(), builds={"registers": [40], "shared_bytes": [64_000]})


def test_what_cannot_be_launched_is_never_kept(kernel):
    nothing = {"threads_per_sm": 0, "register_reuse": 0, "blocks_per_sm": 0}
    assert keeps(kernel, tile(), **nothing)
    assert not keeps(kernel, tile(), builds={"registers": [300]}, **nothing)


def test_some_are_kept_and_some_are_not(kernel, sample):
    kept = AstraThresholds(Features(PlacedKernel(kernel, PROBLEM, H200))).keeps(sample)
    assert kept.dtype == bool
    assert 0.01 < kept.mean() < 0.6


@given(st.sampled_from(["threads_per_sm", "register_reuse", "blocks_per_sm"]), st.floats(0, 4))
def test_a_higher_threshold_never_keeps_more(kernel, sample, name, value):
    scale = 512 if name == "threads_per_sm" else 1
    low, high = (thresholds(kernel, **{name: limit * scale}).keeps(sample) for limit in (value, value + 1))
    assert not (high & ~low).any()


def test_a_bundle_without_resources_is_refused(bare_bundle):
    with pytest.raises(BundleError, match=r"bare does not name the .* threads, registers, register_reuse"):
        AstraThresholds(Features(PlacedKernel(load_kernel(bare_bundle), PROBLEM, H200)))
