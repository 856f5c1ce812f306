"""A time is shown in TFLOPS, else in GB/s, else in milliseconds; never as a rate that the problem does not count."""

from dataclasses import replace

import numpy as np
import pytest

from mltune.dataset.dataset import load_manifest
from mltune.device.known import H200
from mltune.problem.gemm import GemmProblem
from mltune.problem.recorded import RecordedProblem
from mltune.results.rating import GB_PER_S, MS, TFLOPS, UNITS, rate_of, rating, speed, unit_of, units_of

GEMM = GemmProblem("s", "N", "T", 4096, 4096, 4096)
TRANSPOSE = load_manifest("h200-transpose-8192x8192-random").problem
SOFTMAX = load_manifest("h200-softmax-16384x4096-random").problem  # memory limits it, though it counts operations
CONVOLUTION = load_manifest("h200-convolution-cuda-random").problem
UNCOUNTED = RecordedProblem("convolution")


@pytest.mark.parametrize(
    ("problem", "unit", "value", "share"),
    [
        (GEMM, TFLOPS, 2 * 4096**3 / 1e-3 / 1e12, 2 * 4096**3 / 1e-3 / (132 * 128 * 2 * 1.98e9)),
        (TRANSPOSE, GB_PER_S, 8 * 8192**2 / 1e-3 / 1e9, 8 * 8192**2 / 1e-3 / H200.memory_bytes_per_s),
        (UNCOUNTED, MS, 1.0, None),
        (SOFTMAX, GB_PER_S, SOFTMAX.bytes / 1e6, SOFTMAX.bytes / 1e-3 / H200.memory_bytes_per_s),
        (CONVOLUTION, TFLOPS, CONVOLUTION.flops / 1e9, CONVOLUTION.flops / 1e-3 / 66.908e12),
    ],
)
def test_the_unit_follows_from_what_a_problem_counts(problem, unit, value, share):
    rate = rate_of(problem, H200)
    assert rate.unit is unit
    assert rate.of(1e-3) == pytest.approx(value)
    assert rate.of(np.array([1e-3, 2e-3])).shape == (2,)
    assert rate.share_of_peak(1e-3) == (None if share is None else pytest.approx(share, rel=1e-3))

    rated = rating(problem, H200, 1e-3, None)
    assert unit_of(rated) is unit
    assert unit.value(rated) == pytest.approx(value)
    assert rated["share_of_peak"] == rate.share_of_peak(1e-3)
    assert [rated[other.key] for other in UNITS if other not in (unit, MS)].count(None) == (2 if unit is MS else 1)


def test_without_a_known_bandwidth_there_is_a_rate_but_no_share():
    rated = rating(TRANSPOSE, replace(H200, memory_bytes_per_s=0.0), 1e-3, None)
    assert rated["gb_per_s"] == pytest.approx(536.870912)
    assert rated["share_of_peak"] is None


def test_the_rating_of_an_earlier_version_is_still_shown():
    """It had no gb_per_s."""
    assert speed({"median_s": 2e-3, "tflops": 45.314, "share_of_peak": 0.7}) == "45.31 TFLOPS"
    assert speed({"median_s": 2e-3, "tflops": None}) == "2.0000 ms"
    assert unit_of({}) is None


@pytest.mark.parametrize(
    ("figures", "ends"),
    [
        ({"tflops": 50.0, "median_s": 1e-3, "interval_s": [0.8e-3, 1.25e-3]}, ("40.00", "62.50")),
        ({"gb_per_s": 4000.0, "median_s": 1e-3, "interval_s": [0.8e-3, 1.25e-3]}, ("3200", "5000")),
        ({"median_s": 1e-3, "interval_s": [0.8e-3, 1.25e-3]}, ("0.8000", "1.2500")),
        ({"median_s": 1e-3, "interval_s": None}, None),
        ({"median_s": 1e-3, "interval_s": [None, 1e-3]}, None),
        ({"median_s": 1e-3}, None),
    ],
)
def test_an_interval_begins_with_its_lower_end(figures, ends):
    assert unit_of(figures).interval(figures) == ends


def test_a_table_has_a_column_for_each_unit_that_occurs():
    gemm, transpose, other = (rating(problem, H200, 1e-3, None) for problem in (GEMM, TRANSPOSE, UNCOUNTED))
    assert units_of([transpose, {}, gemm, gemm]) == [TFLOPS, GB_PER_S]
    assert units_of([other, transpose]) == [GB_PER_S, MS]
    assert units_of([{}]) == []


def test_what_limits_a_rate_is_named():
    assert TFLOPS.of_limit(0.5) == "50.0 % of the peak"
    assert GB_PER_S.of_limit(0.833) == "83.3 % of the memory bandwidth"
