"""The state of a GPU while it works, from NVML: clock, temperature, power, and what holds the clock down."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class GpuState:
    """What NVML says of a GPU at one moment; None where it does not say.

    Attributes
    ----------
    sm_clock_hz : float or None
        Clock of the multiprocessors.
    temperature_c : float or None
        Temperature of the chip, degrees Celsius.
    power_w : float or None
        Power drawn by the board.
    throttle_reasons : int or None
        Bit mask of clock event reasons (``nvmlClocksEventReason...``).
    """

    sm_clock_hz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttle_reasons: int | None = None


class Nvml:
    """Reads the state of one GPU. Without NVML, or without the right to ask, every reading is None.

    Parameters
    ----------
    pci_bus_id : str
        Where the GPU sits: NVML numbers GPUs otherwise than a process that sees only some of them.
    """

    def __init__(self, pci_bus_id: str) -> None:
        self._nvml: Any = None
        self._handle: Any = None
        with contextlib.suppress(Exception):  # whatever is missing, a run goes on without
            import pynvml

            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id)
            self._nvml = pynvml

    def read(self) -> GpuState:
        """Return the state of the GPU now."""
        nvml, handle = self._nvml, self._handle
        if nvml is None:
            return GpuState()
        clock_mhz = _reading(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
        temperature_c = _reading(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        power_mw = _reading(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        reasons = _reading(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
        return GpuState(
            sm_clock_hz=None if clock_mhz is None else 1e6 * clock_mhz,
            temperature_c=None if temperature_c is None else float(temperature_c),
            power_w=None if power_mw is None else 1e-3 * power_mw,
            throttle_reasons=None if reasons is None else int(reasons),
        )


def _reading(ask: Callable[[], Any]) -> Any:
    with contextlib.suppress(Exception):  # NVMLError, or a call that an old driver or binding lacks
        return ask()
    return None
