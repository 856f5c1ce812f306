"""Theoretical peaks against the vendor's data sheets."""

import dataclasses
import json

import pytest

from mltune.device.facts import QUANTITIES, Device
from mltune.device.known import H200, UNKNOWN
from mltune.device.peaks import FMA_PER_CLOCK, TENSOR_FMA_PER_CLOCK, data_sheet, peak_flops
from mltune.errors import DeviceError


def test_peaks_of_the_h200():
    assert peak_flops(H200, "fp32") == pytest.approx(66.9e12, rel=0.001)
    assert peak_flops(H200, "fp64") == pytest.approx(33.5e12, rel=0.002)


@pytest.mark.parametrize(
    ("capability", "sm_count", "clock_hz", "fp32"),
    [((8, 0), 108, 1.41e9, 19.5e12), ((8, 6), 84, 1.695e9, 36.5e12), ((7, 5), 68, 1.545e9, 13.4e12)],
)
def test_peaks_of_other_generations(capability, sm_count, clock_hz, fp32):
    device = dataclasses.replace(H200, compute_capability=capability, sm_count=sm_count, clock_hz=clock_hz)

    assert peak_flops(device, "fp32") == pytest.approx(fp32, rel=0.01)


@pytest.mark.parametrize(
    ("capability", "sm_count", "clock_hz", "tf32"),
    [((8, 0), 108, 1.41e9, 156e12), ((8, 9), 142, 2.52e9, 183e12), ((12, 0), 188, 2.617e9, 251.9e12)],
)
def test_peaks_of_tf32_are_half_of_those_of_fp16(capability, sm_count, clock_hz, tf32):
    device = dataclasses.replace(H200, compute_capability=capability, sm_count=sm_count, clock_hz=clock_hz)

    assert peak_flops(device, "tensor_tf32") == pytest.approx(tf32, rel=0.01)
    halves = TENSOR_FMA_PER_CLOCK["tensor_fp16"]
    assert all(halves.get(one, 2 * fma) == 2 * fma for one, fma in TENSOR_FMA_PER_CLOCK["tensor_tf32"].items())


def test_unknown_minor_version_is_taken_for_the_last_known_of_its_generation():
    device = dataclasses.replace(H200, compute_capability=(12, 9))

    assert peak_flops(device, "fp64") == 2 * FMA_PER_CLOCK[12, 1][1] * device.sm_count * device.clock_hz


def test_unknown_generation_is_an_error_that_names_it():
    device = dataclasses.replace(H200, compute_capability=(99, 0))

    with pytest.raises(DeviceError, match=r"99\.0"):
        peak_flops(device, "fp32")


def test_a_device_without_cuda_says_its_throughput_itself():
    gcd = dataclasses.replace(
        H200, compute_capability=None, sm_count=110, clock_hz=1.7e9, warp_size=64, fma_per_clock=(64.0, 64.0)
    )

    assert peak_flops(gcd, "fp32") == peak_flops(gcd, "fp64") == pytest.approx(23.9e12, rel=0.01)
    assert gcd.architecture == "other"


def test_the_data_sheet_has_two_peaks_and_the_bandwidth_of_the_memory():
    known = {name: value for name in QUANTITIES if (value := data_sheet(H200, name)) is not None}
    assert known == {
        "fp32_flops": peak_flops(H200, "fp32"),
        "fp64_flops": peak_flops(H200, "fp64"),
        "memory_bytes_per_s": 4.8e12,
    }
    strange = dataclasses.replace(H200, compute_capability=(99, 0), memory_bytes_per_s=0.0)
    assert {data_sheet(strange, name) for name in QUANTITIES} == {None}


def test_a_peak_of_an_unknown_device_is_a_scale_and_no_more():
    assert peak_flops(UNKNOWN, "fp32") == 2e9


@pytest.mark.parametrize("device", [H200, UNKNOWN])
def test_devices_survive_json(device):
    assert Device.from_json(json.loads(json.dumps(device.to_json()))) == device


def test_a_cuda_device_has_the_fields_that_it_always_had():
    assert "fma_per_clock" not in H200.to_json()
