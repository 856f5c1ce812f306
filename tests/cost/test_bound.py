"""The upper bound: the figures of Lai and Seznec, what each limit reacts to, and that no recorded timing exceeds it."""

from dataclasses import replace

import numpy as np
import pytest

from mltune.cost.bound import LIMITS, LaneLayout, bound, distinct_words, hardware_limits
from mltune.cost.features import BUILD_COLUMNS, NEEDED, Features
from mltune.dataset.dataset import list_datasets, load_dataset
from mltune.device.facts import Mix
from mltune.device.known import H200, known_devices
from mltune.kernel.parts import KernelResources
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import is_bundle, load_kernel
from mltune.problem.gemm import GemmProblem

PAPER = GemmProblem("s", "N", "N", 3840, 3840, 4800)
TILE = {"threads": 256.0, "registers": 63.0, "tiles": 1600.0, "steps": 4800.0, "fma": 36.0, "shared_loads": 6.0}
"""Six by six outputs a thread: each step of k loads twelve operands, two at a time."""

PASSES = np.array([12.0])
"""Of a warp over the banks in a step: six loads of eight bytes."""

FERMI = replace(H200, compute_capability=None, sm_count=16, clock_hz=1.544e9, fma_per_clock=(32.0, 2.0))
KEPLER = replace(known_devices()["gtx_680"], sm_count=8, fma_per_clock=(192.0, 8.0))


def mix(load_bytes, per_clock, threads=1024, per_load=6.0, arithmetic="fp32"):
    return Mix(arithmetic, load_bytes, per_load, threads, True, per_clock)


def bound_of(device, *mixes, shared_least=None, **changes):
    """Return the bound of the tile, changed, and the share of the device's peak that it is."""
    resources = {name: np.array([value]) for name, value in (TILE | changes).items()}
    found = bound(replace(device, mixes=mixes), PAPER, resources, None, shared_least)
    return found, hardware_limits(device, PAPER)["arithmetic"] / found.time_s[0]


@pytest.mark.parametrize(
    ("device", "load_bytes", "per_clock", "expected"),
    [(FERMI, 8, 30.8, 0.825), (KEPLER, 8, 122.4, 0.546), (KEPLER, 16, 119.9, 0.576)],
    ids=["GTX 580", "GTX 680, 64 bit", "GTX 680, 128 bit"],
)
def test_the_figures_of_lai_and_seznec(device, load_bytes, per_clock, expected):
    """Section 4.5: 82.5 % of the peak of a GTX 580; 54.6 and 57.6 % of that of a GTX 680."""
    loads = 12.0 * 4 / load_bytes
    passes = np.array([loads * load_bytes / 4])
    measured = mix(load_bytes, per_clock, per_load=36 / loads)
    found, share = bound_of(device, measured, shared_least=passes, shared_loads=loads)
    assert share == pytest.approx(expected, abs=0.0006)
    assert LIMITS[found.binding[0]] == "issue"


def test_tensor_cores_have_a_limit_of_their_own():
    double = GemmProblem("d", "N", "T", 4096, 4096, 4096)
    usual, tensor = (hardware_limits(H200, double, unit)["arithmetic"] for unit in (None, "tensor_fp64"))
    assert tensor == usual / 2


def test_their_limit_of_memory():
    """Equation (6): a problem whose operands are read once needs their bytes at the bandwidth of the memory."""
    thin = GemmProblem("s", "N", "N", 8192, 8192, 8)
    expected = thin.bytes / H200.memory_bytes_per_s
    assert hardware_limits(H200, thin)["memory"] == expected > hardware_limits(H200, thin)["arithmetic"]


@pytest.mark.parametrize(
    ("worse", "limit"),
    [
        ({"shared_loads": 36.0}, "issue"),
        ({"tiles": 1717.0}, "arithmetic"),  # one more than fills the multiprocessors 13 times: a whole turn
        ({"global_bytes": 1e5}, "L2 cache"),
    ],
)
def test_what_a_unit_has_to_do_costs_its_time(worse, limit):
    better, worse = bound_of(H200)[0], bound_of(H200, **worse)[0]
    assert worse.limits[limit][0] > better.limits[limit][0]
    assert worse.time_s[0] == max(least[0] for least in worse.limits.values())


def test_the_fastest_of_the_mixes_next_to_a_configuration_counts():
    table = [
        mix(8, rate, threads, ratio)
        for rate, threads, ratio in ((20.0, 256, 4.0), (25.0, 1024, 8.0), (31.0, 1024, 32.0))
    ]
    alone = bound_of(FERMI, mix(8, 25.0), shared_least=PASSES)[0]
    assert bound_of(FERMI, *table, shared_least=PASSES)[0].limits["issue"][0] == alone.limits["issue"][0]


@pytest.mark.parametrize(
    ("passes", "fma", "known"),
    [(PASSES, 36.0, True), (0.99 * PASSES, 36.0, False), (PASSES, 193.0, False), (None, 36.0, False)],
    ids=["as measured", "words that lanes share", "fewer loads", "not known"],
)
def test_what_may_be_faster_than_every_measured_mix_is_limited_by_the_schedulers(passes, fma, known):
    limited = bound_of(FERMI, mix(8, 10.0, per_load=32.0), shared_least=passes, fma=fma)[0]
    assert (limited.limits["issue"] > bound_of(FERMI, fma=fma)[0].limits["issue"])[0] == known


def test_mixes_of_another_arithmetic_do_not_count():
    assert bound_of(FERMI, mix(8, 1.0, arithmetic="fp64"), shared_least=PASSES)[1] == bound_of(FERMI)[1]


def test_words_that_several_lanes_read_are_delivered_once():
    def words(width, *digits):
        columns = [(np.array([radix]), np.array([stride])) for radix, stride in digits]
        return distinct_words(LaneLayout(np.array([width]), columns), 32)[0]

    assert words(4, (32, 0)) == 1
    assert words(16, (8, 16), (4, 0)) == 32
    assert words(4, (32, 128)) == 32


@pytest.mark.parametrize(
    "manifest", [one for one in list_datasets() if is_bundle(one.kernel)], ids=lambda manifest: manifest.name
)
def test_no_recorded_timing_exceeds_its_bound(manifest):
    kernel = load_kernel(manifest.kernel)
    if not set(NEEDED) <= set(kernel.resources.estimates):
        pytest.skip("without resources there is no bound")
    dataset = load_dataset(manifest.name)
    builds = {name: dataset.numbers(name) for name in BUILD_COLUMNS if name in dataset.table.column_names}
    ran = dataset.states == "ok"
    features = Features(PlacedKernel(kernel, manifest.problem, manifest.device))
    for found in (features.bound(dataset.columns), features.bound(dataset.columns, builds)):
        assert np.max(found.time_s[ran] / dataset.numbers("median_s")[ran]) <= 1.0
        assert found.time_s.min() >= max(
            hardware_limits(manifest.device, manifest.problem, kernel.resources.unit or None).values()
        )


def test_without_resources_the_hardware_is_the_bound():
    kernel = replace(load_kernel("gemm_simt"), resources=KernelResources())
    features = Features(PlacedKernel(kernel, PAPER, H200))
    columns = {name: np.array([values[0]]) for name, values in kernel.all_parameters.items()}
    assert features.bound(columns).time_s[0] == max(hardware_limits(H200, PAPER).values())
