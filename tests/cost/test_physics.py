"""The bounds react as hardware does, and the physical prior ranks fast configurations first on every recorded space."""

from dataclasses import replace

import numpy as np
import pytest

from mltune.cost.features import Features
from mltune.cost.physics import physics
from mltune.dataset.dataset import list_datasets, load_dataset
from mltune.device.known import H200
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel

TILE = {
    "threads": 256.0,
    "registers": 120.0,
    "shared_bytes": 32768.0,
    "tiles": 1024.0,
    "steps": 256.0,
    "fma": 1024.0,
    "shared_loads": 64.0,
    "ahead": 2.0,
    "barriers": 1.0,
}
"""A block of 256 threads with 8 x 8 outputs each, 16 steps of k at a time."""


def share(device=H200, arithmetic="fp32", **changes):
    """Return the share of peak that physics allows for the tile, changed."""
    resources = {name: np.array([float(value)]) for name, value in (TILE | changes).items()}
    return physics(device, arithmetic, resources, None).share[0]


@pytest.mark.parametrize(
    "worse",
    [
        {"overhead": 500},  # instructions that are no FMA
        {"shared_loads": 1024},  # a load for every FMA
        {"registers": 400},  # spills
        {"tiles": 265},  # one tile more than fits at once
        {"ahead": 0, "global_waits": 10},  # latency that nothing hides
        {"global_bytes": 1e7},  # more than the second-level cache delivers
        {"own_bytes": 1e7},  # more than memory delivers
        {"edge_tiles": 512, "edge_overhead": 5000, "edge_waits": 20},  # tiles that stick out and are slow
        {"covered": 2},  # half of the work is useless
    ],
)
def test_what_costs_time_lowers_the_share(worse):
    assert share(**worse) < share()


def test_tensor_cores_make_many_multiply_adds_with_an_instruction():
    instructions = {"fma_instructions": TILE["fma"] / 16}
    assert share(arithmetic="tensor_fp64", **instructions) > share(arithmetic="fp64")
    assert share(arithmetic="tensor_fp64", overhead=200, **instructions) > share(arithmetic="tensor_fp64", overhead=200)


def test_the_share_is_a_share():
    assert 0.5 < share() <= 1.0
    assert share(threads=64, registers=64, tiles=10) < 0.2  # a tenth of the multiprocessors


def test_what_cannot_be_resident_gets_nothing():
    assert share(shared_bytes=10**6) == 0


def test_latency_is_hidden_by_more_blocks():
    waiting = {"ahead": 0, "global_waits": 10}
    assert share(**waiting, shared_bytes=16384, registers=64) > share(**waiting, shared_bytes=131072, registers=64)


def test_slow_double_precision_hides_all_else():
    consumer = replace(H200, compute_capability=(8, 9), reserved_shared_bytes=1024)
    assert share(consumer, "fp64", overhead=500) > 0.9


def test_a_gpu_without_cuda_is_judged_by_its_own_facts():
    wave64 = replace(H200, compute_capability=None, warp_size=64, fma_per_clock=(64.0, 32.0))
    assert 0.5 < share(wave64) <= 1.0


BOUND_BY_MEMORY = (
    "reduction",
    "stencil",
    "transpose",
)  # many configurations reach 95 %, and the prior cannot rank them


SWEEPS = [one for one in list_datasets() if not one.name.endswith("-merged")]  # those have much of what searches chose


@pytest.mark.parametrize("name", [one.name for one in SWEEPS if not one.kernel.startswith("triton_")])
def test_the_prior_beats_as_many_random_configurations(name):
    dataset = load_dataset(name)
    manifest = dataset.manifest
    features = Features(PlacedKernel(load_kernel(manifest.kernel), manifest.problem, manifest.device))
    speed = np.nan_to_num(np.where(dataset.states == "ok", 1.0 / dataset.numbers("median_s"), 0.0))
    first = np.argsort(-features.prior(dataset.columns), kind="stable")[:10]
    random = np.random.default_rng(0).choice(len(speed), size=(2000, 10))
    assert speed[first].mean() > speed.mean()
    if manifest.kernel not in BOUND_BY_MEMORY:
        assert speed[first].max() > speed[random].max(axis=1).mean()
