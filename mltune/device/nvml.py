"""State of a running GPU from NVML: clock, temperature, power, and the reasons for a low clock."""

from __future__ import annotations

import contextlib
import functools
import operator
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

SLOWDOWNS: Mapping[int, str] = {
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Reasons for a low clock that make timings worthless, by their bit in NVML's mask (``nvmlClocksEventReason...``)."""


@dataclass(frozen=True, slots=True)
class GpuState:
    """The state of a GPU at one moment; None where NVML does not report a value.

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


def summarize(states: Sequence[GpuState]) -> GpuState:
    """Return several readings as one: the median clock, all clock event reasons, the last temperature and power."""

    def known(field: str) -> list[Any]:
        return [value for state in states if (value := getattr(state, field)) is not None]

    clocks, reasons = known("sm_clock_hz"), known("throttle_reasons")
    return GpuState(
        sm_clock_hz=statistics.median_high(clocks) if clocks else None,
        temperature_c=next(reversed(known("temperature_c")), None),
        power_w=next(reversed(known("power_w")), None),
        throttle_reasons=functools.reduce(operator.or_, reasons) if reasons else None,
    )


class Nvml:
    """A reader of the state of one GPU. Without NVML, or without permission, every reading is None.

    The GPU is named by its PCI address: NVML's numbers differ from those of a process that sees only some GPUs.
    """

    def __init__(self, pci_bus_id: str) -> None:
        self._nvml: Any = None
        self._handle: Any = None
        with contextlib.suppress(Exception):  # a run does not need NVML
            import pynvml

            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id)
            self._nvml = pynvml

    def read(self) -> GpuState:
        """Return the state of the GPU now."""
        temperature_c = self._query("Temperature", "NVML_TEMPERATURE_GPU")
        power_mw = self._query("PowerUsage")
        return replace(
            self.read_clock(),
            temperature_c=None if temperature_c is None else float(temperature_c),
            power_w=None if power_mw is None else 1e-3 * power_mw,
        )

    def read_clock(self) -> GpuState:
        """Return the clock and the reasons for a low one, which takes half as many queries as the whole state."""
        clock_mhz = self._query("ClockInfo", "NVML_CLOCK_SM")
        reasons = self._query("CurrentClocksEventReasons")
        return GpuState(
            sm_clock_hz=None if clock_mhz is None else 1e6 * clock_mhz,
            throttle_reasons=None if reasons is None else int(reasons),
        )

    def _query(self, quantity: str, *constants: str) -> Any:
        with contextlib.suppress(Exception):  # NVMLError, or a call that an old driver or binding lacks
            query = getattr(self._nvml, f"nvmlDeviceGet{quantity}")
            return query(self._handle, *(getattr(self._nvml, name) for name in constants))
        return None
