"""Count, rank and sample the valid configurations of a kernel exactly, without enumerating them.

The parameters are bound one after another. Each rule (a restriction, or several over the same parameters) is an
automaton that reads the values of its parameters in that order and stops as soon as no completion can satisfy it. A
*state* of a layer combines the states of the rules that are not yet settled. Combinations of values with equal states
have the same completions, so a layer has each state once. A backward pass counts the completions of each state, and
with these counts every valid configuration has a rank. This is dynamic programming over whole columns.

The number of states depends on the order of the parameters only: thousands with a good order, billions with a poor one.
A beam search over sets of bound parameters finds a good order; sets suffice, because the number of states does not
depend on the order inside a set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mltune.errors import SpaceError
from mltune.files.text import printable
from mltune.kernel.bundle import Kernel
from mltune.kernel.coding import Codes, number_rows
from mltune.kernel.parts import Restriction

BEAM = 400
"""Number of sets of bound parameters that the search keeps at each step; the indices of a space depend on it."""

_LARGEST_TABLE = 1 << 17
_MOST_ELEMENTS = 1 << 27
_MOST_TERMS = 1 << 18
"""Bounds on the work of the search; beyond them its estimates are coarser."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A table of the combinations of some parameters that satisfy restrictions: an axis for each parameter."""

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
        self.bits = np.array([[bits[name]] for name in names])
        self.logs = np.array([[float(np.log2(extents[name]))] for name in names])
        self.rules = [_RuleEstimate(rule, bits, self._spend) for rule in rules]
        self.elements = _MOST_ELEMENTS
        self.refines = len(names) * len(rules) * (len(names) + len(rules)) <= _MOST_TERMS

    def _spend(self, elements: int) -> bool:
        """Return whether a table of some elements may still be read."""
        self.elements -= elements
        return self.elements >= 0

    def log_states(self, sets: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the binary logarithm of the estimated number of states, float64 (n_sets,).

        The state of a rule is represented by the values of its bound parameters, as if independent except for the rules
        that they settle, or by its classes, the combinations that it can still distinguish: greedily the smaller of
        both.
        """
        masks = np.array([[rule.mask] for rule in self.rules])
        bound = sets & masks  # one row for each rule
        open_ = (masks & ~sets != 0) & (bound != 0)
        estimates = np.array([rule.estimates(part) for rule, part in zip(self.rules, bound, strict=True)])
        classes, share = np.where(open_, estimates[:, 0], 0.0), estimates[:, 1]
        by_class = np.zeros(bound.shape, dtype=bool)
        values = np.where(open_, bound, 0)
        parts = np.empty((len(self.bits) + 2 * len(bound), len(sets)))
        of_values, of_rules = parts[: len(self.bits)], parts[len(self.bits) :]
        of_shares, of_classes = of_rules[::2], of_rules[1::2]

        def total() -> NDArray[np.float64]:
            by_value = np.bitwise_or.reduce(np.where(by_class, 0, values), axis=0)
            of_values[:] = np.where(by_value & self.bits, self.logs, 0.0)
            of_shares[:] = np.where(bound & ~by_value == 0, share, 0.0)
            of_classes[:] = np.where(by_class, classes, 0.0)
            logs: NDArray[np.float64] = parts.sum(axis=0)
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
        self.weights = np.random.default_rng(0).integers(1, 2**40, table.size)
        self.bits = [bits[name] for name in rule.names]
        self.mask = np.int64(sum(self.bits))
        self.known: dict[int, tuple[float, float]] = {}

    def estimates(self, bound: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the logarithms of the number of classes, and of the share of combinations that can be completed."""
        masks, inverse = np.unique(bound, return_inverse=True)
        estimates = np.array([self._estimate(int(mask)) for mask in masks])[inverse]
        return estimates[:, 0], estimates[:, 1]

    def _estimate(self, mask: int) -> tuple[float, float]:
        if mask not in self.known:
            axes = [axis for axis, bit in enumerate(self.bits) if mask & bit]
            free_axes = [axis for axis, bit in enumerate(self.bits) if not mask & bit]
            if not self.spend(self.table.size):
                return sum(float(np.log2(self.table.shape[axis])) for axis in axes), 0.0
            count = math.prod(self.table.shape[axis] for axis in axes)
            rows = self.table.transpose(axes + free_axes).reshape(count, -1)
            hashes = rows @ self.weights[: rows.shape[1]]
            live = hashes[hashes > 0]
            share = max(len(live) / len(rows), 1e-6)
            self.known[mask] = float(np.log2(max(len(np.unique(live)), 1))), float(np.log2(share))
        return self.known[mask]


MAX_BYTES = 1 << 30
"""Most memory that counting may take, as estimated from the number of states."""

MAX_COMBINATIONS = 1 << 25
"""Largest number of combinations of the parameters of restrictions, all of them together."""

MAX_OPERATIONS = 1 << 29
"""Most operations that evaluate the restrictions for these combinations: some seconds; counting takes half as many."""

_CHUNK = 1 << 16
_KEPT_BYTES, _WORKING_BYTES, _COLUMN_BYTES = 12, 64, 4
"""Bytes of a step between layers once it is counted, and while it is; bytes of a state of a rule."""


@dataclass(frozen=True, slots=True)
class Layers:
    """The valid configurations as paths through layers of states; a configuration is given as positions of its values.

    `order` has the parameters as the layers bind them. For each layer, state and value `steps` has the state in the
    next layer, or -1 if the combination is not valid, and `before` the number of completions with earlier values, in
    the last column of all. The last row and column of `steps`, which an index of -1 selects, are -1, so an invalid
    configuration stays invalid.
    """

    order: tuple[str, ...]
    steps: Sequence[NDArray[np.int32]]
    before: Sequence[NDArray[np.int64]]

    @property
    def count(self) -> int:
        """Number of valid configurations."""
        return int(self.before[0][0, -1])

    def unrank(self, ranks: NDArray[np.int64]) -> Codes:
        """Return the codes of the configurations of given ranks, each in ``[0, count)``."""
        rest = np.array(ranks, dtype=np.int64)
        state = np.zeros(len(rest), dtype=np.int64)
        codes = {}
        for name, steps, before in zip(self.order, self.steps, self.before, strict=True):
            code = np.sum(before.take(state, axis=0) <= rest[:, None], axis=1) - 1
            place = state * steps.shape[1] + code
            rest -= before.take(place)
            state = steps.take(place).astype(np.int64)
            codes[name] = code
        return codes

    def rank(self, codes: Codes) -> NDArray[np.int64]:
        """Return the ranks of configurations, -1 where one is not valid."""
        state = np.zeros(len(codes[self.order[0]]), dtype=np.int64)
        ranks = np.zeros(len(state), dtype=np.int64)
        for name, steps, before in zip(self.order, self.steps, self.before, strict=True):
            place = state * steps.shape[1] + codes[name]
            ranks += before.take(place)
            state = steps.take(place).astype(np.int64)
        return np.where(state >= 0, ranks, -1)

    def repair(self, codes: Codes) -> Codes:
        """Return valid codes near given ones: in each layer the nearest value in the list that can be completed."""
        state = np.zeros(len(codes[self.order[0]]), dtype=np.int64)
        chosen = {}
        for name, steps in zip(self.order, self.steps, strict=True):
            distance = np.abs(np.arange(steps.shape[1]) - codes[name][:, None])
            code = np.argmin(np.where(steps.take(state, axis=0) >= 0, distance, np.iinfo(np.int64).max), axis=1)
            state = steps.take(state * steps.shape[1] + code).astype(np.int64)
            chosen[name] = code
        return chosen


def build_layers(kernel: Kernel, variables: Mapping[str, int]) -> Layers:
    """Build the layers of a kernel's valid configurations."""
    extents = {name: len(values) for name, values in kernel.all_parameters.items()}
    if math.prod(extents.values()) >= 2**200:
        raise SpaceError(f"{kernel.name} has 2**200 combinations or more, too many for a search space")
    rules = [rule for rule in _make_rules(kernel, variables) if not rule.table.all()]  # of no use to the states
    order = choose_order(extents, rules)
    return _count(order, _walk(order, extents, rules))


def _make_rules(kernel: Kernel, variables: Mapping[str, int]) -> list[Rule]:
    """Tabulate the restrictions. A restriction whose parameters are all in another's is merged with it."""
    groups: list[tuple[frozenset[str], list[Restriction]]] = []
    by_size = ((kernel.space.parameters_of(r.expression.names), r) for r in kernel.space.restrictions)
    for names, restriction in sorted(by_size, key=lambda pair: -len(pair[0])):
        home = next((members for larger, members in groups if names <= larger), None)
        if home is None:
            groups.append((names, [restriction]))
        else:
            home.append(restriction)
    _check_work(kernel, groups)
    return [_make_rule(kernel, variables, names, members) for names, members in groups]


def _check_work(kernel: Kernel, groups: Sequence[tuple[frozenset[str], Sequence[Restriction]]]) -> None:
    """Check that the tables of the restrictions are small enough, before any is made."""
    sizes = [math.prod(len(kernel.all_parameters[name]) for name in names) for names, _ in groups]
    parts = [kernel.space.parts_of(restriction.expression for restriction in members) for _, members in groups]
    operations = [size * count for size, count in zip(sizes, parts, strict=True)]
    if sum(sizes) <= MAX_COMBINATIONS and sum(operations) <= MAX_OPERATIONS:
        return
    size, (names, members) = max(zip(operations, sizes, groups, strict=True), key=lambda work: work[0])[1:]
    raise SpaceError(
        f"the restrictions of {kernel.name} have {sum(sizes):.4g} combinations and take {sum(operations):.4g} "
        f"operations, more than {MAX_COMBINATIONS} and {MAX_OPERATIONS}, most of them for "
        f"`{printable(members[0].text, 120)}` over {printable(', '.join(sorted(names)), 120)} ({size:.4g} "
        "combinations); split it"
    )


def _make_rule(
    kernel: Kernel, variables: Mapping[str, int], names: frozenset[str], restrictions: Sequence[Restriction]
) -> Rule:
    """Tabulate restrictions over the combinations of some parameters."""
    values = kernel.all_parameters
    ordered = tuple(name for name in values if name in names)
    shape = tuple(len(values[name]) for name in ordered)
    flat = np.empty(math.prod(shape), dtype=bool)
    for start in range(0, flat.size, _CHUNK):
        chunk = np.arange(start, min(start + _CHUNK, flat.size))
        codes = np.unravel_index(chunk, shape) if shape else ()
        columns = {name: np.asarray(values[name])[code] for name, code in zip(ordered, codes, strict=True)}
        scope = kernel.space.scope({**variables, **columns})
        holds = np.ones(len(chunk), dtype=bool)
        for restriction in restrictions:
            holds &= restriction.expression.holds(scope)
        flat[chunk] = holds
    return Rule(ordered, flat.reshape(shape))


class _Automaton:
    """The minimal automaton that reads a rule's parameters in order; its states are numbered from 0 at each step.

    For each parameter, state and value `steps` has the next state, or -1 if no completion satisfies the rule.
    """

    def __init__(self, rule: Rule) -> None:
        self.steps: dict[str, NDArray[np.int32]] = {}
        self.sizes: dict[str, int] = {}
        state = np.where(rule.table.ravel(), np.int32(0), np.int32(-1))
        size = 1
        for name, extent in zip(reversed(rule.names), reversed(rule.table.shape), strict=True):
            rows = state.reshape(-1, extent)
            live = (rows >= 0).any(axis=1)
            number, representative = number_rows(list((rows[live] + 1).T), [size + 1] * extent)
            self.steps[name] = rows[live][representative].astype(np.int32)
            self.sizes[name] = size
            state = np.full(len(rows), -1)
            state[live] = number
            size = max(len(representative), 1)
        self.satisfiable = bool(state[0] >= 0)


def _walk(order: Sequence[str], extents: Mapping[str, int], rules: Sequence[Rule]) -> list[NDArray[np.int32]]:
    """Bind the parameters one by one; return the steps of each layer."""
    automata = [_Automaton(rule.ordered(order)) for rule in rules]
    last = {i: max(rule.names, key=order.index) for i, rule in enumerate(rules) if rule.names}
    n_states = int(all(automaton.satisfiable for automaton in automata))
    states: dict[int, NDArray[np.int32]] = {}
    sizes: dict[int, int] = {}
    layers = []
    cells = work = 0
    for name in order:
        moved = [i for i, automaton in enumerate(automata) if name in automaton.steps]
        cells += n_states * extents[name]
        work += n_states * (extents[name] * (1 + len(moved)) + len(states))
        wanted_bytes = _KEPT_BYTES * cells + n_states * (
            extents[name] * (_WORKING_BYTES + _COLUMN_BYTES * len(moved)) + _COLUMN_BYTES * len(states)
        )
        if wanted_bytes > MAX_BYTES or work > MAX_OPERATIONS // 2:
            raise SpaceError(
                f"restrictions couple too many parameters: before {name} is bound they distinguish {n_states} "
                f"combinations, and counting them takes {wanted_bytes:.3g} bytes and {work:.3g} operations, of at most "
                f"{MAX_BYTES} and {MAX_OPERATIONS // 2}; use fewer parameters in each"
            )
        # The rules that read the parameter have far fewer combinations of states than there are states.
        read = [i for i in moved if i in states]
        mixed, readers = number_rows([states[i] for i in read], [sizes[i] for i in read], n_states)
        alive = np.ones((len(readers), extents[name]), dtype=bool)
        targets = {}
        for i in moved:
            before = states[i].take(readers) if i in states else np.zeros(len(readers), dtype=np.int32)
            targets[i] = automata[i].steps[name].take(before, axis=0) if n_states else np.zeros(alive.shape, np.int32)
            alive &= targets[i] >= 0
        continued = [i for i in moved if last[i] != name]
        sizes |= {i: automata[i].sizes[name] for i in continued}
        number, arrivals = number_rows(
            [targets[i][alive] for i in continued], [sizes[i] for i in continued], int(alive.sum())
        )
        moves = np.full(alive.shape, -1, dtype=np.int32)
        moves[alive] = number
        arrived = {i: targets[i][alive].take(arrivals) for i in continued}
        kept = [i for i in states if i not in moved]
        settled, first = number_rows([states[i] for i in kept], [sizes[i] for i in kept], n_states)
        steps = moves.take(mixed, axis=0)
        places = np.flatnonzero(steps >= 0)
        parent = places // extents[name]
        moved_to = steps.take(places)
        number, representative = number_rows(
            [settled.take(parent), moved_to], [max(len(first), 1), max(len(arrivals), 1)]
        )
        steps.ravel()[places] = number
        layers.append(steps)
        ancestors = parent[representative]
        states = {i: states[i].take(ancestors) for i in kept}
        states |= {i: column.take(moved_to[representative]) for i, column in arrived.items()}
        n_states = len(representative)
    return layers


def _count(order: tuple[str, ...], layers: Sequence[NDArray[np.int32]]) -> Layers:
    """Count the completions of each state, from the last layer to the first; drop the states without any."""
    kept_steps: list[NDArray[np.int32]] = []
    kept_before: list[NDArray[np.int64]] = []
    # of each state of the next layer; the index -1 selects the last entry
    completions = np.array([1, 0], dtype=np.int64)
    renumbered = np.array([0, -1], dtype=np.int32)
    for targets in reversed(layers):
        of_each = completions.take(targets)
        may_overflow = int(completions.max()) * targets.shape[1] >= 2**62
        if may_overflow and np.any(np.sum(of_each, axis=1, dtype=np.float64) >= 2.0**62):
            raise SpaceError("the search space has 2**62 valid configurations or more, too many")
        before = np.zeros((len(targets) + 1, targets.shape[1] + 1), dtype=np.int64)
        np.cumsum(of_each, axis=1, out=before[:-1, 1:])
        completions = before[:, -1].copy()
        keep = np.flatnonzero(completions)
        steps = np.full((len(keep) + 1, targets.shape[1] + 1), -1, dtype=np.int32)
        steps[:-1, :-1] = renumbered.take(targets if len(keep) == len(targets) else targets.take(keep, axis=0))
        kept_steps.insert(0, steps)
        kept_before.insert(0, before if len(keep) == len(targets) else before.take(np.append(keep, -1), axis=0))
        renumbered = np.full(len(targets) + 1, -1, dtype=np.int32)
        renumbered[keep] = np.arange(len(keep))
    return Layers(order, kept_steps, kept_before)
