"""The parts of a kernel: its source, its search space, its launch, its resources, and its compiler parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from mltune.errors import ExpressionError, UsageError
from mltune.kernel.coding import Columns, columns_of, labelled, length
from mltune.kernel.compiler_parameters import Variant, variant_of
from mltune.kernel.evaluation import Partial
from mltune.kernel.expressions import Expression, Value, parse
from mltune.kernel.launch import Launch, TensorMap

_ZERO, _ONE = parse("0"), parse("1")
Shape = tuple[Expression, Expression, Expression]


@dataclass(frozen=True, slots=True)
class Restriction:
    """A condition that every configuration satisfies, with the reason that is shown to users.

    One that holds `only_in_search` excludes what would run, but does the same as another configuration for a problem.
    """

    expression: Expression
    reason: str
    only_in_search: bool = False

    @property
    def text(self) -> str:
        """The condition as written."""
        return self.expression.text


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSource:
    """What is compiled: the CUDA text with its headers and options, None without one: such a kernel is only replayed.

    `entry` is the kernel function (``extern "C"``). `headers` are texts by the name in ``#include``; `header_paths` are
    paths in the kernel's folder of those included by another name, `include` folders there. `architecture` is the only
    one compiled for, such as ``"sm_90a"``, or empty (:meth:`Kernel.architecture_on`). `generator` returns the text of a
    configuration given as a dict; `text` is then that of the first. `sha256` is of text, headers, entry, launch and
    files of controls; `same_as` has those of versions that compile to the same machine code, and launch it alike.
    """

    text: str | None = None
    entry: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    header_paths: Mapping[str, str] = field(default_factory=dict)
    include: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    architecture: str = ""
    generator: Callable[[dict[str, Any]], str] | None = None
    sha256: str = ""
    same_as: tuple[str, ...] = ()

    def text_of(self, values: dict[str, Any]) -> str:
        """Return the text of a configuration, of which the values are passed; the kernel has a source."""
        return (self.text or "") if self.generator is None else generated(self.generator, values)

    def is_version(self, sha256: str) -> bool:
        """Return whether a hash is that of this source, or of one that compiles to the same machine code."""
        return sha256 == self.sha256 or sha256 in self.same_as


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSpace:
    """The parameters of a kernel, and the expressions over them.

    `parameters` are macros that are compiled in; `launch_parameters` need no compile for another value. Those with
    `labels` (values that are no integers) count positions in these. A `derived` value uses only names before it.
    `configurations` are the valid ones where they are listed, None where `restrictions` define them. `default` is
    measured first; it may be empty. `variables` are those of a problem that expressions may use, `preset` the name of
    this part of the space, or empty. `sha256` is that of parameters, derived names and restrictions.
    """

    parameters: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    launch_parameters: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    labels: Mapping[str, tuple[float | str, ...]] = field(default_factory=dict)
    derived: Mapping[str, Expression] = field(default_factory=dict)
    restrictions: tuple[Restriction, ...] = ()
    configurations: Columns | None = None
    default: Mapping[str, int] = field(default_factory=dict)
    variables: frozenset[str] = frozenset()
    preset: str = ""
    sha256: str = ""

    @property
    def needed(self) -> list[Restriction]:
        """The restrictions without which a configuration does not run."""
        return [restriction for restriction in self.restrictions if not restriction.only_in_search]

    def labelled(self, configuration: Mapping[str, int]) -> dict[str, int | float | str]:
        """Return a configuration with labels in place of their positions."""
        return labelled(configuration, self.labels)

    def values_of(self, configuration: Mapping[str, int]) -> dict[str, int | float | str]:
        """Return the values of a configuration that are compiled in."""
        return self.labelled({name: configuration[name] for name in self.parameters})

    def scope(self, variables: Mapping[str, Value]) -> Scope:
        """Return the names that expressions may use: variables, and derived names, computed at first use.

        A parameter with labels is passed by its positions, and stands for its labels.
        """
        texts = {name: _labels_at(labels, variables[name]) for name, labels in self.labels.items() if name in variables}
        return Scope({**variables, **texts}, self.derived)

    def evaluate(
        self, columns: Columns, variables: Mapping[str, int], expressions: Mapping[str, Expression] | None = None
    ) -> dict[str, NDArray[Any]]:
        """Evaluate expressions, by default the derived names, over a table; undefined values are an ExpressionError."""
        scope = self.scope({**variables, **columns})
        chosen = self.derived if expressions is None else expressions
        size = length(columns)
        return {name: _column(name, expression, scope, size) for name, expression in chosen.items()}

    def parameters_of(self, names: Iterable[str]) -> frozenset[str]:
        """Return the parameters that names depend on, through derived names."""
        return frozenset(self._reached(names) & {*self.parameters, *self.launch_parameters})

    def parts_of(self, expressions: Iterable[Expression]) -> int:
        """Return the number of parts that are evaluated for expressions, those of derived names once each."""
        used = list(expressions)
        reached = self._reached(name for expression in used for name in expression.names)
        used += (self.derived[name] for name in reached if name in self.derived)
        return sum(expression.parts for expression in used)

    def _reached(self, names: Iterable[str]) -> set[str]:
        """Return names and all that they depend on."""
        reached: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name not in reached:
                reached.add(name)
                waiting += self.derived[name].names if name in self.derived else ()
        return reached


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRule:
    """How a configuration is launched, by expressions.

    `shared_bytes` is dynamic and of a block. `workspace` is bytes that a launch is given besides its arguments, None
    for a kernel that takes none; `zeros` are those at its beginning that are zero before and after a launch, None for
    all. `arguments` are launch parameters that follow the problem's arguments in a call, in order. `tensor_maps` have
    the place of an array among the problem's arguments, and the other fields of a :class:`TensorMap`.
    """

    block: Shape = (_ONE, _ONE, _ONE)
    grid: Shape = (_ONE, _ONE, _ONE)
    shared_bytes: Expression = _ZERO
    workspace: Expression | None = None
    zeros: Expression | None = None
    arguments: tuple[str, ...] = ()
    tensor_maps: tuple[tuple[int, tuple[Expression, ...]], ...] = ()

    has_formulas: ClassVar[bool] = True
    """Whether the shape of a launch is given by expressions, and so is known at every size."""

    def launch(self, space: KernelSpace, configuration: Mapping[str, int], variables: Mapping[str, int]) -> Launch:
        """Return the launch of a configuration; a size that is not an integer, or negative, is an ExpressionError."""
        (launch,) = self.launches(space, [configuration], variables)
        return launch

    def launches(
        self, space: KernelSpace, configurations: Sequence[Mapping[str, int]], variables: Mapping[str, int]
    ) -> list[Launch]:
        """Return the launches of configurations, in hardly more time than that of one."""
        count = len(configurations)
        values = configurations[0] if count == 1 else columns_of(*configurations)  # numbers take less time than columns
        scope = space.scope({**variables, **values})

        def sizes(expressions: Iterable[Expression]) -> list[tuple[int, ...]]:
            return [*zip(*(expression.sizes(scope, count) for expression in expressions), strict=True)]

        shapes = map(sizes, (self.grid, self.block, [self.shared_bytes]))
        workspaces = [None] * count if self.workspace is None else self.workspace.sizes(scope, count)
        arguments = [tuple(int(configuration[name]) for name in self.arguments) for configuration in configurations]
        maps = [[TensorMap(place, *values) for values in sizes(fields)] for place, fields in self.tensor_maps]
        of_each = zip(*maps, strict=True) if maps else [()] * count
        return [
            Launch(grid, block, shared_bytes, passed, workspace_bytes, of_launch)
            for grid, block, (shared_bytes,), passed, workspace_bytes, of_launch in zip(
                *shapes, arguments, workspaces, of_each, strict=True
            )
        ]

    def macros(self, values: dict[str, int | float | str]) -> dict[str, int | float | str]:
        """Return the macros of a configuration: here its values alone."""
        return values


ACCESS_BYTES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Bytes that one lane can load or store: up to those that shared memory delivers at once."""


@dataclass(frozen=True, slots=True)
class Access:
    """One load or store of a kernel's main loop, with the layout of the lanes of a warp.

    `count` has the instructions of a thread in a step, `bytes` those of a lane, and `lanes` the digits of a lane's
    number, the fastest first, each with its radix and its stride in bytes.
    """

    memory: Literal["shared", "global"]
    count: Expression
    bytes: Expression
    lanes: tuple[tuple[Expression, Expression], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelResources:
    """What a kernel needs, by estimates before compiling, from which occupancy and features are computed.

    `accesses` are loads and stores of the main loop by name, for bank conflicts and cache traffic. `unit` makes the
    multiply-adds, such as ``"tensor_fp64"``; empty for that of the problem's arithmetic. A search starts from physics
    only where it `guides`.
    """

    estimates: Mapping[str, Expression] = field(default_factory=dict)
    accesses: Mapping[str, Access] = field(default_factory=dict)
    unit: str = ""
    guides: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerSpace:
    """The compiler parameters of a kernel (:mod:`mltune.kernel.compiler_parameters`), the default value first.

    Those with `labels`, texts, count positions in these. `controls` are the files that are values of
    ``apply_controls``, by name. `varied` are part of the search space; the others have their defaults.
    """

    parameters: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    labels: Mapping[str, tuple[float | str, ...]] = field(default_factory=dict)
    controls: Mapping[str, bytes] = field(default_factory=dict)
    varied: tuple[str, ...] = ()

    def variant(self, configuration: Mapping[str, int]) -> Variant:
        """Return what a configuration asks of the compiler; a parameter that it lacks has its default."""
        codes = {name: configuration.get(name, values[0]) for name, values in self.parameters.items()}
        return variant_of(labelled(codes, self.labels))

    def completed(self, configuration: Mapping[str, int]) -> dict[str, int]:
        """Return a configuration with every compiler parameter that varies, at its default if missing, and no other."""
        fixed = self.parameters.keys() - set(self.varied)
        varied = {name: value for name, value in configuration.items() if name not in fixed}
        return varied | {name: self.parameters[name][0] for name in self.varied if name not in varied}

    def with_defaults(self, columns: Columns) -> Columns:
        """Return a table of configurations with the defaults of the compiler parameters that it lacks."""
        lacking = {name: values[0] for name, values in self.parameters.items() if name not in columns}
        return {**columns, **{name: np.full(length(columns), value) for name, value in lacking.items()}}


def generated(generator: Callable[[dict[str, Any]], str], values: dict[str, Any]) -> str:
    """Return the source that a function makes for a configuration."""
    text = generator(values)
    if not isinstance(text, str):
        raise UsageError(f"the function of the source returned {text!r:.100}, not CUDA text.")
    return text


class Scope(dict[str, Value | Partial]):
    """Names and their values; derived names that are not among the variables are computed at first use and cached."""

    def __init__(self, variables: Mapping[str, Value | Partial], derived: Mapping[str, Expression]) -> None:
        super().__init__(variables)
        self._derived = derived

    def __missing__(self, name: str) -> Value | Partial:
        self[name] = value = self._derived[name].evaluate_partial(self)
        return value


def _labels_at(labels: tuple[float | str, ...], value: Value | Partial) -> Value | Partial:
    if isinstance(value, Partial | float):
        return value
    chosen = np.array(labels)[value]
    return chosen.item() if isinstance(chosen, np.floating) else np.asarray(chosen)


def _column(name: str, expression: Expression, scope: Scope, size: int) -> NDArray[Any]:
    try:
        return np.array(np.broadcast_to(expression.evaluate(scope), (size,)))
    except ExpressionError as error:
        raise ExpressionError(f"{name}: {error}") from error
