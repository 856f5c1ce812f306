"""Queries of the GPUs of this machine: their facts, without a CUDA context, and their state while they run."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import operator
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from mltune.device.facts import Device
from mltune.device.packages import package_problems
from mltune.errors import DeviceError
from mltune.files.text import many

WITHOUT_GPU = (
    ". Without a GPU, `mltune tune` replays recorded timings (`mltune datasets`), and `mltune check` compiles for a "
    "known GPU (`mltune device --known`)."
)
"""The next step on a machine without a GPU: the end of a message."""

_MAX_REGISTERS_PER_THREAD = 255  # every compute capability since 3.5


def available_devices() -> tuple[Device, ...]:
    """Return the GPUs that the driver shows to this process; errors are those of :func:`query_device`."""
    return tuple(query_device(index) for index in range(_count()))


def query_device(index: int) -> Device:
    """Return the facts of a GPU by its position for this process; a DeviceError says what a use of it lacks."""
    count = _count()
    if not count:
        raise DeviceError(f"the NVIDIA driver shows no GPU{WITHOUT_GPU}")
    if not 0 <= index < count:
        raise DeviceError(
            f"there is no cuda:{index}: the driver shows {many(count, 'GPU')}, cuda:0 the first; see `mltune device`."
        )
    driver = _driver()
    handle = _call("cuDeviceGet", index)
    name = _text(_call("cuDeviceGetName", 256, handle))

    def attribute(fact: str) -> int:
        number = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{fact}")
        return int(_call("cuDeviceGetAttribute", number, handle))

    bus_bytes = attribute("GLOBAL_MEMORY_BUS_WIDTH") / 8
    return Device(
        name=name,
        compute_capability=(attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")),
        sm_count=attribute("MULTIPROCESSOR_COUNT"),
        clock_hz=1e3 * attribute("CLOCK_RATE"),
        memory_bytes=int(_call("cuDeviceTotalMem", handle)),
        memory_bytes_per_s=2e3 * attribute("MEMORY_CLOCK_RATE") * bus_bytes,  # two transfers per clock
        l2_bytes=attribute("L2_CACHE_SIZE"),
        shared_bytes_per_sm=attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        shared_bytes_per_block=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        reserved_shared_bytes=attribute("RESERVED_SHARED_MEMORY_PER_BLOCK"),
        registers_per_sm=attribute("MAX_REGISTERS_PER_MULTIPROCESSOR"),
        max_registers_per_thread=_MAX_REGISTERS_PER_THREAD,
        max_threads_per_sm=attribute("MAX_THREADS_PER_MULTIPROCESSOR"),
        max_threads_per_block=attribute("MAX_THREADS_PER_BLOCK"),
        max_blocks_per_sm=attribute("MAX_BLOCKS_PER_MULTIPROCESSOR"),
        warp_size=attribute("WARP_SIZE"),
    )


def pci_bus_id(index: int) -> str:
    """Return the PCI address of a GPU, such as ``"0000:65:00.0"``: NVML's numbers of GPUs differ from the driver's."""
    _count()
    return _text(_call("cuDeviceGetPCIBusId", 32, _call("cuDeviceGet", index)))


def driver_version() -> str:
    """Return the newest CUDA version that the driver supports, such as ``"13.0"``, without any Python package."""
    version = ctypes.c_int()
    try:
        status = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except OSError as error:
        raise DeviceError(f"there is no NVIDIA driver here (libcuda.so.1), which a GPU needs{WITHOUT_GPU}") from error
    if status:
        raise DeviceError(f"the NVIDIA driver does not answer: cuDriverGetVersion failed with {status}.")
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def _count() -> int:
    """Initialise the driver and count its GPUs."""
    driver = _driver()
    result = driver.cuInit(0)[0]
    if result == driver.CUresult.CUDA_ERROR_NO_DEVICE:
        return 0
    if int(result):
        raise DeviceError(f"the NVIDIA driver does not answer: cuInit failed with {result.name}; see `nvidia-smi`.")
    return int(_call("cuDeviceGetCount"))


def _call(name: str, *arguments: Any) -> Any:
    """Call the driver; return its first result."""
    result, *values = getattr(_driver(), name)(*arguments)
    if int(result):
        raise DeviceError(f"the NVIDIA driver does not answer: {name} failed with {result.name}; see `nvidia-smi`.")
    return values[0]


@cache
def _driver() -> Any:
    """Import the bindings of the driver, after a check of driver and packages."""
    for problem in package_problems(driver_version()):
        raise DeviceError(f"{problem}.")
    from cuda.bindings import driver

    return driver


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode(errors="replace").strip()


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
    """The state of a GPU, None where NVML reports nothing; ``throttle_reasons`` is its mask of clock events."""

    sm_clock_hz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttle_reasons: int | None = None


def summarize(states: Sequence[GpuState]) -> GpuState:
    """Return one state for several: the median clock, all clock event reasons, the last temperature and power."""

    def reading(field: str) -> list[Any]:
        return [value for state in states if (value := getattr(state, field)) is not None]

    clocks, reasons = reading("sm_clock_hz"), reading("throttle_reasons")
    return GpuState(
        sm_clock_hz=statistics.median_high(clocks) if clocks else None,
        temperature_c=next(reversed(reading("temperature_c")), None),
        power_w=next(reversed(reading("power_w")), None),
        throttle_reasons=functools.reduce(operator.or_, reasons) if reasons else None,
    )


class Nvml:
    """A reader of the state of one GPU by its PCI address; without NVML, or permission, every reading is None."""

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
        """Return the clock and the reasons for a low one, with half as many queries as the whole state."""
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
