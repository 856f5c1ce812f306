"""Facts of a GPU: limits, sizes and clocks, queried from the driver or read from a record."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from mltune.files.validation import validated

Quantity = Literal[
    "fp16_flops",
    "fp32_flops",
    "fp64_flops",
    "int32_ops",
    "tensor_fp16_flops",
    "tensor_bf16_flops",
    "tensor_tf32_flops",
    "tensor_fp64_flops",
    "shared_bytes_per_s",
    "l2_bytes_per_s",
    "memory_bytes_per_s",
    "launch_s",
]
"""A measured quantity: operations per second (a multiply-add is two), bytes per second, or seconds."""

QUANTITIES: tuple[Quantity, ...] = get_args(Quantity)

NO_CUDA = "other"
"""The architecture of a GPU without CUDA: two of them may have nothing in common."""

_GFX = re.compile(r"\b(gfx\d{2,3})([0-9a-f])$")

MIXED = ("fp32", "fp64", "tensor_fp16", "tensor_tf32", "tensor_fp64")
"""The kinds of arithmetic of a :class:`Mix`."""

MOST_MIXES = 2000
"""Most mixes of a device."""

LARGEST = 1e18
"""Largest fact of a device that is a number."""

WARP_SIZES = (32, 64)
"""Lanes of a warp, or of an AMD card's wave."""

_DIVISORS = ("sm_count", "clock_hz", "warp_size", "fma_per_clock")
_STRICT = {"extra": "forbid", "strict": True}  # of a document: no text or truth value is a number


@dataclass(frozen=True, slots=True)
class Measured:
    """A measured quantity: the median of several runs, and their interquartile range as a share of it."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    median: float
    spread: float

    def __post_init__(self) -> None:
        if not 0 < self.median <= LARGEST or not 0 <= self.spread <= LARGEST:
            raise ValueError(f"{self} is no measured quantity: it has a positive median and a spread")


@dataclass(frozen=True, slots=True)
class Mix:
    """The measured rate of a mix of ``arithmetic`` (:data:`MIXED`) and loads of 4, 8 or 16 bytes from shared memory.

    ``per_load`` are arithmetic instructions a load, ``threads`` those on a multiprocessor, ``per_clock`` instructions
    of threads, loads included, per clock and multiprocessor. In a ``dependent`` mix arithmetic needs the load before
    it.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    arithmetic: str
    load_bytes: int
    per_load: float
    threads: int
    dependent: bool
    per_clock: float

    def __post_init__(self) -> None:
        rates = (self.per_load, self.threads, self.per_clock)
        possible = all(0 < rate <= LARGEST for rate in rates)
        if self.arithmetic not in MIXED or self.load_bytes not in (4, 8, 16) or not possible:
            raise ValueError(f"{self} is no mix of a known arithmetic, loads of 4, 8 or 16 bytes and positive rates")


@dataclass(frozen=True, slots=True)
class Device:
    """The facts of one GPU; an impossible fact is a ValueError, and zero stands for an unknown amount.

    The limits are those of ``cudaDeviceProp``; ``shared_bytes_per_block`` is the opt-in limit for dynamic shared
    memory, ``reserved_shared_bytes`` the share that the driver reserves per block.

    A GPU without CUDA, from timings that others recorded, has no compute capability: None. For an AMD card,
    ``sm_count`` counts compute units, ``warp_size`` is the size of a wave (64 on CDNA, 32 on RDNA), registers are
    32-bit vector registers and shared memory is LDS. ``fma_per_clock``, (FP32, FP64) per clock and multiprocessor,
    replaces the throughput that follows from a compute capability; None for a CUDA device.

    ``measured`` quantities by name (:data:`Quantity`) and ``mixes`` of instructions are those of a GPU of this kind
    (:mod:`mltune.measure.device_rates`). Devices that differ only there are equal.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

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
    measured: Mapping[Quantity, Measured] = dataclasses.field(default_factory=dict, compare=False)
    mixes: tuple[Mix, ...] = dataclasses.field(default=(), compare=False)

    def __post_init__(self) -> None:
        facts = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        numbers = {name: fact for name, fact in facts.items() if isinstance(fact, int | float)}
        numbers |= {"fma_per_clock": min(self.fma_per_clock)} if self.fma_per_clock else {}
        for name, number in numbers.items():
            if not 0 <= number <= LARGEST or (not number and name in _DIVISORS):
                least = "0 <" if name in _DIVISORS else "0 <="
                raise ValueError(f"{name} cannot be {number}: {least} {name} <= {LARGEST:g} must hold")
        if not all(0 <= part < 100 for part in self.compute_capability or ()):
            raise ValueError(f"compute_capability cannot be {self.compute_capability}: it is [major, minor] or null")
        if self.warp_size not in WARP_SIZES:
            raise ValueError(f"warp_size cannot be {self.warp_size}: it is one of {WARP_SIZES}")
        if len(self.mixes) > MOST_MIXES:
            raise ValueError(f"{len(self.mixes)} mixes are too many; a device has at most {MOST_MIXES}")

    @property
    def architecture(self) -> str:
        """The compiler's name of the architecture, such as ``"sm_90"``; ``"other"`` without CUDA."""
        if self.compute_capability is None:
            return NO_CUDA
        major, minor = self.compute_capability
        return f"sm_{major}{minor}"

    @property
    def family(self) -> str:
        """The architecture; else that in an AMD card's name, ``"gfx103x"`` for gfx1030 and gfx1032; else the name."""
        if self.compute_capability is not None:
            return self.architecture
        match = _GFX.search(self.name)
        if match is None:
            return self.name
        return match[1] + ("x" if len(match[1]) == len("gfx103") else match[2])

    def to_json(self) -> dict[str, Any]:
        """Return the facts as plain JSON values; optional facts only if they are known."""
        facts = dataclasses.asdict(self)
        for name in ("fma_per_clock", "measured", "mixes"):
            if not facts[name]:
                del facts[name]
        return {name: list(fact) if isinstance(fact, tuple) else fact for name, fact in facts.items()}

    @classmethod
    def from_json(cls, document: Any) -> Device:
        """Rebuild a device from :meth:`to_json`; a missing, unknown or impossible fact is named by a ValueError."""
        if isinstance(document, Mapping) and document.get("compute_capability") == [0, 0]:
            document = {**document, "compute_capability": None}
        return validated(Device, document, within=("device",), as_json=True)
