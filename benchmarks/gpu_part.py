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


def make_worker(setup: worker.Setup) -> Callable[[worker.Request], worker.Answer]:
    """Make a worker (:func:`mltune.measure.worker.make_worker`) that works in the part."""
    stopwatch = worker.Stopwatch

    def within_the_part(l2_bytes: int) -> worker.Stopwatch:
        enter(int(os.environ[VARIABLE]))
        return stopwatch(l2_bytes)

    worker.Stopwatch = within_the_part  # it is the first that a worker makes on its GPU
    return worker.make_worker(setup)


def enter(multiprocessors: int) -> None:
    """Make a green context of the first GPU the current context."""
    from cuda.bindings import driver

    device = call(driver.cuDeviceGet, 0)
    kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    whole = call(driver.cuDeviceGetDevResource, device, kind)
    groups, *_ = call(driver.cuDevSmResourceSplitByCount, 1, whole, 0, multiprocessors)
    description = call(driver.cuDevResourceGenerateDesc, [groups[0]], 1)
    flags = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
    green = call(driver.cuGreenCtxCreate, description, device, flags)
    call(driver.cuCtxSetCurrent, call(driver.cuCtxFromGreenCtx, green))


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the driver; return its results."""
    error, *values = function(*arguments)
    if int(error):
        raise RuntimeError(f"{function.__name__}: {error.name}")
    return values[0] if len(values) == 1 else values
