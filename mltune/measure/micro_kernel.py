"""The micro-kernels that measure a GPU: their sources, launches, and the operations and bytes that they count.

Mixes measure how many instructions a clock has where arithmetic shares it with loads, as Lai and Seznec (CGO 2013,
sections 4.1 to 4.3) measured on Fermi and Kepler.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mltune.device.facts import Device, Mix, Quantity
from mltune.kernel.launch import Launch
from mltune.measure.build import definitions

ENTRY = "measure"
"""Name of the kernel in every source."""

READ_BYTES = 16
"""Bytes that a thread reads at once."""

THREADS = 512
BLOCKS_PER_SM = 2
"""Blocks for each multiprocessor, which runs both at once."""

LAUNCHES = 200
"""Launches of the empty kernel that are timed together."""

L2_SHARE = 4
"""The places that are read from the L2 cache take at most this fraction of it: each half of an H200's holds them."""

MEMORY_L2S = 256
"""L2 caches' worth of memory that is read: with 16, an H200 seemed to read at 113 % of its memory's rate."""

LEAST_MEMORY_BYTES, MOST_MEMORY_BYTES = 1 << 28, 1 << 34

FOLDER = Path(__file__).parent / "micro_kernels"
NEVER = 0x9E3779B97F4A7C15 >> 1


@dataclass(frozen=True, slots=True)
class MicroKernel:
    """A kernel that does nothing but one kind of work, as often as its argument says.

    `work` are operations or bytes of a thread in a step of a chain; `since` is the least compute capability.
    """

    quantity: Quantity
    file: str
    work: int
    steps: int = 1
    chains: int = 1
    macro: str = ""
    since: tuple[int, int] = (7, 0)

    @property
    def source(self) -> str:
        """The CUDA source with its macros."""
        macros = {"THREADS": THREADS, "STEPS": self.steps, "CHAINS": self.chains}
        macros |= {self.macro: 1} if self.macro else {}
        return f"{definitions(macros)}#line 1\n{(FOLDER / self.file).read_text('utf-8')}"

    def amount(self, device: Device, rounds: int) -> int:
        """Return the operations or bytes of one launch."""
        return device.sm_count * BLOCKS_PER_SM * THREADS * rounds * self.steps * self.chains * self.work

    def launch(self, device: Device, rounds: int, places: int) -> Launch:
        """Return the launch of some rounds; the number of places that are read is a power of two."""
        blocks = device.sm_count * BLOCKS_PER_SM if self.work else 1
        return Launch((blocks, 1, 1), (THREADS, 1, 1), 0, (rounds, places - 1, 0, NEVER))

    def places(self, device: Device) -> int:
        """Return how many times 16 bytes of global memory are read: a power of two, 1 where none are."""
        if self.quantity == "l2_bytes_per_s":
            return _power_of_two(device.l2_bytes // L2_SHARE // READ_BYTES)
        if self.quantity == "memory_bytes_per_s":
            memory_bytes = min(max(MEMORY_L2S * device.l2_bytes, LEAST_MEMORY_BYTES), device.memory_bytes // 4)
            return _power_of_two(min(memory_bytes, MOST_MEMORY_BYTES) // READ_BYTES)
        return 1


def _power_of_two(most: int) -> int:
    """Return the largest power of two that is not above a number, at least 1."""
    return 1 << max(most.bit_length() - 1, 0)


def _fma(quantity: Quantity, macro: str, work: int) -> MicroKernel:
    return MicroKernel(quantity, "fma.cu", work, steps=32, chains=8, macro=macro)


def _mma(
    quantity: Quantity,
    macro: str,
    shape: tuple[int, int, int],
    *,
    chains: int = 4,
    since: tuple[int, int] = (8, 0),
) -> MicroKernel:
    """Return a micro-kernel of the tensor cores: each step is a product of a whole warp."""
    m, n, k = shape
    return MicroKernel(quantity, "mma.cu", 2 * m * n * k // 32, steps=8, chains=chains, macro=macro, since=since)


MICRO_KERNELS: tuple[MicroKernel, ...] = (
    _fma("fp16_flops", "FP16", 4),
    _fma("fp32_flops", "FP32", 2),
    _fma("fp64_flops", "FP64", 2),
    _fma("int32_ops", "INT32", 2),
    _mma("tensor_fp16_flops", "FP16", (16, 8, 16)),
    _mma("tensor_bf16_flops", "BF16", (16, 8, 16)),
    _mma("tensor_tf32_flops", "TF32", (16, 8, 8)),
    _mma("tensor_fp64_flops", "FP64", (8, 8, 4)),
    _mma("tensor_fp64_flops", "FP64_LARGE", (16, 8, 16), chains=2, since=(9, 0)),
    MicroKernel("shared_bytes_per_s", "shared.cu", READ_BYTES, steps=4),
    MicroKernel("l2_bytes_per_s", "global.cu", READ_BYTES, steps=8),
    MicroKernel("memory_bytes_per_s", "global.cu", READ_BYTES, steps=8),
    MicroKernel("launch_s", "empty.cu", 0),
)
"""All micro-kernels. Of several with the same quantity the fastest counts."""


BODY = 256
"""Approximate instructions of a round: few enough for the instruction cache, and many compared with the loop's own."""

ROUNDS = 256
"""Rounds of a launch, which takes 10 to 1,000 microseconds."""

MIX_LAUNCHES = 3
"""Launches of each mix; the fastest counts, because nothing makes one faster than the hardware is."""

BLOCKS: tuple[tuple[int, int], ...] = ((1, 128), (1, 256), (1, 512), (2, 512), (4, 512))
"""Blocks on a multiprocessor and threads of a block that each mix is measured with, the fewest threads first."""

BLOCK_WORDS = 3
"""Words that a block writes: the clock at its start and at its end, and the number of its multiprocessor."""

REGISTER_UNIT = 8
"""Registers of a thread are allocated in this unit."""


@dataclass(frozen=True, slots=True)
class MixKernel:
    """A kernel of loads and arithmetic, with the attributes of :class:`mltune.device.facts.Mix`."""

    arithmetic: str
    load_bytes: int
    per_load: int
    dependent: bool
    since: tuple[int, int] = (7, 0)

    @property
    def steps(self) -> int:
        """Loads of a thread in a round: a multiple of four, because four places take turns."""
        return max(BODY // (1 + self.per_load) // 4, 1) * 4

    @property
    def source(self) -> str:
        """The CUDA source with its macros."""
        macros = {"THREADS": THREADS, "STEPS": self.steps, "LOAD_BYTES": self.load_bytes, "PER_LOAD": self.per_load}
        macros |= {"DEPENDENT": int(self.dependent), self.arithmetic.upper(): 1}
        return f"{definitions(macros)}#line 1\n{(FOLDER / 'mix.cu').read_text('utf-8')}"

    def launches(self, device: Device, registers: int) -> list[Launch]:
        """Return the launches: one for each of :data:`BLOCKS` whose registers fit into a multiprocessor."""
        rounded = -(-registers // REGISTER_UNIT) * REGISTER_UNIT
        return [
            Launch((device.sm_count * blocks, 1, 1), (threads, 1, 1), 0, (ROUNDS, 0, 1, NEVER))
            for blocks, threads in BLOCKS
            if blocks * threads <= min(device.max_threads_per_sm, device.registers_per_sm // rounded)
        ]

    def mixes(self, clocks: Sequence[float]) -> tuple[Mix, ...]:
        """Return the rates that follow from the clocks of each launch, in the order of :meth:`launches`."""
        done = ROUNDS * self.steps * (1 + self.per_load)
        kind, threads = (self.arithmetic, self.load_bytes, float(self.per_load)), map(math.prod, BLOCKS)
        measured = zip(threads, clocks, strict=False)
        return tuple(Mix(*kind, count, self.dependent, count * done / taken) for count, taken in measured)


def _mixes(
    arithmetic: str, load_bytes: Sequence[int], per_load: Sequence[int], since: tuple[int, int] = (7, 0)
) -> list[MixKernel]:
    variants = itertools.product(load_bytes, per_load, (False, True))
    return [MixKernel(arithmetic, *variant, since) for variant in variants]


MIX_KERNELS: tuple[MixKernel, ...] = (
    *_mixes("fp32", (4, 8, 16), (1, 2, 4, 6, 8, 16, 32)),
    *_mixes("fp64", (8, 16), (1, 2, 4, 6, 8, 16)),
    *_mixes("tensor_fp16", (8, 16), (1, 2, 4), since=(8, 0)),
    *_mixes("tensor_tf32", (8, 16), (1, 2, 4), since=(8, 0)),
    *_mixes("tensor_fp64", (8, 16), (1, 2, 4), since=(8, 0)),
)
"""All mixes that are measured."""
