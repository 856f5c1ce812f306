"""The launch of a kernel. A worker process imports it without what reads bundles."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Launch:
    """The launch of one configuration.

    `arguments` follow those of the problem; the last one is the address of the workspace, unless its size is None.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: tuple[int, ...]
    workspace_bytes: int | None = None
