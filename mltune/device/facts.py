"""A GPU as the tuner sees it: limits, clocks and peaks, queried from the driver or read from a record."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Device:
    """The facts of one GPU.

    The limits are those of ``cudaDeviceProp``; ``shared_bytes_per_block`` is the opt-in limit for dynamic shared
    memory, ``reserved_shared_bytes`` what the driver keeps for itself per block.
    """

    name: str
    compute_capability: tuple[int, int]
    sm_count: int
    clock_hz: float
    memory_bytes: int
    memory_bytes_per_s: float
    l2_bytes: int
    shared_bytes_per_sm: int
    shared_bytes_per_block: int
    reserved_shared_bytes: int
    registers_per_sm: int
    max_registers_per_thread: int
    max_threads_per_sm: int
    max_threads_per_block: int
    max_blocks_per_sm: int
    warp_size: int = 32

    @property
    def architecture(self) -> str:
        """The compiler's name of the architecture, such as ``"sm_90"``."""
        major, minor = self.compute_capability
        return f"sm_{major}{minor}"

    def to_json(self) -> dict[str, Any]:
        """Return the facts as plain JSON values."""
        return dataclasses.asdict(self) | {"compute_capability": list(self.compute_capability)}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Device:
        """Rebuild a device from :meth:`to_json`."""
        return cls(**{**document, "compute_capability": tuple(document["compute_capability"])})
