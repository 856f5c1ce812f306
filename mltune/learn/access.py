"""Memory accesses of a warp: bank conflicts in shared memory and cache lines of global memory, from the lanes' layout.

A bundle declares each load or store of its main loop as a layout of lanes (``[access]``, docs/kernel-toml.md); here the
addresses of all lanes are simulated, once for every distinct layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mltune.kernel.columns import Floats

Integers = NDArray[np.int64]

BANKS = 32
BANK_BYTES = 4
PHASE_BYTES = BANKS * BANK_BYTES
"""Bytes that shared memory serves at once: a warp's access takes a phase of 32, 16 or 8 lanes for 4, 8 or 16 bytes."""

LINE_BYTES = 128
"""A line of the first-level cache."""


@dataclass(frozen=True, slots=True)
class LaneLayout:
    """One access of a warp in many configurations: lane l reads or writes ``width`` bytes at an address that it spells.

    The number l is written in mixed radix, the fastest digit first, and each digit has a stride: with digits
    ``((8, 16), (4, 0))`` lane l lies at byte ``16 * (l % 8) + 0 * (l // 8 % 4)``: eight vectors, four lanes on each.

    Attributes
    ----------
    width : ndarray of shape (n_configs,)
        Bytes of a lane.
    digits : sequence of (ndarray, ndarray)
        Radix of a digit and its stride in bytes, each of shape (n_configs,).
    """

    width: Integers
    digits: Sequence[tuple[Integers, Integers]]


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the accesses of a step cost, per configuration: every field is an ndarray of shape (n_configs,).

    Attributes
    ----------
    shared_instructions, global_instructions : ndarray
        Memory instructions of a thread.
    shared_wavefronts : ndarray
        Passes over the banks of shared memory that a warp takes, conflicts included.
    shared_phases : ndarray
        The same without conflicts.
    global_wavefronts : ndarray
        Passes over lines of the first-level cache that a warp takes: the distinct lines of each phase.
    """

    shared_instructions: Floats
    global_instructions: Floats
    shared_wavefronts: Floats
    shared_phases: Floats
    global_wavefronts: Floats

    @property
    def bank_conflicts(self) -> Floats:
        """Mean degree of bank conflicts, weighted by phases: 1 without any, 32 where all lanes meet in one bank."""
        return np.where(self.shared_phases > 0, self.shared_wavefronts / np.maximum(self.shared_phases, 1e-9), 1.0)


def traffic(accesses: Iterable[tuple[str, Floats, LaneLayout]], warp_size: int, size: int) -> Traffic:
    """Add up the accesses of a step.

    Parameters
    ----------
    accesses : iterable of (str, ndarray of shape (n_configs,), LaneLayout)
        ``"shared"`` or ``"global"``, how often a thread makes the access in a step, and its layout.
    warp_size : int
    size : int
        Number of configurations.

    Returns
    -------
    Traffic
    """
    sums = {name: np.zeros(size) for name in Traffic.__slots__}
    for memory, count, layout in accesses:
        sums[f"{memory}_instructions"] += count
        if memory == "shared":
            sums["shared_wavefronts"] += count * shared_wavefronts(layout, warp_size)
            sums["shared_phases"] += count * np.ceil(warp_size * layout.width / PHASE_BYTES)
        else:
            sums["global_wavefronts"] += count * line_wavefronts(layout, warp_size)
    return Traffic(**sums)


def shared_wavefronts(layout: LaneLayout, warp_size: int) -> Floats:
    """Return how many passes over the banks an access takes.

    The lanes are served in phases of 128 bytes; a phase takes as many passes as distinct words lie in its fullest bank
    (lanes that read one word share it).

    Returns
    -------
    ndarray of shape (n_configs,)
    """

    def passes(width: int, addresses: Integers) -> Floats:
        words_each = max(width // BANK_BYTES, 1)
        words = (addresses // BANK_BYTES)[:, :, None] + np.arange(words_each)
        words = np.sort(words.reshape(-1, _phase_lanes(width) * words_each), axis=1)
        distinct = np.ones(words.shape, dtype=bool)
        distinct[:, 1:] = words[:, 1:] != words[:, :-1]
        cells = np.arange(len(words))[:, None] * BANKS + words % BANKS
        in_bank = np.bincount(cells[distinct], minlength=len(words) * BANKS).reshape(-1, BANKS)
        fullest: Floats = in_bank.max(axis=1).reshape(len(addresses), -1).sum(axis=1).astype(np.float64)
        return fullest

    return _over_distinct(layout, warp_size, passes)


def line_wavefronts(layout: LaneLayout, warp_size: int) -> Floats:
    """Return how many cache lines an access touches, phase by phase, with its first lane at the start of a line.

    Returns
    -------
    ndarray of shape (n_configs,)
    """

    def lines(width: int, addresses: Integers) -> Floats:
        touched = np.sort((addresses // LINE_BYTES).reshape(-1, _phase_lanes(width)), axis=1)
        distinct = 1 + np.count_nonzero(touched[:, 1:] != touched[:, :-1], axis=1)
        total: Floats = distinct.reshape(len(addresses), -1).sum(axis=1).astype(np.float64)
        return total

    return _over_distinct(layout, warp_size, lines)


def _phase_lanes(width: int) -> int:
    return max(PHASE_BYTES // max(width, BANK_BYTES), 1)


def _over_distinct(layout: LaneLayout, warp_size: int, count: Callable[[int, Integers], Floats]) -> Floats:
    """Apply ``count(width, addresses of shape (n, warp_size))`` to each distinct layout, and spread the results."""
    table = np.column_stack([layout.width, *(column for digit in layout.digits for column in digit)])
    if len(table) == 0:
        return np.zeros(0)
    _, first, inverse = np.unique(_packed(table), return_index=True, return_inverse=True)
    distinct = table[first]
    result = np.empty(len(distinct))
    for width in np.unique(distinct[:, 0]):
        rows = distinct[:, 0] == width
        result[rows] = count(int(width), _addresses(distinct[rows, 1:], warp_size))
    spread: Floats = result[inverse.ravel()]
    return spread


def _addresses(digits: Integers, warp_size: int) -> Integers:
    """Return the byte address of every lane, from columns (radix, stride, radix, stride, ...)."""
    rest = np.broadcast_to(np.arange(warp_size), (len(digits), warp_size))
    addresses = np.zeros((len(digits), warp_size), dtype=np.int64)
    for position in range(0, digits.shape[1], 2):
        radix = np.maximum(digits[:, position, None], 1)
        addresses += rest % radix * digits[:, position + 1, None]
        rest = rest // radix
    return addresses


def _packed(table: Integers) -> Integers:
    """Return one number per row, equal where rows are: sorting numbers is ten times as fast as sorting rows."""
    packed = np.zeros(len(table), dtype=np.int64)
    span = 1
    for column in table.T:
        low, high = int(column.min()), int(column.max())
        if span * (high - low + 1) >= 2**62:
            packed, span = _ranks(packed)
            column, values = _ranks(column)
            low, high = 0, values - 1
        packed = packed * (high - low + 1) + (column - low)
        span *= high - low + 1
    return packed


def _ranks(column: Integers) -> tuple[Integers, int]:
    values, ranks = np.unique(column, return_inverse=True)
    return ranks.ravel().astype(np.int64), len(values)
