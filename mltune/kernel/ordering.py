"""The order in which parameters are bound when a search space is counted.

The count binds the parameters one by one and keeps one state for all combinations of bound values that the restrictions
can no longer distinguish (see :mod:`mltune.kernel.layers`). The number of states depends on the order only, and
strongly: thousands with a good order, billions with a poor one. A beam search over sets of bound parameters finds a
good order; sets suffice, because the number of states does not depend on the order inside a set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

BEAM = 200
"""Number of sets of bound parameters that the search keeps at each step."""

_LARGEST_TABLE = 1 << 17
_MOST_ELEMENTS = 1 << 27
_MOST_TERMS = 1 << 18
"""Bounds on the work of the search; beyond them its estimates are coarser."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One or more restrictions as a table of the combinations of their parameters that satisfy them.

    Attributes
    ----------
    names : tuple of str
        The parameters.
    table : ndarray of bool
        One axis per parameter, along its values in the order of the kernel bundle.
    """

    names: tuple[str, ...]
    table: NDArray[np.bool_] = field(repr=False)

    def ordered(self, order: Sequence[str]) -> Rule:
        """Return the rule with its axes in a given order of all parameters."""
        axes = sorted(range(len(self.names)), key=lambda axis: order.index(self.names[axis]))
        return Rule(tuple(self.names[axis] for axis in axes), self.table.transpose(axes))


def choose_order(extents: Mapping[str, int], rules: Sequence[Rule]) -> tuple[str, ...]:
    """Return an order of the parameters with few states."""
    names = [name for name in extents if any(name in rule.names for rule in rules)]
    estimate = _Estimate(extents, names, rules)
    sets = np.zeros(1, dtype=np.int64)
    work = np.zeros(1)
    trail: list[tuple[NDArray[np.intp], NDArray[np.intp]]] = []
    widths = np.array([extents[name] for name in names], dtype=np.float64)
    for _ in names:
        states = np.exp2(np.minimum(estimate.log_states(sets), 200.0))
        parent, chosen = np.nonzero((sets[:, None] >> np.arange(len(names))) & 1 == 0)
        grown = sets[parent] | (np.int64(1) << chosen)
        spent = work[parent] + states[parent] * widths[chosen]
        by_work = np.argsort(spent, kind="stable")
        _, first = np.unique(grown[by_work], return_index=True)
        kept = by_work[np.sort(first)][:BEAM]
        trail.append((parent[kept], chosen[kept]))
        sets, work = grown[kept], spent[kept]
    order: list[str] = []
    position = 0
    for parent, chosen in reversed(trail):
        order.append(names[chosen[position]])
        position = int(parent[position])
    return (*reversed(order), *(name for name in extents if name not in names))


class _Estimate:
    """Estimates of the number of states for many sets of bound parameters at once. A set is a bit mask."""

    def __init__(self, extents: Mapping[str, int], names: Sequence[str], rules: Sequence[Rule]) -> None:
        bits = {name: 1 << i for i, name in enumerate(names)}
        self.logs = [(bits[name], float(np.log2(extents[name]))) for name in names]
        self.rules = [_RuleEstimate(rule, bits, self._spend) for rule in rules]
        self.elements = _MOST_ELEMENTS
        self.refines = len(names) * len(rules) * (len(names) + len(rules)) <= _MOST_TERMS

    def _spend(self, elements: int) -> bool:
        """Return whether a table of some elements may still be read."""
        self.elements -= elements
        return self.elements >= 0

    def log_states(self, sets: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the binary logarithm of the estimated number of states, float64 (n_sets,).

        The state of a rule is represented in one of two ways: by the values of its bound parameters, as if independent
        except for the rules that they settle, or by its classes, the combinations that it can still distinguish. The
        smaller representation is chosen greedily.
        """
        bound = [sets & rule.mask for rule in self.rules]
        open_ = [(rule.mask & ~sets != 0) & (part != 0) for rule, part in zip(self.rules, bound, strict=True)]
        estimates = [rule.estimates(part) for rule, part in zip(self.rules, bound, strict=True)]
        by_class = [np.zeros(len(sets), dtype=bool) for _ in self.rules]

        def total() -> NDArray[np.float64]:
            by_value = np.zeros_like(sets)
            for part, is_open, classed in zip(bound, open_, by_class, strict=True):
                by_value |= np.where(is_open & ~classed, part, 0)
            logs = np.zeros(len(sets))
            for bit, log in self.logs:
                logs += np.where(by_value & bit, log, 0.0)
            for part, (classes, share), is_open, classed in zip(bound, estimates, open_, by_class, strict=True):
                logs += np.where(part & ~by_value == 0, share, 0.0)
                logs += np.where(is_open & classed, classes, 0.0)
            return logs

        best = total()
        for classed in (*by_class, *by_class) if self.refines else ():
            classed ^= True
            trial = total()
            better = trial < best
            classed ^= ~better
            best = np.where(better, trial, best)
        return best


class _RuleEstimate:
    """Sizes of the state of one rule when some of its parameters are bound, computed at first use."""

    def __init__(self, rule: Rule, bits: Mapping[str, int], spend: Callable[[int], bool]) -> None:
        self.spend = spend
        table = rule.table
        while table.size > _LARGEST_TABLE:
            axis = int(np.argmax(table.shape))
            table = table.take(range(0, table.shape[axis], 2), axis=axis)
        self.table = table
        self.bits = [bits[name] for name in rule.names]
        self.mask = np.int64(sum(self.bits))
        self.known: dict[int, tuple[float, float]] = {}

    def estimates(self, bound: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the logarithms of the number of classes, and of the share of combinations that can be completed."""
        masks, inverse = np.unique(bound, return_inverse=True)
        found = np.array([self._estimate(int(mask)) for mask in masks])[inverse]
        return found[:, 0], found[:, 1]

    def _estimate(self, mask: int) -> tuple[float, float]:
        if mask not in self.known:
            axes = [axis for axis, bit in enumerate(self.bits) if mask & bit]
            others = [axis for axis, bit in enumerate(self.bits) if not mask & bit]
            if not self.spend(self.table.size):
                return sum(float(np.log2(self.table.shape[axis])) for axis in axes), 0.0
            rows = self.table.transpose(axes + others).reshape(
                int(np.prod([self.table.shape[axis] for axis in axes])), -1
            )
            weights = np.random.default_rng(0).integers(1, 2**40, rows.shape[1])
            hashes = rows @ weights
            live = hashes[hashes > 0]
            share = max(len(live) / len(rows), 1e-6)
            self.known[mask] = float(np.log2(max(len(np.unique(live)), 1))), float(np.log2(share))
        return self.known[mask]
