"""Bank conflicts in shared memory and cache lines of global memory, computed from the addresses of a warp's lanes.

A bundle declares each load or store of its main loop as a layout of lanes (``[access]``,
docs/reference/kernel-toml.md). This module computes the addresses of all lanes once for every distinct layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mltune.kernel.columns import Floats, Indices, number_rows

BANKS = 32
BANK_BYTES = 4
PHASE_BYTES = BANKS * BANK_BYTES
"""Bytes that shared memory delivers at once: a phase is 32, 16 or 8 lanes for accesses of 4, 8 or 16 bytes."""

LINE_BYTES = 128
"""Size of a line of the first-level cache."""


@dataclass(frozen=True, slots=True)
class LaneLayout:
    """The addresses of one access of a warp, in many configurations.

    Lane l reads or writes ``width`` bytes. Its address follows from l, written in mixed radix with the fastest digit
    first; each digit has a stride. Example: with digits ``((8, 16), (4, 0))`` the address of lane l is
    ``16 * (l % 8) + 0 * (l // 8 % 4)``: eight vectors, four lanes on each.

    Attributes
    ----------
    width : ndarray of shape (n_configs,)
        Bytes of a lane.
    digits : sequence of (ndarray, ndarray)
        Radix of a digit and its stride in bytes, each of shape (n_configs,).
    """

    width: Indices
    digits: Sequence[tuple[Indices, Indices]]


Access = tuple[Literal["shared", "global"], Floats, LaneLayout]
"""``"shared"`` or ``"global"``, the number of accesses of a thread in a step (shape (n_configs,)), and the layout."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """The cost of the accesses of a step; every field is an ndarray of shape (n_configs,).

    Attributes
    ----------
    shared_instructions, global_instructions : ndarray
        Memory instructions of a thread.
    shared_wavefronts, shared_phases : ndarray
        Passes of a warp over the banks of shared memory, with and without conflicts.
    global_wavefronts : ndarray
        Passes of a warp over lines of the first-level cache: the distinct lines of each phase.
    """

    shared_instructions: Floats
    global_instructions: Floats
    shared_wavefronts: Floats
    shared_phases: Floats
    global_wavefronts: Floats

    @property
    def bank_conflicts(self) -> Floats:
        """Mean degree of bank conflicts, weighted by phases: 1 without conflicts, 32 where all lanes use one bank."""
        return np.where(self.shared_phases > 0, self.shared_wavefronts / np.maximum(self.shared_phases, 1e-9), 1.0)


def counted(loads: Floats, copies: Floats) -> Traffic:
    """Return the traffic of accesses of which only the number is known: loads from shared memory, and global copies."""
    return Traffic(loads, copies, loads, loads, copies)


def traffic(accesses: Iterable[Access], warp_size: int, size: int) -> Traffic:
    """Add up the accesses of a step of ``size`` configurations."""
    sums = {name: np.zeros(size) for name in Traffic.__slots__}
    for memory, count, layout in accesses:
        sums[f"{memory}_instructions"] += count
        if memory == "shared":
            sums["shared_wavefronts"] += count * shared_wavefronts(layout, warp_size)
            sums["shared_phases"] += count * np.ceil(warp_size * layout.width / PHASE_BYTES)
        else:
            sums["global_wavefronts"] += count * line_wavefronts(layout, warp_size)
    return Traffic(**sums)


def least_wavefronts(accesses: Iterable[Access], warp_size: int, size: int) -> Floats:
    """Return the passes over the banks if each distinct word of a warp were delivered once, and all banks were busy."""
    least = np.zeros(size)
    for memory, count, layout in accesses:
        if memory == "shared":
            least += count * distinct_words(layout, warp_size) / BANKS
    return least


def shared_wavefronts(layout: LaneLayout, warp_size: int) -> Floats:
    """Return the number of passes over the banks that an access takes.

    The lanes are served in phases of 128 bytes. A phase takes as many passes as its busiest bank has distinct words
    (lanes that read the same word share it).

    Examples
    --------
    All lanes that read a column of a tile 32 words wide use one bank; with one word of padding, no two do.

    >>> lanes = [(np.array([32, 32]), np.array([128, 132]))]
    >>> shared_wavefronts(LaneLayout(np.array([4, 4]), lanes), 32).tolist()
    [32.0, 1.0]
    """

    def passes(width: int, addresses: Indices) -> Floats:
        words, distinct = _words(width, addresses, _phase_lanes(width))
        cells = np.arange(len(words))[:, None] * BANKS + words % BANKS
        in_bank = np.bincount(cells[distinct], minlength=len(words) * BANKS).reshape(-1, BANKS)
        busiest: Floats = in_bank.max(axis=1).reshape(len(addresses), -1).sum(axis=1).astype(np.float64)
        return busiest

    return _over_distinct(layout, warp_size, passes)


def distinct_words(layout: LaneLayout, warp_size: int) -> Floats:
    """Return the number of distinct words of four bytes that the lanes of a warp access."""

    def words(width: int, addresses: Indices) -> Floats:
        found: Floats = np.count_nonzero(_words(width, addresses, warp_size)[1], axis=1).astype(np.float64)
        return found

    return _over_distinct(layout, warp_size, words)


def _words(width: int, addresses: Indices, lanes: int) -> tuple[Indices, NDArray[np.bool_]]:
    """Return the words that groups of lanes access, sorted, and which of them are the first of their kind."""
    words_each = max(width // BANK_BYTES, 1)
    words = (addresses // BANK_BYTES)[:, :, None] + np.arange(words_each)
    words = np.sort(words.reshape(-1, lanes * words_each), axis=1)
    distinct = np.ones(words.shape, dtype=bool)
    distinct[:, 1:] = words[:, 1:] != words[:, :-1]
    return words, distinct


def line_wavefronts(layout: LaneLayout, warp_size: int) -> Floats:
    """Return the number of cache lines that an access touches, summed over phases; lane 0 is at the start of a line."""

    def lines(width: int, addresses: Indices) -> Floats:
        touched = np.sort((addresses // LINE_BYTES).reshape(-1, _phase_lanes(width)), axis=1)
        distinct = 1 + np.count_nonzero(touched[:, 1:] != touched[:, :-1], axis=1)
        total: Floats = distinct.reshape(len(addresses), -1).sum(axis=1).astype(np.float64)
        return total

    return _over_distinct(layout, warp_size, lines)


def _phase_lanes(width: int) -> int:
    return max(PHASE_BYTES // max(width, BANK_BYTES), 1)


def _over_distinct(layout: LaneLayout, warp_size: int, count: Callable[[int, Indices], Floats]) -> Floats:
    """Apply ``count(width, addresses of shape (n, warp_size))`` to each distinct layout, and spread the results."""
    columns = [layout.width, *(column for digit in layout.digits for column in digit)]
    if len(layout.width) == 0:
        return np.zeros(0)
    lowest = [int(column.min()) for column in columns]
    number, representative = number_rows(
        [column - low for column, low in zip(columns, lowest, strict=True)],
        [int(column.max()) - low + 1 for column, low in zip(columns, lowest, strict=True)],
    )
    distinct = np.column_stack(columns)[representative]
    result = np.empty(len(distinct))
    for width in np.unique(distinct[:, 0]):
        rows = distinct[:, 0] == width
        result[rows] = count(int(width), _addresses(distinct[rows, 1:], warp_size))
    return result[number]


def _addresses(digits: Indices, warp_size: int) -> Indices:
    """Return the byte address of every lane, from columns (radix, stride, radix, stride, ...)."""
    rest = np.broadcast_to(np.arange(warp_size), (len(digits), warp_size))
    addresses = np.zeros((len(digits), warp_size), dtype=np.int64)
    for position in range(0, digits.shape[1], 2):
        radix = np.maximum(digits[:, position, None], 1)
        addresses += rest % radix * digits[:, position + 1, None]
        rest = rest // radix
    return addresses
