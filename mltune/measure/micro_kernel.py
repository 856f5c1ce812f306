"""The micro-kernels that measure a GPU: their sources, launches, and the operations and bytes that they count."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mltune.device.facts import Device, Quantity
from mltune.kernel.bundle import Launch
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
"""The places that are read from memory take about this many L2 caches, because a cache keeps more of what it is read
through than its share: with 16 of them, an H200 seemed to read 113 % of what its memory gives."""

LEAST_MEMORY_BYTES, MOST_MEMORY_BYTES = 1 << 28, 1 << 34

FOLDER = Path(__file__).parent / "micro_kernels"
NEVER = 0x9E3779B97F4A7C15 >> 1


@dataclass(frozen=True, slots=True)
class MicroKernel:
    """A kernel that does nothing but one kind of work, as often as its argument says.

    Attributes
    ----------
    quantity : str
        What it measures: one of :data:`mltune.device.facts.QUANTITIES`.
    file : str
        Its source.
    work : int
        Operations or bytes of a thread in a step of a chain; 0 for the empty kernel.
    steps, chains : int
        Steps in a round, and chains of a thread that do not depend on each other.
    macro : str
        The macro that chooses the kind of work in a source of several.
    since : tuple of two int
        The least compute capability.
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
        return f"{definitions(macros)}#line 1\n{(FOLDER / self.file).read_text()}"

    def amount(self, device: Device, rounds: int) -> int:
        """Return the operations or bytes of one launch.

        Examples
        --------
        >>> from mltune.device.known import H200
        >>> (fp32,) = (one for one in MICRO_KERNELS if one.quantity == "fp32_flops")
        >>> fp32.amount(H200, 1) == 132 * 2 * 512 * 32 * 8 * 2
        True
        """
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
            wanted = min(max(MEMORY_L2S * device.l2_bytes, LEAST_MEMORY_BYTES), device.memory_bytes // 4)
            return _power_of_two(min(wanted, MOST_MEMORY_BYTES) // READ_BYTES)
        return 1


def _power_of_two(most: int) -> int:
    """Return the largest power of two that is not above a number, at least 1.

    >>> _power_of_two(100)
    64
    """
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
