"""Queries of GPUs on a machine without one; tests/gpu has the others."""

import ctypes

import pytest

from mltune.device.query import GpuState, Nvml, available_devices, query_device
from mltune.errors import DeviceError


def has_driver():
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@pytest.mark.skipif(has_driver(), reason="this machine has an NVIDIA driver")
@pytest.mark.parametrize("ask", [available_devices, lambda: query_device(0)])
def test_machine_without_a_driver_is_told_in_one_line(ask):
    with pytest.raises(DeviceError, match="NVIDIA driver") as caught:
        ask()

    assert "\n" not in str(caught.value)


def test_unknown_gpu_has_no_state():
    assert Nvml("ffff:ff:1f.7").read() == GpuState()
