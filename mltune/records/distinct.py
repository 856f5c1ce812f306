"""The number of distinct configurations that a search has seen, in little room."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

KEPT = 1024
"""Most hashes that are kept: up to as many configurations the number is exact."""

_BITS = 53
"""Bits of a hash: a number of JSON holds it exactly."""


@dataclass(slots=True)
class DistinctCount:
    """The number of distinct configurations among all that were added: exact up to 1,024, then within some 3 %.

    The last of the kept smallest hashes tells how many there are (Bar-Yossef and others, 2002). To add a configuration
    again changes nothing, so a resumed run, which plans some batches again, counts right.
    """

    _hashes: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, dtype=np.uint64))

    def add(self, indices: NDArray[np.int64]) -> None:
        """Add configurations by their indices: ndarray of shape (n_configs,)."""
        self._hashes = np.union1d(self._hashes, _hashes(indices))[:KEPT]

    def without(self, indices: NDArray[np.int64]) -> int:
        """Return the number of those that are not among other configurations: ndarray of shape (n_configs,)."""
        count = int((~np.isin(self._hashes, _hashes(indices))).sum())
        return round(self.estimate * count / max(len(self._hashes), 1))

    @property
    def estimate(self) -> int:
        """The number."""
        if len(self._hashes) < KEPT:
            return len(self._hashes)
        return round((KEPT - 1) * 2.0**_BITS / float(self._hashes[-1]))

    def to_json(self) -> list[int]:
        """Return the hashes as plain JSON values."""
        return list(map(int, self._hashes))

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """Return a number on record; another document raises a ValueError."""
        hashes = document if isinstance(document, list) and len(document) <= KEPT else [None]
        if not all(type(value) is int and 0 <= value < 1 << _BITS for value in hashes):
            raise ValueError(f"must be at most {KEPT} whole numbers from 0 to 2**{_BITS} - 1")
        return cls(np.unique(np.array(document, dtype=np.uint64)))


def _hashes(indices: NDArray[np.int64]) -> NDArray[np.uint64]:
    mixed = indices.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)  # SplitMix64: Steele, Lea, Flood, 2014
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return (mixed ^ (mixed >> np.uint64(31))) >> np.uint64(64 - _BITS)
