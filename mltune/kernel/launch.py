"""The launch of a kernel, and what its compiler is asked: processes import it without what reads bundles."""

from __future__ import annotations

from dataclasses import dataclass

APPLY = "--ptxas-options=--apply-controls="
"""The option of the assembler that names a file of controls."""


def plain_entry(entry: str) -> str:
    """Return the name of a kernel without its namespaces and its template arguments.

    >>> plain_entry("math::fill<TILE>")
    'fill'
    """
    return entry.partition("<")[0].rpartition(":")[2]


@dataclass(frozen=True, slots=True)
class Launch:
    """The launch of one configuration; `arguments` follow the problem's, and last the workspace, unless None."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: tuple[int, ...]
    workspace_bytes: int | None = None
