"""The sampling rules on simulated run times, and impossible times."""

import itertools
import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltune.dataset.dataset import load_dataset
from mltune.device.peaks import peak_flops
from mltune.measure.pipeline import SamplingRule
from mltune.measure.timing import MARGIN, next_samples, relative_noise, sample, within_limits
from mltune.records.trial import Measurement, TrialState

RULE = SamplingRule(min_samples=3, max_samples=20, noise_target=0.005, slow_ratio=1.3, max_s=1.0)
FLOPS, PEAK = 137_438_953_472, 67e12  # sgemm 4096 on an H200


class Stream:
    """A kernel with given run times that counts its runs."""

    def __init__(self, times_s):
        self._times_s = iter(times_s)
        self.series = []

    def __call__(self, count):
        self.series.append(count)
        return list(itertools.islice(self._times_s, count))


def normal(center_s, spread, seed=0):
    generator = np.random.default_rng(seed)
    while True:
        yield center_s * (1 + spread * generator.standard_normal())


def test_steady_kernel_gets_the_fewest_samples():
    taken = sample(Stream(itertools.repeat(2e-3)), RULE)

    assert taken.samples_s == (2e-3,) * 3
    assert taken.noise == 0
    assert not taken.stopped_early
    assert taken.state is TrialState.OK


def test_warm_up_is_not_a_sample():
    taken = sample(Stream(itertools.chain([0.5], itertools.repeat(2e-3))), RULE)

    assert 0.5 not in taken.samples_s


def test_more_noise_takes_more_samples():
    counts = [
        statistics.mean(len(sample(Stream(normal(1e-3, spread, seed)), RULE).samples_s) for seed in range(30))
        for spread in (0.001, 0.01, 0.05)
    ]

    assert counts[0] < counts[1] <= counts[2]
    assert counts[0] <= 4
    assert counts[2] >= 18


def test_noise_that_does_not_fall_is_unstable():
    taken = sample(Stream(normal(1e-3, 0.2)), RULE)

    assert taken.state is TrialState.UNSTABLE
    assert len(taken.samples_s) == RULE.max_samples
    assert taken.noise > RULE.noise_target


def test_median_of_a_noisy_kernel_is_as_sure_as_its_noise_says():
    rule = SamplingRule(max_samples=200, noise_target=0.005, max_s=1e3)
    errors = [abs(sample(Stream(normal(1.0e-3, 0.03, seed)), rule).median_s - 1e-3) / 1e-3 for seed in range(200)]

    assert np.sqrt(np.mean(np.square(errors))) < 2 * rule.noise_target


def test_one_disturbed_sample_hardly_moves_the_result():
    disturbed = itertools.chain([1e-3] * 3, [5e-3], itertools.repeat(1e-3))
    taken = sample(Stream(disturbed), RULE)

    assert taken.median_s == 1e-3
    assert taken.state is TrialState.OK


def test_a_slow_kernel_is_run_twice():
    stream = Stream(itertools.repeat(1.5e-3))
    taken = sample(stream, RULE, best_s=1e-3)

    assert taken.stopped_early
    assert taken.state is TrialState.OK
    assert stream.series == [1, 1]


def test_a_much_slower_kernel_is_run_once():
    stream = Stream(itertools.repeat(10e-3))
    taken = sample(stream, RULE, best_s=1e-3)

    assert taken.stopped_early
    assert taken.samples_s == (10e-3,)
    assert stream.series == [1]


def test_slow_warm_up_does_not_condemn_a_fast_kernel():
    taken = sample(Stream(itertools.chain([1.5e-3], itertools.repeat(0.9e-3))), RULE, best_s=1e-3)

    assert not taken.stopped_early
    assert len(taken.samples_s) == 3
    assert taken.median_s == 0.9e-3


def test_kernel_that_runs_for_seconds_is_sampled_once():
    stream = Stream(normal(3.0, 0.001))
    taken = sample(stream, RULE)

    assert len(taken.samples_s) == 1
    assert taken.noise is None
    assert taken.state is TrialState.OK
    assert not taken.stopped_early
    assert stream.series == [1]


def test_time_limit_ends_sampling_after_the_fewest_samples():
    taken = sample(Stream(normal(0.5, 0.1)), RULE)

    assert len(taken.samples_s) == RULE.min_samples


def test_of_a_slower_kernel_less_is_asked():
    def taken(best_s):
        kernels = [Stream(normal(1.2e-3, 0.03, seed)) for seed in range(30)]
        return statistics.mean(len(sample(kernel, RULE, best_s).samples_s) for kernel in kernels)

    assert taken(1.0e-3) < 0.6 * taken(1.2e-3)


def test_noise_counts_less_where_the_time_limit_ended_sampling():
    """As under a power limit: 3 % of noise in each of few long samples."""

    def unstable(time_s, rule):
        return sum(sample(Stream(normal(time_s, 0.03, seed)), rule).state is TrialState.UNSTABLE for seed in range(30))

    assert unstable(0.12, replace(RULE, limited_noise=0.005)) > 20
    assert unstable(0.12, RULE) < 10
    assert unstable(1e-3, RULE) > 20, "where there was time, the target holds"


def test_noise_of_one_sample_is_unknown():
    assert relative_noise([1.0]) is None


@pytest.mark.parametrize("count", [3, 5, 9, 20, 50])
def test_noise_estimates_the_standard_error_of_the_median(count):
    samples = 1 + 0.01 * np.random.default_rng(count).standard_normal((4000, count))
    estimate = np.mean([relative_noise(list(row)) for row in samples])
    truth = np.std(np.median(samples, axis=1))

    assert estimate == pytest.approx(truth, rel=0.2)


@given(st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=60), st.floats(1e-6, 10.0) | st.none())
def test_sampling_ends_within_its_bounds(times_s, best_s):
    stream = Stream(itertools.cycle(times_s))
    taken = sample(stream, RULE, best_s)

    assert 1 <= len(taken.samples_s) <= RULE.max_samples
    assert sum(stream.series) <= RULE.max_samples + 1
    assert min(taken.samples_s) <= taken.median_s <= max(taken.samples_s)
    assert not taken.stopped_early or taken.state is TrialState.OK


@given(st.floats(1e-6, 1e-2), st.floats(1.0, 1e6))
def test_noise_does_not_depend_on_the_unit(center_s, scale):
    samples = [center_s, 1.01 * center_s, 0.98 * center_s, 1.02 * center_s]

    assert relative_noise([scale * one for one in samples]) == pytest.approx(relative_noise(samples))


def test_no_samples_are_wanted_when_enough_are_there():
    assert next_samples([1e-3] * 20, 1e-3, RULE) == 0
    assert next_samples([1e-3, 1.0001e-3, 1e-3], 1e-3, RULE) == 0
    assert next_samples([], 1e-3, RULE) == RULE.min_samples


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
