"""Readings of the state of a GPU, and their summary."""

from mltune.device.query import GpuState, Nvml, summarize


def test_readings_are_summarized():
    states = [
        GpuState(1.98e9, 50.0, 600.0, 0x4),
        GpuState(1.95e9, throttle_reasons=0x40),
        GpuState(1.965e9, throttle_reasons=0),
    ]

    assert summarize(states) == GpuState(1.965e9, 50.0, 600.0, 0x44)


def test_what_nobody_read_is_not_known():
    assert summarize([]) == GpuState()
    assert summarize([GpuState(), GpuState(temperature_c=40.0)]) == GpuState(temperature_c=40.0)


def test_without_a_gpu_every_reading_is_unknown():
    nvml = Nvml("ffff:ff:1f.0")

    assert nvml.read() == nvml.read_clock() == GpuState()
