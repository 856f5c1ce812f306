"""What readings of a GPU come to."""

from mltune.device.nvml import GpuState, Nvml, summed_up


def test_readings_are_summed_up():
    states = [
        GpuState(1.98e9, 50.0, 600.0, 0x4),
        GpuState(1.95e9, throttle_reasons=0x40),
        GpuState(1.965e9, throttle_reasons=0),
    ]

    assert summed_up(states) == GpuState(1.965e9, 50.0, 600.0, 0x44)


def test_what_nobody_read_is_not_known():
    assert summed_up([]) == GpuState()
    assert summed_up([GpuState(), GpuState(temperature_c=40.0)]) == GpuState(temperature_c=40.0)


def test_without_a_gpu_every_reading_is_unknown():
    nvml = Nvml("ffff:ff:1f.0")

    assert nvml.read() == nvml.read_clock() == GpuState()
