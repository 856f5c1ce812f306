"""The facts of a GPU: limits, sizes and clocks, queried from the driver or read from a record."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Device:
    """The facts of one GPU.

    The limits are those of ``cudaDeviceProp``; ``shared_bytes_per_block`` is the opt-in limit for dynamic shared
    memory, ``reserved_shared_bytes`` the share that the driver reserves per block.

    A GPU without CUDA, from timings that others recorded, has no compute capability: None. For an AMD card,
    ``sm_count`` counts compute units, ``warp_size`` is the size of a wave (64 on CDNA, 32 on RDNA), registers are
    32-bit vector registers and shared memory is LDS. ``fma_per_clock`` replaces the throughput that follows from a
    compute capability: fused multiply-adds per clock and multiprocessor, FP32 and FP64; None for a CUDA device.
    """

    name: str
    compute_capability: tuple[int, int] | None
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
    fma_per_clock: tuple[float, float] | None = None

    @property
    def architecture(self) -> str:
        """The compiler's name of the architecture, such as ``"sm_90"``; ``"other"`` without CUDA."""
        if self.compute_capability is None:
            return "other"
        major, minor = self.compute_capability
        return f"sm_{major}{minor}"

    def to_json(self) -> dict[str, Any]:
        """Return the facts as plain JSON values; ``fma_per_clock`` only where it is known."""
        facts = dataclasses.asdict(self)
        if self.fma_per_clock is None:
            del facts["fma_per_clock"]
        return {name: list(fact) if isinstance(fact, tuple) else fact for name, fact in facts.items()}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Device:
        """Rebuild a device from :meth:`to_json`. Until 0.1, [0, 0] was the compute capability of one without CUDA."""
        pairs = ("compute_capability", "fma_per_clock")
        tuples = {name: tuple(document[name]) for name in pairs if document.get(name) not in (None, [0, 0])}
        return cls(**{**document, **dict.fromkeys(document.keys() & set(pairs)), **tuples})
