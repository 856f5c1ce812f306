"""Turns of processes at a GPU: while one verifies and times a kernel, the others of the same user wait."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

from mltune.device.query import pci_bus_id
from mltune.errors import DeviceError
from mltune.files.folders import cache_folder


@contextmanager
def turn(device_index: int) -> Iterator[None]:
    """Wait until no other process has its turn at a GPU, and keep it to the end of the block.

    The turn of a process that dies ends with it. Without a GPU, or where no file can be made, nobody waits.
    """
    file = -1
    with suppress(OSError):
        folder = cache_folder() / "gpus"
        if name := _name(device_index):
            folder.mkdir(parents=True, exist_ok=True)
            file = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if file >= 0:
            os.close(file)


@cache
def _name(device_index: int) -> str:
    """Return the name of the file of a GPU, whatever its number is in this process; empty where there is none."""
    try:
        return pci_bus_id(device_index).replace(":", "-")
    except (DeviceError, ImportError, RuntimeError):
        return ""
