"""Search spaces, in which every valid configuration has an index.

With indices, deduplication, sets of tried configurations and sampling without replacement are operations on integers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from mltune.errors import ExpressionError, SpaceError
from mltune.files.text import printable
from mltune.kernel.bundle import Kernel
from mltune.kernel.coding import Codes, Columns, Indices, ValueList, columns_of, length, row
from mltune.kernel.layers import Layers, build_layers

_CHUNK = 1 << 14
_EXPLAINED = 1 << 16
_PAIRS_BELOW = 8

LARGE = 50_000
"""Most rows of a table of which all are compared to find the nearest one."""


class SearchSpace(Protocol):
    """The configurations that a search may propose, each with an index from 0 to ``count - 1``.

    Methods take and return whole columns. The same kernel, problem and device give the same indices.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters, in the order of the kernel bundle."""

    @property
    def values(self) -> Mapping[str, tuple[int, ...]]:
        """The values of each parameter, in an order in which neighbours are similar."""

    @property
    def count(self) -> int:
        """Number of configurations."""

    def rows(self, indices: Indices) -> Columns:
        """Return the configurations of given indices; a SpaceError where one is negative, or not below ``count``."""

    def index_of(self, columns: Columns) -> Indices:
        """Return the indices of configurations, -1 for those outside the space."""

    def sample(self, count: int, rng: np.random.Generator, exclude: Collection[int] | Indices = ()) -> Indices:
        """Draw configurations uniformly, without replacement and without the indices to exclude.

        Return distinct indices in order of drawing, int64 of shape (n_drawn,): fewer than `count` when the space is
        exhausted.
        """

    def neighbours(self, index: int) -> Indices:
        """Return the configurations near one, without itself, in ascending order of index."""

    def nearest(self, columns: Columns) -> Indices:
        """Return for each row the index of a configuration near it; its own index if it is in the space."""


class Removal(NamedTuple):
    """The shares of the raw combinations that one restriction removes, and that it alone removes."""

    restriction: str
    reason: str
    removes: float
    removes_alone: float


class ConstrainedSpace:
    """Every configuration of a kernel that satisfies its restrictions. Satisfies :class:`SearchSpace`.

    Its size is computed exactly at first use (:mod:`mltune.kernel.layers`), in less than a second for 1e11
    configurations. `variables` are ``variables_of(problem, device)``. ``neighbours`` differ in one parameter; a change
    that is not valid is repaired by ``nearest``, which goes through the parameters in the order of the layers and takes
    the nearest value in the list that can be completed.
    """

    def __init__(self, kernel: Kernel, variables: Mapping[str, int]) -> None:
        self.kernel = kernel
        self.variables = dict(variables)
        self.values: Mapping[str, tuple[int, ...]] = kernel.all_parameters
        self.names = tuple(self.values)
        self._lists = {name: ValueList(values) for name, values in self.values.items()}

    @cached_property
    def layers(self) -> Layers:
        """The space as layers of states."""
        try:
            layers = build_layers(self.kernel, self.variables)
        except (ExpressionError, SpaceError) as error:
            raise type(error)(f"{self.kernel.described_in}: restrictions: {error}") from error
        if layers.count == 0:
            worst = sorted(self.explain(), key=lambda removal: -removal.removes)[:3]
            removed = "; ".join(
                f"`{printable(r.restriction, 90)}` removes {100 * r.removes:.3g} % ({printable(r.reason, 90)})"
                for r in worst
            )
            raise SpaceError(
                f"none of {self.combinations} combinations of {self.kernel.name} satisfies every restriction: "
                f"{removed}. See {self.kernel.described_in}."
            )
        return layers

    @property
    def combinations(self) -> int:
        """Number of raw combinations of values, valid or not."""
        return math.prod(len(values) for values in self.values.values())

    @property
    def count(self) -> int:
        """Number of valid configurations."""
        return self.layers.count

    def rows(self, indices: Indices) -> Columns:
        """Return the configurations of given indices."""
        checked = _checked(indices, self.count)
        parts = [self.layers.unrank(checked[start : start + _CHUNK]) for start in _starts(len(checked))]
        return {name: self._lists[name].decode(np.concatenate([part[name] for part in parts])) for name in self.names}

    def index_of(self, columns: Columns) -> Indices:
        """Return the indices of configurations, -1 for those outside the space."""
        codes = _encoded(self._lists, columns)
        return np.concatenate([self.layers.rank(_chunk(codes, start)) for start in _starts(length(columns))])

    def sample(self, count: int, rng: np.random.Generator, exclude: Collection[int] | Indices = ()) -> Indices:
        """Draw configurations uniformly, without replacement; fewer when the space is exhausted."""
        return draw(self.count, count, rng, exclude)

    def neighbours(self, index: int) -> Indices:
        """Return the configurations that differ in one parameter, and repaired changes of one parameter."""
        here = {name: int(column[0]) for name, column in self.rows(np.array([index])).items()}
        changes = [(name, value) for name in self.names for value in self.values[name] if value != here[name]]
        columns = {name: np.full(len(changes), value, dtype=np.int64) for name, value in here.items()}
        for position, (name, value) in enumerate(changes):
            columns[name][position] = value
        nearest = self.nearest(columns)
        return np.unique(nearest[nearest != index])

    def nearest(self, columns: Columns) -> Indices:
        """Return for each row the index of a valid configuration near it; its own index if it is valid."""
        codes = {name: self._lists[name].closest(np.asarray(columns[name], dtype=np.int64)) for name in self.names}
        return np.concatenate(
            [self.layers.rank(self.layers.repair(_chunk(codes, start))) for start in _starts(length(columns))]
        )

    def holds(self, configuration: Mapping[str, int]) -> bool:
        """Return whether a configuration is in the space, which need not be counted for that."""
        if configuration.keys() != set(self.names):
            return False
        columns = columns_of(configuration)
        scope = self.kernel.space.scope({**self.variables, **columns})
        with suppress(ExpressionError):
            return all(code[0] >= 0 for code in _encoded(self._lists, columns).values()) and all(
                np.all(restriction.expression.holds(scope)) for restriction in self.kernel.space.restrictions
            )
        return False

    def explain(self) -> list[Removal]:
        """Return the share that each restriction removes, from a uniform sample of 65,536 raw combinations."""
        rng = np.random.default_rng(0)
        columns = {name: rng.choice(np.array(values), _EXPLAINED) for name, values in self.values.items()}
        scope = self.kernel.space.scope({**self.variables, **columns})
        holds = [np.broadcast_to(r.expression.holds(scope), (_EXPLAINED,)) for r in self.kernel.space.restrictions]
        failures = np.sum([~mask for mask in holds], axis=0, dtype=np.int64)
        return [
            Removal(r.text, r.reason, float(np.mean(~mask)), float(np.mean(~mask & (failures == 1))))
            for r, mask in zip(self.kernel.space.restrictions, holds, strict=True)
        ]


class TableSpace:
    """The distinct configurations of a table, such as a recorded dataset; the index is the row. A :class:`SearchSpace`.

    ``values`` are those that occur, ascending. ``neighbours`` differ in one parameter, and if there are fewer than
    eight also in two. ``nearest`` differs in the fewest parameters, and among these has the nearest values; of a table
    with more than :data:`LARGE` rows it compares a sample.
    """

    def __init__(self, columns: Columns) -> None:
        if length(columns) == 0:
            raise SpaceError("the table is empty; a search space has at least one configuration")
        self.names = tuple(columns)
        self._columns = {name: np.array(column, dtype=np.int64) for name, column in columns.items()}
        self.values: Mapping[str, tuple[int, ...]] = {
            name: tuple(int(value) for value in np.unique(column)) for name, column in self._columns.items()
        }
        self._lists = {name: ValueList(values) for name, values in self.values.items()}
        self._codes = _encoded(self._lists, self._columns)
        keys = self._keys(self._codes)
        self._order = np.argsort(keys, kind="stable")
        self._sorted = keys[self._order]
        repeated = np.flatnonzero(self._sorted[1:] == self._sorted[:-1])
        if len(repeated):
            first, second = sorted(self._order[repeated[0] : repeated[0] + 2].tolist())
            raise SpaceError(f"rows {first} and {second} are the same configuration; those of a table are distinct")
        rows = np.arange(self.count) if self.count <= LARGE else draw(self.count, LARGE // 2, np.random.default_rng(0))
        self._compared = rows  # by nearest: with a million rows it would take seconds
        self._compared_codes = {name: code[rows] for name, code in self._codes.items()}

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self._order)

    def rows(self, indices: Indices) -> Columns:
        """Return the configurations of given rows."""
        checked = _checked(indices, self.count)
        return {name: column[checked] for name, column in self._columns.items()}

    def index_of(self, columns: Columns) -> Indices:
        """Return the rows of configurations, -1 for those that are not in the table."""
        codes = _encoded(self._lists, columns)
        valid = np.all([code >= 0 for code in codes.values()], axis=0)
        keys = self._keys({name: np.maximum(code, 0) for name, code in codes.items()})
        place = np.minimum(np.searchsorted(self._sorted, keys), self.count - 1)
        return np.where(valid & (self._sorted[place] == keys), self._order[place], -1)

    def sample(self, count: int, rng: np.random.Generator, exclude: Collection[int] | Indices = ()) -> Indices:
        """Draw rows uniformly, without replacement; fewer when the table is exhausted."""
        return draw(self.count, count, rng, exclude)

    def neighbours(self, index: int) -> Indices:
        """Return the rows that differ in one parameter, and if there are few also those that differ in two."""
        (index,) = _checked(np.array([index]), self.count)
        differing = np.sum([code != code[index] for code in self._codes.values()], axis=0)
        rows = np.flatnonzero(differing == 1)
        return rows if len(rows) >= _PAIRS_BELOW else np.flatnonzero((differing == 1) | (differing == 2))

    def nearest(self, columns: Columns) -> Indices:
        """Return for each configuration its own row, or the compared one with the fewest and smallest differences."""
        targets = {name: np.asarray(columns[name], dtype=np.int64) for name in self.names}
        indices = self.index_of(columns)
        missing = np.flatnonzero(indices < 0)
        for start in range(0, len(missing), 64):
            block = missing[start : start + 64]
            distance = np.zeros((len(self._compared), len(block)), dtype=np.float32)
            for name, code in self._compared_codes.items():
                distances = self._lists[name].distances(targets[name][block], len(self.names))
                distance += np.ascontiguousarray(distances.T)[code]  # whole lines are read
            indices[block] = self._compared[np.argmin(distance, axis=0)]
        return indices

    def _keys(self, codes: Codes) -> NDArray[np.bytes_]:
        """Return one byte string per row with the order of the rows."""
        rows = np.stack([codes[name] for name in self.names], axis=1).astype(">u4")
        return np.ascontiguousarray(rows).view(f"S{4 * len(self.names)}")[:, 0]


def _encoded(lists: Mapping[str, ValueList], columns: Columns) -> Codes:
    return {name: values.encode(np.asarray(columns[name], dtype=np.int64)) for name, values in lists.items()}


def find(space: SearchSpace, configuration: Mapping[str, int]) -> int:
    """Return the index of a configuration; -1 where it is outside the space, or has other parameters."""
    return int(space.index_of(columns_of(configuration))[0]) if configuration.keys() == set(space.names) else -1


def find_near(space: SearchSpace, configuration: Mapping[str, int]) -> int:
    """Return the index of a configuration or, where it is not valid, of one that differs little; -1 without one.

    At most a quarter of the parameters differ: what was fast for one problem is often not valid for the next, because
    of the width of a load alone.
    """
    if configuration.keys() != set(space.names):
        return -1
    index = int(space.nearest(columns_of(configuration))[0])
    stored = row(space.rows(np.array([index])), 0)
    differing = sum(stored[name] != value for name, value in configuration.items())
    return index if 4 * differing <= len(stored) else -1


def draw(extent: int, count: int, rng: np.random.Generator, exclude: Collection[int] | Indices = ()) -> Indices:
    """Draw distinct integers of ``range(extent)`` uniformly, except some; fewer where not so many are left."""
    excluded = np.unique(np.fromiter(exclude, dtype=np.int64, count=len(exclude)))
    excluded = excluded[(excluded >= 0) & (excluded < extent)]
    count = max(min(count, extent - len(excluded)), 0)
    if 2 * (count + len(excluded)) >= extent:
        remaining = np.setdiff1d(np.arange(extent), excluded, assume_unique=True)
        return rng.choice(remaining, count, replace=False)
    drawn = np.zeros(0, dtype=np.int64)
    while len(drawn) < count:  # each round keeps at least half of its draws, on average
        extended = np.concatenate([drawn, rng.integers(0, extent, count - len(drawn) + 16)])
        _, first = np.unique(extended, return_index=True)
        drawn = extended[np.sort(first)]
        if len(excluded):
            place = np.minimum(np.searchsorted(excluded, drawn), len(excluded) - 1)
            drawn = drawn[excluded[place] != drawn]
    return drawn[:count]


def _checked(indices: Indices, count: int) -> Indices:
    checked = np.asarray(indices, dtype=np.int64)
    if len(checked) and not (checked.min() >= 0 and checked.max() < count):
        raise SpaceError(f"the indices {checked.min()} to {checked.max()} are not all from 0 to below {count}")
    return checked


def _starts(size: int) -> range:
    """Return the starts of chunks that fit into the cache; an empty table is one empty chunk."""
    return range(0, max(size, 1), _CHUNK)


def _chunk(codes: Codes, start: int) -> Codes:
    return {name: code[start : start + _CHUNK] for name, code in codes.items()}
