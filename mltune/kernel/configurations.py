"""Tables of configurations with values of any type, as search spaces."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mltune.errors import SpaceError, UsageError
from mltune.files.text import did_you_mean, printable
from mltune.kernel.coding import code_ordered
from mltune.kernel.expressions import Expression, parse
from mltune.kernel.space import TableSpace, find

Values: TypeAlias = Mapping[str, Sequence[Any]]
"""The values of each parameter by name: distinct, hashable, and listed so that neighbours are similar."""

Restrictions: TypeAlias = Sequence[str | Callable[[dict[str, Any]], bool]]
"""Conditions that a configuration satisfies: expressions, or functions of a configuration as a dict."""

MOST = 2_000_000
"""Most configurations of a list."""

MOST_COMBINED = 8_000_000
"""Most combinations of some parameters before restrictions are applied to them."""


class ConfigurationTable:
    """A table of distinct configurations; `positions` are those of each value in the list of its parameter.

    The index in its `space` is the row. Whole numbers stay in the space; other values are positions, in ascending order
    if they are numbers, otherwise as listed.
    """

    def __init__(self, values: Values, positions: NDArray[np.integer[Any]]) -> None:
        self.names = tuple(values)
        self._values = [tuple(listed) for listed in values.values()]
        self._codes = [dict(zip(listed, code_ordered(listed).integers, strict=True)) for listed in self._values]
        self._positions = positions
        self._rows: dict[tuple[Hashable, ...], int] = {}
        columns = {}
        for name, codes, column in zip(self.names, self._codes, positions.T, strict=True):
            columns[name] = np.fromiter(codes.values(), dtype=np.int64, count=len(codes))[column]
        self.space = TableSpace(columns)

    @classmethod
    def from_rows(cls, values: Values, rows: Sequence[Sequence[Hashable]]) -> ConfigurationTable:
        """Return the table of configurations that are given by their values, in the order of the parameters."""
        columns = []
        for at, listed in enumerate(values.values()):
            place = {value: position for position, value in enumerate(listed)}
            columns.append(np.fromiter((place[row[at]] for row in rows), dtype=np.int32, count=len(rows)))
        return cls(values, np.stack(columns, axis=1) if columns else np.empty((0, 0), dtype=np.int32))

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, row: int) -> tuple[Any, ...]:
        return tuple(listed[at] for listed, at in zip(self._values, self._positions[row].tolist(), strict=True))

    def row_of(self, configuration: Sequence[Hashable]) -> int:
        """Return the row of a configuration; -1 if it is not in the table."""
        key = tuple(configuration)
        if key not in self._rows:
            coded = zip(self.names, self._codes, key, strict=True)
            self._rows[key] = find(self.space, {name: codes[value] for name, codes, value in coded if value in codes})
        return self._rows[key]

    def rows_with(self, values: Mapping[str, Hashable]) -> NDArray[np.int64]:
        """Return the rows in which some parameters have known values. Names of other parameters are ignored."""
        matches = np.ones(len(self), dtype=bool)
        for name, listed, column in zip(self.names, self._values, self._positions.T, strict=True):
            if name in values:
                matches &= column == (listed.index(values[name]) if values[name] in listed else -1)
        return np.flatnonzero(matches)


def plain(value: Any) -> Any:
    """Return a value without a type of NumPy."""
    return value.item() if isinstance(value, np.generic) else value


def plain_values(parameters: Values) -> Values:
    """Return values as JSON writes them, without the types of numpy."""
    for name, listed in parameters.items():
        if isinstance(listed, str) or not isinstance(listed, Iterable):
            got = printable(f"{name}={listed!r}", 200)
            raise UsageError(f"{got} is no list of values; a parameter has one, such as [64, 128].")
    lists = {name: [*map(plain, listed)] for name, listed in parameters.items()}
    for name, listed in lists.items():
        for value in listed:
            if value is not None and not isinstance(value, bool | int | float | str):
                got = printable(repr(value), 200)
                raise UsageError(f"{got} cannot be a value of {name!r}: it is a bool, int, float, str or None.")
    return lists


def list_configurations(parameters: Values, restrictions: Restrictions = ()) -> ConfigurationTable:
    """List the combinations of values that satisfy all restrictions.

    Parameters
    ----------
    parameters : mapping of str to sequence
        Their values.
    restrictions : sequence of str or callable
        Expressions over numeric parameters in the language of :mod:`mltune.kernel.expressions`, each applied as soon
        as all its parameters have been combined, and functions, which are applied last.

    Raises
    ------
    UsageError
        A parameter has no values or one twice, or an expression uses anything but numeric parameters.
    ExpressionError
        An expression is malformed, or its numbers grow too large.
    SpaceError
        No configuration satisfies the restrictions, or there are more than :data:`MOST`.

    Examples
    --------
    >>> table = list_configurations({"block": [16, 32, 64], "layout": ["row", "column"]}, ["block < 64"])
    >>> len(table), table[0]
    (4, (16, 'row'))
    """
    for name, listed in parameters.items():
        if not 0 < len(set(listed)) == len(listed):
            raise UsageError(f"{name!r} cannot have the values {printable(list(listed), 200)}: they must be distinct.")
    expressions = [_expression(text, parameters) for text in restrictions if isinstance(text, str)]
    functions = [function for function in restrictions if not isinstance(function, str)]
    positions = combinations(parameters, expressions, functions)
    if len(positions) > MOST:
        raise _too_many(len(positions), MOST)
    if not len(positions):
        texts = ", ".join(
            restriction if isinstance(restriction, str) else getattr(restriction, "__name__", repr(restriction))
            for restriction in restrictions
        )
        raise SpaceError(f"no configuration satisfies all restrictions ({printable(texts, 500)}).")
    return ConfigurationTable(parameters, positions)


def _expression(text: str, parameters: Values) -> Expression:
    """Return a checked restriction."""
    restriction = parse(text)
    for name in sorted(restriction.names):
        if name not in parameters:
            raise UsageError(
                f"the restriction `{printable(text, 120)}` uses {name}, but the parameters are {', '.join(parameters)}"
                f"{did_you_mean(name, parameters) or '.'}"
            )
        if not all(isinstance(value, Real) for value in parameters[name]):
            raise UsageError(
                f"{name} in `{printable(text, 120)}` has {printable(list(parameters[name]), 200)}, and an expression "
                "uses numbers; use a function of the configuration instead."
            )
    return restriction


def combinations(
    parameters: Values, expressions: Sequence[Expression], functions: Sequence[Callable[[dict[str, Any]], bool]]
) -> NDArray[np.int32]:
    """Return the positions of the values of all combinations that satisfy expressions, and then functions."""
    positions = np.zeros((1, 0), dtype=np.int32)
    columns: dict[str, NDArray[Any]] = {}
    waiting = list(expressions)
    for name, listed in parameters.items():
        if len(positions) * len(listed) > MOST_COMBINED:
            raise _too_many(len(positions) * len(listed), MOST_COMBINED)
        added = np.tile(np.arange(len(listed), dtype=np.int32), len(positions))
        positions = np.column_stack([np.repeat(positions, len(listed), axis=0), added])
        columns[name] = np.array(listed)
        is_last = len(columns) == len(parameters)
        for restriction in [restriction for restriction in waiting if is_last or restriction.names <= columns.keys()]:
            waiting.remove(restriction)
            table = {
                used: columns[used][positions[:, at]] for at, used in enumerate(columns) if used in restriction.names
            }
            positions = positions[np.broadcast_to(restriction.holds(table), len(positions))]
    if not functions:
        return positions
    lists = list(parameters.items())
    rows = ({name: listed[at] for (name, listed), at in zip(lists, row, strict=True)} for row in positions.tolist())
    held = [all(function(row) for function in functions) for row in rows]
    kept: NDArray[np.int32] = positions[np.array(held, dtype=bool)]
    return kept


def _too_many(count: int, most: int) -> SpaceError:
    return SpaceError(
        f"there are {count:,} configurations, of which at most {most:,} are listed; give fewer values, or restrictions "
        "over the first parameters."
    )
