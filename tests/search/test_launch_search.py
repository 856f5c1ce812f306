"""The order in which compiled kernels are measured, on recorded spaces: what it finds with few measurements."""

import numpy as np
import pytest

from mltune.cost.features import Features
from mltune.dataset.dataset import load_dataset
from mltune.device.known import H200
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.search.beliefs import log_expected_improvement
from mltune.search.launch_search import BUILD, LaunchSearch, expected_gain, predict

SPACES = {
    "h200-zgemm-nc-4096-random": ("BLK_M", "BLK_N"),
    "h200-sgemm-nt-4096-random": ("BLK_M", "BLK_N"),
    "h200-softmax-16384x4096-random": (),
    "h200-stencil-8192x8192x4-random": ("BLOCK_X", "BLOCK_Y"),
}
POOL, TRIALS = 144, 25


class Recorded:
    """Some configurations of a recorded space, drawn anew with each seed."""

    def __init__(self, name, seed):
        data = load_dataset(name)
        kernel = load_kernel(data.manifest.kernel)
        times = data.numbers("median_s")
        rng = np.random.default_rng(seed)
        rows = rng.choice(np.flatnonzero(np.isfinite(times)), POOL, replace=False)
        columns = {one: np.asarray(data.columns[one])[rows] for one in kernel.all_parameters if one in data.columns}
        derived = Features(PlacedKernel(kernel, data.manifest.problem, data.manifest.device)).derived_and_bound(
            columns
        )[0]
        self.times_s, self.random = times[rows], rng
        self.search = LaunchSearch(columns, SPACES[name], derived["tiles"], derived["threads"], H200, seed)
        for column in BUILD:
            self.search.build[column] = np.nan_to_num(data.numbers(column)[rows])
        self.search.build["shared_bytes"] += derived.get("shared_bytes", 0.0)

    def searched(self):
        """Return the share of the fastest that the search reaches."""
        tried = [0]
        while len(tried) < TRIALS:
            self.search.times_s[tried[-1]] = self.times_s[tried[-1]]
            tried.append(int(self.search.best_first(np.setdiff1d(np.arange(POOL), tried))[0]))
        return self.times_s.min() / self.times_s[tried].min()

    def drawn(self):
        """Return the mean share that as many at random reach."""
        best = [self.times_s[self.random.choice(POOL, TRIALS, replace=False)].min() for _ in range(50)]
        return float(np.mean(self.times_s.min() / best))


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.sampled(2, nightly=4)
def test_it_finds_faster_ones_than_chance(name):
    spaces = [Recorded(name, seed) for seed in range(3)]
    assert np.mean([one.searched() for one in spaces]) > np.mean([one.drawn() for one in spaces]) + 0.02


MATMULS = {"h200-matmul-4096-4096-4096": (4096, 4096), "h200-matmul-512-8192-2048": (512, 8192)}


@pytest.mark.parametrize("name", MATMULS)
def test_of_a_sweep_of_a_triton_kernel_few_measurements_are_enough(name):
    data, (m, n) = load_dataset(name), MATMULS[name]
    times = data.numbers("median_s")
    columns = {one: np.asarray(data.columns[one]) for one in data.manifest.parameters}
    blocks = np.ceil(m / columns["BLOCK_M"]) * np.ceil(n / columns["BLOCK_N"])
    search = LaunchSearch(columns, ["BLOCK_M", "BLOCK_N"], blocks, 32.0 * columns["num_warps"], H200, 0)
    for column, recorded in (
        ("registers", "registers"),
        ("stack_bytes", "spill_bytes"),
        ("shared_bytes", "shared_bytes"),
    ):
        search.build[column][:] = data.numbers(recorded)
    left = np.flatnonzero(np.isfinite(times))
    assert not (np.isfinite(times) & ~search.can_launch).any()
    for _ in range(TRIALS):
        chosen = search.best_first(left)[0]
        search.times_s[chosen] = times[chosen]
        left = left[left != chosen]
    assert np.nanmin(times) / np.nanmin(search.times_s) >= 0.98


@pytest.fixture
def tiles():
    m, n, warps = (axis.ravel() for axis in np.meshgrid((32, 64, 128, 256), (32, 64, 128, 256), (4, 8)))
    return {"M": m, "N": n, "WARPS": warps}


def search_of(tiles, device=H200, seed=0, **options):
    blocks = 4096.0 / tiles["M"] * 4096.0 / tiles["N"]
    return LaunchSearch(tiles, ["M", "N"], blocks, 32.0 * tiles["WARPS"], device, seed, **options)


def test_before_anything_is_measured_spills_empty_waves_and_small_tiles_come_last(tiles):
    search = search_of(tiles)
    ordered = search.best_first(np.arange(32), compiled=False)
    assert sorted(ordered.tolist()) == list(range(32))
    places = {tuple(tiles[name][at] for name in tiles): place for place, at in enumerate(ordered)}
    assert places[128, 128, 8] < places[32, 32, 8]
    assert places[128, 128, 8] < places[256, 256, 4]


def test_what_the_compiler_says_comes_before_what_is_expected(tiles):
    search = search_of(tiles)
    best = search.best_first(np.arange(32))[0]
    search.build["registers"][best], search.build["stack_bytes"][best] = 255.0, 4096.0
    assert search.best_first(np.arange(32))[-1] == best


def test_what_does_not_fit_cannot_be_launched(tiles):
    search = search_of(tiles)
    assert search.can_launch.all()
    search.build["registers"][:3] = 64.0
    search.build["shared_bytes"][:3] = [232_448, 232_449, 1024]
    assert search.can_launch[:4].tolist() == [True, False, True, True]
    search.build["registers"][2] = 255.0
    assert search.can_launch[2] == (32 * tiles["WARPS"][2] * 255 <= 65_536)


@pytest.mark.parametrize("compiled", [False, True])
def test_what_is_surely_slow_is_neither_compiled_nor_measured(tiles, compiled):
    search = search_of(tiles)
    assert len(search.worth(np.arange(32), compiled=compiled)) == 32
    search.times_s[:28] = np.where(tiles["M"] == 32, 10.0, 1.0)[:28]
    worth = search.worth(np.arange(28, 32), compiled=compiled)
    assert set(worth.tolist()) <= set(range(28, 32))
    slow = np.flatnonzero(tiles["M"] == 32)
    search.times_s[:] = np.where(tiles["M"] == 32, 10.0, 1.0)
    search.times_s[slow[:2]] = np.nan
    assert not set(slow[:2].tolist()) & set(search.worth(slow[:2], compiled=compiled).tolist())


@pytest.mark.parametrize("compiled", [False, True])
def test_until_something_predicts_physics_orders_and_nothing_is_given_up(tiles, compiled):
    started, slow = [], np.flatnonzero(tiles["M"] == 32)
    search = search_of(tiles, predict=lambda *request: predict(*request) if started else None)
    search.times_s[:] = np.where(tiles["M"] == 32, 10.0, 1.0)
    search.times_s[slow[:2]] = np.nan
    assert search.worth(slow[:2], compiled=compiled).tolist() == search.best_first(slow[:2], compiled=compiled).tolist()
    assert len(search.worth(slow[:2], compiled=compiled)) == 2
    started.append(True)
    assert not len(search.worth(slow[:2], compiled=compiled))


def test_what_hardly_gains_is_not_compiled_but_measured_if_it_is(tiles):
    mean, spread = np.zeros(32), np.full(32, 0.01)
    mean[30], spread[31] = 0.02, 0.1  # is better; may be
    search = search_of(
        tiles, predict=lambda seed, X, y, candidates: (mean[-len(candidates) :], spread[-len(candidates) :])
    )
    search.times_s[:20] = np.exp(-0.01)  # all alike
    assert set(search.worth(np.arange(20, 32), compiled=False).tolist()) == {30, 31}
    assert len(search.worth(np.arange(20, 32))) == 12


def test_the_expected_gain_is_the_expected_improvement():
    mean, spread = np.array([-0.3, 0.0, 0.2]), np.array([0.1, 0.2, 0.3])
    assert expected_gain(mean, spread, 0.1) == pytest.approx(np.exp(log_expected_improvement(mean, spread, 0.1)))


def test_without_a_gpu_or_a_grid_everything_is_ordered_too(tiles):
    nothing = np.full(32, np.nan)
    search = LaunchSearch(tiles, [], nothing, nothing, None, 0)
    assert search.can_launch.all()
    search.times_s[:12] = np.arange(1.0, 13.0)
    assert sorted(search.best_first(np.arange(12, 32)).tolist()) == list(range(12, 32))


def test_the_same_seed_gives_the_same_order(tiles):
    def ordered(seed):
        search = search_of(tiles, seed=seed)
        search.times_s[:10] = np.linspace(1.0, 2.0, 10)
        return search.best_first(np.arange(10, 32)).tolist()

    assert ordered(1) == ordered(1)


@pytest.mark.parametrize("failed", [np.inf, np.nan])
def test_failures_are_not_learned_as_times(tiles, failed):
    search = search_of(tiles)
    search.times_s[:16] = 1.0
    search.times_s[3] = failed
    assert len(search.best_first(np.arange(16, 32))) == 16
