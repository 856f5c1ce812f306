"""Queries of the GPUs of this machine through the driver, without creating a CUDA context."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from mltune.device.facts import Device
from mltune.device.packages import package_problems
from mltune.errors import DeviceError

_MAX_REGISTERS_PER_THREAD = 255  # every compute capability since 3.5


def available_devices() -> tuple[Device, ...]:
    """Return the GPUs that the driver shows to this process; errors are those of :func:`query_device`."""
    return tuple(query_device(index) for index in range(_count()))


def query_device(index: int) -> Device:
    """Return the facts of one GPU by its position among those that the driver shows to this process.

    Raises
    ------
    DeviceError
        There is no such GPU, no NVIDIA driver, or a package that a GPU needs is not installed, twice, or too new for
        the driver.
    """
    count = _count()
    if not 0 <= index < count:
        raise DeviceError(
            f"a GPU is one of the {count} that the driver shows (cuda:0 is the first), got cuda:{index}; "
            "see `mltune device`."
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
        raise DeviceError("a GPU needs the NVIDIA driver, but there is none here (libcuda.so.1).") from error
    if status:
        raise DeviceError(f"the NVIDIA driver must answer, but cuDriverGetVersion failed with {status}.")
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def _count() -> int:
    """Initialise the driver and count its GPUs."""
    driver = _driver()
    result = driver.cuInit(0)[0]
    if result == driver.CUresult.CUDA_ERROR_NO_DEVICE:
        return 0
    if int(result):
        raise DeviceError(f"the NVIDIA driver must answer, but cuInit failed with {result.name}; see `nvidia-smi`.")
    return int(_call("cuDeviceGetCount"))


def _call(name: str, *arguments: Any) -> Any:
    """Call the driver; return its first result."""
    result, *values = getattr(_driver(), name)(*arguments)
    if int(result):
        raise DeviceError(f"the NVIDIA driver must answer, but {name} failed with {result.name}; see `nvidia-smi`.")
    return values[0]


@cache
def _driver() -> Any:
    """Import the bindings of the driver, after a check that the driver and the packages that fit it are installed."""
    for problem in package_problems(driver_version()):
        raise DeviceError(f"{problem}.")
    from cuda.bindings import driver

    return driver


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode(errors="replace").strip()
