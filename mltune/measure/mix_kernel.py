"""The micro-kernels of mixes: how many instructions a clock has where arithmetic shares it with loads.

Lai and Seznec (CGO 2013, sections 4.1 to 4.3) measure the same on Fermi and Kepler: the rate by the width of a load, by
the multiply-adds for each load, by the number of threads, and with and without dependences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mltune.device.facts import Device, Mix
from mltune.kernel.bundle import Launch
from mltune.measure.build import definitions
from mltune.measure.micro_kernel import FOLDER, NEVER, THREADS

BODY = 256
"""Instructions of a round, about: few enough for the instruction cache, and many beside those of the loop."""

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
    """A kernel of loads and arithmetic; its attributes are those of :class:`mltune.device.facts.Mix`.

    Attributes
    ----------
    since : tuple of two int
        The least compute capability.
    """

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
        return f"{definitions(macros)}#line 1\n{(FOLDER / 'mix.cu').read_text()}"

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
        return tuple(
            Mix(
                self.arithmetic,
                self.load_bytes,
                float(self.per_load),
                blocks * threads,
                self.dependent,
                blocks * threads * done / taken,
            )
            for (blocks, threads), taken in zip(BLOCKS, clocks, strict=False)
        )


def _mixes(
    arithmetic: str, load_bytes: Sequence[int], per_load: Sequence[int], since: tuple[int, int] = (7, 0)
) -> list[MixKernel]:
    return [
        MixKernel(arithmetic, width, count, dependent, since)
        for width in load_bytes
        for count in per_load
        for dependent in (False, True)
    ]


MIX_KERNELS: tuple[MixKernel, ...] = (
    *_mixes("fp32", (4, 8, 16), (1, 2, 4, 6, 8, 16, 32)),
    *_mixes("fp64", (8, 16), (1, 2, 4, 6, 8, 16)),
    *_mixes("tensor_fp16", (8, 16), (1, 2, 4), since=(8, 0)),
    *_mixes("tensor_tf32", (8, 16), (1, 2, 4), since=(8, 0)),
    *_mixes("tensor_fp64", (8, 16), (1, 2, 4), since=(8, 0)),
)
"""All mixes that are measured."""
