"""Impossible timings are rejected, possible ones are not."""

import math

import numpy as np
import pytest

from mltune.dataset.dataset import load_dataset
from mltune.device.peaks import peak_flops
from mltune.measure.timing_limits import MARGIN, within_limits
from mltune.records.trial import Measurement, TrialState

FLOPS, PEAK = 137_438_953_472, 67e12  # sgemm 4096 on an H200


def measured(*samples_s, median_s=None):
    median_s = float(np.median(samples_s)) if median_s is None else median_s
    return Measurement(TrialState.OK, samples_s=samples_s, median_s=median_s, noise=0.001)


def test_a_time_that_can_be_is_left_alone():
    good = measured(2.7e-3, 2.71e-3, 2.69e-3)

    assert within_limits(good, FLOPS, PEAK) is good
    failed = Measurement(TrialState.CRASHED, "an illegal address")
    assert within_limits(failed, FLOPS, PEAK) is failed


@pytest.mark.parametrize(
    "lie",
    [
        measured(0.0),
        measured(-1e-3),
        measured(math.nan),
        measured(math.inf),
        measured(2.7e-3, 2.7e-3, 0.0),
        measured(2.7e-3, 2.7e-3, median_s=1e-3),
        measured(1e-9),
        measured(FLOPS / PEAK / MARGIN / 1.01),
        Measurement(TrialState.OK, samples_s=(1e-3,)),
    ],
)
def test_a_lie_loses_its_times_and_says_why(lie):
    found = within_limits(lie, FLOPS, PEAK)

    assert found.state is TrialState.UNSTABLE
    assert found.median_s is None
    assert found.samples_s == ()
    assert found.noise is None
    assert found.detail


def test_faster_than_the_peak_is_allowed_within_the_margin():
    tensor_cores = measured(FLOPS / PEAK / 3)

    assert within_limits(tensor_cores, FLOPS, PEAK) is tensor_cores


@pytest.mark.parametrize("name", ["gemm_simt/h200-zgemm-nn-4096-random", "clblast_xgemm/xgemm_titan_rtx"])
def test_every_recorded_time_is_plausible(name):
    dataset = load_dataset(name.partition("/")[2])
    problem = dataset.manifest.problem
    peak = peak_flops(dataset.manifest.device, problem.arithmetic)

    for one in dataset.measurements():
        assert one is None or within_limits(one, problem.flops, peak) is one
