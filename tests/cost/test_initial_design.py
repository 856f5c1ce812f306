import numpy as np
import pytest

from mltune.cost.encoding import Source
from mltune.cost.initial_design import portfolio
from mltune.search.sampling import BatchSampler, SamplerOptions


def line(count=50):
    return np.linspace(0.0, 1.0, count)[:, None]


def test_the_first_is_the_best_by_the_mean_of_the_sources():
    rng = np.random.default_rng(0)
    expected = -rng.random((3, 50))
    chosen = portfolio(expected, line(), 8, rng)
    assert chosen[0] == np.argmax(expected.mean(axis=0))
    assert len(set(chosen.tolist())) == 8


def test_what_sources_disagree_about_is_covered():
    points = line()[:, 0]
    expected = np.stack([-6.0 * np.abs(points - 0.1), -6.0 * np.abs(points - 0.9)])
    chosen = portfolio(expected, line(), 4, np.random.default_rng(0))
    assert np.abs(points[chosen] - 0.1).min() < 0.05
    assert np.abs(points[chosen] - 0.9).min() < 0.05


def test_near_copies_of_the_best_are_not_all_chosen():
    """Of many configurations that are expected to be equally fast, some from everywhere are chosen."""
    chosen = portfolio(np.zeros((1, 50)), line(), 6, np.random.default_rng(1))
    assert np.ptp(line()[chosen]) > 0.7
    assert np.diff(np.sort(line()[chosen, 0])).min() > 0.02


@pytest.mark.parametrize("count", [1, 3])
def test_no_more_than_there_are(count):
    assert len(portfolio(np.zeros((2, count)), line(count), 8, np.random.default_rng(0))) == count


def test_variants_of_the_promising_are_found_in_a_large_space(landscape):
    """From a pool of 40, variation reaches configurations that are expected to be faster."""
    speeds = np.nan_to_num(landscape.scores, nan=-3.0)
    source = Source(lambda columns: speeds[landscape.space.index_of(columns)] - speeds.max(), -3.0)
    best = []
    for rounds in (0, 4):
        options = SamplerOptions(start_pool=40, start_rounds=rounds)
        designs = [BatchSampler(landscape.space, [source], seed=seed, options=options) for seed in range(5)]
        best.append(np.mean([speeds[sampler._initial_design[0]] for sampler in designs]))
    assert best[0] < best[1]
    assert best[1] > speeds.max() - 0.1
