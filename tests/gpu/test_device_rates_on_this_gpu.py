"""The rates that are measured on this GPU are plausible shares of its data sheet, and of each other."""

import json
import subprocess
import sys
import time

import pytest

from mltune.device.facts import QUANTITIES
from mltune.device.known import read_device
from mltune.device.peaks import data_sheet, fma_per_clock, issues_per_clock
from mltune.measure.device_rates import measure_device

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def measured():
    """Return the device with what was measured, and the seconds that it took."""
    started = time.monotonic()
    device, reasons = measure_device(0)
    seconds = time.monotonic() - started
    if device.compute_capability >= (8, 0):
        assert reasons == {}
    return device, seconds


@pytest.mark.parametrize(
    ("quantity", "least", "most"),
    [("fp32_flops", 0.5, 1.1), ("fp64_flops", 0.5, 1.1), ("memory_bytes_per_s", 0.6, 1.05)],
)
def test_shares_of_the_data_sheet(measured, quantity, least, most):
    device, _ = measured
    assert least <= device.measured[quantity].median / data_sheet(device, quantity) <= most


def test_every_quantity_is_stable(measured):
    device, seconds = measured
    assert [name for name in QUANTITIES if name in device.measured] == list(device.measured)
    limits = dict.fromkeys(QUANTITIES, 0.1) | {"launch_s": 0.25}
    assert {name: found.spread for name, found in device.measured.items() if found.spread > limits[name]} == {}
    assert seconds < 30


def test_rates_are_in_their_order(measured):
    device, _ = measured
    rate = {name: found.median for name, found in device.measured.items()}
    assert rate["memory_bytes_per_s"] < rate["l2_bytes_per_s"] < rate["shared_bytes_per_s"]
    bytes_per_clock = rate["shared_bytes_per_s"] / device.clock_hz / device.sm_count
    assert 64 <= bytes_per_clock <= 1.1 * 128
    assert 0.9 * rate["fp32_flops"] <= rate["fp16_flops"] <= 4.4 * rate["fp32_flops"]
    assert 0.2 * rate["fp32_flops"] <= rate["int32_ops"] <= 1.1 * rate["fp32_flops"]
    assert 1e-7 < rate["launch_s"] < 2e-5
    if device.compute_capability >= (8, 0):
        assert rate["tensor_fp16_flops"] > 1.5 * rate["tensor_tf32_flops"] > rate["fp32_flops"]
        assert rate["tensor_bf16_flops"] == pytest.approx(rate["tensor_fp16_flops"], rel=0.2)


def test_mixes_are_within_what_the_units_can_do(measured):
    device, _ = measured
    lanes = issues_per_clock(device) * device.warp_size
    assert {mix.arithmetic for mix in device.mixes} >= {"fp32", "fp64"}
    for mix in device.mixes:
        assert mix.per_clock <= 1.02 * lanes
        if mix.arithmetic in ("fp32", "fp64"):
            arithmetic = mix.per_clock * mix.per_load / (1 + mix.per_load)
            assert arithmetic <= 1.02 * fma_per_clock(device, mix.arithmetic)
        assert mix.load_bytes * mix.per_clock / (1 + mix.per_load) <= 1.02 * 128  # bytes from shared memory


def test_many_threads_and_much_arithmetic_reach_the_peak(measured):
    device, _ = measured
    for arithmetic in ("fp32", "fp64"):
        most = max(
            mix.per_clock * mix.per_load / (1 + mix.per_load) for mix in device.mixes if mix.arithmetic == arithmetic
        )
        assert most >= 0.9 * fma_per_clock(device, arithmetic)


def test_the_command_writes_what_it_measured(tmp_path):
    path = tmp_path / "gpu.json"
    command = [sys.executable, "-m", "mltune", "device", "cuda:0", "--measure", "--json"]
    done = subprocess.run([*command, "--out", path], capture_output=True, timeout=120, check=True)
    document = json.loads(done.stdout)
    device = read_device(path)
    (entry,) = document["devices"]
    assert device.to_json() == entry["device"]
    assert set(entry["share_of_data_sheet"]) == set(device.measured)
