"""A part of a GPU's multiprocessors as a smaller GPU: a green context of the CUDA driver.

Used by other benchmarks in a process whose one GPU is the first that CUDA shows.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mltune.device import query
from mltune.measure import worker
from mltune.measure.runner import GpuRunner

VARIABLE = "MULTIPROCESSORS_OF_THE_PART"


def use(multiprocessors: int) -> None:
    """Let all runs of this process, and of its children, see and use a part of the GPU."""
    os.environ[VARIABLE] = str(multiprocessors)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    whole = query.query_device
    query.query_device = lambda index: replace(whole(index), sm_count=multiprocessors)
    GpuRunner.__init__.__kwdefaults__["worker"] = f"{__name__}:make_worker"


def make_worker(device_index: int) -> Callable[[worker.Request], worker.Answer]:
    """Make a worker (:func:`mltune.measure.worker.make_worker`) that works in the part."""
    enter(int(os.environ[VARIABLE]))
    return worker.make_worker(device_index)


def enter(multiprocessors: int) -> None:
    """Let CuPy, and all launches on the default stream, use a stream of a green context of the first GPU."""
    import cupy
    from cuda.bindings import driver

    cupy.zeros(1)  # makes the primary context
    device = call(driver.cuDeviceGet, 0)
    kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    whole = call(driver.cuDeviceGetDevResource, device, kind)
    groups, *_ = call(driver.cuDevSmResourceSplitByCount, 1, whole, 0, multiprocessors)
    description = call(driver.cuDevResourceGenerateDesc, [groups[0]], 1)
    flags = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
    green = call(driver.cuGreenCtxCreate, description, device, flags)
    stream = int(call(driver.cuGreenCtxStreamCreate, green, driver.CUstream_flags.CU_STREAM_NON_BLOCKING, 0))
    launch = driver.cuLaunchKernel

    def launch_in_the_part(function: Any, *rest: Any) -> Any:
        *shape, given, arguments, extra = rest
        return launch(function, *shape, given or stream, arguments, extra)

    driver.cuLaunchKernel = launch_in_the_part
    _kept.extend((green, cupy.cuda.ExternalStream(stream)))
    _kept[-1].use()


_kept: list[Any] = []


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the driver; return its results."""
    error, *values = function(*arguments)
    if int(error):
        raise RuntimeError(f"{function.__name__}: {error.name}")
    return values[0] if len(values) == 1 else values
