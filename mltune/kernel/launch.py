"""The launch of a kernel. A worker process imports it without what reads bundles."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Launch:
    """The launch of one configuration.

    Attributes
    ----------
    grid, block : tuple of three int
        Blocks of the grid and threads of a block, along x, y and z.
    shared_bytes : int
        Dynamic shared memory, bytes per block.
    arguments : tuple of int
        Arguments of the kernel that follow those of the problem.
    workspace_bytes : int or None
        Size of the memory whose address is the last argument; None for a kernel without one.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: tuple[int, ...]
    workspace_bytes: int | None = None
