"""The bound of a problem: of large and small spaces, of a part of one, and what is refused."""

import numpy as np
import pytest

from mltune.cost.features import Features
from mltune.device.known import H200, UNKNOWN, find_device
from mltune.errors import BundleError, SpaceError, UsageError
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.problem.kinds import problem_from_name
from mltune.tuning.bound import find_bound

SGEMM = problem_from_name("sgemm", trans="NT", size=4096)
A100 = find_device("a100")[0]


def test_of_a_small_space_all_configurations_are_examined():
    placed = PlacedKernel(load_kernel("gemm_shared"), SGEMM, A100)
    found, space = find_bound(placed), placed.space
    least = Features(placed).bound(space.rows(np.arange(space.count))).time_s.min()
    assert found.examined == found.count == space.count
    assert found.best.time_s == pytest.approx(least, rel=1e-3)
    assert found.best.limits[found.best.binding] == found.best.time_s >= max(found.hardware.values())


@pytest.mark.system
def test_of_a_large_space_a_sample_and_its_best_variants_are():
    found = find_bound(PlacedKernel(load_kernel("gemm_simt"), SGEMM, H200))
    assert found.examined < found.count
    assert found.best.binding == "issue"
    assert 0.90 < max(found.hardware.values()) / found.best.time_s < 0.96
    assert find_bound(PlacedKernel(load_kernel("gemm_simt"), SGEMM, H200)) == found


def test_a_part_of_the_space_is_not_faster_than_all_of_it():
    found = find_bound(PlacedKernel(load_kernel("gemm_shared"), SGEMM, H200), configuration={"BLK_M": 16, "DIM_X": 16})
    assert found.stated is not None
    assert (found.stated.configuration["BLK_M"], found.stated.configuration["DIM_X"]) == (16, 16)
    assert found.stated.time_s > found.best.time_s


def test_what_has_no_bound_is_refused():
    with pytest.raises(UsageError, match="the facts of `unknown` are not known, and a bound needs those of a GPU"):
        find_bound(PlacedKernel(load_kernel("gemm_simt"), SGEMM, UNKNOWN))
    with pytest.raises(BundleError, match="'BLK' is no parameter of gemm_simt; did you mean 'BLK_"):
        find_bound(PlacedKernel(load_kernel("gemm_simt"), SGEMM, H200), configuration={"BLK": 1})
    with pytest.raises(SpaceError, match=r"none of .* satisfies"):
        find_bound(PlacedKernel(load_kernel("gemm_shared"), SGEMM, H200), configuration={"BLK_M": 8, "DIM_X": 32})
