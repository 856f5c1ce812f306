"""An early start of the driver and the worker process of a GPU, before a call looks at its arguments."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections.abc import Iterator
from threading import Thread

from mltune.process.child import ChildPool

_DRIVER_IS_LOADED = "/dev/nvidiactl"


@contextlib.contextmanager
def pool_for(device: object) -> Iterator[ChildPool]:
    """Yield a pool of processes, with the worker of a GPU under way where the device is one: ``cuda:N`` or its number.

    The worker takes a second or two to start, and the driver a third of a second to initialise, without Python's lock.
    """
    index = re.fullmatch("(?:cuda:)?([0-9]{1,3})", str(device))
    with contextlib.closing(ChildPool()) as pool:
        if index is not None and os.path.exists(_DRIVER_IS_LOADED):
            Thread(target=_initialise_driver, name="mltune-driver").start()
            from mltune.measure.runner import start_worker

            start_worker(pool, int(index[1]))
        yield pool


def _initialise_driver() -> None:
    with contextlib.suppress(OSError):  # whoever uses it says what is missing
        ctypes.CDLL("libcuda.so.1").cuInit(0)
