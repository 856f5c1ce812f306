"""Whose fault is it? A failure of the driver is a kernel's, and then the state of its trial, or nobody's kernel's."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

OUT_OF_MEMORY = 2
"""``CUDA_ERROR_OUT_OF_MEMORY``, and ``cudaErrorMemoryAllocation``."""

_REFUSALS = frozenset({1, 200, 209, 218, 222, 301, 302, 303, 500, 701})
"""Invalid value, no machine code for this architecture, nothing of that name, too few resources for a launch."""

_OF_THE_GPU = frozenset({3, 4, 46, 100, 101, 102, 214, 220, 304, *range(800, 804), *range(805, 811)})
"""Driver not initialised or shutting down; device unavailable (exclusive mode), none, invalid, not licensed; memory or
NVLink error that cannot be corrected; operating system; not permitted, system not ready, driver mismatch; MPS.

The numbers are those of CUresult; those of cudaError_t are the same where both have the error.
"""

_OTHERS_HOLD = 0.1
"""Share of the memory that is nobody's kernel's own need: above what contexts of ours take by themselves."""


class Fault(StrEnum):
    """Who is to blame for a failure of the driver.

    ``REFUSED``: the kernel, which was refused; the context is unharmed. ``CRASHED``: the kernel, and the context is
    lost. ``GPU``: no kernel; the GPU cannot be used now.
    """

    REFUSED = "refused"
    CRASHED = "crashed"
    GPU = "gpu"


@dataclass(frozen=True, slots=True)
class Memory:
    """Who holds the memory of a GPU.

    Attributes
    ----------
    total_bytes, free_bytes, own_bytes : int
        All there is, what is free, what this process holds.
    """

    total_bytes: int
    free_bytes: int
    own_bytes: int

    @property
    def taken(self) -> bool:
        """Whether others hold so much that it is them who leave no room: more than is free, and than a tenth."""
        others = self.total_bytes - self.free_bytes - self.own_bytes
        return others > self.free_bytes and others > _OTHERS_HOLD * self.total_bytes


def classify(code: int, memory: Memory | None = None) -> Fault:
    """Say who is to blame for an error of the driver.

    Whatever is not known for something else is taken for a lost context. That is safe: a worker is replaced then, and
    if it cannot be, no trial is to blame.

    Parameters
    ----------
    code : int
        A ``CUresult`` or ``cudaError_t``, not 0.
    memory : Memory or None
        Who holds the memory at the time, where that can still be asked: out of memory is a kernel that asks for too
        much, unless others have taken it.
    """
    if code == OUT_OF_MEMORY:
        return Fault.GPU if memory is not None and memory.taken else Fault.REFUSED
    if code in _OF_THE_GPU:
        return Fault.GPU
    return Fault.REFUSED if code in _REFUSALS else Fault.CRASHED
