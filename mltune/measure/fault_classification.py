"""Classify CUDA errors: kernel rejected, context lost, or GPU unavailable."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

OUT_OF_MEMORY = 2
"""``CUDA_ERROR_OUT_OF_MEMORY``, and ``cudaErrorMemoryAllocation``."""

_REJECTED = frozenset({1, 200, 209, 218, 222, 301, 302, 303, 500, 701})
"""Invalid value, no machine code for this architecture, symbol not found, too few resources for a launch."""

_GPU_UNAVAILABLE = frozenset({3, 4, 46, 100, 101, 102, 214, 220, 304, *range(800, 804), *range(805, 811)})
"""Driver not initialised or shutting down; device unavailable (exclusive mode), none, invalid, not licensed; memory or
NVLink error that cannot be corrected; operating system; not permitted, system not ready, driver mismatch; MPS.

The numbers are those of CUresult; those of cudaError_t are the same where both have the error.
"""

_LARGE_SHARE = 0.1
"""Share of the memory that other processes' contexts alone do not take."""


class Fault(StrEnum):
    """The cause of a CUDA error.

    ``REJECTED``: the driver rejected the kernel; the context is usable. ``CONTEXT_LOST``: the kernel failed and the
    context is lost. ``GPU_UNAVAILABLE``: the GPU cannot be used now, whatever the kernel.
    """

    REJECTED = "rejected"
    CONTEXT_LOST = "context lost"
    GPU_UNAVAILABLE = "GPU unavailable"


@dataclass(frozen=True, slots=True)
class Memory:
    """The use of a GPU's memory.

    Attributes
    ----------
    total_bytes, free_bytes, own_bytes : int
        All memory, free memory, and memory of this process.
    """

    total_bytes: int
    free_bytes: int
    own_bytes: int

    @property
    def used_by_others(self) -> bool:
        """Whether other processes hold more than is free, and more than a tenth of all."""
        others = self.total_bytes - self.free_bytes - self.own_bytes
        return others > self.free_bytes and others > _LARGE_SHARE * self.total_bytes


def classify(code: int, memory: Memory | None = None) -> Fault:
    """Classify a CUDA error.

    An unknown error counts as a lost context. That is safe: the worker is then replaced, and if no new worker can
    start, the GPU counts as unavailable.

    Parameters
    ----------
    code : int
        A ``CUresult`` or ``cudaError_t``, not 0.
    memory : Memory or None
        The use of the memory at that time, where it can still be read. Out of memory is a fault of the kernel unless
        other processes use the memory.
    """
    if code == OUT_OF_MEMORY:
        return Fault.GPU_UNAVAILABLE if memory is not None and memory.used_by_others else Fault.REJECTED
    if code in _GPU_UNAVAILABLE:
        return Fault.GPU_UNAVAILABLE
    return Fault.REJECTED if code in _REJECTED else Fault.CONTEXT_LOST
