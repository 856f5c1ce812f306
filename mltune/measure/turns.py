"""Turns of processes at a GPU: while one verifies and times a kernel, the others of the same user wait."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

from mltune.device.query import pci_bus_id
from mltune.errors import DeviceError, MltuneWarning
from mltune.files.folders import cache_folder
from mltune.files.locks import HeldError, Holder, acquire, holder_of

WAIT_S = 600.0
"""Longest wait for a turn, seconds: several processes may make operands of gigabytes before."""

_left_behind: set[Holder | None] = set()  # stopped holders, which are not waited for again


@contextmanager
def turn(device_index: int) -> Iterator[None]:
    """Wait until no other process has its turn at a GPU, and keep it to the end of the block.

    The turn of a process that dies ends with it; a stopped one is passed after some seconds. Without a GPU nobody
    waits.
    """
    file = -1
    try:
        with suppress(OSError):
            folder = cache_folder() / "gpus"
            if name := _name(device_index):
                folder.mkdir(parents=True, exist_ok=True)
                file = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                _take(file, f"GPU {device_index}")  # raises its warning where warnings are errors
        yield
    finally:
        if file >= 0:
            os.close(file)


def _take(file: int, gpu: str) -> None:
    """Take the turn of an open file, or go on without it."""
    holder = holder_of(file)
    is_left_behind = holder in _left_behind and holder is not None and holder.is_stopped
    try:
        acquire(file, 0.0 if is_left_behind else WAIT_S, lambda words: _warn(gpu, words))
    except HeldError as error:
        if error.holder not in _left_behind:
            _left_behind.add(error.holder)
            _warn(gpu, f"it is held by {error}; this process measures beside it")


def _warn(gpu: str, words: str) -> None:
    warnings.warn(f"the turn at {gpu} is not free: {words}.", MltuneWarning, stacklevel=5)


@cache
def _name(device_index: int) -> str:
    """Return the name of the file of a GPU, whatever its number is in this process; empty where there is none."""
    try:
        return pci_bus_id(device_index).replace(":", "-")
    except (DeviceError, ImportError, RuntimeError):
        return ""
